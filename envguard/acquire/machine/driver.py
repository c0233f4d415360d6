"""The NVIDIA driver, by two witnesses: the library that programs load and the module that the kernel runs.

After an upgrade of the packages the library is new and the loaded module old until a reboot; NVML then refuses with
error 18. Both versions are still on the machine: in the library's file name, and in `/proc/driver/nvidia/version`.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Any

from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
from envguard.model.fingerprint import Driver

PROC_VERSION = "/proc/driver/nvidia/version"
MODULE_VERSION = "/sys/module/nvidia/version"
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
)
LIBRARY_MISMATCH = 18
NO_DRIVER, NO_LIBRARY = 9, 12
# Two or three parts: 595.84, 595.71.05.
_VERSION = re.compile(r"\b(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)\b")
_FILE_VERSION = re.compile(r"\.so\.(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)$")


@dataclass(frozen=True)
class DriverFacts:
    """The driver's section, and what NVML's own refusal was, if it refused."""

    driver: Driver | None
    refusal: tuple[int, str] | None


def read_driver(host: Host, nvml: dict[str, Any], notes: Notes) -> DriverFacts:
    """`nvml` is what `Host.nvml` gave. None where no trace of a driver is there."""
    module = _kernel_module(host, notes)
    library = _library_file(host)
    said, cuda, refusal = _from_nvml(nvml)
    version = said if said is not None else library
    if module is None and version is None:
        return DriverFacts(None, refusal)
    mismatch = refusal is not None and refusal[0] == LIBRARY_MISMATCH
    # NVML tells the module's version once it runs: the library's own stands in its file name alone.
    ours = library or said
    agrees = False if mismatch else (ours == module if ours is not None and module is not None else None)
    if agrees is False:
        loaded, installed = module or "unknown", ours or "unknown"
        says = (
            f"the kernel runs the driver module {loaded}, the installed library is {installed}: "
            "CUDA will not start until the module is loaded anew (reboot)"
        )
        notes.problem("driver-mismatch", "driver", says, PROC_VERSION)
    return DriverFacts(
        Driver(version=ours if mismatch else version, kernel_module=module, cuda=cuda, agrees=agrees), refusal
    )


def _kernel_module(host: Host, notes: Notes) -> str | None:
    for path in (PROC_VERSION, MODULE_VERSION):
        try:
            text = host.read(path, 4096).decode("ascii", "replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            notes.unseen("driver: kernel module", error)
            continue
        found = _VERSION.search(text)
        if found is not None:
            return found.group(1)
        notes.unseen("driver: kernel module", f"{path} names no version")
    return None


def _library_file(host: Host) -> str | None:
    """The version in the name of the file that libnvidia-ml.so.1 (or libcuda.so.1) leads to."""
    for folder in LIBRARY_FOLDERS:
        for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
            try:
                if host.find(f"{folder}/{name}") is None:
                    continue
                found = _FILE_VERSION.search(posixpath.basename(host.realpath(f"{folder}/{name}")))
            except OSError:
                continue  # the other places, and NVML itself, may still tell
            if found is not None:
                return found.group(1)
    return None


def _from_nvml(nvml: dict[str, Any]) -> tuple[str | None, str | None, tuple[int, str] | None]:
    """(driver version, highest CUDA version, refusal)."""
    if nvml.get("source") == "pynvml":
        start = nvml["start"]
        if start[0] == "refused":
            return None, None, (int(start[1]), str(start[2]))
        return _value(nvml["driver"]), _cuda(nvml["cuda"]), None
    if nvml.get("source") == "nvidia-smi":
        text = str(nvml["xml"])
        if nvml["code"] != 0:
            said = f"{text} {nvml['err']}".strip()
            return None, None, (LIBRARY_MISMATCH if "mismatch" in said.lower() else int(nvml["code"]), said[:300])
        return _tag(text, "driver_version"), _tag(text, "cuda_version"), None
    return None, None, None


def _value(fact: list[Any]) -> str | None:
    return str(fact[1]) if fact[0] == "is" else None


def _cuda(fact: list[Any]) -> str | None:
    """NVML's 12080 is CUDA 12.8."""
    if fact[0] != "is" or not isinstance(fact[1], int) or fact[1] <= 0:
        return None
    return f"{fact[1] // 1000}.{fact[1] % 1000 // 10}"


def _tag(text: str, name: str) -> str | None:
    found = re.search(rf"<{name}>([^<]*)</{name}>", text)
    value = found.group(1).strip() if found is not None else ""
    return value if value not in {"", "N/A"} else None

"""GPUs and driver: as an H200 machine answered, and as NVML refuses in each of the ways that people reported."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import subprocess
import sys
import time
from types import ModuleType
from typing import Any

import pytest

from envguard.acquire.machine.gpu import GpuFacts, read_gpus
from envguard.acquire.seam.collector import nvml as reader
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.section import Section
from tests.acquire.made_up import MadeUp

OPEN_MODULE = (
    b"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs@)\n"
    b"GCC version:  gcc version 13.3.0\n"
)
CLOSED_MODULE = b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.71.05  Thu May  1 12:00:00 UTC 2026\n"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
# Two GPUs of one machine, recorded.
H200: dict[str, Any] = {
    "name": ["is", "NVIDIA H200"], "uuid_digest": ["is", "4da8637fbead784e"], "memory": ["is", 150754820096],
    "used": ["is", 644939776], "capability": ["is", [9, 0]], "mig": ["is", [0, 0]], "mig_instances": ["is", []],
    "ecc": ["is", [1, 1]], "power_limit_mw": ["is", 700000], "processes": ["is", []],
}  # fmt: skip
RECORDED: dict[str, Any] = {
    "source": "pynvml", "start": ["is", None], "count": ["is", 2],
    "gpus": [H200, {**H200, "uuid_digest": ["is", "c9af"]}],
    "driver": ["is", "580.159.04"], "cuda": ["is", 13000],
    "links": [[0, 1, {"ancestor": ["is", 30], "read": ["is", 0], "nvlink": ["is", 0]}]],
}  # fmt: skip
SMI = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
<driver_version>580.159.04</driver_version><cuda_version>13.0</cuda_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:00:06.0">
 <product_name>NVIDIA H200</product_name><serial>1652923000000</serial><uuid>GPU-11112222-3333</uuid><pdi>0x36</pdi>
 <mig_mode><current_mig>N/A</current_mig></mig_mode><ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
 <fb_memory_usage><total>143771 MiB</total><used>0 MiB</used></fb_memory_usage>
 <gpu_power_readings><current_power_limit>700.00 W</current_power_limit></gpu_power_readings>
</gpu>
</nvidia_smi_log>
"""


def machine(
    nvml: Any, files: dict[str, bytes | OSError] | None = None, library: str | None = None
) -> Section[GpuFacts]:
    """The reading of a machine with these files; `library` is what libnvidia-ml.so.1 leads to."""
    host = MadeUp(files or {}, nvml=nvml)
    if library is not None:
        host.files[LIBRARY] = b""
        host.links[LIBRARY] = f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{library}"
    return read_gpus(host)


def recorded(**changed: Any) -> dict[str, Any]:
    """The recorded answer, with some facts of the first GPU exchanged."""
    answer = copy.deepcopy(RECORDED)
    answer["gpus"][0].update(changed)
    return answer


def refused(number: int, words: str) -> dict[str, Any]:
    return {"source": "pynvml", "start": ["refused", number, words]}


def test_a_machine_as_it_answered() -> None:
    section = machine(RECORDED, {"/proc/driver/nvidia/version": OPEN_MODULE, "/dev/nvidiactl": b""}, "580.159.04")
    driver, gpus = section.value.driver, section.value.gpus
    assert driver is not None
    assert (driver.version, driver.kernel_module, driver.cuda, driver.agrees) == (
        "580.159.04", "580.159.04", "13.0", True,
    )  # fmt: skip
    assert gpus is not None
    assert [(gpu.name, gpu.compute_capability, gpu.memory_bytes) for gpu in gpus] == [
        ("NVIDIA H200", "9.0", 150754820096)
    ] * 2
    assert (gpus[0].mig, gpus[0].ecc, gpus[0].power_limit_w) == ("disabled", True, 700.0)
    assert (gpus[0].p2p, gpus[1].p2p) == ({"1": "NVLink"}, {"0": "NVLink"})
    assert gpus[0].refused == {}
    assert (section.problems, section.unknown) == ((), ())


@pytest.mark.parametrize(
    ("number", "field", "fact"),
    [
        (3, "power_limit_w", "power_limit_mw"),
        (3, "ecc", "ecc"),
        (3, "mig", "mig"),
        (4, "uuid_digest", "uuid_digest"),
        (13, "p2p", "nothing of the kind"),
    ],
)
def test_a_field_that_nvml_refuses_is_null_with_its_reason_and_the_rest_is_there(
    number: int, field: str, fact: str
) -> None:
    section = machine(recorded(**{fact: ["refused", number, "Not Supported"]}))
    assert section.value.gpus is not None
    gpu = section.value.gpus[0]
    if field != "p2p":
        assert getattr(gpu, field) is None
        assert gpu.refused == {field: f"Not Supported (error {number})"}
    assert gpu.name == "NVIDIA H200"
    assert gpu.memory_bytes == 150754820096
    assert section.unknown == ()


@pytest.mark.parametrize("fact", ["name", "memory", "capability"])
def test_what_a_launch_depends_on_is_unknown_where_it_is_refused(fact: str) -> None:
    section = machine(recorded(**{fact: ["refused", 999, "Unknown Error"]}))
    assert [item.what.split()[:2] for item in section.unknown] == [["gpu", "0"]]


def test_a_gpu_without_a_handle_is_still_counted() -> None:
    answer = recorded()
    answer["gpus"][1] = {"handle": ["refused", 15, "GPU is lost"]}
    section = machine(answer)
    assert section.value.gpus is not None
    assert section.value.gpus[1].name is None
    assert section.value.gpus[1].refused == {"all": "GPU is lost (error 15)"}
    assert section.unknown[0].what == "gpu 1"


def test_mig_instances_are_counted_by_their_profile() -> None:
    name = "NVIDIA H200 MIG 1g.18gb"
    section = machine(recorded(mig=["is", [1, 1]], mig_instances=["is", [name, name, "NVIDIA H200 MIG 3g.71gb"]]))
    assert section.value.gpus is not None
    assert section.value.gpus[0].mig == "enabled: 2 × 1g.18gb, 1 × 3g.71gb"


def test_a_pair_without_peer_access_says_so() -> None:
    answer = recorded()
    answer["links"] = [[0, 1, {"ancestor": ["is", 50], "read": ["is", 1], "nvlink": ["is", 5]}]]
    section = machine(answer)
    assert section.value.gpus is not None
    assert section.value.gpus[0].p2p == {"1": "SYS, no peer access"}


def test_no_trace_of_a_gpu_is_a_fact() -> None:
    for nvml in ({"source": None}, refused(12, "NVML Shared Library Not Found")):
        section = machine(nvml)
        assert section == Section(GpuFacts(None, ()))


def test_a_container_without_gpus_on_a_machine_that_has_some() -> None:
    section = machine({"source": None}, {"/proc/driver/nvidia/version": OPEN_MODULE})
    assert section.value.gpus == ()
    assert section.value.driver is not None
    assert section.unknown == ()


def test_unknown_error_in_a_container_is_never_no_gpu() -> None:
    files: dict[str, bytes | OSError] = {
        "/proc/driver/nvidia/version": OPEN_MODULE, "/dev/nvidiactl": b"", "/dev/nvidia0": b"",
    }  # fmt: skip
    section = machine(refused(999, "Unknown Error"), files)
    assert section.value.gpus is None
    assert [item.what for item in section.unknown] == ["gpus"]
    assert "error 999" in section.unknown[0].why


@pytest.mark.parametrize("loaded", [CLOSED_MODULE, OPEN_MODULE])
def test_a_driver_that_was_upgraded_underneath_is_named_from_both_sides(loaded: bytes) -> None:
    nvml = refused(18, "Driver/library version mismatch")
    section = machine(nvml, {"/proc/driver/nvidia/version": loaded, "/dev/nvidiactl": b""}, "595.84")
    driver = section.value.driver
    assert driver is not None
    assert driver.agrees is False
    assert driver.version == "595.84"
    assert driver.kernel_module in ("595.71.05", "580.159.04")
    assert section.value.gpus is None
    (problem,) = section.problems
    assert problem.kind == "driver-mismatch"
    assert "reboot" in problem.says
    assert "595.84" in problem.says


def test_a_library_that_is_newer_than_the_module_is_seen_without_nvml_saying_so() -> None:
    section = machine(RECORDED, {"/proc/driver/nvidia/version": OPEN_MODULE, "/dev/nvidiactl": b""}, "595.84")
    assert section.value.driver is not None
    assert section.value.driver.agrees is False


def test_a_driver_that_is_not_loaded_is_unknown_where_a_gpu_is_on_the_bus() -> None:
    bus: dict[str, bytes | OSError] = {
        "/sys/bus/pci/devices/0000:01:00.0/vendor": b"0x10de\n",
        "/sys/bus/pci/devices/0000:01:00.0/class": b"0x030200\n",
        "/sys/bus/pci/devices/0000:00:1f.0/vendor": b"0x8086\n",
        "/sys/bus/pci/devices/0000:00:1f.0/class": b"0x060100\n",
    }
    section = machine(refused(9, "Driver Not Loaded"), bus, "580.159.04")
    assert section.value.gpus is None
    section = machine(refused(9, "Driver Not Loaded"), {}, None)
    assert section.value.gpus == ()
    section = machine({"source": None}, bus)
    assert section.value.gpus == ()
    assert section.problems[0].kind == "gpu-without-driver"


def test_an_amd_gpu_is_not_called_no_gpu() -> None:
    section = machine({"source": None}, {"/dev/kfd": b""})
    assert section.value.gpus is None
    assert "AMD" in section.unknown[0].why


@pytest.mark.parametrize(
    "nvml",
    [
        OSError(110, "NVML gave no answer within 20 s"),
        {"source": None},
        {**RECORDED, "count": ["refused", 999, "Unknown Error"]},
        {"source": "nvidia-smi", "code": 9, "xml": "", "err": "NVIDIA-SMI has failed"},
        {"source": "nvidia-smi", "code": 0, "xml": "not xml <", "err": ""},
    ],
)
def test_silence_where_a_gpu_should_be_fails_closed(nvml: Any) -> None:
    section = machine(nvml, {"/proc/driver/nvidia/version": OPEN_MODULE, "/dev/nvidiactl": b""})
    assert section.value.gpus is None
    assert [item.what for item in section.unknown] == ["gpus"]


def test_a_refused_proc_file_is_unknown() -> None:
    section = machine({"source": None}, {"/proc/driver/nvidia/version": PermissionError(13, "Permission denied")})
    assert [item.what for item in section.unknown] == ["driver: kernel module"]


# --- the collector's side ------------------------------------------------------------------------------------


def test_nvidia_smi_answers_where_pynvml_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(reader, "query", lambda *_: {"code": 0, "out": SMI, "err": ""})
    answer = reader.nvml()
    assert "1652923000000" not in repr(answer)
    assert "GPU-1111" not in repr(answer)
    assert "0x36" not in repr(answer)
    section = machine(answer, {"/proc/driver/nvidia/version": OPEN_MODULE})
    driver, gpus = section.value.driver, section.value.gpus
    assert driver is not None
    assert (driver.version, driver.cuda) == ("580.159.04", "13.0")
    assert gpus is not None
    (gpu,) = gpus
    assert (gpu.name, gpu.memory_bytes, gpu.ecc, gpu.power_limit_w) == ("NVIDIA H200", 150754820096, True, 700.0)
    assert gpu.uuid_digest == hashlib.sha256(b"GPU-11112222-3333").hexdigest()[:16]
    assert gpu.mig is None
    assert gpu.refused["mig"] == "nvidia-smi says 'N/A'"


@pytest.mark.parametrize("printed", [b"\xd3\x90\xd3", b"\xff"])
def test_what_a_tool_prints_in_no_encoding_is_one_field_undecodable(
    monkeypatch: pytest.MonkeyPatch, printed: bytes
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    text = os.fsdecode(SMI.encode().replace(b"NVIDIA H200", printed))
    monkeypatch.setattr(reader, "query", lambda *_: {"code": 0, "out": text, "err": ""})
    section = machine(reader.nvml(), {"/proc/driver/nvidia/version": OPEN_MODULE})
    assert section.value.gpus is not None
    (gpu,) = section.value.gpus
    assert gpu.name is None
    assert gpu.refused["name"].startswith("undecodable: ")
    assert gpu.memory_bytes == 150754820096
    assert "gpu 0 name" in [item.what for item in section.unknown]


def test_a_number_that_is_none_is_null_with_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    text = re.sub(r"<total>[^<]*</total>", "<total>plenty</total>", SMI)
    monkeypatch.setattr(reader, "query", lambda *_: {"code": 0, "out": text, "err": ""})
    section = machine(reader.nvml(), {"/proc/driver/nvidia/version": OPEN_MODULE})
    assert section.value.gpus is not None
    (gpu,) = section.value.gpus
    assert gpu.memory_bytes is None
    assert gpu.refused["memory_bytes"] == "nvidia-smi says 'plenty'"
    assert gpu.name == "NVIDIA H200"


def test_neither_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "nvidia-smi")

    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(reader, "query", missing)
    assert reader.nvml() == {"source": None}


def test_smi_says_a_mismatch_in_words() -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 595.84\n"
    nvml = {"source": "nvidia-smi", "code": 18, "xml": said, "err": ""}
    section = machine(nvml, {"/proc/driver/nvidia/version": CLOSED_MODULE, "/dev/nvidiactl": b""}, "595.84")
    assert section.value.driver is not None
    assert section.value.driver.agrees is False


class Binding(ModuleType):
    """pynvml as the collector uses it, with one function exchanged by the test."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    class NVMLError_NotFound(NVMLError):  # noqa: N801
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        values: dict[str, Any] = {
            "nvmlDeviceGetCount": 1, "nvmlDeviceGetComputeRunningProcesses": [], "nvmlDeviceGetName": b"GPU",
            "nvmlDeviceGetUUID": "GPU-secret",
        }  # fmt: skip
        return lambda *_: values.get(name, 0)


def test_the_binding_s_refusals_become_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = Binding("pynvml")

    def refuse(*_: object) -> None:
        raise Binding.NVMLError(3)

    monkeypatch.setitem(sys.modules, "pynvml", binding)
    monkeypatch.setattr(binding, "nvmlDeviceGetEccMode", refuse)
    answer = reader.nvml()
    assert answer["gpus"][0]["ecc"] == ["refused", 3, "error 3"]
    assert answer["gpus"][0]["name"] == ["is", "GPU"]
    assert "GPU-secret" not in repr(answer)
    monkeypatch.setattr(binding, "nvmlInit", refuse)
    assert reader.nvml() == {"source": "pynvml", "start": ["refused", 3, "error 3"]}


def test_a_binding_that_hangs_or_breaks_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = Binding("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", binding)
    monkeypatch.setattr(reader, "NVML_TIMEOUT", 0.05)
    monkeypatch.setattr(binding, "nvmlInit", lambda: time.sleep(0.5))
    with pytest.raises(OSError, match="no answer"):
        reader.nvml()
    monkeypatch.setattr(reader, "NVML_TIMEOUT", 5.0)
    monkeypatch.setattr(binding, "nvmlInit", lambda: None)
    monkeypatch.setattr(binding, "nvmlDeviceGetCount", lambda: "two")
    with pytest.raises(OSError, match="pynvml: TypeError"):
        reader.nvml()


@pytest.mark.gpu
@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="there is no NVIDIA GPU here")
def test_a_real_machine_reads_as_nvidia_smi_reads_it() -> None:
    fields = "index,name,memory.total,compute_cap,power.limit,driver_version"
    said = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [line.split(", ") for line in said.splitlines()]
    section = read_gpus(LiveHost())
    assert section.unknown == ()
    assert section.value.gpus is not None
    found = [
        [
            str(gpu.index),
            gpu.name,
            str((gpu.memory_bytes or 0) >> 20),
            gpu.compute_capability,
            f"{gpu.power_limit_w:.2f}",
        ]
        for gpu in section.value.gpus
    ]
    assert found == [row[:5] for row in rows]
    assert section.value.driver is not None
    assert section.value.driver.version == rows[0][5]
    assert section.value.driver.agrees is True

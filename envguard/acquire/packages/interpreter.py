"""The interpreter of a prefix: implementation, version, ABI, platform, from its files and never by running it."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes

LIBRARY = re.compile(r"(?:python|pypy)(\d+)\.(\d+)t?$")
_PATCHLEVEL = re.compile(rb'#define\s+PY_VERSION\s+"([^"]+)"')
_EXTENSION = re.compile(r"\.((?:cpython|pypy)[\w-]+)\.so$")
_CONDA = re.compile(r"python-(\d+\.\d+\.\d+(?:[a-z][a-z0-9]*)?)-")
_PLAIN = re.compile(r"\d+(?:\.\d+){0,2}(?:(?:a|b|rc)\d+)?\+?")
MAX_BINARY = 64 << 20


@dataclass(frozen=True)
class Interpreter:
    """`abi` is the SOABI (`cpython-311-x86_64-linux-gnu`), `platform` as `sysconfig.get_platform()` has it."""

    implementation: str | None
    version: str | None
    abi: str | None
    platform: str | None


def library_folders(host: Host, prefix: str) -> tuple[str, ...]:
    """Names of the version folders below `prefix`/lib (`python3.11`, `python3.13t`, `pypy3.10`), newest last."""
    try:
        names = [name for name, kind in host.listing(f"{prefix}/lib") if kind in ("directory", "link")]
    except OSError:
        return ()
    found = [(int(match[1]), int(match[2]), name) for name in names if (match := LIBRARY.fullmatch(name))]
    return tuple(name for _, _, name in sorted(found))


def read_interpreter(host: Host, base: str | None, version: str, executable: str | None, notes: Notes) -> Interpreter:
    """Facts of the interpreter whose standard library is below `base`; what cannot be told is None and noted."""
    machine = host.machine()
    exact = _version(host, base, version, executable) if base is not None else None
    if exact is None:
        notes.unseen("python version", "neither headers, conda's record nor the interpreter's binary name it")
    return Interpreter(
        implementation="PyPy" if version.startswith("pypy") else "CPython",
        version=exact,
        abi=_abi(host, base, version) if base is not None else None,
        platform=f"{machine.system.lower()}-{machine.arch}",
    )


def _version(host: Host, base: str, version: str, executable: str | None) -> str | None:
    try:
        header = host.read(f"{base}/include/{version}/patchlevel.h", 64 << 10)
        if match := _PATCHLEVEL.search(header):
            return plain_version(match[1].decode("ascii", "replace"))
    except OSError:
        pass  # headers come with a development package: the binary is asked next
    try:
        for name, _ in host.listing(f"{base}/conda-meta"):
            if conda := _CONDA.match(name):
                return conda[1]
    except OSError:
        pass  # not conda
    return _version_in_binary(host, base, version, executable)


def _version_in_binary(host: Host, base: str, version: str, executable: str | None) -> str | None:
    """The version is a string of its own in the library, or in an interpreter that is linked statically."""
    major = version.removeprefix("python").removeprefix("pypy").rstrip("t")
    wanted = re.compile(r"\0(" + re.escape(major) + r"\.\d+(?:(?:a|b|rc)\d+)?\+?)\0")
    binaries = [f"{base}/lib/lib{version}.so.1.0", f"{base}/bin/{version}"]
    if executable is not None:
        binaries.append(host.realpath(executable))
    for path in binaries:
        try:
            # Only the places are asked for: the whole binary would end up in every bundle.
            _, texts = host.scan(path, (f"\0{major}.",), 0, 16, MAX_BINARY)
        except OSError:
            continue  # linked the other way: the next is asked
        for text in texts:
            if match := wanted.match(text):
                return match[1]
    return None


def plain_version(text: str) -> str:
    """`3.11.7` of `3.11.7.final.0`, `3.11.7+` and their like; the text itself where it has no such form."""
    match = _PLAIN.match(text)
    return match[0].rstrip("+") if match else text


def _abi(host: Host, base: str, version: str) -> str | None:
    for lib in ("lib", "lib64"):
        folder = f"{base}/{lib}/{version}"
        for place in (f"{folder}/lib-dynload", folder):
            try:
                names = [name for name, _ in host.listing(place)]
            except OSError:
                continue  # no such folder in this layout
            for name in names:
                if match := _EXTENSION.search(name):
                    return match[1]
            for name in names:
                if name.startswith("_sysconfigdata_") and name.endswith(".py"):
                    return _abi_of_sysconfig(posixpath.splitext(name)[0], version)
    return None


def _abi_of_sysconfig(name: str, version: str) -> str | None:
    """`_sysconfigdata_t_linux_x86_64-linux-gnu` of 3.13 → `cpython-313t-x86_64-linux-gnu`."""
    flags, _, rest = name.removeprefix("_sysconfigdata_").partition("_")
    triple = rest.partition("_")[2]
    digits = version.removeprefix("python").rstrip("t").replace(".", "")
    return f"cpython-{digits}{flags}-{triple}" if triple else None

"""What lay on this process's path when it imported envguard: taken then, because a later install erases it.

Standard library only, a few milliseconds, nothing parsed: a training process pays for this at its start, and
`envguard.stamp` reads it when there is something to compare.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from envguard.acquire.processes.start_environment import start_variables

_METADATA_HEAD = 32 << 10


NO_RECORD = (0, 0, 0, 0)


class CapturedDistribution(NamedTuple):
    """The bytes of a dist-info or egg-info as they were; `key` is (size, mtime, ctime, inode) of RECORD, times in ns,
    and `NO_RECORD` where there was none."""

    directory: str
    key: tuple[int, int, int, int]
    record: bytes
    metadata: bytes
    installer: bytes
    direct_url: bytes


class Capture(NamedTuple):
    """The dist-infos and egg-infos by directory, those that could not be read, which mapped files were no longer what
    their path names already then, the folders that PYTHONPATH had put on the path, and the environment variables that
    the process was started with (a title that is set later overwrites them; None where one was set before)."""

    taken_ns: int
    pid: int
    distributions: dict[str, CapturedDistribution]
    stale: frozenset[str]
    failed: tuple[str, ...]
    pythonpath: tuple[str, ...]
    started: dict[str, str] | None = None
    first: tuple[str, ...] = ()
    """The folder of the started code, which Python put first on the path; none where it was told not to."""


def capture() -> Capture:
    """Reads every dist-info and egg-info on `sys.path`; what cannot be read is named and never ends it."""
    found: dict[str, CapturedDistribution] = {}
    failed: list[str] = []
    for folder in _folders():
        try:
            names = os.listdir(folder)
        except (OSError, ValueError):
            continue  # zip files and folders that are not there or cannot be: importlib passes over them too
        for name in names:
            if name.endswith((".dist-info", ".egg-info")) or (name == "EGG-INFO" and folder.endswith(".egg")):
                directory = os.path.join(os.path.abspath(folder), name)
                try:
                    found[directory] = _dist_info(directory) if name.endswith(".dist-info") else _egg_info(directory)
                except OSError:
                    failed.append(directory)
    try:
        stale = frozenset(library.path for library in stale_libraries())
    except OSError:
        stale = frozenset()
    return Capture(
        time.time_ns(), os.getpid(), found, stale, tuple(failed), pythonpath(), start_variables(), first_folder()
    )


def first_folder() -> tuple[str, ...]:
    """What Python put first on the path: the folder of the script behind its links, else the working directory."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return ()
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    # Of `-m` the module has a spec, and the first folder is where Python was started.
    try:
        if script is None or getattr(main, "__spec__", None) is not None:
            return (os.getcwd(),)
        return (os.path.dirname(os.path.realpath(script)),)
    except OSError:
        return ()  # the working directory is gone: nothing is imported from there


def _folders() -> list[str]:
    """What import looks at: a `Path` that somebody put onto the path is passed over there, too."""
    return [folder for folder in sys.path if isinstance(folder, str) and folder]


def pythonpath() -> tuple[str, ...]:
    """The folders that PYTHONPATH put on this process's path, as absolute paths.

    They stand before the standard library. Python took relative ones from where it was started, and a process may
    have gone elsewhere since; it may set the variable for its children, which changes nothing for itself.
    """
    if sys.flags.ignore_environment:
        return ()
    packed, library = f"python{sys.version_info.major}{sys.version_info.minor}.zip", os.path.dirname(os.__file__)
    front = list(
        itertools.takewhile(
            lambda folder: folder != library and os.path.basename(folder) != packed, map(_absolute, _folders())
        )
    )
    named = [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]
    found = (_on_path(folder, front, len(named) - at) for at, folder in enumerate(named))
    return tuple(dict.fromkeys(folder for folder in found if folder is not None))


def _on_path(named: str, front: list[str], from_the_end: int) -> str | None:
    """What `named` is among the folders before the standard library; None where the process took it off."""
    if _absolute(named) in front:
        return _absolute(named)
    if os.path.isabs(named):
        return None
    end = os.path.normpath(named)
    while end.startswith("../"):
        end = end[3:]
    if end in (".", ".."):
        return front[-from_the_end] if from_the_end <= len(front) else None
    return next((folder for folder in reversed(front) if folder.endswith(f"/{end}")), None)


def _absolute(folder: str) -> str:
    try:
        return os.path.abspath(folder)
    except OSError:
        return folder  # the working directory is gone


def _dist_info(directory: str) -> CapturedDistribution:
    try:
        descriptor = os.open(directory + "/RECORD", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return CapturedDistribution(directory, NO_RECORD, b"", *_small_files(directory))
    try:
        stat = os.fstat(descriptor)
        record = os.read(descriptor, stat.st_size)
        while len(record) < stat.st_size:
            more = os.read(descriptor, stat.st_size - len(record))
            if not more:
                break
            record += more
    finally:
        os.close(descriptor)
    key = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino & 0x7FFFFFFFFFFFFFFF)
    return CapturedDistribution(directory, key, record, *_small_files(directory))


def _small_files(directory: str) -> tuple[bytes, bytes, bytes]:
    return _head(directory + "/METADATA"), _head(directory + "/INSTALLER"), _head(directory + "/direct_url.json")


def _egg_info(directory: str) -> CapturedDistribution:
    """A folder with a PKG-INFO, or that file alone."""
    file = directory + "/PKG-INFO" if os.path.isdir(directory) else directory
    return CapturedDistribution(directory, NO_RECORD, b"", _head(file), b"", b"")


def _head(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _METADATA_HEAD)
    finally:
        os.close(descriptor)


class MappedLibrary(NamedTuple):
    """A shared library in this process; `address` is where its file begins in memory."""

    path: str
    inode: int
    deleted: bool
    device: int
    address: int


def mapped_libraries() -> list[MappedLibrary]:
    """Every shared library in this process, each once. Raises OSError."""
    found: dict[tuple[str, int], MappedLibrary] = {}
    with open("/proc/self/maps", "rb") as stream:
        for line in stream:
            if b".so" not in line:
                continue
            parts = line.split(None, 5)
            if len(parts) != 6 or int(parts[2], 16) != 0:
                continue
            name = os.fsdecode(parts[5].rstrip(b"\n"))
            path = name.removesuffix(" (deleted)")
            inode = int(parts[4])
            if (path, inode) not in found:
                major, _, minor = parts[3].partition(b":")
                device = os.makedev(int(major, 16), int(minor, 16))
                address = int(parts[0].partition(b"-")[0], 16)
                found[path, inode] = MappedLibrary(path, inode, path != name, device, address)
    return list(found.values())


def stale_libraries(mapped: Iterable[MappedLibrary] | None = None) -> list[MappedLibrary]:
    """Mapped libraries that their path no longer leads to, of `mapped` or of those that are mapped now. Raises
    OSError.

    Overlay and btrfs show another device in a mapping than in a stat, and may show another inode: there only a
    deleted name counts.
    """
    libraries = mapped_libraries() if mapped is None else mapped
    return [library for library in libraries if library.deleted or _is_other(library)]


def _is_other(library: MappedLibrary) -> bool:
    try:
        now = os.stat(library.path)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return now.st_dev == library.device and now.st_ino != library.inode


def _is_command_line() -> bool:
    """`envguard …` and `python -m envguard …` look at other environments than their own, and call no stamp."""
    words = sys.orig_argv
    module = words[words.index("-m") + 1 : words.index("-m") + 2] if "-m" in words else []
    return module == ["envguard"] or os.path.basename(sys.argv[0] if sys.argv else "") == "envguard"


AT_IMPORT = (
    Capture(time.time_ns(), os.getpid(), {}, frozenset(), (), pythonpath()) if _is_command_line() else capture()
)

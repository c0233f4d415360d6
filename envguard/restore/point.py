"""The restore point: what every path that an install may touch was before, and how to put it back.

A path is a file (its bytes are kept as a copy of their own), a link, a directory, or *absent*, which is as much a
state to return to as the others. Putting back compares first, so that what was never touched keeps its inode.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from envguard.restore.copying import copy_file
from envguard.restore.progress import Progress
from envguard.state.files import read_file, write_atomically

MANIFEST = "manifest.jsonl"


class Saved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One path as it was. `path` is absolute; undecodable bytes are kept by `os.fsencode`'s escape, as latin-1."""

    path: str
    kind: Literal["file", "directory", "link", "absent"]
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    target: str | None = None
    stored: int | None = None
    """Number of the kept file below `files/`."""


def _encode(path: str) -> str:
    # JSON takes no lone surrogates; latin-1 of the raw bytes is reversible.
    return os.fsencode(path).decode("latin-1")


def _decode(path: str) -> str:
    return os.fsdecode(path.encode("latin-1"))


def describe(path: str) -> Saved:
    """The path as it is now, without its content."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return Saved(path=path, kind="absent")
    kind: Literal["file", "directory", "link"]
    target = None
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISDIR(status.st_mode):
        kind = "directory"
    elif stat.S_ISLNK(status.st_mode):
        kind, target = "link", os.readlink(path)
    else:
        raise OSError(f"{path} is neither file, directory nor link: no copy of it can be kept")
    return Saved(
        path=path,
        kind=kind,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        size=status.st_size if kind == "file" else 0,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        target=target,
    )


def to_copy(paths: Iterable[str], leaving: Collection[str], folder: Path) -> dict[str, int]:
    """Files whose bytes must be copied to be kept, with their sizes.

    A file that goes anyway is moved into the restore point and not copied, unless it lies on another file system, or
    shares its inode with something else (a uv cache): that could change it while it is kept.
    """
    out = {}
    device = os.stat(folder).st_dev
    for path in paths:
        try:
            status = os.lstat(path)
        except OSError:
            continue
        moves = path in leaving and status.st_nlink == 1 and status.st_dev == device
        if stat.S_ISREG(status.st_mode) and not moves:
            out[path] = status.st_size
    return out


def save(paths: Iterable[str], copies: Collection[str], folder: Path, progress: Progress) -> tuple[Saved, ...]:
    """Writes down how every path is and copies the files of `copies`; last, atomically, the manifest that counts.

    Nothing outside `folder` changes. The files that are not copied have their place in it (`take_away`).
    """
    files = folder / "files"
    files.mkdir(parents=True)
    kept: list[Saved] = []
    for path in sorted(set(paths)):
        saved = describe(path)
        if saved.kind == "file":
            number = len(kept)
            if path in copies:
                copy_file(path, str(files / str(number)), progress.advance)
                # A file that changed while it was copied is not what it was, nor what it is.
                if describe(path) != saved:
                    raise OSError(f"{path} changed while it was being saved")
            saved = msgspec.structs.replace(saved, stored=number)
        kept.append(saved)
    lines = []
    for saved in kept:
        target = _encode(saved.target) if saved.target is not None else None
        line = msgspec.structs.replace(saved, path=_encode(saved.path), target=target)
        lines.append(msgspec.json.encode(line) + b"\n")
    write_atomically(folder / MANIFEST, b"".join(lines))
    return tuple(kept)


def take_away(saved: tuple[Saved, ...], leaving: Collection[str], staying: Collection[str], folder: Path) -> None:
    """Removes the files that go: into the restore point where they were not copied to it; then the folders that are
    empty without them, except those of `staying`.

    A kill at any moment leaves each file in one of two places, and `put_back` looks in both.
    """
    emptied: set[str] = set()
    for entry in saved:
        if entry.path not in leaving or entry.kind not in ("file", "link"):
            continue
        stored = folder / "files" / str(entry.stored)
        if entry.kind == "link" or os.path.lexists(stored):
            os.unlink(entry.path)
        else:
            os.rename(entry.path, stored)
        emptied.add(os.path.dirname(entry.path))
    for entry in reversed(saved):  # sorted by path: what is deeper comes first
        if entry.kind == "directory" and entry.path in emptied and entry.path not in staying:
            with contextlib.suppress(OSError):  # not empty: something of a user's lies in it
                os.rmdir(entry.path)
                emptied.add(os.path.dirname(entry.path))


def load(folder: Path) -> tuple[Saved, ...]:
    """The manifest of a restore point; raises OSError or msgspec's error where it is not readable."""
    out = []
    for line in read_file(folder / MANIFEST).splitlines():
        saved = msgspec.json.decode(line, type=Saved)
        target = _decode(saved.target) if saved.target is not None else None
        out.append(msgspec.structs.replace(saved, path=_decode(saved.path), target=target))
    return tuple(out)


def same(now: Saved, before: Saved) -> bool:
    """Whether a path is as it was in kind, content, mode and mtime; ctime and inode tell without reading it."""
    if now.kind != before.kind:
        return False
    if now.kind == "file":
        return (now.inode, now.size, now.mtime_ns, now.ctime_ns) == (
            before.inode,
            before.size,
            before.mtime_ns,
            before.ctime_ns,
        )
    return now.kind == "absent" or (now.mode, now.target) == (before.mode, before.target)


def put_back(saved: tuple[Saved, ...], folder: Path, progress: Progress) -> list[str]:
    """Makes every path what it was. Returns what could not be done, in words; nothing is given up half-way."""
    failures: list[str] = []
    for entry in sorted(saved, key=lambda entry: entry.path, reverse=True):
        if entry.kind == "absent":
            _attempt(failures, entry, lambda entry=entry: _remove(entry.path))
    present = [entry for entry in saved if entry.kind != "absent"]
    for entry in present:
        if entry.kind == "directory":
            _attempt(failures, entry, lambda entry=entry: _make_directory(entry))
    for entry in present:
        if entry.kind != "directory" and not _untouched(entry):
            _attempt(failures, entry, lambda entry=entry: _replace(entry, folder))
        progress.advance(entry.size)
    for entry in reversed(present):
        if entry.kind == "directory":
            _attempt(failures, entry, lambda entry=entry: _finish_directory(entry))
    return failures


def _attempt(failures: list[str], entry: Saved, action: object) -> None:
    try:
        assert callable(action)
        action()
    except OSError as error:
        failures.append(f"{entry.path}: {error.strerror or error}")


def _untouched(entry: Saved) -> bool:
    try:
        return same(describe(entry.path), entry)
    except OSError:
        return False


def _remove(path: str) -> None:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(path)
        return
    if path.endswith(".dist-info"):
        shutil.rmtree(path)
        return
    # A folder that the install made goes when it is empty; what a user has put there since stays.
    _remove_caches(path)
    if not os.listdir(path):
        os.rmdir(path)


def _remove_caches(folder: str) -> None:
    """Bytecode of modules that are gone is nobody's file; it must not keep a folder alive as a namespace package."""
    names = os.listdir(folder)
    if names == ["__pycache__"]:
        shutil.rmtree(f"{folder}/__pycache__")


def _make_directory(entry: Saved) -> None:
    try:
        status = os.lstat(entry.path)
    except FileNotFoundError:
        os.mkdir(entry.path, 0o700)
        _own(entry, entry.path)
        os.chmod(entry.path, entry.mode | 0o700)
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(entry.path)
        os.mkdir(entry.path, 0o700)


def _finish_directory(entry: Saved) -> None:
    now = os.lstat(entry.path)
    if stat.S_IMODE(now.st_mode) != entry.mode:
        os.chmod(entry.path, entry.mode)
    if now.st_mtime_ns != entry.mtime_ns:
        os.utime(entry.path, ns=(entry.mtime_ns, entry.mtime_ns))


def _replace(entry: Saved, folder: Path) -> None:
    """Puts the kept file or link beside the path and renames it over it."""
    temporary = f"{os.path.dirname(entry.path)}/.envguard-{folder.parent.name}-{entry.stored}.tmp"
    stored = str(folder / "files" / str(entry.stored))
    try:
        if entry.kind == "link":
            assert entry.target is not None
            if os.path.lexists(temporary):
                os.unlink(temporary)
            os.symlink(entry.target, temporary)
            os.utime(temporary, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
        elif not _bring(stored, temporary, entry):
            return
        if os.path.isdir(entry.path) and not os.path.islink(entry.path):
            shutil.rmtree(entry.path)
        os.rename(temporary, entry.path)
    except OSError:
        # The moved file is the only copy there is: it goes back to where the next roll-back looks for it.
        if entry.kind == "file" and os.path.lexists(temporary) and not os.path.lexists(stored):
            os.rename(temporary, stored)
        elif os.path.lexists(temporary):
            os.unlink(temporary)
        raise


def _bring(stored: str, temporary: str, entry: Saved) -> bool:
    """Moves (on another file system: copies) a kept file to `temporary`; False where it was brought back before.

    Moving needs no room, so that a full disk cannot stop a roll-back. A roll-back that was itself killed is gone on
    with: its file is found under the temporary name, or in its place, known by size, mode and time.
    """
    if os.path.lexists(stored):
        if os.path.lexists(temporary):
            os.unlink(temporary)
        if os.lstat(stored).st_dev == os.lstat(os.path.dirname(temporary)).st_dev:
            os.rename(stored, temporary)
        else:
            copy_file(stored, temporary)
    elif not os.path.lexists(temporary):
        now = describe(entry.path)
        if (now.kind, now.size, now.mode, now.mtime_ns) == ("file", entry.size, entry.mode, entry.mtime_ns):
            return False
        raise FileNotFoundError(errno.ENOENT, "its kept copy is gone", stored)
    _own(entry, temporary)
    os.chmod(temporary, entry.mode)
    os.utime(temporary, ns=(entry.mtime_ns, entry.mtime_ns))
    return True


def _own(entry: Saved, path: str) -> None:
    now = os.lstat(path)
    if (now.st_uid, now.st_gid) != (entry.uid, entry.gid):
        os.lchown(path, entry.uid, entry.gid)


def walk_paths(root: str) -> Iterator[str]:
    """`root` and every path below it, links not followed; nothing where it is not there."""
    if not os.path.lexists(root):
        return
    yield root
    if os.path.isdir(root) and not os.path.islink(root):
        for folder, directories, names in os.walk(root):
            for name in (*directories, *names):
                yield f"{folder}/{name}"

"""Copies of files that share nothing with their source: a reflink where the file system has them, else the bytes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Callable

FICLONE = 0x40049409
_NO_REFLINK = {
    errno.EOPNOTSUPP,
    errno.EXDEV,
    errno.ENOTTY,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EPERM,
    errno.ETXTBSY,
    errno.EISDIR,
}
CHUNK = 8 << 20


def copy_file(source: str, target: str, advance: Callable[[int], None] | None = None) -> None:
    """Copies the content of a regular file to a new file `target`, which then gets the source's mode and mtime.

    Never a hard link: a shared inode would let a later edit of one change the other. Raises OSError; a target that
    could not be finished is removed.
    """
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(reading)
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if not _reflinked(reading, writing):
                _copy_bytes(reading, writing, status.st_size)
            os.fchmod(writing, status.st_mode & 0o7777)
            os.utime(writing, ns=(status.st_mtime_ns, status.st_mtime_ns))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(target)
            raise
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    if advance is not None:
        advance(status.st_size)


def _reflinked(reading: int, writing: int) -> bool:
    try:
        fcntl.ioctl(writing, FICLONE, reading)
    except OSError as error:
        if error.errno in _NO_REFLINK:
            return False
        raise
    return True


def _copy_bytes(reading: int, writing: int, size: int) -> None:
    copied = 0
    while True:
        try:
            count = os.copy_file_range(reading, writing, CHUNK)
        except OSError as error:
            if copied or error.errno not in _NO_REFLINK:
                raise
            break
        if not count:
            break
        copied += count
    if copied < size:  # no copy_file_range between these two file systems
        while chunk := os.read(reading, CHUNK):
            view = memoryview(chunk)
            while view:
                view = view[os.write(writing, view) :]


def sync_filesystem(folder: str) -> None:
    """Makes everything written to the file system that holds `folder` durable, in one call instead of one a file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), folder)
    finally:
        os.close(descriptor)

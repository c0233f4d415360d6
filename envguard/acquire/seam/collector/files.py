"""What the kernel says of paths: stats with birth times, listings, walks, links."""

import ctypes
import errno
import os
import stat as stat_module

# --- statx: os.stat knows no birth time on Linux before Python 3.15 --------------------------------------------


class _Timestamp(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_int64), ("nsec", ctypes.c_uint32), ("pad", ctypes.c_int32)]


class _Statx(ctypes.Structure):
    _fields_ = [
        ("mask", ctypes.c_uint32), ("blksize", ctypes.c_uint32), ("attributes", ctypes.c_uint64),
        ("nlink", ctypes.c_uint32), ("uid", ctypes.c_uint32), ("gid", ctypes.c_uint32),
        ("mode", ctypes.c_uint16), ("spare0", ctypes.c_uint16), ("ino", ctypes.c_uint64),
        ("size", ctypes.c_uint64), ("blocks", ctypes.c_uint64), ("attributes_mask", ctypes.c_uint64),
        ("atime", _Timestamp), ("btime", _Timestamp), ("ctime", _Timestamp), ("mtime", _Timestamp),
        ("rest", ctypes.c_uint8 * 128),
    ]  # fmt: skip


_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800
_libc = None


def birth_ns(path):
    """Birth time of `path` itself (a link is not followed) in ns since the epoch; None where the kernel has none."""
    global _libc
    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(_libc, "statx"):
        return None
    buffer = _Statx()
    flags = _AT_SYMLINK_NOFOLLOW
    if _libc.statx(_AT_FDCWD, os.fsencode(path), flags, _STATX_BTIME, ctypes.byref(buffer)) != 0:
        return None
    if not buffer.mask & _STATX_BTIME:
        return None
    if buffer.btime.sec <= 0:
        return None  # a file system image that was built without births says 1970, which is no time of birth
    return buffer.btime.sec * 10**9 + buffer.btime.nsec


def _kind(mode):
    if stat_module.S_ISREG(mode):
        return "file"
    if stat_module.S_ISDIR(mode):
        return "directory"
    if stat_module.S_ISLNK(mode):
        return "link"
    return "other"


def _facts(result, birth):
    return (
        _kind(result.st_mode), stat_module.S_IMODE(result.st_mode), result.st_size, result.st_nlink, result.st_uid,
        result.st_gid, result.st_ino, result.st_dev, result.st_mtime_ns, result.st_ctime_ns, birth,
    )  # fmt: skip


def stat(path):
    """lstat with birth time: (kind, mode, size, nlink, uid, gid, inode, device, mtime, ctime, btime|None), ns."""
    return _facts(os.lstat(path), birth_ns(path))


def stat_target(path):
    """The same for what a link leads to; no birth time, since it would be the link's own."""
    return _facts(os.stat(path), None)


def listing(path):
    """Names in a directory with their kinds, sorted by name: ((name, kind), …)."""
    with os.scandir(path) as entries:
        out = []
        for entry in entries:
            if entry.is_symlink():
                kind = "link"
            elif entry.is_dir(follow_symlinks=False):
                kind = "directory"
            else:
                kind = "file" if entry.is_file(follow_symlinks=False) else "other"
            out.append((entry.name, kind))
    out.sort()
    return tuple(out)


def walk(root, births=False, skip=()):
    """Every path below `root` with its stat: (((relative path, *facts), …), ((relative path, why), …)).

    Directories come before what they hold; links are not followed; directory names in `skip` are not entered.
    Without `births` the birth times are None: statx costs more than lstat over a hundred thousand files.
    """
    found, failed = [], []
    stack = [""]
    while stack:
        relative = stack.pop()
        directory = os.path.join(root, relative) if relative else root
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            if not relative:
                raise
            failed.append((relative, error.strerror or str(error)))
            continue
        inner = []
        for entry in entries:
            name = entry.name if not relative else relative + "/" + entry.name
            try:
                result = entry.stat(follow_symlinks=False)
                birth = birth_ns(entry.path) if births else None
            except OSError as error:
                failed.append((name, error.strerror or str(error)))
                continue
            found.append((name,) + _facts(result, birth))
            if stat_module.S_ISDIR(result.st_mode) and entry.name not in skip:
                inner.append(name)
        stack.extend(reversed(inner))
    return tuple(found), tuple(failed)


def stats(root, names):
    """What ties a content to its place, of many files at once: a flat [size, mtime, ctime, inode, …], times in ns.

    Links are followed, since what an import reads is what counts. A file that cannot be seen has its negative errno
    for a size, and EISDIR where it is no regular file. One flat list: half the cost of a tuple a file.
    """
    try:
        # Each name is looked up from here: the way to a folder deep down costs as much as the file itself.
        folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return [-(error.errno or errno.EIO), 0, 0, 0] * len(names)
    try:
        return _stats_below(folder, names)
    finally:
        os.close(folder)


def _stats_below(folder, names):
    flat = []  # type: list[int]
    look, regular = os.stat, stat_module.S_ISREG
    for name in names:
        try:
            result = look(name, dir_fd=folder)
        except OSError as error:
            flat += (-(error.errno or errno.EIO), 0, 0, 0)
            continue
        except ValueError:  # a NUL in the name: no such file can be
            flat += (-errno.ENOENT, 0, 0, 0)
            continue
        if regular(result.st_mode):
            # Overlay and cluster file systems set the top bit of an inode: kept to what a signed number holds.
            flat += (result.st_size, result.st_mtime_ns, result.st_ctime_ns, result.st_ino & 0x7FFFFFFFFFFFFFFF)
        else:
            flat += (-errno.EISDIR, 0, 0, 0)
    return flat


def order(path):
    """Names in a directory as the kernel gives them: importlib.metadata takes the first of two that fit."""
    return os.listdir(path)


def readlink(path):
    """Where a symbolic link points, as written."""
    return os.readlink(path)


def realpath(path):
    """The path with every link resolved; parts that do not exist stay as written."""
    return os.path.realpath(path)

"""Bytes of files, their digests, and what is counted or sought while they are read."""

import errno
import hashlib
import os
import stat as stat_module

WHOLE = 256 << 20
"""Bytes of a file that is read without a limit: a larger one is refused, and not taken into memory."""
HOLE = 4 << 30
"""Bytes from which on a file is looked at for a hole, whose reading would take hours and give nothing but zeros."""


def open_regular(path):
    """(descriptor, stat) of a regular file. A FIFO, socket or device is refused before it is opened: to open one may
    hang, wake the program at its other end, or rewind a tape. So is a hole. Raises OSError."""
    if not stat_module.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        result = os.fstat(descriptor)
        if not stat_module.S_ISREG(result.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        # Some file systems count no blocks, some compress: only what they call a hole themselves is one.
        if result.st_size >= HOLE and result.st_blocks * 512 < result.st_size >> 6:
            if os.lseek(descriptor, 0, os.SEEK_HOLE) < result.st_size:
                raise OSError(errno.EFBIG, "%d bytes, nearly all of them a hole" % result.st_size, path)
            os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, result


def read(path, limit=None, offset=0):
    """Bytes of a regular file: at most `limit` from `offset` (a negative offset counts from the end).

    Without a limit all of it, and EFBIG where that is more than `WHOLE`.
    """
    descriptor, result = open_regular(path)
    try:
        wanted = -offset if offset < 0 else result.st_size - offset
        if limit is None and wanted > WHOLE:
            raise OSError(errno.EFBIG, "larger than the %d MiB that are read at once" % (WHOLE >> 20), path)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            if offset:
                stream.seek(max(0, result.st_size + offset) if offset < 0 else offset)
            return stream.read() if limit is None else stream.read(limit)
    finally:
        os.close(descriptor)


def digest(path):
    """sha256 of a regular file's content, hex."""
    return hashed(path, "sha256")


def hashed(path, algorithm):
    """Digest of a regular file's content, hex, by an algorithm of hashlib's that has a length of its own."""
    descriptor, result = open_regular(path)
    try:
        # Most files of an environment are small: a buffer of their size costs less than clearing a large one.
        view = memoryview(bytearray(min(result.st_size + 1, 1 << 20)))
        hasher = hashlib.new(algorithm)
        while True:
            count = os.readv(descriptor, [view])
            if not count:
                return hasher.hexdigest()
            hasher.update(view[:count])
    finally:
        os.close(descriptor)


def lines(path):
    """[sha256 in hex, lines]: a text file's digest and its count of lines that are not blank, in one reading."""
    hasher, count, blank, last = hashlib.sha256(), 0, True, b"\n"
    descriptor, result = open_regular(path)
    os.close(descriptor)
    for offset in range(0, result.st_size, 1 << 22):
        piece = read(path, 1 << 22, offset)
        hasher.update(piece)
        data = last + piece
        if blank == (last == b"\n") and not any(mark in data for mark in (b"\n\n", b"\n\r", b"\n ", b"\n\t")):
            count += piece.count(b"\n")  # no line of it is blank: counted without looking at each
            blank = piece.endswith(b"\n")
        else:
            for part in piece.splitlines(True):
                blank = blank and not part.strip()
                if part.endswith(b"\n"):
                    count += not blank
                    blank = True
        last = piece[-1:]
    return [hasher.hexdigest(), count + (not blank)]


def chain(parts):
    """sha256, hex, over a sequence of ("text", words) and ("file", path): the words in UTF-8 and whole files."""
    hasher = hashlib.sha256()
    for kind, value in parts:
        hasher.update(value.encode("utf-8") if kind == "text" else read(value))
    return hasher.hexdigest()


def scan(path, needles, before, after, limit, most):
    """[sha256 in hex, texts]: a file's digest, and what stands around each of the plain `needles` in its first bytes.

    A text is `before` bytes, the needle and `after` bytes, in Latin-1; at most `most` a needle, within `limit` bytes.
    """
    data = read(path, limit)
    texts = []
    for needle in needles:
        sought, at = needle.encode("latin-1"), -1
        for _ in range(most):
            at = data.find(sought, at + 1)
            if at < 0:
                break
            texts.append(data[max(0, at - before) : at + len(sought) + after].decode("latin-1"))
    whole = len(data) < limit
    return [hashlib.sha256(data).hexdigest() if whole else digest(path), texts]

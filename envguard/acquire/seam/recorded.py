"""Hosts that keep and replay facts: one records what another answers, one answers from the record."""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
from typing import Any

from envguard.acquire.runs.log_texts import without_texts
from envguard.acquire.seam import bundle
from envguard.acquire.seam.host import Host, NotRecorded
from envguard.acquire.seam.record import INODE_BITS, PATHLESS, Node, RawStat, Record
from envguard.acquire.seam.sanitise import sanitised, sanitised_piece

EDGE = 4096
"""Bytes that are looked at before and after a part of a file: a secret that the part cuts is longer than its rest."""


class RecordingHost(Host):
    """Passes every question on and keeps the answer, so that a bundle holds exactly what the readers needed."""

    def __init__(self, inner: Host, record: Record | None = None) -> None:
        self.inner = inner
        self.record = record or Record()
        self.label = inner.label
        self.left_out: dict[str, int] = {}
        """Path → bytes of files that were read and are too large for the bundle."""
        self.logs: dict[str, str] = {}
        """Path → kind of the logs of runs, of which no texts are kept."""
        self._kept: dict[str, int] = {}

    def call(self, operation: str, *arguments: Any) -> Any:
        try:
            if operation == "read":
                return self._read(*arguments)
            value = self.inner.call(operation, *arguments)
        except OSError as error:
            self.record.learn_error(operation, arguments, error)
            raise
        self.record.learn(operation, arguments, sanitised(operation, value))
        return value

    def note_log(self, path: str, kind: str) -> None:
        self.logs[path] = kind

    def _read(self, path: str, limit: int | None = None, offset: int = 0) -> bytes:
        before, value, after = self._with_its_edges(path, limit, offset)
        if path in self.left_out or not self._keeps(path, value):
            return value
        kept = sanitised_piece(path, before, value, after)
        if path in self.logs:
            kept = without_texts(self.logs[path], before, kept, after)
        held = self.record.contents.total
        self.record.learn("read", (path, limit, offset), kept)
        self._kept[path] = self._kept.get(path, 0) + self.record.contents.total - held
        if kept is not value and self.record.node(path).content is not None:
            # What is kept is not what is there: a reader that asks for the digest must get the file's own.
            self.record.node(path).digest = hashlib.sha256(value).hexdigest()
        return value

    def _with_its_edges(self, path: str, limit: int | None, offset: int) -> tuple[bytes, bytes, bytes]:
        """What was asked for, between what stands before and after it."""
        # Of the first bytes of ten thousand files no kilobytes are fetched from a far machine.
        edge = EDGE if limit is None else min(EDGE, 16 * limit)
        if offset < 0:
            wide: bytes = self.inner.call("read", path, None, offset - edge)
            left = max(0, len(wide) + offset)
        else:
            left = min(edge, offset)
            wide = self.inner.call("read", path, None if limit is None else left + limit + edge, offset - left)
        end = len(wide) if limit is None else left + limit
        return wide[:left], wide[left:end], wide[end : end + edge]

    def _keeps(self, path: str, data: bytes) -> bool:
        """Whether the bundle has room for more of a file; one for which it has none is left out as a whole, since
        half a log would be taken for all of it."""
        kept = self._kept.get(path, 0) + len(data)
        if kept <= bundle.MAX_FILE and bundle.has_room(self.record.contents, data):
            return True
        facts = self.record.node(path).target or self.record.node(path).stat
        self.left_out[path] = max(kept, facts[2] if facts is not None else 0)
        self.record.forget(path)
        return False

    def seal(self) -> None:
        """Tells of each file that was left out, so that whoever reads the bundle meets the reason."""
        for path in self.left_out:
            self.record.node(path).error = (errno.EFBIG, bundle.LEFT_OUT)


class BundleHost(Host):
    """Answers from a record; a question that it cannot answer raises `NotRecorded`, never "not there"."""

    def __init__(self, record: Record, label: str) -> None:
        self.record = record
        self.label = label

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation in PATHLESS:
            return self._asked(operation, arguments)
        return getattr(self, f"_{operation}")(*arguments)

    def _asked(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        found = self.record.asked(operation, arguments)
        if found is None:
            raise NotRecorded(" ".join([operation, *(str(argument) for argument in arguments)]))
        if found.error is not None:
            raise OSError(*found.error)
        return found.value

    def _node(self, path: str) -> Node | None:
        """The node of `path`; raises where it, or a folder above it, is known to be absent or refused."""
        node = self.record.nodes.get(path)
        if node is not None:
            return node
        parent, _, name = path.rstrip("/").rpartition("/")
        while parent:
            above = self.record.nodes.get(parent)
            if above is not None:
                if above.error is not None:
                    raise OSError(*above.error, path)
                if above.names is not None and all(known != name for known, _ in above.names):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                return None
            parent, _, name = parent.rpartition("/")
        return None

    def _known(self, path: str) -> Node:
        node = self._node(path)
        if node is None:
            raise NotRecorded(path)
        return node

    def _field(self, path: str, value: Any, node: Node) -> Any:
        if value is not None:
            return value
        if node.error is not None:
            raise OSError(*node.error, path)
        raise NotRecorded(path)

    def _stat(self, path: str) -> RawStat:
        node = self._known(path)
        found: RawStat = self._field(path, node.stat, node)
        return found

    def _stat_target(self, path: str) -> RawStat:
        node = self._known(path)
        if node.target is None and node.stat is not None and node.stat[0] != "link":
            return node.stat
        found: RawStat = self._field(path, node.target, node)
        return found

    def _listing(self, path: str) -> tuple[tuple[str, str], ...]:
        node = self._known(path)
        found: tuple[tuple[str, str], ...] = self._field(path, node.names, node)
        return found

    def _readlink(self, path: str) -> str:
        node = self._known(path)
        return str(self._field(path, node.link, node))

    def _realpath(self, path: str) -> str:
        # A path that was never resolved stands for itself: a record made by hand need not say so for each.
        node = self.record.nodes.get(path)
        return node.real if node is not None and node.real is not None else posixpath.normpath(path)

    def _read(self, path: str, limit: int | None = None, offset: int = 0) -> bytes:
        node = self._known(path)
        if node.content is not None:
            data = self.record.contents[node.content]
            start = max(0, len(data) + offset) if offset < 0 else offset
            return data[start:] if limit is None else data[start : start + limit]
        for known_offset, known_limit, name in node.pieces:
            if (known_offset, known_limit) == (offset, limit):
                return self.record.contents[name]
        joined = self._joined(node, offset, limit) if limit is not None else None
        if joined is not None:
            return joined
        data = self._field(path, None, node)
        raise AssertionError(data)  # _field raises where the value is None

    def _joined(self, node: Node, offset: int, limit: int) -> bytes | None:
        """What was read in other pieces than it is asked for; None where they do not cover it."""
        parts: list[bytes] = []
        at, end = offset, offset + limit
        pieces = sorted((start, most or limit, name) for start, most, name in node.pieces if start >= 0)
        while 0 <= at < end:
            near = [(start, name) for start, most, name in pieces if start <= at < start + most]
            found = (self.record.contents[name][at - start : end - start] for start, name in near)
            part = next(filter(None, found), b"")
            if not part:
                if node.stat is not None and at >= node.stat[2]:
                    break  # the end of the file
                return None
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def _digest(self, path: str) -> str:
        node = self._known(path)
        if node.digest is None and node.content is not None:
            return hashlib.sha256(self.record.contents[node.content]).hexdigest()
        return str(self._field(path, node.digest, node))

    def _stats(self, root: str, names: tuple[str, ...]) -> list[int]:
        flat: list[int] = []
        for name in names:
            node = self.record.nodes.get(f"{root}/{name}")
            if node is not None and node.key is not None:
                flat += node.key
                continue
            try:
                facts = self._stat_target(f"{root}/{name}")
            except OSError as error:
                flat += (-(error.errno or errno.EIO), 0, 0, 0)
                continue
            size = facts[2] if facts[0] == "file" else -errno.EISDIR
            flat += (size, facts[8], facts[9], facts[6] & INODE_BITS) if size >= 0 else (size, 0, 0, 0)
        return flat

    def _order(self, path: str) -> tuple[str, ...]:
        node = self._known(path)
        found: tuple[str, ...] = self._field(path, node.order, node)
        return found

    def _walk(self, root: str, births: bool = False, skip: tuple[str, ...] = ()) -> Any:
        found: list[Any] = []
        failed: list[tuple[str, str]] = []
        stack = [""]
        while stack:
            relative = stack.pop()
            try:
                entries = self._listing(f"{root}/{relative}" if relative else root)
            except OSError as error:
                if not relative:
                    raise
                failed.append((relative, error.strerror or str(error)))
                continue
            inner = []
            for name, _ in entries:
                path = f"{relative}/{name}" if relative else name
                try:
                    facts = self._stat(f"{root}/{path}")
                except OSError as error:
                    failed.append((path, error.strerror or str(error)))
                    continue
                found.append((path, *facts))
                if facts[0] == "directory" and name not in skip:
                    inner.append(path)
            stack.extend(reversed(inner))
        return tuple(found), tuple(failed)

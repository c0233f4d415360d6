"""Facts of a machine kept as a small file system: what a recording host fills and a bundle host answers from.

A `Record` is keyed by path and not by question, so that a reader may ask differently tomorrow and a record made by
hand (a replayed incident) needs to know paths, times and contents, and not which reader asks for what.
"""

from __future__ import annotations

import errno
import hashlib
import json
from typing import Annotated, Any, TypeVar

import msgspec

from envguard.acquire.seam.blobs import Blobs
from envguard.acquire.seam.host import Kind

T = TypeVar("T")

# (kind, mode, size, nlink, uid, gid, inode, device, mtime, ctime, btime | None), as the collector gives it.
# The kinds are spelled out: one of another kind is refused, and a hundred thousand files share four words.
# Sizes and times are held to 64 bits: columns of numbers take no more.
Signed = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
RawStat = tuple[Kind, int, Signed, int, int, int, int, int, Signed, Signed, Signed | None]
INODE_BITS = (1 << 63) - 1
"""Overlay and cluster file systems set the top bit of an inode: kept to what a signed number holds."""


class Node(msgspec.Struct, omit_defaults=True):
    """What is known of one path. A field that is None was not asked for; `error` is what asking met."""

    path: str
    stat: RawStat | None = None
    target: RawStat | None = None
    names: tuple[tuple[str, Kind], ...] | None = None
    link: str | None = None
    real: str | None = None
    content: str | None = None
    """sha256 of the recorded bytes; they are the whole file unless `pieces` says otherwise."""
    pieces: tuple[tuple[int, int | None, str], ...] = ()
    """(offset, limit, sha256 of the bytes) of partial reads."""
    digest: str | None = None
    key: tuple[Signed, Signed, Signed, Signed] | None = None
    """(size, mtime, ctime, inode) of what the path leads to, or (-errno, 0, 0, 0), where only that was asked for."""
    order: tuple[str, ...] | None = None
    """Names in the order in which the kernel gave them."""
    error: tuple[int, str] | None = None


class Asked(msgspec.Struct):
    """An answer that belongs to no path: environment variables, the machine, processes, a query program."""

    operation: str
    arguments: tuple[Any, ...]
    value: Any = None
    error: tuple[int, str] | None = None


def encode(value: Any) -> bytes:
    """JSON of a value whose strings may hold undecodable bytes (surrogates), which msgspec alone refuses to write."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")


def decode(line: bytes, kind: type[T]) -> T:
    """The reverse of `encode`; raises `MsgspecError`, `ValueError` or `RecursionError` where it does not fit."""
    if b"\\ud" in line:
        return msgspec.convert(json.loads(line, parse_constant=_no_constant), kind)
    return msgspec.json.decode(line, type=kind)


def _no_constant(text: str) -> None:
    """NaN and Infinity are no JSON: a time that is none would surprise whoever compares it."""
    raise ValueError(f"{text} is no number of JSON")


PATHLESS = (
    "environ", "withheld", "machine", "processes", "query", "probe", "nvml", "hashed", "lines", "chain", "scan",
    "space",
)  # fmt: skip
"""Operations whose answer is kept by its question, and not with a path."""


def _key(operation: str, arguments: tuple[Any, ...]) -> bytes:
    return encode((operation, arguments))


class Record:
    """Nodes by path, answers by question, file contents by their sha256."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.answers: dict[bytes, Asked] = {}
        self.contents = Blobs()

    def node(self, path: str) -> Node:
        """The node of `path`, made where there is none."""
        found = self.nodes.get(path)
        if found is None:
            found = self.nodes[path] = Node(path)
        return found

    def keep(self, data: bytes) -> str:
        """Stores bytes once; returns their sha256."""
        return self.contents.add(data)

    def forget(self, path: str) -> None:
        """Lets go of the content of `path`, and of its bytes where no other path has the same."""
        node = self.node(path)
        mine = {node.content, *(piece[2] for piece in node.pieces)} - {None}
        node.content, node.pieces = None, ()
        others = self.nodes.values()
        shared = {name for other in others for name in (other.content, *(piece[2] for piece in other.pieces))}
        for name in mine - shared:
            self.contents.remove(str(name))

    def learn(self, operation: str, arguments: tuple[Any, ...], value: Any) -> None:
        """Takes up what a host answered."""
        if operation in PATHLESS:
            arguments = self._asked_for(operation, arguments)
            if operation == "processes":
                value = self._merged_processes(value)
            self.answers[_key(operation, arguments)] = Asked(operation, arguments, value)
            return
        path = arguments[0]
        node = self.node(path)
        if operation != "realpath":  # a path that is not there resolves all the same
            node.error = None
        if operation == "stat":
            node.stat = tuple(value)
        elif operation == "stat_target":
            node.target = tuple(value)
        elif operation == "listing":
            node.names = tuple((name, kind) for name, kind in value)
        elif operation == "readlink":
            node.link = value
        elif operation == "realpath":
            node.real = value
        elif operation == "digest":
            node.digest = value
        elif operation == "stats":
            for index, name in enumerate(arguments[1]):
                self._learn_key(self.node(f"{path}/{name}"), tuple(value[4 * index : 4 * index + 4]))
        elif operation == "order":
            node.order = tuple(value)
        elif operation == "read":
            self._learn_read(node, value, *arguments[1:])
        elif operation == "walk":
            self._learn_walk(path, arguments[2] if len(arguments) > 2 else (), *value)
        else:
            raise ValueError(f"not an operation: {operation!r}")

    def learn_error(self, operation: str, arguments: tuple[Any, ...], error: OSError) -> None:
        """Takes up that asking met an error: absence is a fact, and so is a refusal."""
        what = (error.errno or errno.EIO, error.strerror or str(error))
        if operation in PATHLESS:
            arguments = self._asked_for(operation, arguments)
            self.answers[_key(operation, arguments)] = Asked(operation, arguments, None, what)
        else:
            self.node(arguments[0]).error = what

    def _merged_processes(self, fresh: Any) -> list[dict[str, Any]]:
        # Two readers may name different roots; a process keeps the maps that any of them was given.
        known = self.answers.get(_key("processes", ()))
        by_pid = {process["pid"]: process for process in (known.value if known and known.value else [])}
        for process in fresh:
            old = by_pid.get(process["pid"])
            by_pid[process["pid"]] = old if old and old["maps"] and not process["maps"] else process
        return [by_pid[pid] for pid in sorted(by_pid)]

    def _learn_read(self, node: Node, data: bytes, limit: int | None = None, offset: int = 0) -> None:
        name = self.keep(data)
        if offset == 0 and (limit is None or len(data) < limit):
            node.content = name
        else:
            node.pieces = (*node.pieces, (offset, limit, name))

    @staticmethod
    def _learn_key(node: Node, key: tuple[int, int, int, int]) -> None:
        # Of a plain file that was walked the stat says it all already, and there are a hundred thousand of them.
        facts = node.stat
        if facts is None or facts[0] != "file" or (facts[2], facts[8], facts[9], facts[6] & INODE_BITS) != key:
            node.key = key

    def _learn_walk(self, root: str, skip: tuple[str, ...], found: Any, failed: Any) -> None:
        names: dict[str, list[tuple[str, Kind]]] = {root: []}
        for row in found:
            path = f"{root}/{row[0]}"
            facts: RawStat = tuple(row[1:])
            node = self.node(path)
            # A walk without birth times must not wipe out one that was read before.
            if node.stat is None or facts[10] is not None or node.stat[10] is None:
                node.stat = facts
            parent, _, name = path.rpartition("/")
            names.setdefault(parent, []).append((name, facts[0]))
            if facts[0] == "directory" and name not in skip:
                names.setdefault(path, [])
        for relative, why in failed:
            path = f"{root}/{relative}"
            self.node(path).error = (errno.EACCES, why)
            names.pop(path, None)
        for path, entries in names.items():
            self.node(path).names = tuple(sorted(entries))

    def take(self, asked: Asked) -> None:
        """Stores an answer as a bundle brings it."""
        self.answers[_key(asked.operation, asked.arguments)] = asked

    def asked(self, operation: str, arguments: tuple[Any, ...]) -> Asked | None:
        """The stored answer to a question that belongs to no path."""
        return self.answers.get(_key(operation, self._asked_for(operation, arguments)))

    @staticmethod
    def _asked_for(operation: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments under which an answer is kept."""
        if operation == "processes":
            return ()
        if operation == "chain":  # thousands of paths: their digest tells two questions apart as well
            return (hashlib.sha256(encode(arguments)).hexdigest(),)
        return arguments

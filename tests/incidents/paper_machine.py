"""A machine on paper: a bundle's record made by hand, with the times that a test gives it.

Files, folders, links, processes and answers of git are put down as facts; listings follow from the paths. A path that
was not put down is absent, as on a real disk.
"""

from __future__ import annotations

import io
import posixpath
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from envguard.acquire.seam import bundle
from envguard.acquire.seam.host import Kind
from envguard.acquire.seam.record import Node, Record
from envguard.acquire.survey import Request
from envguard.clock import NS, seconds

TOP = ("bin", "data", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var",
       "workspace")  # fmt: skip


def ns(text: str) -> int:
    """An ISO time with offset as ns since the epoch."""
    whole, dot, rest = text.partition(".")
    fraction = rest[: len(rest) - 6] if dot else ""
    base = f"{whole}{rest[-6:]}" if dot else text
    return int(seconds(base)) * NS + int((fraction or "0").ljust(9, "0"))


def fixed_zone(offset_s: int, name: str) -> bytes:
    """A TZif file of a zone that always has one offset."""
    label = name.encode() + b"\0"
    return (
        b"TZif"
        + b"\0" * 16
        + struct.pack(">6l", 0, 0, 0, 0, 1, len(label))
        + struct.pack(">lbb", offset_s, 0, 0)
        + label
    )


class PaperMachine:
    """Facts put down one by one; `save` gives the bytes of a bundle."""

    def __init__(self, *, host: str, now: str, boot: str, offset_s: int, cwd: str, births: bool = True) -> None:
        self._record = Record()
        self._births = births
        self._children: dict[str, dict[str, Kind]] = {"/": {}}
        self._inode = 1000
        self._processes: list[dict[str, Any]] = []
        self.epoch = ns(boot)
        for name in TOP:
            self.folder(f"/{name}")
        self.file("/etc/localtime", fixed_zone(offset_s, "CEST"))
        self._learn("machine", (), {
            "uid": 0, "user": "root", "home": "/root", "host": host, "kernel": "6.8.0-60-generic", "system": "Linux",
            "arch": "x86_64", "boot_time": ns(boot) // NS, "now": ns(now) / NS, "utc_offset": offset_s, "cwd": cwd,
            "cpus": 128, "tmpdir": "/tmp",
        })  # fmt: skip
        self._learn("environ", (), {"HOME": "/root", "PATH": "/usr/bin:/bin", "USER": "root"})

    def _learn(self, operation: str, arguments: tuple[Any, ...], value: Any) -> None:
        self._record.learn(operation, arguments, value)

    def _put(
        self, path: str, kind: Kind, size: int, times: tuple[int, int, int | None], nlink: int, inode: int | None
    ) -> Node:
        parent, name = posixpath.split(path)
        if parent not in self._children:
            self.folder(parent)
        self._children[parent][name] = kind
        if inode is None:
            self._inode += 1
            inode = self._inode
        node = self._record.node(path)
        if not self._births:
            times = (*times[:2], None)
        mode = {"directory": 0o755, "file": 0o644, "link": 0o777}[kind]
        node.stat = (kind, mode, size, nlink, 0, 0, inode, 1, *times)
        return node

    def folder(self, path: str, at: str | None = None, born: str | None = None) -> None:
        """A folder; without a time it is as old as the machine."""
        time = ns(at) if at is not None else self.epoch
        self._children.setdefault(path, {})
        if path != "/":
            self._put(path, "directory", 4096, (time, time, ns(born) if born else time), 2, None)

    def file(
        self, path: str, data: bytes | str = b"", at: str | None = None, *, born: str | None = None,
        changed: str | None = None, nlink: int = 1, inode: int | None = None, size: int | None = None,
    ) -> int:  # fmt: skip
        """A file with its content; `at` is its mtime, `changed` its ctime, `born` its birth. Returns the inode."""
        raw = data.encode() if isinstance(data, str) else data
        time = ns(at) if at is not None else self.epoch
        times = (time, ns(changed) if changed else time, ns(born) if born else time)
        node = self._put(path, "file", len(raw) if size is None else size, times, nlink, inode)
        if size is None or raw:
            node.content = self._record.keep(raw)
        assert node.stat is not None
        return node.stat[6]

    def moved(self, path: str, at_ns: int) -> None:
        """Path and all below it were put there at that moment, with the times of writing that they have."""
        for each, node in self._record.nodes.items():
            if node.stat is not None and (each == path or each.startswith(f"{path}/")):
                node.stat = (*node.stat[:9], at_ns, at_ns if self._births else None)

    def link(self, path: str, target: str) -> None:
        """A symbolic link to a path that was put down before."""
        node = self._put(path, "link", len(target), (self.epoch, self.epoch, self.epoch), 1, None)
        node.link, node.real = target, target
        node.target = self._record.node(target).stat

    def wheel(
        self, folder: str, name: str, version: str, payload: dict[str, bytes], at: str, *,
        requires: Sequence[str] = (), changed: str | None = None, nlink: int = 1,
        inodes: dict[str, int] | None = None,
    ) -> dict[str, int]:  # fmt: skip
        """An archive of a uv cache: payload, METADATA, WHEEL, RECORD, unpacked at `at`. Returns payload inodes."""
        return self._distribution(
            folder, name, version, payload, at, requires, None, at, changed, nlink, inodes or {}
        )

    def install(
        self, site: str, name: str, version: str, payload: dict[str, bytes], at: str, *, until: str | None = None,
        unpacked: str, requires: Sequence[str] = (), installer: str = "uv", nlink: int = 2,
        inodes: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        """An installed distribution, hard-linked: its payload bears the time of unpacking, its dist-info that of the
        install."""
        self._distribution(
            site, name, version, payload, unpacked, requires, installer, at, until or at, nlink, inodes or {}, until
        )

    def _distribution(
        self, folder: str, name: str, version: str, payload: dict[str, bytes], payload_at: str,
        requires: Sequence[str], installer: str | None, at: str, changed: str | None, nlink: int,
        inodes: dict[str, int], until: str | None = None,
    ) -> dict[str, int]:  # fmt: skip
        import hashlib

        from envguard.acquire.packages.record_file import record_hash

        info = f"{folder}/{name.replace('-', '_')}-{version}.dist-info"
        for top in sorted({path.partition("/")[0] for path in payload if "/" in path}):
            self.folder(f"{folder}/{top}", at)
        self.folder(info, until or at, born=at)
        metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
        metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
        rows = []
        found = {}
        for path, data in payload.items():
            found[path] = self.file(
                f"{folder}/{path}", data, payload_at, changed=changed, nlink=nlink, inode=inodes.get(path)
            )
            rows.append(f"{path},{record_hash('sha256', hashlib.sha256(data).digest())},{len(data)}")
        for file, text in (("METADATA", metadata), ("WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")):
            self.file(f"{info}/{file}", text, at)
            digest = record_hash("sha256", hashlib.sha256(text.encode()).digest())
            rows.append(f"{posixpath.basename(info)}/{file},{digest},{len(text)}")
        rows.append(f"{posixpath.basename(info)}/RECORD,,")
        if installer is not None:
            self.file(f"{info}/INSTALLER", installer, until or at, born=until or at)
            rows.append(f"{posixpath.basename(info)}/INSTALLER,,")
        self.file(f"{info}/RECORD", "\n".join(rows) + "\n", until or at)
        return found

    def process(
        self, pid: int, started: str, argv: Sequence[str], maps: Sequence[tuple[str, int, bool]], exe: str
    ) -> None:
        """A living process; maps are (path, inode, deleted)."""
        self._processes.append({
            "pid": pid, "parent": 1, "state": "S", "started": ns(started) / NS, "uid": 0, "argv": list(argv),
            "exe": exe, "cwd": "/workspace", "environ": {}, "maps": [list(item) for item in maps], "refused": [],
        })  # fmt: skip

    def git(self, words: Sequence[str], out: str, code: int = 0, err: str = "") -> None:
        """What git answers to those words."""
        self._learn("query", (("git", *words), None, 20.0), {"code": code, "out": out, "err": err})

    def record(self) -> Record:
        """The record, with the listings that follow from what was put down."""
        for path, names in self._children.items():
            self._record.node(path).names = tuple(sorted(names.items()))
        self._learn("processes", ((),), self._processes)
        return self._record

    def save(self, request: Request) -> bytes:
        """The bytes of a bundle that was gathered for `request`."""
        stream = io.BytesIO()
        bundle.save(self.record(), {"request": msgspec.json.encode(request).decode(), "envguard": "test"}, stream)
        return stream.getvalue()

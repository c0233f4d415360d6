"""A machine on paper on which acts happen one by one, with inodes as a file system keeps them, and the truth.

Files are objects with times, shared where uv links them hard: an unlink moves the ctime of what is left, as on a
disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import msgspec

from envguard import clock
from envguard.acquire.runs.stamps import reference
from envguard.acquire.seam.recorded import BundleHost
from envguard.acquire.survey import Request, survey
from envguard.config import Config
from envguard.fingerprint.bundled import fingerprint_on
from envguard.fingerprint.partial import Known
from envguard.model import plain
from envguard.model.event import TimelineReport
from envguard.model.fingerprint import Fingerprint
from envguard.model.identity import sealed
from envguard.timeline.build import Bounds, build_timeline
from envguard.timeline.compared import compare_with_stamp
from envguard.timeline.known import known_before, told_at
from envguard.timeline.selection import choose_checkpoint
from tests.incidents.paper_machine import PaperMachine
from tests.incidents.story import ARCHIVES, CHECKPOINTS, LIBRARY, SITE, VENV, module, torch_payload

MS = clock.NS // 1000
T0 = 1_779_000_000 * clock.NS
STATE = "/workspace/.envguard"
JOURNAL = f"{STATE}/journal-paper.jsonl"


@dataclass(frozen=True)
class Build:
    """One wheel: several may bear one version."""

    name: str
    version: str
    seed: str = ""

    @property
    def payload(self) -> dict[str, bytes]:
        if self.name == "torch":
            return torch_payload(self.version, self.seed)
        return module(self.name, f"{self.version}{self.seed}")

    @property
    def archive(self) -> str:
        return f"{ARCHIVES}/{self.name}-{self.version}-{self.seed or 'a'}"


BUILDS = (
    Build("torch", "2.11.0+cu128"),
    Build("torch", "2.11.0+cu130"),
    Build("torch", "2.11.0+cu128", "rebuilt"),
    Build("torch", "2.12.0+cu130"),
    Build("transformers", "5.6.0"),
    Build("transformers", "5.8.1"),
    Build("transformers", "5.6.0", "rebuilt"),
)
BASE = tuple(Build(name, "1.12.0") for name in ("accelerate", "datasets", "einops"))
"""Installed first and never touched."""
_inodes = count(5000)


@dataclass
class Inode:
    data: bytes
    mtime: int
    ctime: int
    born: int
    nlink: int = 1
    number: int = field(default_factory=lambda: next(_inodes))


def _new(data: bytes, at: int) -> Inode:
    return Inode(data, at, at, at)


@dataclass
class Archive:
    unpacked: int
    files: dict[str, Inode]


@dataclass
class Installed:
    build: Build
    start: int
    end: int
    files: dict[str, Inode]
    put: int | None = None
    """When a copy put it there that kept its times."""

    @property
    def patched(self) -> bool:
        return any(inode.data != self.build.payload[path] for path, inode in self.files.items())

    @property
    def state(self) -> tuple[Build, tuple[bytes, ...]]:
        return self.build, tuple(inode.data for _, inode in sorted(self.files.items()))


@dataclass(frozen=True)
class Happened:
    """What truly happened to a package in [start, end]; None is not there."""

    name: str
    before: Build | None
    after: Build | None
    start: int
    end: int


@dataclass
class Saved:
    name: str
    saved: int
    state: dict[str, tuple[Build, tuple[bytes, ...]]]
    stamp: bytes | None = None
    stamped: int | None = None
    copied: int | None = None
    kept: bool = True


class World:
    """The machine, and the truth."""

    def __init__(self, link: Literal["hardlink", "copy"] = "hardlink", births: bool = True) -> None:
        self.link, self.births = link, births
        self.now = T0
        self.archives: dict[Build, Archive] = {}
        self.installed: dict[str, Installed] = {}
        self.saved: list[Saved] = []
        self.journal: list[tuple[int, bytes]] = []
        self.processes: list[tuple[int, int, int]] = []
        self.site_changed = T0
        self.happened: list[Happened] = []
        self.clamped = False
        for build in BASE:
            self.install(build)

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * 1000) * MS + 1_237_000

    # Acts, each at the moment of the last `wait`.

    def install(self, build: Build) -> None:
        """uv unpacks where its cache lacks the wheel, unlinks what is there, and links."""
        if build not in self.archives:
            self.archives[build] = Archive(self.now, {k: _new(v, self.now) for k, v in build.payload.items()})
            self.wait(1)
        began, before = self.now, self.installed.get(build.name)
        if before is not None:
            self._unlink(before)
        self.wait(0.02)
        start = self.now
        archive = self.archives[build]
        self.wait(0.1)
        self.installed[build.name] = Installed(build, start, self.now, self._placed(archive))
        self.site_changed = self.now
        self._note(build.name, before, build, began)

    def _placed(self, archive: Archive) -> dict[str, Inode]:
        if self.link == "copy":
            return {path: _new(inode.data, self.now) for path, inode in archive.files.items()}
        for inode in archive.files.values():
            inode.nlink, inode.ctime = inode.nlink + 1, self.now
        return dict(archive.files)

    def _unlink(self, gone: Installed) -> None:
        for inode in gone.files.values():
            inode.nlink, inode.ctime = inode.nlink - 1, self.now

    def _note(self, name: str, before: Installed | None, after: Build | None, began: int) -> None:
        self.happened.append(Happened(name, before.build if before else None, after, began, self.now))

    def remove(self, name: str) -> None:
        gone = self.installed.pop(name, None)
        if gone is not None:
            self._unlink(gone)
            self.site_changed = self.now
            self._note(name, gone, None, self.now)

    def patch(self, name: str, new_file: bool, keep_time: bool) -> None:
        """`sed -i` makes a new file; an editor may write into the old one, and the archive's with it."""
        there = self.installed.get(name)
        if there is not None:
            self._write(there, f"{name}/__init__.py", b"# edited\n", new_file, keep_time)

    def put_back(self, name: str) -> None:
        there = self.installed.get(name)
        if there is not None and there.patched:
            path = f"{name}/__init__.py"
            self._write(there, path, there.build.payload[path], True, False)

    def _write(self, there: Installed, path: str, data: bytes, new_file: bool, keep_time: bool) -> None:
        old = there.files[path]
        mtime = old.mtime if keep_time else self.now
        if new_file:
            old.nlink, old.ctime = old.nlink - 1, self.now
            there.files[path] = Inode(data, mtime, self.now, self.now)
        else:
            old.data, old.mtime, old.ctime = data, mtime, self.now

    def copy(self, keep: bool) -> None:
        """The whole environment is put here anew: `cp -a`, or `cp -r`, which looks like installs of that moment."""
        for name, there in self.installed.items():
            self.wait(0.002)
            self._unlink(there)
            files = {
                path: Inode(inode.data, inode.mtime if keep else self.now, self.now, self.now)
                for path, inode in there.files.items()
            }
            if keep:
                again = Installed(there.build, there.start, there.end, files, self.now)
            else:
                again = Installed(there.build, self.now, self.now, files)
            self.installed[name] = again
            self._note(name, there, there.build, self.now)
        self.site_changed = self.now

    def save(self, stamp: bool) -> None:
        """A checkpoint; perhaps with its stamp."""
        saved = Saved(f"step_{(len(self.saved) + 1) * 10}", self.now, self.state())
        self.saved.append(saved)
        if stamp:
            self.wait(0.5)
            host = self.host()
            ref = reference(host, f"{CHECKPOINTS}/{saved.name}")
            taken = msgspec.structs.replace(self.fingerprint(host), origin="live", checkpoint=ref)
            saved.stamp, saved.stamped = plain.encode(sealed(taken)), self.now

    def copy_checkpoint(self, keep: bool) -> None:
        """The last one; without a stamp its times are all that it has, so they are kept."""
        if self.saved:
            last = self.saved[-1]
            last.copied, last.kept = self.now, keep or last.stamp is None

    def snapshot(self) -> None:
        taken = self.fingerprint(self.host())
        line = {"time": taken.taken_at, "kind": "snapshot", "id": taken.id, "into": None,
                "fingerprint": sealed(taken)}  # fmt: skip
        self.journal.append((self.now, plain.encode(line)))

    def start_process(self) -> None:
        torch = self.installed.get("torch")
        if torch is not None:
            self.processes.append((2000 + len(self.processes), self.now, torch.files[LIBRARY].number))

    # The machine as it is now.

    def state(self) -> dict[str, tuple[Build, tuple[bytes, ...]]]:
        return {name: there.state for name, there in self.installed.items()}

    def request(self) -> Request:
        return Request(
            start="/workspace", python=VENV, root="/workspace", state=STATE, checkpoint_roots=(CHECKPOINTS,),
            config=Config(checkpoints=("checkpoints",)),
        )  # fmt: skip

    def fingerprint(self, host: BundleHost) -> Fingerprint:
        return msgspec.structs.replace(fingerprint_on(host, self.request()), taken_at=clock.iso_ns(self.now))

    def host(self) -> BundleHost:
        return BundleHost(self._paper().record(), "paper")

    def told_at(self, checkpoint: str) -> tuple[dict[str, Known], bool]:
        """What `diff` and `restore` of a checkpoint without a stamp take its packages for, and whether of the rest it
        is known that nothing happened."""
        request = self.request()
        seen = survey(self.host(), request)
        told = told_at(seen, choose_checkpoint(seen.checkpoints, checkpoint, (), request.start))
        return known_before(told.packages), told.beyond is None

    def timeline(self, checkpoint: str | None = None) -> TimelineReport:
        """The answer of `envguard timeline [CHECKPOINT]`."""
        host, request = self.host(), self.request()
        seen = survey(host, request)
        if checkpoint is None:
            return build_timeline(seen, Bounds())
        chosen = choose_checkpoint(seen.checkpoints, checkpoint, request.checkpoint_roots, request.start)
        compared = compare_with_stamp(seen, chosen, lambda stamp: fingerprint_on(host, request, (stamp,)))
        return build_timeline(seen, Bounds(checkpoint=chosen), compared)

    def _paper(self) -> PaperMachine:
        machine = PaperMachine(
            host="paper", now=clock.iso_ns(self.now), boot=clock.iso_ns(T0 - 86400 * clock.NS), offset_s=0,
            cwd="/workspace", births=self.births,
        )  # fmt: skip
        made = clock.iso_ns(T0 - 60 * clock.NS)
        machine.folder(VENV, made)
        machine.file(f"{VENV}/pyvenv.cfg", "home = /usr/bin\nimplementation = CPython\nversion_info = 3.12.3\n", made)
        machine.file("/usr/include/python3.12/patchlevel.h", '#define PY_VERSION "3.12.3"\n')
        for path in ("/usr/bin/python3.12", "/usr/lib/python3.12/os.py"):
            machine.file(path)
        machine.link(f"{VENV}/bin/python", "/usr/bin/python3.12")
        machine.folder(SITE, clock.iso_ns(self.site_changed), born=made)
        for build, archive in self.archives.items():
            machine.wheel(build.archive, build.name, build.version, build.payload, clock.iso_ns(archive.unpacked))
            self._files(machine, build.archive, archive.files)
        for there in self.installed.values():
            self._distribution(machine, there)
        for saved in self.saved:
            self._checkpoint(machine, saved)
        if self.journal:
            text = b"".join(line + b"\n" for _, line in self.journal)
            machine.file(JOURNAL, text, clock.iso_ns(self.journal[-1][0]))
        torch = self.installed.get("torch")
        for pid, started, inode in self.processes:
            gone = torch is None or torch.files[LIBRARY].number != inode
            maps = [(f"{SITE}/{LIBRARY}", inode, gone)]
            argv = [f"{VENV}/bin/python", "train.py"]
            machine.process(pid, clock.iso_ns(started), argv, maps, "/usr/bin/python3.12")
        return machine

    def _files(self, machine: PaperMachine, folder: str, files: Mapping[str, Inode]) -> None:
        for path, inode in files.items():
            machine.file(
                f"{folder}/{path}", inode.data, clock.iso_ns(inode.mtime), changed=clock.iso_ns(inode.ctime),
                born=clock.iso_ns(inode.born), nlink=inode.nlink, inode=inode.number,
            )  # fmt: skip

    def _distribution(self, machine: PaperMachine, there: Installed) -> None:
        build = there.build
        start, end = (T0, T0) if self.clamped else (there.start, there.end)
        machine.install(
            SITE, build.name, build.version, build.payload, clock.iso_ns(start), until=clock.iso_ns(end),
            unpacked=clock.iso_ns(start),
        )  # fmt: skip
        put = there.put if there.put is not None else there.start if self.clamped else None
        if put is not None:  # a copy that kept the times, or an image that clamped them: births and ctimes are real
            info = f"{SITE}/{build.name}-{build.version}.dist-info"
            machine.moved(info, put)
            machine.moved(f"{SITE}/{build.name}", put)
        self._files(machine, SITE, there.files)

    def _checkpoint(self, machine: PaperMachine, saved: Saved) -> None:
        folder = f"{CHECKPOINTS}/{saved.name}"
        at = saved.saved if saved.copied is None or saved.kept else saved.copied
        machine.folder(folder, clock.iso_ns(at))
        header = b'{"__metadata__":{"format":"pt"}}'
        weights = len(header).to_bytes(8, "little") + header + saved.name.encode()
        machine.file(f"{folder}/model.safetensors", weights, clock.iso_ns(at))
        if saved.stamp is not None and saved.stamped is not None:
            at = saved.stamped if saved.copied is None or saved.kept else saved.copied
            machine.file(f"{folder}/envguard.json", saved.stamp, clock.iso_ns(at))
        if saved.copied is not None:
            machine.moved(folder, saved.copied)

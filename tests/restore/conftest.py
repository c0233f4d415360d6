"""What the restore's tests share: a stage whose environment has been swapped, and how it was before."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from envguard.acquire.packages.environment import locate
from envguard.acquire.runs.stamps import reference
from envguard.acquire.seam.host import LiveHost
from envguard.config import Config
from envguard.demo.stage import Stage
from envguard.errors import RestoreError
from envguard.fingerprint.snapshot import Request as SnapshotRequest
from envguard.fingerprint.snapshot import take
from envguard.model.fingerprint import Fingerprint
from envguard.project import Project
from envguard.restore import service
from envguard.restore.apply import Outcome
from envguard.restore.wanted import Target, from_fingerprint
from envguard.state.digests import Digests

Tree = dict[str, tuple[str, int, int, str]]


def tree(root: Path, skip: tuple[str, ...] = ()) -> Tree:
    """Every path below `root`: kind, mode, mtime (files and links alone) and content. What "unchanged" means."""
    out: Tree = {}
    for folder, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name not in skip]
        for name in (*directories, *names):
            path = Path(folder, name)
            status = path.lstat()
            if path.is_symlink():
                entry = ("link", 0, status.st_mtime_ns, os.readlink(path))
            elif path.is_dir():
                entry = ("directory", status.st_mode, 0, "")
            else:
                entry = ("file", status.st_mode, status.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
            out[str(path.relative_to(root))] = entry
    return out


def fingerprint(stage: Stage) -> Fingerprint:
    """The stage's environment now, read deep and with nothing remembered."""
    request = SnapshotRequest(start=str(stage.project), python=str(stage.venv), deep=True)
    return take(LiveHost(), request, Digests())


@dataclass
class Swapped:
    """A stage on which something was installed over what `before` tells of."""

    stage: Stage
    before: Fingerprint
    state: Path

    def request(self, target: Target | None = None, **options: object) -> service.Request:
        host = LiveHost()
        config = options.pop("config", Config())
        assert isinstance(config, Config)
        project = Project(self.stage.project, self.stage.project, config, self.state)
        return service.Request(
            host=host,
            env=locate(host, str(self.stage.venv), str(self.stage.project)),
            project=project,
            target=target or from_fingerprint("step_690", self.before),
            live=fingerprint(self.stage),
            **options,  # type: ignore[arg-type]
        )

    def restore(self, target: Target | None = None, **options: object) -> Outcome:
        """Plans and carries out; raises what the service raises."""
        request = self.request(target, **options)
        return service.carry_out(request, service.find_and_plan(request))

    def restore_or_failure(self) -> str:
        """Restores where that must not work out; returns why it did not, as the answer (code 4) or an error says."""
        try:
            outcome = self.restore()
        except RestoreError as error:
            return str(error)
        assert (outcome.applied, outcome.verified) == (False, False)
        assert outcome.failure is not None
        return outcome.failure

    def save_checkpoint(self, name: str) -> Path:
        """A checkpoint with the stamp of how it was before."""
        folder = self.stage.checkpoints / name
        folder.mkdir()
        (folder / "model.pt").write_bytes(b"weights")
        about = reference(LiveHost(), str(folder))
        stamp = msgspec.structs.replace(self.before, checkpoint=about, origin="launch", diverged=())
        (folder / "envguard.json").write_bytes(msgspec.json.encode(stamp))
        return folder

    def torch_says(self) -> str:
        return (self.stage.site / "torch" / "version.py").read_text()


@pytest.fixture
def swapped(torch_stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Swapped:
    """The story at 20:52: sglang has brought torch +cu130 over +cu128."""
    monkeypatch.setenv("UV_CACHE_DIR", str(torch_stage.cache))
    before = fingerprint(torch_stage)
    torch_stage.install("sglang")
    return Swapped(torch_stage, before, tmp_path / "state")

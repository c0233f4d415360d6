"""The torch that runs these tests, kept out of its own install, restored into another environment, and imported."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envguard.acquire.packages.distributions import read_distributions
from envguard.acquire.packages.environment import locate
from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.fingerprint.snapshot import Request as SnapshotRequest
from envguard.fingerprint.snapshot import take
from envguard.model.fingerprint import Fingerprint
from envguard.restore import undoing
from envguard.restore.keeping import keep_packages
from envguard.restore.progress import Silent
from envguard.restore.vault import Vault
from envguard.restore.wanted import from_fingerprint
from envguard.state.digests import Digests
from tests.restore.conftest import Swapped, fingerprint

ROOM = 6 << 30


def with_requirements(taken: Fingerprint, name: str) -> Fingerprint:
    """The fingerprint cut down to one package and everything that it needs."""
    packages = {package.name: package for package in taken.packages}
    wanted, stack = set(), [name]
    while stack:
        package = packages.get(stack.pop())
        if package is None or package.name in wanted:
            continue
        wanted.add(package.name)
        for line in package.requires:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                stack.append(canonicalize_name(requirement.name))
    return msgspec.structs.replace(taken, packages=tuple(p for p in taken.packages if p.name in wanted))


def site_of_torch() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parents[1] if spec is not None and spec.origin is not None else None


@pytest.mark.slow
def test_the_real_torch_comes_back_and_is_imported(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of_torch()
    if site is None or not list(site.glob("torch-*.dist-info/RECORD")):
        pytest.skip("torch is not installed beside these tests, or has no RECORD")
    if shutil.disk_usage(tmp_path).free < ROOM:
        pytest.skip(f"less than {ROOM >> 30} GiB are free")
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    host = LiveHost()
    python = str(site.parents[2] / "bin" / "python")
    env = locate(host, python, str(tmp_path))
    taken = take(host, SnapshotRequest(start=str(tmp_path), python=python), Digests())
    target = with_requirements(taken, "torch")
    each = Swapped(stage, fingerprint(stage), tmp_path / "state")
    kept = keep_packages(Vault(each.state), read_distributions(host, env), target, (), Silent())
    assert kept.notes == []
    outcome = each.restore(from_fingerprint("elsewhere", target))
    assert (outcome.failure, outcome.verified) == (None, True)
    ran = subprocess.run(
        [stage.python, "-c", "import torch; print(torch.__version__, float(torch.ones(3).sum()))"],
        env=stage.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    version = taken.torch.version if taken.torch is not None else None
    assert ran.stdout.split() == [version, "3.0"], ran.stderr
    # Bytecode that the import made is nobody's file and does not stand in the way of the undoing.
    assert undoing.roll_back(str(each.stage.venv), each.state).rolled_back
    assert not (stage.site / "torch").exists()
    assert sys.version_info[:2] == tuple(int(part) for part in (env.version or "").split(".")[:2])

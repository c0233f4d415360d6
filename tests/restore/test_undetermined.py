"""What cannot be read is neither restored nor called fine: exit 3, and nothing has changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import jsonschema
import pytest

from envguard.acquire.packages.contents import Policy, read_contents
from envguard.acquire.packages.distributions import read_distributions
from envguard.acquire.packages.environment import locate
from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.fingerprint.determined import undetermined
from envguard.model.schema import schema
from envguard.restore import service
from envguard.state.digests import Digests
from tests.permissions import envguard_held_to_modes, unreadable
from tests.restore.conftest import Swapped, fingerprint, tree

INFO = "torch-2.11.0+cu128.dist-info"


def run(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any], str]:
    done = envguard_held_to_modes(stage, *arguments, "--json")
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.fixture
def stamped(torch_stage: Stage) -> Stage:
    folder = torch_stage.checkpoints / "step_680"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"weights")
    assert torch_stage.envguard("snapshot", "--into", "step_680").returncode == 0
    return torch_stage


@pytest.mark.parametrize("what", ["torch", "torch/version.py", INFO, f"{INFO}/RECORD", "transformers/__init__.py"])
def test_a_package_that_cannot_be_read_is_undetermined(stamped: Stage, what: str) -> None:
    before = tree(stamped.venv)
    name = what.partition("/")[0].partition("-")[0]
    with unreadable(stamped.site / what):
        answers = [run(stamped, "restore", "step_680", how) for how in ("--dry-run", "-y")]
        code, taken, says = run(stamped, "snapshot")
    assert code == 3, says
    assert [package["name"] for package in taken["packages"] if package["unread"]] == [name]
    for code, report, says in answers:
        assert code == 3, says
        jsonschema.validate(report, schema("restore"))
        assert [item["what"] for item in report["unknown"]] == [f"packages: {name}"]
        assert (report["plan"], report["applied"], report["verified"]) == ([], False, False)
        assert "hint: " in says
    assert tree(stamped.venv) == before


def test_a_site_packages_that_cannot_be_listed_is_not_an_empty_one(stamped: Stage) -> None:
    with unreadable(stamped.site):
        for how in ("--dry-run", "-y"):
            code, report, says = run(stamped, "restore", "step_680", how)
            assert (code, report["applied"]) == (3, False), says
            assert str(stamped.site) in report["unknown"][0]["what"]
        code, taken, says = run(stamped, "snapshot")
    assert (code, taken["packages"]) == (3, []), says


def test_what_can_be_read_is_restored_by_name(stamped: Stage) -> None:
    with unreadable(stamped.site / "torch"):
        code, report, says = run(stamped, "restore", "step_680", "-y", "--only", "Transformers")
    assert (code, report["verified"], report["plan"]) == (0, True, []), says


def test_a_sound_environment_is_determined_whatever_hardware_is_absent(stamped: Stage) -> None:
    code, taken, says = run(stamped, "snapshot")
    assert (code, says) == (0, "")
    assert not any(package["unread"] for package in taken["packages"])


def test_what_the_id_does_not_cover_leaves_it_determined(stamped: Stage) -> None:
    subprocess.run(["git", "init", "-q"], cwd=stamped.project, env=stamped.environ(), check=True)
    code, taken, says = run(stamped, "snapshot")  # a repository without a commit
    assert [item["what"].split()[0] for item in taken["unknown"]] == ["code"]
    assert code == 0, says
    assert not undetermined(fingerprint(stamped))


def test_nothing_to_do_is_said_after_every_file_was_read(torch_stage: Stage) -> None:
    """An edit of an unwatched package that keeps size and time shows in its content alone."""
    build_wheel(torch_stage.wheels, "plain", "1.0", {"plain.py": b"value = 1\n"})
    torch_stage.install("plain")
    folder = torch_stage.checkpoints / "step_680"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"weights")
    assert torch_stage.envguard("snapshot", "--into", "step_680").returncode == 0
    file = torch_stage.site / "plain.py"
    times = file.stat()
    file.unlink()
    file.write_bytes(b"value = 2\n")
    os.utime(file, ns=(times.st_mtime_ns, times.st_mtime_ns))
    shutil.rmtree(torch_stage.home / ".local" / "state")
    code, report, says = run(torch_stage, "restore", "step_680", "--dry-run")
    assert (code, [item["package"] for item in report["plan"]]) == (0, ["plain"]), says
    code, report, says = run(torch_stage, "restore", "step_680", "-y")
    assert (code, report["applied"], file.read_bytes()) == (0, True, b"value = 1\n"), says


def test_a_package_of_no_watched_name_is_read_too(swapped: Swapped) -> None:
    assert swapped.restore().verified
    before = swapped.request()
    unwatched = {package.name for package in before.live.packages if package.depth != "deep"}
    looked = service.look_closely(swapped.request())
    assert {package.depth for package in looked.live.packages if package.name in {"torch", "triton"}} == {"deep"}
    assert looked.live.package("sglang") == before.live.package("sglang"), unwatched


def test_a_build_of_which_a_file_was_not_read_is_only_what_record_promises(torch_stage: Stage) -> None:
    class Refusing(LiveHost):
        def digest(self, path: str, algorithm: str = "sha256") -> str:
            if path.endswith("torch/version.py"):
                raise PermissionError(13, "Permission denied", path)
            return super().digest(path, algorithm)

    host = Refusing()
    dists = read_distributions(host, locate(host, str(torch_stage.venv), str(torch_stage.project)))
    seen = read_contents(host, dists.found, Policy(deep=True), Digests()).of
    unread = {dist.name: seen[dist.directory].unread for dist in dists.found}
    assert unread == {"torch": ("torch/version.py",), "transformers": (), "triton": ()}


def test_an_unstamped_checkpoint_of_which_nothing_is_known_is_undetermined(torch_stage: Stage) -> None:
    (torch_stage.checkpoints / "step_690").mkdir()
    (torch_stage.checkpoints / "step_690" / "model.pt").write_bytes(b"weights")
    code, report, says = run(torch_stage, "restore", "step_690", "-y")
    assert (code, report["verified"], report["plan"]) == (3, False, []), says
    assert "no witness" in report["unknown"][0]["why"]


def test_a_name_that_is_not_there_is_a_slip_of_the_finger(stamped: Stage) -> None:
    code, error, _ = run(stamped, "restore", "step_680", "--only", "torhc", "-y")
    assert (code, error["schema"]) == (2, "envguard.error")
    assert "did you mean torch?" in error["hint"]
    code, _, says = run(stamped, "restore", "--rollback", "-y")
    assert code == 4
    assert "nothing to roll back" in says
    assert "hint: " in says

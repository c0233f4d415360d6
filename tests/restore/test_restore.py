"""The restore with a real uv, a real venv and a real cache."""

from __future__ import annotations

import json

import jsonschema
import pytest

from envguard.errors import RestoreError
from envguard.model.schema import schema
from envguard.restore import service, undoing
from tests.restore.conftest import Swapped, fingerprint, tree


def test_exactly_the_old_build_is_back_and_later_packages_stay(swapped: Swapped) -> None:
    assert "2.11.0+cu130" in swapped.torch_says()
    cache = tree(swapped.stage.cache)
    outcome = swapped.restore()
    assert (outcome.failure, outcome.applied, outcome.verified, outcome.rolled_back) == (None, True, True, False)
    assert "2.11.0+cu128" in swapped.torch_says()
    assert "'12.8'" in swapped.torch_says()
    after = fingerprint(swapped.stage)
    wanted = {package.name: package.build for package in swapped.before.packages}
    assert {name: build for name, build in ((p.name, p.build) for p in after.packages) if name in wanted} == wanted
    assert after.package("sglang") is not None
    assert tree(swapped.stage.cache) == cache


def test_the_plan_says_from_what_to_what(swapped: Swapped) -> None:
    plan = service.find_and_plan(swapped.request())
    report = service.report_of(swapped.request(), plan)
    (item,) = report.plan
    assert (item.package, item.from_, item.to, item.source) == (
        "torch",
        "2.11.0+cu130",
        "2.11.0+cu128",
        "rebuilt-wheel",
    )
    assert plan.kept == ("flashinfer-python", "sglang")
    assert any("sglang" in note and "torch==2.11.0+cu130" in note for note in report.notes)


def test_a_file_poisoned_in_the_cache_is_refused_by_name_and_nothing_changes(swapped: Swapped) -> None:
    (version,) = (
        path for path in swapped.stage.cache.glob("archive-v0/*/torch/version.py") if "+cu128" in path.read_text()
    )
    version.write_text(version.read_text() + "# patched\n")
    before = tree(swapped.stage.venv)
    outcome = swapped.restore()
    assert not outcome.applied
    assert [item.path for item in outcome.poisoned] == [str(version)]
    assert outcome.missing
    assert tree(swapped.stage.venv) == before


def test_a_missing_build_is_said_before_anything_changes(swapped: Swapped) -> None:
    swapped.stage.uv("cache", "clean", "torch")
    before = tree(swapped.stage.venv)
    request = swapped.request()
    plan = service.find_and_plan(request)
    (missing,) = plan.missing
    assert missing.package == "torch 2.11.0+cu128"
    with pytest.raises(RestoreError):
        service.carry_out(request, plan)
    assert tree(swapped.stage.venv) == before


def test_a_restore_that_was_done_can_be_undone_to_the_byte(swapped: Swapped) -> None:
    mine = swapped.stage.site / "torch" / "mine.txt"
    mine.write_text("a user's own file")
    before = tree(swapped.stage.venv)
    assert swapped.restore().verified
    assert mine.read_text() == "a user's own file"
    assert undoing.roll_back(str(swapped.stage.venv), swapped.state).rolled_back
    assert tree(swapped.stage.venv) == before


def test_a_dry_run_of_the_roll_back_changes_nothing(swapped: Swapped) -> None:
    swapped.save_checkpoint("step_690")
    assert swapped.stage.envguard("restore", "step_690", "-y").returncode == 0
    before = tree(swapped.stage.venv)
    for arguments in (("--dry-run",), ("--dry-run", "-y")):
        planned = swapped.stage.envguard("restore", "--rollback", *arguments)
        assert planned.returncode == 0, planned.stderr
        assert "would be as it was before" in " ".join(planned.stdout.split())
        assert tree(swapped.stage.venv) == before
    told = json.loads(swapped.stage.envguard("restore", "--rollback", "--dry-run", "--json").stdout)
    assert (told["rolled_back"], told["verified"]) == (False, False)
    assert swapped.stage.envguard("restore", "--rollback", "--only", "torch", "-y").returncode == 2
    assert tree(swapped.stage.venv) == before
    assert swapped.stage.envguard("restore", "--rollback", "-y").returncode == 0
    assert "2.11.0+cu130" in swapped.torch_says()


def test_the_command_line_restores_a_stamped_checkpoint(swapped: Swapped) -> None:
    swapped.save_checkpoint("step_690")
    planned = swapped.stage.envguard("restore", "step_690", "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    assert "2.11.0+cu130" in swapped.torch_says()
    refused = swapped.stage.envguard("restore", "step_690", "--json")
    assert refused.returncode == 2
    done = swapped.stage.envguard("restore", "step_690", "-y", "--json")
    assert done.returncode == 0, done.stderr
    for answer in (planned, done):
        report = json.loads(answer.stdout)
        jsonschema.validate(report, schema("restore"))
        assert [item["package"] for item in report["plan"]] == ["torch"]
        assert report["plan"][0]["verified"]
    assert (report["applied"], report["verified"], report["rolled_back"]) == (True, True, False)
    assert "2.11.0+cu128" in swapped.torch_says()
    again = swapped.stage.envguard("restore", "step_690", "-y", "--json")
    assert (again.returncode, json.loads(again.stdout)["plan"]) == (0, [])

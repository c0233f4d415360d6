"""Installs and removals by the real pip and uv that are killed half-way: what is said of what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from tests import cut_installs as cut


def answer(stage: Stage, code: int, *words: str) -> dict[str, Any]:
    done = stage.envguard(words[0], "--json", *words[1:])
    assert done.returncode == code, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def findings(stage: Stage, code: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer(stage, code, "timeline", "--since-checkpoint", "step_10")["findings"]
    return found


def wait_for_age(stage: Stage) -> None:
    """A dist-info that is renamed as soon as it was born looks like a copy of the tree."""
    age = time.time() - (stage.site / f"torch-{cut.OLD}.dist-info" / "INSTALLER").stat().st_ctime
    time.sleep(max(0.0, 2.3 - age))


def kill_pip(stage: Stage) -> Stage:
    """pip is killed while it copies the new torch over an old one that a stamp knows."""
    cut.run(stage, cut.pip_install(stage, f"torch=={cut.OLD}"))
    cut.stamp(stage)
    wait_for_age(stage)
    cut.kill(stage, cut.pip_install(stage, f"torch=={cut.NEW}"), cut.copying(stage))
    return stage


@pytest.fixture
def killed_pip(large_stage: Stage) -> Stage:
    return kill_pip(large_stage)


@pytest.fixture(scope="module")
def looked_at(large_wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The same, for tests that only look."""
    stage = Stage(tmp_path_factory.mktemp("looked-at") / "stage")
    stage.make_venv()
    cut.take_wheels(stage, large_wheels)
    return kill_pip(stage)


@pytest.fixture
def killed_uv(large_stage: Stage) -> Stage:
    """uv was killed while it copied the new torch over an old one that a stamp knows."""
    for version in (cut.NEW, cut.OLD):  # both lie in the cache then
        cut.run(large_stage, cut.uv_install(large_stage, f"torch=={version}"))
    cut.stamp(large_stage)
    cut.kill(large_stage, cut.uv_install(large_stage, f"torch=={cut.NEW}"), cut.copying(large_stage))
    return large_stage


def test_a_pip_that_was_killed_is_told_with_its_moment_and_what_it_put_aside(looked_at: Stage) -> None:
    aside = looked_at.site / f"~orch-{cut.OLD}.dist-info"
    (finding,) = findings(looked_at)
    assert finding["title"].startswith(f"an install of torch {cut.NEW} was cut short ")
    assert finding["title"].endswith(" after step_10")
    assert f"{cut.OLD} was put aside by pip as {aside.name} and never taken away" in finding["says"]
    assert f"A copy lies in {aside} and can be restored: `envguard restore step_10`." in finding["says"]
    assert f"rm -r '~orch-{cut.OLD}.dist-info' '~orch' '~orchgen'" in finding["says"]

    said = answer(looked_at, 1, "timeline", "--since-checkpoint", "step_10")
    event = said["events"][finding["because"][-1]]
    assert (event["kind"], event["subject"], event["from"]) == ("package.removed", "torch", cut.OLD)
    assert event["confidence"] == "strong"
    (ctime,) = [item for item in event["evidence"] if item["path"] == str(aside) and item["field"] == "ctime"]
    assert ctime["value"][:19] == event["time"][:19]


def test_a_half_installed_torch_is_neither_sound_nor_started_on(looked_at: Stage) -> None:
    problems = answer(looked_at, 1, "verify")["problems"]
    assert [(item["package"], "half installed" in item["detail"]) for item in problems] == [("torch", True)]
    assert answer(looked_at, 1, "verify", "torch")["problems"] == problems

    told = answer(looked_at, 0, "snapshot")["problems"]
    assert [item["subject"] for item in told if item["kind"] == "interrupted-install"] == ["torch"]

    refused = answer(looked_at, 78, "launch", "--against", "step_10", "--dry-run", "--", "true")
    assert any(drift["why"].startswith("half installed: pip put torch") for drift in refused["drifts"])


def test_what_pip_put_aside_is_a_source_and_what_it_copied_goes(killed_pip: Stage) -> None:
    own = killed_pip.site / "torch" / "only_new.py"
    own.write_text("# as if the copying had come as far\n")
    restored = answer(killed_pip, 0, "restore", "step_10", "-y")
    assert [(item["package"], item["to"], item["verified"]) for item in restored["plan"]] == [
        ("torch", cut.OLD, True)
    ]
    assert any("what it had copied into torch goes" in note for note in restored["notes"])
    assert not own.exists()
    assert (killed_pip.site / "~orch").is_dir(), "what pip put aside is the user's to remove"

    assert answer(killed_pip, 0, "verify", "--deep")["problems"] == []
    assert answer(killed_pip, 0, "diff", "step_10")["match"]
    answer(killed_pip, 0, "launch", "--against", "step_10", "--dry-run", "--", "true")
    cut_short = next(item for item in findings(killed_pip) if "cut short" in item["title"])
    assert f"Since then torch {cut.OLD} was installed whole." in cut_short["says"]

    answer(killed_pip, 0, "restore", "--rollback", "-y")
    assert own.exists(), "the roll-back brings back what the restore took away, too"


def test_a_checkpoint_without_a_stamp_goes_back_to_what_pip_put_aside(killed_pip: Stage) -> None:
    (killed_pip.checkpoints / "step_10" / "envguard.json").unlink()
    (killed_pip.project / ".envguard").rename(killed_pip.root / "forgotten")
    restored = answer(killed_pip, 0, "restore", "step_10", "-y")
    assert [(item["package"], item["to"]) for item in restored["plan"]] == [("torch", cut.OLD)]
    assert (killed_pip.site / "torch" / "version.py").read_text().count(f"'{cut.OLD}'") == 1


def test_a_bundle_tells_the_same_of_a_killed_install(looked_at: Stage) -> None:
    bundle = looked_at.root / "machine.tar.gz"
    answer(looked_at, 0, "collect", "-o", str(bundle))
    words = ("timeline", "--since-checkpoint", "step_10", "--bundle", str(bundle))
    assert answer(looked_at, 1, *words)["findings"] == findings(looked_at)


def test_an_install_over_a_killed_one_makes_it_whole_and_the_leftovers_are_said(killed_pip: Stage) -> None:
    cut.run(killed_pip, cut.pip_install(killed_pip, f"torch=={cut.OLD}"))
    assert answer(killed_pip, 0, "verify", "torch")["problems"] == []
    drifts = answer(killed_pip, 0, "diff", "step_10")["drifts"]
    assert [(item["subject"], item["severity"]) for item in drifts if "~orch" in item["why"]] == [("torch", "info")]
    cut_short = next(item for item in findings(killed_pip) if "cut short" in item["title"])
    assert f"Since then torch {cut.OLD} was installed whole." in cut_short["says"]


def test_a_uv_that_was_killed_never_brought_what_is_not_there(killed_uv: Stage) -> None:
    (finding,) = findings(killed_uv)
    assert finding["title"].startswith(f"an install of torch {cut.NEW} was cut short ")
    assert f" files of {cut.NEW} never came" in finding["says"]
    assert "can be restored: `envguard restore step_10`" in finding["says"]
    assert "UV_NO_INSTALLER_METADATA" in finding["caveats"][0]

    missing = [item for item in answer(killed_uv, 1, "verify")["problems"] if item["kind"] == "missing"]
    assert all(item["detail"].startswith("never came: the install was cut short") for item in missing)
    answer(killed_uv, 78, "launch", "--against", "step_10", "--dry-run", "--", "true")
    answer(killed_uv, 0, "restore", "step_10", "-y")
    assert answer(killed_uv, 0, "verify", "--deep")["problems"] == []


def test_a_removal_that_was_killed_is_no_other_build_of_that_version(large_stage: Stage) -> None:
    cut.run(large_stage, cut.uv_install(large_stage, f"torch=={cut.OLD}"))
    cut.stamp(large_stage)
    record = large_stage.site / f"torch-{cut.OLD}.dist-info" / "RECORD"
    removal = ["uv", "pip", "uninstall", "--python", str(large_stage.python), "torch"]
    removal[0] = cut.uv_install(large_stage)[0]
    cut.kill(large_stage, removal, lambda: record.parent.exists() and not any(record.parent.iterdir()))

    (finding,) = findings(large_stage)
    assert finding["title"].startswith(f"the removal of torch {cut.OLD} was cut short ")
    assert "torch is half removed" in finding["says"]
    assert "and there are files in torch/" in finding["says"]
    (problem,) = answer(large_stage, 1, "verify", "torch")["problems"]
    assert "nor INSTALLER, as where an install or removal was cut short" in problem["detail"]
    answer(large_stage, 0, "restore", "step_10", "-y")
    assert answer(large_stage, 0, "verify", "--deep")["problems"] == []


def test_a_first_install_that_was_killed_is_not_passed_over(large_stage: Stage) -> None:
    build_wheel(large_stage.wheels, "demo", "1.0")
    large_stage.install("demo")
    cut.stamp(large_stage)
    cut.kill(large_stage, cut.pip_install(large_stage, f"torch=={cut.NEW}"), cut.copying(large_stage))
    (finding,) = findings(large_stage)
    assert finding["title"].startswith("torch was put there without a dist-info ")
    assert f"holds code of {cut.NEW}, and no installed package lists it" in finding["says"]
    unverifiable = answer(large_stage, 3, "verify")["unverifiable"]
    assert [item["package"] for item in unverifiable if "no installed package lists" in item["why"]] == ["torch"]


def test_a_whole_install_without_installer_is_none_that_was_cut_short(large_stage: Stage) -> None:
    cut.stamp(large_stage)
    environ = large_stage.environ({"UV_NO_INSTALLER_METADATA": "1"})
    command = cut.uv_install(large_stage, f"torch=={cut.OLD}")
    subprocess.run(command, cwd=large_stage.project, env=environ, check=True, capture_output=True)
    assert not (large_stage.site / f"torch-{cut.OLD}.dist-info" / "INSTALLER").exists()
    (finding,) = findings(large_stage)  # the stamp has no torch
    assert finding["title"] == "torch changed after step_10"
    assert answer(large_stage, 0, "verify")["problems"] == []


def test_an_install_that_is_at_work_is_not_told_to_be_cut_short(large_stage: Stage) -> None:
    cut.run(large_stage, cut.pip_install(large_stage, f"torch=={cut.OLD}"))
    cut.stamp(large_stage)
    command, copying = cut.pip_install(large_stage, f"torch=={cut.NEW}"), cut.copying(large_stage)
    process = subprocess.Popen(
        command, cwd=large_stage.project, env=large_stage.environ(), stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        while not copying():
            assert process.poll() is None
            time.sleep(0.0002)
        os.killpg(process.pid, signal.SIGSTOP)
        said = answer(large_stage, 3, "timeline", "--since-checkpoint", "step_10")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert said["findings"] == []
    assert any(item["what"] == "whether the install of torch ended" for item in said["unknown"])


def test_a_pip_that_was_killed_twice_is_told_twice_and_each_version_has_its_own_folders(
    killed_pip: Stage,
) -> None:
    cut.run(killed_pip, cut.pip_install(killed_pip, f"torch=={cut.NEW}"))
    time.sleep(2.3)  # younger, its dist-info would look like a copy of the tree
    (killed_pip.site / "torch" / "only_new.py").touch()
    cut.kill(killed_pip, cut.pip_install(killed_pip, f"torch=={cut.OLD}"), cut.copying(killed_pip))
    titles = [item["title"] for item in findings(killed_pip) if "cut short" in item["title"]]
    assert [title.split(" after ")[0].rsplit(" ", 2)[0] for title in titles] == [
        f"an install of torch {cut.OLD} was cut short",
        "an install or removal of torch was cut short",
    ]
    assert answer(killed_pip, 0, "restore", "step_10", "-y")["verified"]
    assert (killed_pip.site / "torch" / "version.py").read_text().count(f"'{cut.OLD}'") == 1
    assert answer(killed_pip, 0, "verify", "--deep")["problems"] == []


def test_a_folder_that_pip_had_not_come_to_rename_keeps_what_a_user_put_into_it(large_stage: Stage) -> None:
    """pip makes the next name before it renames: killed in between, it leaves an empty folder and the old one."""
    cut.run(large_stage, cut.pip_install(large_stage, f"torch=={cut.OLD}"))
    cut.stamp(large_stage)
    own = large_stage.site / "torch" / "mine.txt"
    own.write_text("of the user\n")
    dist_info = large_stage.site / f"torch-{cut.OLD}.dist-info"
    dist_info.rename(large_stage.site / f"~orch-{cut.OLD}.dist-info")
    (large_stage.site / "~orch").mkdir()
    restored = answer(large_stage, 0, "restore", "step_10", "-y")
    assert restored["verified"]
    assert own.read_text() == "of the user\n"
    assert any("'~orch'" in note and "goes" not in note for note in restored["notes"])

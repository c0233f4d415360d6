"""An environment that is younger than what is asked about, by its own dates or by those of a copy: a backup that was
unpacked over it, one that was made anew, a checkpoint that came from elsewhere."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envguard.demo import wheels
from envguard.demo.stage import Stage

WANTED = ("torch==2.11.0+cu128", "transformers==5.6.0")


def save(stage: Stage, name: str = "step_690") -> Path:
    folder = stage.checkpoints / name
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    return folder


def timeline(stage: Stage) -> tuple[int, dict[str, Any], str]:
    """Exit code, answer, and the first line on a screen."""
    done = stage.envguard("timeline", "--since-checkpoint", "step_690", "--json")
    told = stage.envguard("timeline", "--since-checkpoint", "step_690").stdout
    return done.returncode, json.loads(done.stdout), told.partition("\n")[0]


def beyond(answer: dict[str, Any]) -> list[str]:
    return [item["why"] for item in answer["unknown"] if item["what"] == "what changed since step_690"]


def packages(answer: dict[str, Any]) -> list[str]:
    return [drift["subject"] for drift in answer["drifts"] if drift["facet"] == "packages"]


def backed_up(stage: Stage) -> Path:
    """A backup of the environment; then one of its packages is replaced, and another rebuilt under its version."""
    wheels.build_wheel(stage.wheels, "made", "1.0", {"made.py": b"v = 1\n"})
    stage.install("made")
    backup = stage.root / "backup.tar"
    subprocess.run(["tar", "cf", str(backup), "-C", str(stage.project), ".venv"], check=True)
    wheels.build_wheel(stage.wheels, "made", "1.0", {"made.py": b"v = 2\n"})
    stage.install("--reinstall-package", "made", "transformers==5.8.1", "made")
    time.sleep(2.1)  # less than two seconds apart are one writing
    return backup


def unpack(stage: Stage, backup: Path) -> None:
    shutil.rmtree(stage.venv)
    subprocess.run(["tar", "xf", str(backup), "-C", str(stage.project)], check=True)


def test_a_backup_that_was_unpacked_is_told_by_the_stamp(torch_stage: Stage) -> None:
    backup = backed_up(torch_stage)
    save(torch_stage)
    assert torch_stage.envguard("snapshot", "--into", "step_690").returncode == 0
    assert timeline(torch_stage)[:2][0] == 0
    time.sleep(0.3)
    unpack(torch_stage, backup)
    code, answer, first = timeline(torch_stage)
    (finding,) = answer["findings"]
    assert (code, first.partition(",")[0]) == (1, "1 finding since step_690")
    assert finding["title"].startswith("transformers and 1 more replaced ")
    assert finding["title"].endswith(" s after step_690")
    assert "transformers 5.8.1 → 5.6.0; made 1.0 → another build of that version." in finding["says"]
    assert "by a copy that kept its times" in finding["says"]
    event = next(item for item in answer["events"] if item["subject"] == "transformers")
    assert (event["kind"], event["time"] == event["end"], event["confidence"]) == ("package.replaced", True, "strong")
    assert {"stamp", "dist-info"} <= {item["witness"] for item in event["evidence"]}
    # What the finding advises is true.
    assert "`envguard restore step_690 --dry-run`" in finding["says"]
    restored = torch_stage.envguard("restore", "step_690", "--no-compile-cache", "-y")
    assert restored.returncode == 0, restored.stdout
    (only,) = timeline(torch_stage)[1]["findings"]
    assert only["title"] == "transformers was brought back by envguard"


def test_an_older_environment_that_was_moved_into_its_place(torch_stage: Stage) -> None:
    """A rename keeps births, too: the moment is not known, and is not made up."""
    older = torch_stage.root / "older"
    subprocess.run(["cp", "-a", str(torch_stage.venv), str(older)], check=True)
    time.sleep(1.1)
    torch_stage.install("transformers==5.8.1")
    save(torch_stage)
    assert torch_stage.envguard("snapshot", "--into", "step_690").returncode == 0
    shutil.rmtree(torch_stage.venv)
    older.rename(torch_stage.venv)
    code, answer, _ = timeline(torch_stage)
    (finding,) = answer["findings"]
    assert (code, finding["title"]) == (1, "transformers replaced after step_690")
    assert finding["caveats"] == ["no witness has the moment: the files bear the times of an older install"]
    event = next(item for item in answer["events"] if item["subject"] == "transformers")
    assert event["summary"] == "transformers 5.8.1 → 5.6.0, under the times of an older install"


def test_a_backup_without_a_stamp_is_not_determined(torch_stage: Stage) -> None:
    backup = backed_up(torch_stage)
    save(torch_stage)
    time.sleep(0.3)
    unpack(torch_stage, backup)
    code, answer, first = timeline(torch_stage)
    assert (code, answer["findings"]) == (3, [])
    assert first.endswith("without a stamp, but what changed is not known (below)")
    (why,) = beyond(answer)
    assert "was put here by a copy that kept its times after step_690 was saved" in why


@pytest.mark.parametrize("anew", [True, False])
def test_all_installed_later_is_no_word_on_what_was_there(torch_stage: Stage, anew: bool) -> None:
    save(torch_stage)
    time.sleep(0.6)
    if anew:
        torch_stage.uv("cache", "clean")
        shutil.rmtree(torch_stage.venv)
        torch_stage.make_venv()
    torch_stage.install("--reinstall", *WANTED)
    code, answer, first = timeline(torch_stage)
    assert (code, answer["findings"]) == (3, [])
    assert "what changed is not known" in first
    (why,) = beyond(answer)
    assert "was installed after step_690 was saved" in why
    done = torch_stage.envguard("diff", "step_690", "--json")
    drift = json.loads(done.stdout)
    # Neither "came later" nor "was replaced": both would be made up.
    assert (done.returncode, packages(drift)) == (3, [])
    assert [item["what"] for item in drift["unknown"] if "packages" in item["what"]] == ["packages"]
    assert "replaced" not in torch_stage.envguard("diff", "step_690").stdout
    restore = torch_stage.envguard("restore", "step_690", "--exact", "--dry-run")
    assert "would be removed" not in restore.stdout


def test_a_checkpoint_from_another_machine_is_older_than_all_of_it(torch_stage: Stage) -> None:
    folder = save(torch_stage)
    for path in (folder / "model.bin", folder):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    code, answer, _ = timeline(torch_stage)
    assert (code, answer["findings"], len(beyond(answer))) == (3, [], 1)
    assert "copied here later" in answer["events"][0]["summary"]


def test_one_older_package_reaches_back(torch_stage: Stage) -> None:
    save(torch_stage)
    time.sleep(0.6)
    torch_stage.install("--reinstall-package", "transformers", "transformers==5.6.0")
    code, answer, _ = timeline(torch_stage)
    assert (code, beyond(answer)) == (0, [])


def test_what_was_brought_here_together_says_nothing_of_its_order(torch_stage: Stage) -> None:
    save(torch_stage)
    time.sleep(2.1)
    elsewhere = torch_stage.root / "elsewhere"
    subprocess.run(["cp", "-a", str(torch_stage.project), str(elsewhere)], check=True)
    shutil.rmtree(torch_stage.project)
    elsewhere.rename(torch_stage.project)
    code, answer, _ = timeline(torch_stage)
    assert (code, answer["findings"], beyond(answer)) == (0, [], [])


def test_an_earlier_stamp_reaches_back_for_a_later_checkpoint(torch_stage: Stage) -> None:
    save(torch_stage, "step_680")
    assert torch_stage.envguard("snapshot", "--into", "step_680").returncode == 0
    save(torch_stage)
    time.sleep(0.6)
    torch_stage.install("--reinstall", *WANTED)
    code, answer, _ = timeline(torch_stage)
    assert (code, answer["findings"], beyond(answer)) == (0, [], [])
    drift = json.loads(torch_stage.envguard("diff", "step_690", "--json").stdout)
    assert packages(drift) == []


def test_a_backup_over_what_an_earlier_stamp_has(torch_stage: Stage) -> None:
    """The later checkpoint has no stamp: which of the two it was made with is not known, and diff does not say."""
    backup = backed_up(torch_stage)
    stamp_of = save(torch_stage, "step_680")
    assert torch_stage.envguard("snapshot", "--into", "step_680").returncode == 0
    save(torch_stage)
    unpack(torch_stage, backup)
    code, answer, _ = timeline(torch_stage)
    (finding,) = answer["findings"]
    assert code == 1
    fingerprint = json.loads((stamp_of / "envguard.json").read_bytes())["id"]
    assert f"`envguard restore {fingerprint} --dry-run`" in finding["says"]
    back = torch_stage.envguard("restore", fingerprint, "--dry-run")
    assert "transformers 5.8.1" in back.stdout.partition("\n")[0]
    drift = json.loads(torch_stage.envguard("diff", "step_690", "--json").stdout)
    assert packages(drift) == []
    assert "packages: transformers" in [item["what"] for item in drift["unknown"]]


def test_a_checkpoint_is_named_by_its_path_wherever_it_lies_and_whatever_it_is_called(torch_stage: Stage) -> None:
    folder = torch_stage.root / "elsewhere" / "final model"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    time.sleep(0.6)
    torch_stage.install("transformers==5.8.1")
    done = torch_stage.envguard("timeline", "--since-checkpoint", str(folder), "--json")
    answer = json.loads(done.stdout)
    (finding,) = answer["findings"]
    assert (done.returncode, answer["checkpoint"]["path"]) == (1, str(folder))
    assert finding["title"].endswith(" after final model")
    # The advice names it so that it is found again.
    (advice,) = [part for part in finding["says"].split("`") if part.startswith("envguard restore")]
    tried = torch_stage.envguard(*shlex.split(advice)[1:], "--dry-run")
    assert (tried.returncode, "transformers 5.6.0" in tried.stdout) == (0, True)
    for wrong, says in ((torch_stage.root / "elsewhere", "directory"), (torch_stage.venv, "environment")):
        refused = torch_stage.envguard("timeline", "--since-checkpoint", str(wrong))
        assert (refused.returncode, says in refused.stderr) == (2, True)


@pytest.mark.parametrize("mode", ["copy", "hardlink"])
def test_what_was_installed_again_did_not_come_later(torch_stage: Stage, mode: str) -> None:
    """No predecessor is known of it, as after every reinstall of one build: it may have been there all along."""
    save(torch_stage)
    time.sleep(0.6)
    again = ("transformers==5.6.0", "--reinstall-package", "transformers")
    torch_stage.install(*again, "flashinfer-python", arguments=["--link-mode", mode])
    done = torch_stage.envguard("diff", "step_690", "--json")
    drift = json.loads(done.stdout)
    # The cache unpacked flashinfer for this very run, and never before.
    assert (done.returncode, packages(drift)) == (3, ["flashinfer-python"])
    assert "packages: transformers" in [item["what"] for item in drift["unknown"]]
    plan = torch_stage.envguard("restore", "step_690", "--exact", "--dry-run")
    assert plan.stdout.partition("\n")[0] == "would be changed: flashinfer-python removed"
    assert "transformers: it was installed later" in " ".join(plan.stdout.split())


def test_what_the_cache_lost_before_this_environment_was_made_was_perhaps_elsewhere(torch_stage: Stage) -> None:
    """Another environment is deleted, and then this one is made: nothing says that something was replaced here."""
    shutil.rmtree(torch_stage.venv)
    other = torch_stage.root / "other"
    torch_stage.uv("venv", "--quiet", "--python", sys.executable, str(other))
    where = (
        "--offline",
        "--no-index",
        "--find-links",
        str(torch_stage.wheels),
        "--python",
        str(other / "bin/python"),
    )
    torch_stage.uv("pip", "install", *where, "torch==2.11.0+cu128")
    save(torch_stage)
    time.sleep(0.3)
    shutil.rmtree(other)
    torch_stage.make_venv()
    torch_stage.install("torch==2.11.0+cu130")
    code, answer, _ = timeline(torch_stage)
    (finding,) = answer["findings"]
    assert (code, finding["title"].startswith("torch perhaps replaced ")) == (1, True)
    assert "it is clean" not in finding["says"]
    assert "removed from here" not in finding["says"]
    assert finding["caveats"][0].endswith("from here, or from another one")
    event = next(item for item in answer["events"] if item["subject"] == "torch")
    assert event["confidence"] == "weak"
    assert torch_stage.envguard("diff", "step_690").returncode == 3

"""What was brought back for a checkpoint stays the answer for it: a restore is no change since."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

from envguard.demo.stage import Stage

RUN = ("--", "sh", "-c", "exit 7")


def _save(stage: Stage, name: str) -> Path:
    folder = stage.checkpoints / name
    folder.mkdir()
    (folder / "model.pt").write_bytes(name.encode())
    time.sleep(2.2)  # two installs within two seconds are one run to the timeline
    return folder


def _torch_drift(stage: Stage, *references: str) -> tuple[int, list[tuple[str | None, str | None]]]:
    done = stage.envguard("diff", *references, "--json")
    drifts = json.loads(done.stdout)["drifts"]
    return done.returncode, [
        (row["a"], row["b"]) for row in drifts if (row["facet"], row["subject"]) == ("torch",) * 2
    ]


def test_a_restored_checkpoint_without_a_stamp_is_undetermined_and_starts_on_a_waiver(torch_stage: Stage) -> None:
    _save(torch_stage, "step_690")
    torch_stage.install("sglang")
    assert _torch_drift(torch_stage, "step_690") == (1, [("2.11.0+cu128", "2.11.0+cu130")])
    assert (
        torch_stage.envguard("snapshot").returncode == 0
    )  # what people do while they search is no witness of before
    assert torch_stage.envguard("restore", "step_690", "-y").returncode == 0

    assert _torch_drift(torch_stage, "step_690") == (3, [])
    assert torch_stage.envguard("launch", "--against", "step_690", *RUN).returncode == 3
    waived = torch_stage.envguard("launch", "--against", "step_690", "--waive", "unknown", "--because", "x", *RUN)
    assert waived.returncode == 7, waived.stderr
    told = json.loads(torch_stage.envguard("timeline", "--since-checkpoint", "step_690", "--json").stdout)
    titles = [finding["title"] for finding in told["findings"]]
    assert "torch was brought back by envguard" in titles
    assert not any("torch replaced" in title for title in titles)
    says = told["findings"][titles.index("torch was brought back by envguard")]["says"]
    assert "It took away 2.11.0+cu130, which had been there since" in says
    assert says.endswith("step_690 was saved before that came.")
    again = torch_stage.envguard("restore", "step_690", "-y", "--json")
    assert (again.returncode, json.loads(again.stdout)["plan"]) == (0, [])


def test_a_later_swap_is_measured_against_what_was_restored(torch_stage: Stage) -> None:
    _save(torch_stage, "step_690")
    torch_stage.install("sglang")
    assert torch_stage.envguard("restore", "step_690", "-y").returncode == 0
    time.sleep(2.2)
    torch_stage.install("sglang", arguments=("--reinstall",))
    assert _torch_drift(torch_stage, "step_690") == (1, [("2.11.0+cu128", "2.11.0+cu130")])
    plan = json.loads(torch_stage.envguard("restore", "step_690", "--dry-run", "--json").stdout)
    assert [(item["package"], item["to"]) for item in plan["plan"]] == [("torch", "2.11.0+cu128")]
    assert "restored for this moment before" in " ".join(plan["notes"])


def test_what_a_restore_took_away_does_not_speak_for_a_time_before_it_came(torch_stage: Stage) -> None:
    stamped = _save(torch_stage, "step_680")
    assert torch_stage.envguard("snapshot", "--into", str(stamped)).returncode == 0
    _save(torch_stage, "step_690")
    torch_stage.install("sglang")
    time.sleep(0.1)
    _save(torch_stage, "step_700")
    assert torch_stage.envguard("restore", "step_680", "-y").returncode == 0

    # cu130 came after step_690: that it was replaced by the restore says nothing of step_690.
    code, drifts = _torch_drift(torch_stage, "step_690")
    assert (code, drifts) == (3, [])
    unknown = json.loads(torch_stage.envguard("diff", "step_690", "--json").stdout)["unknown"]
    when = r"envguard restored 2\.11\.0\+cu128 at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d\d:\d\d, and what"
    assert any(re.match(when, item["why"]) for item in unknown), unknown
    # It was there when step_700 was saved, and the restore says since when.
    assert _torch_drift(torch_stage, "step_700") == (1, [("2.11.0+cu130", "2.11.0+cu128")])


def test_going_back_to_a_later_state_does_not_rewrite_an_earlier_one(torch_stage: Stage) -> None:
    _save(torch_stage, "step_690")
    torch_stage.install("sglang")
    assert torch_stage.envguard("snapshot").returncode == 0
    assert torch_stage.envguard("restore", "step_690", "-y").returncode == 0
    assert torch_stage.envguard("restore", "@1", "-y").returncode == 0
    assert _torch_drift(torch_stage, "step_690") == (1, [("2.11.0+cu128", "2.11.0+cu130")])


def test_a_package_that_a_restore_mended_was_there_before(torch_stage: Stage) -> None:
    """Its files were deleted and are back, in the same version: a checkpoint from before is not without it, and
    going to that checkpoint removes nothing."""
    _save(torch_stage, "step_690")
    assert torch_stage.envguard("snapshot").returncode == 0
    (torch_stage.site / "transformers/__init__.py").unlink()
    assert torch_stage.envguard("restore", "@1", "-y").returncode == 0

    done = torch_stage.envguard("diff", "@1", "step_690", "--json")
    drifts = json.loads(done.stdout)["drifts"]
    assert (done.returncode, [row for row in drifts if row["severity"] != "info"]) == (3, [])
    exact = torch_stage.envguard("restore", "step_690", "--exact", "--dry-run", "--json")
    assert (exact.returncode, json.loads(exact.stdout)["plan"]) == (0, [])


def test_a_restore_whose_reader_went_away_is_in_the_journal(torch_stage: Stage) -> None:
    """`envguard restore REF -y | head -1`: without the entry the timeline would take it for somebody's swap."""
    assert torch_stage.envguard("snapshot").returncode == 0
    (torch_stage.site / "transformers/__init__.py").unlink()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            torch_stage.envguard_command("restore", "@1", "-y"),
            cwd=torch_stage.project, env=torch_stage.environ(), stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert (done.returncode, (torch_stage.site / "transformers/__init__.py").exists()) == (2, True), done.stderr
    entries = json.loads(torch_stage.envguard("log", "--json").stdout)["entries"]
    assert [entry["ref"] for entry in entries if entry["kind"] == "restore"] == ["@1"]

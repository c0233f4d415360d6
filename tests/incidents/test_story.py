"""The story on its own dates, from a bundle: its text line by line, and each of the four questions in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envguard.model.schema import schema
from tests.incidents import story

EXPECTED = Path(__file__).with_name("step_690.txt")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("story") / "ct200.bundle"
    path.write_bytes(story.build())
    return path


def run(bundle: Path, *arguments: str, columns: int = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "envguard", "timeline", "--bundle", str(bundle), *arguments]
    environ = {**os.environ, "COLUMNS": str(columns), "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, capture_output=True, text=True, env=environ, cwd=bundle.parent, check=False)


def answer(bundle: Path, *arguments: str) -> dict[str, Any]:
    done = run(bundle, "--json", *arguments)
    assert done.stderr == ""
    value: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(value, schema("timeline"))
    return value


def test_the_text_line_by_line(bundle: Path) -> None:
    done = run(bundle, "--since-checkpoint", "step_690")
    assert done.returncode == 1
    assert [line.rstrip() for line in done.stdout.splitlines()] == EXPECTED.read_text("utf-8").splitlines()


@pytest.mark.parametrize("columns", [80, 140])
def test_no_line_is_longer_than_the_terminal(bundle: Path, columns: int) -> None:
    done = run(bundle, "--since-checkpoint", "step_690", columns=columns)
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= columns


def test_when_was_the_checkpoint_saved_and_is_it_clean(bundle: Path) -> None:
    found = answer(bundle, "--since-checkpoint", "step_690")
    assert found["checkpoint"] == {
        "name": "step_690", "path": f"{story.CHECKPOINTS}/step_690", "step": 690,
        "time": "2026-05-18T18:41:07.400000+00:00", "stamped": False,
    }  # fmt: skip
    assert "step_690 was saved before that: it is clean, made with the old build." in found["findings"][0]["says"]


def test_when_was_torch_replaced_by_what_and_forced_by_whom(bundle: Path) -> None:
    found = answer(bundle, "--since-checkpoint", "step_690")
    assert found["findings"][0]["title"] == "torch replaced 11 min 04 s after step_690"
    (swap,) = [event for event in found["events"] if event["subject"] == "torch"]
    assert (swap["time"], swap["end"]) == ("2026-05-18T18:52:11.020000+00:00", "2026-05-18T18:52:11.310000+00:00")
    assert (swap["from"], swap["to"], swap["confidence"]) == ("2.11.0+cu128", "2.11.0+cu130", "certain")
    (run,) = [item for item in found["transactions"] if item["id"] == swap["transaction"]]
    assert run["roots"] == ["sglang"]
    (torch,) = [package for package in run["packages"] if package["name"] == "torch"]
    assert torch["forced_by"] == [{"package": "sglang", "version": "0.5.6", "requires": "torch==2.11.0+cu130"}]


def test_where_every_requirement_allowed_the_old_build_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "allowed.bundle"
    path.write_bytes(story.build(forced=False))
    found = answer(path, "--since-checkpoint", "step_690")
    (torch,) = [item for run in found["transactions"] for item in run["packages"] if item["name"] == "torch"]
    assert torch["forced_by"] == []
    # accelerate allows it as well, but the run did not have to meet what accelerate requires.
    assert [item["package"] for item in torch["allowed_by"]] == ["sglang"]
    assert (
        "Permitted, not forced: 2.11.0+cu128 meets sglang 0.5.6 (`torch==2.11.0`) too" in found["findings"][0]["says"]
    )


def test_which_build_was_there_before_and_that_its_namesake_is_another(bundle: Path) -> None:
    found = answer(bundle, "--since-checkpoint", "step_690")
    (torch,) = [item for run in found["transactions"] for item in run["packages"] if item["name"] == "torch"]
    best = torch["previous"][0]
    assert (best["version"], best["cuda"], best["restorable"]) == ("2.11.0+cu128", "12.8", story.GOOD_ARCHIVE)
    assert best["witnesses"] == ["process", "removal", "wandb"]
    assert story.OTHER_ARCHIVE in " ".join(found["findings"][0]["caveats"])


def test_throughput_falls_twice_with_ranked_causes_and_what_speaks_against_them(bundle: Path) -> None:
    found = answer(bundle, "--since-checkpoint", "step_690")
    first, second = [finding for finding in found["findings"] if finding["title"].startswith("throughput fell")]
    assert first["title"] == "throughput fell from 21.5 Ktok/s to 9.7 Ktok/s with a new run"
    assert second["title"] == "throughput fell from 9.7 Ktok/s to 4.3 Ktok/s with a new run"
    assert "q_pre=[50,50,50,50,50], q_hs=[0], targets 0.54 and drafters 0.54 batches/s" in first["says"]
    ranked = [(found["events"][index]["kind"], found["events"][index]["subject"]) for index in first["because"][1:]]
    assert ranked[0] == ("package.replaced", "torch")
    assert set(ranked[1:]) == {
        ("config.changed", "settings"), ("package.replaced", "transformers"), ("data.changed", "samples")
    }  # fmt: skip
    assert any("902,087 → 1,104,318 samples" in caveat for caveat in first["caveats"])
    ranked = [(found["events"][index]["kind"], found["events"][index]["subject"]) for index in second["because"][1:]]
    assert ranked[0][0] == "compile_cache.cleared"
    assert ranked[1] == ("code.changed", "dflash_model.py")


def test_the_symptom_patch_is_not_called_a_fix(bundle: Path) -> None:
    found = answer(bundle, "--since-checkpoint", "step_690")
    (fx,) = [finding for finding in found["findings"] if "FX-tracing" in finding["title"]]
    assert any("dflash_model.py" in caveat and "it mends nothing" in caveat for caveat in fx["caveats"])


def test_a_notebook_that_never_closed_is_still_on_the_old_build(bundle: Path) -> None:
    found = answer(bundle, "--since-checkpoint", "step_690")
    (stale,) = [event for event in found["events"] if event["kind"] == "process.stale"]
    assert stale["subject"] == "2213"
    assert stale["summary"].endswith("still runs torch 2.11.0+cu128")


def test_history_is_read_only_where_the_user_opted_in_and_without_its_secrets(tmp_path: Path, bundle: Path) -> None:
    assert not [event for event in answer(bundle)["events"] if event["evidence"][0]["witness"] == "shell-history"]
    path = tmp_path / "history.bundle"
    path.write_bytes(story.build(shell_history=True))
    done = run(path, "--json")
    assert "hf_abcdefgh" not in done.stdout
    cleared = [event for event in json.loads(done.stdout)["events"] if event["kind"] == "compile_cache.cleared"]
    assert [event["time"][:16] for event in cleared if event["subject"] == "torchinductor_root"] == [
        "2026-05-19T08:58", "2026-05-19T12:04"
    ]  # fmt: skip


def test_every_row_can_be_checked_by_hand(bundle: Path) -> None:
    done = run(bundle, "--since-checkpoint", "step_690", "-v")
    lines = done.stdout.splitlines()
    assert any(line.strip().startswith(f"$ stat -c '%z, %h links' {story.GOOD_ARCHIVE}/torch/") for line in lines)
    assert f"$ grep ^Version: {story.GOOD_ARCHIVE}/torch-2.11.0+cu128.dist-info/METADATA" in map(str.strip, lines)
    assert f"$ stat -c '%y' {story.CHECKPOINTS}/step_690" in map(str.strip, lines)


@pytest.mark.parametrize(
    ("arguments", "first", "last"),
    [
        (("--since", "2026-05-18T20:52"), "package.installed", "process.stale"),
        (("--since", "20:52", "--kind", "nothing"), "", ""),
        (
            (
                "--until",
                "2026-05-12",
            ),
            "package.installed",
            "code.commit",
        ),
        (
            (
                "--kind",
                "package.replaced",
            ),
            "package.replaced",
            "package.replaced",
        ),
    ],
)
def test_bounds_and_kinds(bundle: Path, arguments: tuple[str, ...], first: str, last: str) -> None:
    if "nothing" in arguments:
        done = run(bundle, "--json", *arguments)
        assert done.returncode == 2
        assert "no kind of event 'nothing'" in json.loads(done.stdout)["error"]
        return
    events = answer(bundle, *arguments)["events"]
    assert first in {event["kind"] for event in events}
    assert last in {event["kind"] for event in events}


def test_the_page_holds_the_same_findings(bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    run(bundle, "--since-checkpoint", "step_690", "--html", str(page))
    text = page.read_text("utf-8")
    assert "torch replaced 11 min 04 s after step_690" in text
    assert text.startswith("<!DOCTYPE html>")


def test_every_finding_rests_on_events_and_says_what_speaks_against_it(bundle: Path) -> None:
    for arguments in ((), ("--since-checkpoint", "step_690")):
        for finding in answer(bundle, *arguments)["findings"]:
            assert finding["because"], finding["title"]
            assert finding["caveats"], finding["title"]

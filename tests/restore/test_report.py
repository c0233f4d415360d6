"""The restore's text: the verdict first, nothing to paste that ends in blanks."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from envguard.demo.show import Show
from envguard.demo.stage import Stage
from envguard.model.action import PlanItem, RestoreReport
from envguard.report.restore import render
from envguard.report.screen import Screen


def text(report: RestoreReport, dry_run: bool, width: int = 100) -> list[str]:
    stream = io.StringIO()
    render(report, dry_run)(Console(file=stream, width=width))
    return stream.getvalue().splitlines()


def report(**changes: object) -> RestoreReport:
    plan = (
        PlanItem(
            package="torch", from_="2.11.0+cu130", to="2.11.0+cu128", source="pylock", verified=True, bytes=7 << 20
        ),
        PlanItem(package="sglang", from_="0.5.2", to=None, source=None, verified=True, bytes=None),
    )
    fields: dict[str, object] = {
        "reference": "step_690", "plan": plan, "missing": (), "poisoned": (), "notes": ("a note",),
        "applied": False, "verified": False, "rolled_back": False, **changes,
    }  # fmt: skip
    return RestoreReport(**fields)  # type: ignore[arg-type]


def test_the_verdict_is_the_first_line_and_names_the_builds() -> None:
    done = text(report(applied=True, verified=True), dry_run=False)
    assert done[0] == "restored and verified, file by file: torch 2.11.0+cu128, sglang removed"
    assert done[-1] == "note: a note"
    assert text(report(), dry_run=True)[0] == "would be changed: torch 2.11.0+cu128, sglang removed"
    assert text(report(plan=(), verified=True), dry_run=False)[0].startswith("nothing to do: every package")
    assert "not proved" in text(report(plan=()), dry_run=False)[0]


def test_no_line_ends_in_blanks() -> None:
    for width in (40, 100):
        lines = text(report(), dry_run=True, width=width)
        assert [line for line in lines if line != line.rstrip()] == []
        assert any("torch" in line and "MiB" in line for line in lines) or width == 40


def test_the_demo_breaks_no_command_line(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown, stream = Screen(), io.StringIO()
    shown.out = Console(file=stream, width=40)
    long = ["vault", "list", "--checkpoints", "a-folder-with-a-rather-long-name", "--color", "never"]
    Show(stage, shown).command(*long, expected=0, proves="")
    assert f"$ envguard {' '.join(long)}" in stream.getvalue().splitlines()

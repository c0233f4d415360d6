"""Code of no package that every start of a Python runs: sitecustomize, usercustomize, lines in .pth files."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from envguard.demo import wheels
from envguard.demo.stage import Stage


@pytest.fixture
def stamped(stage: Stage) -> Stage:
    wheels.build_wheel(stage.wheels, "demo", "1.0")
    stage.install("demo")
    (stage.site / "sitecustomize.py").write_text("FLAG = 1\n")
    (stage.site / "hook.pth").write_text("import os; os.environ['FLAG'] = '1'\n")
    folder = stage.checkpoints / "step_10"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    assert stage.envguard("snapshot", "--into", "step_10").returncode == 0
    time.sleep(0.1)
    return stage


def diff(stage: Stage, **variables: str) -> tuple[int, list[dict[str, Any]]]:
    done = stage.envguard("diff", "step_10", "--json", extra=variables)
    return done.returncode, json.loads(done.stdout)["drifts"]


def timeline(stage: Stage) -> tuple[int, list[dict[str, Any]]]:
    done = stage.envguard("timeline", "--since-checkpoint", "step_10", "--json")
    return done.returncode, json.loads(done.stdout)["findings"]


def imported(stage: Stage, **variables: str) -> str | None:
    """Which sitecustomize this very Python takes."""
    code = "import sys; print(getattr(sys.modules.get('sitecustomize'), '__file__', ''))"
    done = subprocess.run(
        [str(stage.python), "-c", code], env=stage.environ(variables), capture_output=True, text=True
    )
    return done.stdout.strip() or None


def test_what_stays_is_no_difference(stamped: Stage) -> None:
    assert imported(stamped) == str(stamped.site / "sitecustomize.py")
    assert diff(stamped) == (0, [])
    assert timeline(stamped) == (0, [])


def test_it_comes(stage: Stage) -> None:
    (stage.checkpoints / "step_10").mkdir()
    (stage.checkpoints / "step_10" / "model.bin").write_bytes(b"weights")
    assert stage.envguard("snapshot", "--into", "step_10").returncode == 0
    time.sleep(0.1)
    (stage.site / "sitecustomize.py").write_text("FLAG = 1\n")
    code, (drift,) = diff(stage)
    assert (code, drift["facet"], drift["subject"], drift["severity"]) == (1, "packages", "sitecustomize", "warn")
    assert str(stage.site / "sitecustomize.py") in drift["why"]
    code, (finding,) = timeline(stage)
    assert (code, finding["title"]) == (1, "start-up code changed after step_10: sitecustomize.py")
    assert "`envguard diff step_10` tells it apart" in finding["caveats"][0]
    assert "is imported at every start of this Python and is of no package" in finding["says"]
    assert stage.envguard("launch", "--against", "step_10", "--", str(stage.python), "-c", "").returncode == 78
    (stage.checkpoints / "step_10" / "envguard.json").unlink()
    _, (finding,) = timeline(stage)
    assert finding["caveats"] == ["what it does to a run is not known"], "no stamp says what it had"


@pytest.mark.parametrize(("name", "subject"), [("sitecustomize.py", "sitecustomize"), ("hook.pth", "hook.pth")])
def test_it_is_another(stamped: Stage, name: str, subject: str) -> None:
    text = (stamped.site / name).read_text()
    (stamped.site / name).write_text(text.replace("1", "2"))
    code, drifts = diff(stamped)
    assert (code, [item["subject"] for item in drifts]) == (1, [subject])
    code, (finding,) = timeline(stamped)
    assert (code, finding["title"]) == (1, f"start-up code changed after step_10: {name}")


@pytest.mark.parametrize(("name", "subject"), [("sitecustomize.py", "sitecustomize"), ("hook.pth", "hook.pth")])
def test_it_goes(stamped: Stage, name: str, subject: str) -> None:
    (stamped.site / name).unlink()
    code, (drift,) = diff(stamped)
    assert (code, drift["subject"], drift["effect"]) == (1, subject, "numerics")
    assert drift["why"].startswith("what every start ran is gone")
    code, (finding,) = timeline(stamped)
    assert (code, finding["title"]) == (1, f"start-up code changed after step_10: {name}")
    assert finding["says"].startswith(f"{name}, which ran at every start of this Python, is gone")


def test_the_end_of_a_long_line_counts(stamped: Stage) -> None:
    line = f"import os; os.environ['LONG'] = '{'x' * 300}1'\n"
    (stamped.site / "hook.pth").write_text(line)
    assert stamped.envguard("snapshot", "--into", "step_10").returncode == 0
    assert diff(stamped) == (0, [])
    (stamped.site / "hook.pth").write_text(line.replace("x1", "x2"))
    assert [item["subject"] for item in diff(stamped)[1]] == ["hook.pth"]


def test_the_path_decides_which_is_run(stamped: Stage) -> None:
    first = stamped.root / "first" / "sitecustomize"
    first.mkdir(parents=True)
    (first / "__init__.py").write_text("FLAG = 3\n")
    assert imported(stamped, PYTHONPATH=str(first.parent)) == str(first / "__init__.py")
    told = [item for item in diff(stamped, PYTHONPATH=str(first.parent))[1] if item["subject"] == "sitecustomize"]
    assert any(str(first / "__init__.py") in item["why"] for item in told)


def test_a_package_answers_for_its_own(stamped: Stage) -> None:
    (stamped.site / "sitecustomize.py").unlink()
    wheels.build_wheel(stamped.wheels, "custom", "1.0", {"sitecustomize/__init__.py": b"FLAG = 1\n"})
    stamped.install("custom")
    assert imported(stamped) == str(stamped.site / "sitecustomize" / "__init__.py")
    problems = json.loads(stamped.envguard("snapshot", "--json").stdout)["problems"]
    assert [item["subject"] for item in problems if item["kind"] == "startup-code"] == []


def test_a_venv_that_keeps_to_itself_runs_no_usercustomize(stamped: Stage) -> None:
    (stamped.site / "usercustomize.py").write_text("FLAG = 1\n")
    assert diff(stamped) == (0, [])

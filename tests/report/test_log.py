"""The list of `log`: what it shows of a run."""

from __future__ import annotations

import json

import jsonschema
import pytest

from envguard.demo.stage import Stage
from envguard.model.schema import schema


@pytest.mark.parametrize(("command", "code"), [(("true",), 0), (("sh", "-c", "exit 3"), 3)])
def test_a_run_shows_command_code_duration_and_reference(stage: Stage, command: tuple[str, ...], code: int) -> None:
    (stage.checkpoints / "step_1").mkdir()
    (stage.checkpoints / "step_1" / "model.bin").write_bytes(b"x")
    assert stage.envguard("snapshot", "--into", "step_1").returncode == 0
    assert stage.envguard("launch", "--against", "step_1", "--", *command).returncode == code
    answer = json.loads(stage.envguard("log", "--json").stdout)
    jsonschema.validate(answer, schema("log"))
    (run,) = [entry for entry in answer["entries"] if entry["kind"] == "run"]
    assert (run["command"], run["code"], run["reference"]) == ([*command], code, "step_1")
    assert 0 <= run["duration_s"] < 60
    shown = stage.envguard("log").stdout
    assert f"exit {code} after" in shown
    assert "against step_1: " + (" ".join(command) if code == 0 else "sh -c 'exit 3'") in shown


def test_names_in_every_screen_are_escaped(stage: Stage) -> None:
    """A title of the terminal in the name of a checkpoint, as a hostile repository could carry one."""
    name = "step_1\x1b]0;title\x07"
    (stage.checkpoints / name).mkdir()
    (stage.checkpoints / name / "model.bin").write_bytes(b"x")
    assert stage.envguard("snapshot", "--into", f"checkpoints/{name}").returncode == 0
    stage.uv("venv", "--quiet", "--clear", str(stage.venv))
    (stage.site / "extra.pth").write_text("import os\n")
    for words in (["log"], ["diff", f"checkpoints/{name}"], ["timeline"],
                  ["launch", "--against", f"checkpoints/{name}", "--", "true"],
                  ["restore", f"checkpoints/{name}", "--dry-run"]):  # fmt: skip
        done = stage.envguard(*words)
        assert "\x1b" not in done.stdout + done.stderr, words
        assert "\x07" not in done.stdout + done.stderr, words

"""What every command owes its streams: any locale, one JSON object, a hint with each error, no trailing blanks."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

from envguard.demo.stage import Stage
from envguard.model.schema import KINDS, schema
from envguard.report.paragraph import paragraph

REFUSED = (
    ("timeline", "--bundle", "none.tar.gz"),
    ("timeline", "--html", "no/such/folder/page.html"),
    ("collect", "-o", "no/such/folder/it.bundle"),
    ("snapshot", "--color", "sometimes"),
    ("launch", "--on-drift", "shrug", "--", "true"),
    ("diff", "empty/uv.lock"),
    ("schema", "nonsense"),
    ("schema", "diff", "--color", "sometimes"),
)


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_each_error_says_what_helps(torch_stage: Stage, words: tuple[str, ...]) -> None:
    (torch_stage.project / "empty").mkdir()
    (torch_stage.project / "empty" / "uv.lock").touch()
    own = (
        [*words[: words.index("--")], "--json", *words[words.index("--") :]] if "--" in words else [*words, "--json"]
    )
    done = torch_stage.envguard(*own)
    assert done.returncode == 2, done.stdout
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, schema("error"))
    assert answer["hint"]
    assert done.stderr == f"error: {answer['error']}\nhint: {answer['hint']}\n"


@pytest.mark.parametrize("content", [b"checkpoints = [", b"\xff\xfe"])
def test_a_broken_configuration_says_what_it_has_to_be(torch_stage: Stage, content: bytes) -> None:
    (torch_stage.project / "envguard.toml").write_bytes(content)
    done = torch_stage.envguard("log", "--json")
    assert (done.returncode, json.loads(done.stdout)["hint"]) == (2, "it has to be TOML in UTF-8, and readable")


def test_an_ascii_terminal_gets_an_answer_and_json_stays_utf_8(torch_stage: Stage) -> None:
    folder = torch_stage.checkpoints / "ställe" / "step_690"
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"weights")
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    told = torch_stage.envguard("log", "-v", extra=ascii_only)
    assert (told.returncode, told.stderr) == (0, "")
    assert "st\\xe4lle/step_690" in told.stdout
    answer = json.loads(torch_stage.envguard("log", "--json", extra=ascii_only).stdout)
    assert [entry["path"] for entry in answer["entries"]] == [str(folder)]


@pytest.mark.parametrize("kind", [*KINDS])
def test_a_schema_is_one_json_object_with_and_without_the_flag(stage: Stage, kind: str) -> None:
    plain, flagged = stage.envguard("schema", kind), stage.envguard("schema", kind, "--json", "-q")
    assert (plain.returncode, plain.stdout) == (flagged.returncode, flagged.stdout)
    assert f"envguard.{kind}" in plain.stdout
    jsonschema.Draft202012Validator.check_schema(json.loads(plain.stdout))


def test_no_paragraph_ends_a_line_in_blanks_or_breaks_a_word(torch_stage: Stage) -> None:
    step = torch_stage.checkpoints / "step_690"
    step.mkdir()
    (step / "model.safetensors").write_bytes(b"weights")
    assert torch_stage.envguard("snapshot", "--into", str(step)).returncode == 0
    torch_stage.install("sglang")
    for words in (("diff", "step_690"), ("launch", "--against", "step_690", "--", "true")):
        done = torch_stage.envguard(*words, extra={"COLUMNS": "60"})
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "envguard " not in line]
        assert lines, done.returncode
        assert all(line == line.rstrip() for line in lines)
        # A path stays whole, however long it is, so that it can be copied.
        assert max(len(line) for line in lines if str(torch_stage.project) not in line) <= 60
        assert "torch torch" not in done.stdout


def test_the_head_of_a_paragraph_counts_as_part_of_its_first_line() -> None:
    """`undetermined ` is wider than what its further lines are indented by."""
    out = io.StringIO()
    console = Console(file=out, width=40)
    paragraph(console, "it has no stamp; only what witnesses still know", head="undetermined ", indent=6)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(line.strip() for line in lines) == "undetermined it has no stamp; only what witnesses still know"
    assert all(line.startswith(" " * 6) for line in lines[1:])


def test_a_launcher_on_the_path_is_named_and_what_it_chooses_can_be_named(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "room")
    shim = tmp_path / "shims" / "python3"
    shim.parent.mkdir()
    shim.write_text('#!/bin/sh\nexec pyenv exec python3 "$@"\n')
    shim.chmod(0o755)
    done = stage.envguard("snapshot", extra={"PATH": str(shim.parent)})
    assert done.returncode == 2
    assert f"{shim} lies in no prefix" in done.stderr
    assert "--python" in done.stderr.splitlines()[-1]


def test_nothing_to_verify_is_not_sound(torch_stage: Stage) -> None:
    shutil.rmtree(torch_stage.site)
    done = torch_stage.envguard("verify", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (3, [])
    assert [item["package"] for item in report["unverifiable"]] == ["the environment"]
    assert "SOUND" not in torch_stage.envguard("verify").stdout

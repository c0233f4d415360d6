"""`envguard diff` and `log` on a real environment: codes, JSON, and what a tired person reads first."""

from __future__ import annotations

import getpass
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.model.schema import schema
from tests.caches import stamp_as_trainer, tag_of, write_cache
from tests.permissions import envguard_held_to_modes, unreadable


def run(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The one JSON object of a command, held to its schema."""
    done = stage.envguard(*arguments, "--json")
    value: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(value, schema(value["schema"].removeprefix("envguard.")))
    return done.returncode, value


def drifts(answer: dict[str, Any]) -> dict[tuple[str, str], tuple[str | None, str | None, str]]:
    return {(row["facet"], row["subject"]): (row["a"], row["b"], row["severity"]) for row in answer["drifts"]}


def save(stage: Stage, name: str) -> Path:
    path = stage.checkpoints / name
    path.mkdir()
    (path / "model.safetensors").write_bytes(name.encode())
    return path


@pytest.fixture
def project(torch_stage: Stage) -> Stage:
    """torch +cu128 installed, step_690 saved and stamped, in a project of its own."""
    (torch_stage.project / "envguard.toml").write_text("")
    save(torch_stage, "step_690")
    assert torch_stage.envguard("snapshot", "--into", "step_690").returncode == 0
    return torch_stage


def test_match(project: Stage) -> None:
    for arguments in ((), ("step_690",), ("step_690", "live"), ("live", "step_690"), ("@1",)):
        code, answer = run(project, "diff", *arguments)
        assert (code, answer["match"], answer["unknown"]) == (0, True, [])
        assert answer["a"]["id"] == answer["b"]["id"]
    assert project.envguard("diff").stdout.startswith("MATCH")


def first_line(stage: Stage, *arguments: str) -> str:
    done = stage.envguard("diff", *arguments)
    assert done.returncode == 1, done.stdout
    return done.stdout.partition("\n")[0]


def test_an_edit_is_told_by_its_files_and_not_by_a_digest(project: Stage) -> None:
    def git(*words: str) -> None:
        as_somebody = ("-c", "user.name=a", "-c", "user.email=a@b", "-C", str(project.project))
        subprocess.run(["git", *as_somebody, *words], check=True, capture_output=True)

    (project.project / ".gitignore").write_text("*\n!train.py\n")
    (project.project / "train.py").write_text("steps = 1\n")
    git("init")
    git("add", "--force", "train.py")
    git("commit", "--message", "first")
    save(project, "step_700")
    assert project.envguard("snapshot", "--into", "step_700").returncode == 0
    (project.project / "train.py").write_text("steps = 2\n")
    says = f"{project.project}: uncommitted edits that were not there: train.py"
    assert first_line(project, "step_700") == f"DRIFT (1 warn): {says}"
    refused = project.envguard("launch", "--against", "step_700", "--dry-run", "--", "true").stdout
    assert "absent →" not in refused
    assert "were not there: train.py" in " ".join(refused.split())


def test_what_is_gone_comes_before_what_misses_it(torch_stage: Stage) -> None:
    build_wheel(torch_stage.wheels, "aaa", "2.0", requires=["torchthing>0.7"])
    build_wheel(torch_stage.wheels, "torchthing", "1.9")
    torch_stage.install("aaa")
    save(torch_stage, "step_690")
    assert torch_stage.envguard("snapshot", "--into", "step_690").returncode == 0
    python = ("--python", str(torch_stage.python))
    torch_stage.uv("pip", "uninstall", *python, "torchthing")
    assert first_line(torch_stage, "step_690") == "DRIFT (2 block): torchthing 1.9 → none"
    # A requirement alone is told as one: its versions are of the package that is required.
    build_wheel(torch_stage.wheels, "torchthing", "0.6")
    torch_stage.install("torchthing==0.6", arguments=["--no-deps"])
    assert "aaa 2.0 requires `torchthing>0.7`, but" in torch_stage.envguard("diff", "step_690").stdout.replace(
        "\n      ", " "
    )
    assert "aaa  torchthing" not in torch_stage.envguard("diff", "step_690").stdout


def test_of_two_environments_it_is_said_which_they_are(project: Stage) -> None:
    assert f"   both of {project.venv}\n" in project.envguard("diff", "step_690").stdout
    other = project.root / "other"
    project.uv("venv", "--quiet", "--python", str(project.python), str(other))
    done = project.envguard("diff", "step_690", "--python", str(other), extra={"COLUMNS": "400"})
    assert re.search(
        rf"\nA  step_690 \(eg1-\w+\)\n   of {project.venv}\nB  live \(eg1-\w+\)\n   of {other}\n", done.stdout
    )


def test_checkpoints_of_one_name_are_told_apart(torch_stage: Stage) -> None:
    (torch_stage.project / "envguard.toml").write_text("")
    for run_directory in ("one", "two"):
        folder = torch_stage.checkpoints / run_directory / "step_5"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"5")
    save(torch_stage, "step_6")
    names = {"one/step_5", "two/step_5", "step_6"}
    _, answer = run(torch_stage, "log")
    assert {entry["ref"] for entry in answer["entries"]} == names
    _, answer = run(torch_stage, "timeline")
    saved = {event["summary"] for event in answer["events"] if event["kind"] == "checkpoint.saved"}
    assert saved == {f"{name} saved" for name in names}
    for name in names:  # what the list calls one can be typed
        code, answer = run(torch_stage, "diff", name)
        assert (code, answer["a"]["label"]) == (3, name)


def test_swap(project: Stage) -> None:
    project.install("sglang")
    code, answer = run(project, "diff")
    assert (code, answer["match"]) == (1, False)
    found = drifts(answer)
    assert found["torch", "torch"] == ("2.11.0+cu128", "2.11.0+cu130", "block")
    assert found["cuda", "build"] == ("12.8", "13.0", "block")
    assert found["packages", "sglang"] == (None, "0.5.6", "info")
    assert drifts(run(project, "diff", "live", "step_690")[1])["torch", "torch"][:2] == (
        "2.11.0+cu130",
        "2.11.0+cu128",
    )
    text = project.envguard("diff").stdout
    assert text.startswith("DRIFT (2 block): torch 2.11.0+cu128 → 2.11.0+cu130")
    assert "sglang" not in text
    assert "2 more that change nothing by themselves" in text
    assert "sglang" in project.envguard("diff", "-v").stdout
    assert len(project.envguard("diff", "-q").stdout.splitlines()) == 1


def test_another_build_of_one_version(project: Stage) -> None:
    from envguard.demo.wheels import stand_in_torch

    (project.wheels / "torch-2.11.0+cu128-py3-none-any.whl").unlink()
    stand_in_torch(project.wheels, "2.11.0+cu128", seed="another")
    project.install("torch==2.11.0+cu128", arguments=["--reinstall-package", "torch"])
    code, answer = run(project, "diff")
    assert code == 1
    row = next(row for row in answer["drifts"] if row["subject"] == "torch")
    assert (row["severity"], row["effect"]) == ("block", "numerics")
    assert "build-id" in row["why"]


def test_patched_file(project: Stage) -> None:
    path = project.site / "transformers" / "__init__.py"
    path.write_text(path.read_text() + "is_fx_symbolic_tracing = lambda: False\n")
    code, answer = run(project, "diff")
    assert code == 1
    row = next(row for row in answer["drifts"] if row["subject"] == "transformers")
    assert (row["severity"], row["effect"]) == ("warn", "numerics")
    assert "transformers/__init__.py" in row["why"]


def test_noise(project: Stage) -> None:
    """What a run leaves behind in its environment is no drift."""
    imports = [str(project.python), "-c", "import transformers, torch"]
    subprocess.run(imports, check=True, capture_output=True, env=project.environ())
    assert list(project.site.rglob("*.pyc"))
    (project.site / "transformers-5.6.0.dist-info" / "INSTALLER").write_text("pip")
    (project.site / "transformers-5.6.0.dist-info" / "REQUESTED").write_text("x")
    project.install("transformers==5.6.0", arguments=["--reinstall-package", "transformers", "--link-mode", "copy"])
    code, answer = run(project, "diff")
    assert (code, answer["drifts"]) == (0, [])


def test_unstamped_checkpoint_is_never_a_match(project: Stage) -> None:
    save(project, "step_700")
    code, answer = run(project, "diff", "step_700")
    assert (code, answer["match"], answer["a"]["id"]) == (3, False, None)
    assert any("no stamp" in item["why"] for item in answer["unknown"])
    project.install("sglang")
    code, answer = run(project, "diff", "step_700")
    assert code == 1
    assert drifts(answer)["torch", "torch"] == ("2.11.0+cu128", "2.11.0+cu130", "block")
    assert answer["unknown"]


def test_copied_stamp_counts_as_none(project: Stage) -> None:
    path = save(project, "step_700")
    shutil.copy(project.checkpoints / "step_690" / "envguard.json", path)
    code, answer = run(project, "diff", "step_700")
    assert code == 3
    assert any("copied here" in item["why"] for item in answer["unknown"])


def test_locks(project: Stage) -> None:
    build_wheel(project.wheels, "pine", "1.0")
    build_wheel(project.wheels, "pine", "1.1")
    (project.project / "requirements.txt").write_text("pine==1.0\n")
    project.uv("pip", "uninstall", "--python", str(project.python), "torch", "triton", "transformers")
    project.install("pine==1.0")
    assert run(project, "diff", "requirements.txt")[0] == 0
    project.install("pine==1.1")
    code, answer = run(project, "diff", "requirements.txt")
    assert (code, drifts(answer)["packages", "pine"]) == (1, ("1.0", "1.1", "warn"))


def test_fingerprint_files_and_many(project: Stage) -> None:
    for name in ("a.json", "b.json"):
        assert project.envguard("snapshot", "-o", name).returncode == 0
    project.install("transformers==5.8.1")
    assert project.envguard("snapshot", "-o", "c.json").returncode == 0
    code, answer = run(project, "diff", "a.json", "c.json")
    assert (code, answer["a"]["label"], answer["minority"]) == (1, "a.json", None)
    code, answer = run(project, "diff", "a.json", "c.json", "b.json")
    assert code == 1
    assert answer["minority"] == [{"ref": "c.json", "facet": "packages", "subject": "transformers", "value": "5.8.1"}]
    text = project.envguard("diff", "a.json", "c.json", "b.json").stdout
    assert text.startswith("c.json differs from most of 3: packages transformers is 5.8.1")
    assert run(project, "diff", "a.json", "b.json", "live")[1]["minority"][0]["ref"] == "live"


def test_policy_of_the_project(project: Stage) -> None:
    project.install("transformers==5.8.1")
    assert run(project, "diff")[0] == 1
    (project.project / "envguard.toml").write_text(
        '[[policy]]\nfacet = "packages"\nsubject = "transformers"\nseverity = "info"\nbecause = "tested"\n'
    )
    code, answer = run(project, "diff")
    assert code == 0
    assert answer["drifts"][0]["why"].endswith("[warn → info by policy: tested]")
    (project.project / "envguard.toml").write_text('[[policy]]\nfacet = "pakages"\nseverity = "info"\n')
    code, answer = run(project, "diff")
    assert (code, answer["hint"]) == (2, "did you mean `packages`?")


def test_refusals(project: Stage) -> None:
    for arguments, says in {
        ("step_69",): "the nearest: step_690",
        ("gone.json",): "the nearest",
        ("envguard.toml",): "",
        (".venv",): "--python .venv",
        ("@9",): "envguard snapshot",
        ("step_690", "live", "requirements.txt"): "",
    }.items():
        code, answer = run(project, "diff", *arguments)
        assert (code, answer["schema"]) == (2, "envguard.error")
        assert says in (answer["hint"] or "")


def test_no_reference_at_all(stage: Stage) -> None:
    code, answer = run(stage, "diff")
    assert (code, answer["schema"]) == (2, "envguard.error")
    assert "--baseline" in answer["hint"]


def test_log(project: Stage) -> None:
    save(project, "step_700")
    (project.checkpoints / "step_680").mkdir()
    shutil.copy(project.checkpoints / "step_690" / "envguard.json", project.checkpoints / "step_680")
    assert project.envguard("snapshot").returncode == 0
    code, answer = run(project, "log")
    assert code == 0
    entries = {(entry["kind"], entry["ref"]): entry for entry in answer["entries"]}
    stamped = json.loads((project.checkpoints / "step_690" / "envguard.json").read_text())["id"]
    assert entries["checkpoint", "step_690"]["id"] == stamped
    assert entries["checkpoint", "step_700"]["id"] is None
    assert entries["checkpoint", "step_680"]["id"] is None, "a copied stamp counts as none"
    assert entries["snapshot", "@2"]["path"].endswith("step_690")
    assert entries["snapshot", "@1"]["id"] == stamped
    times = [entry["time"] for entry in answer["entries"]]
    assert times == sorted(times)
    done = project.envguard("log")
    assert "no stamp" in done.stdout
    assert "step_680" in done.stderr
    assert len(run(project, "log", "-n", "2")[1]["entries"]) == 2


def test_log_of_nothing(stage: Stage) -> None:
    assert run(stage, "log") == (0, {"schema": "envguard.log", "version": 1, "entries": []})
    assert "Nothing is recorded yet" in stage.envguard("log").stdout


def test_what_the_checkpoint_itself_says(project: Stage) -> None:
    """Without a stamp, config.json still names the transformers that wrote it."""
    path = save(project, "step_700")
    (path / "config.json").write_text('{"model_type": "qwen3", "transformers_version": "5.8.1"}')
    code, answer = run(project, "diff", "step_700")
    assert code == 1
    assert drifts(answer)["packages", "transformers"] == ("5.8.1", "5.6.0", "warn")
    (path / "config.json").write_text('{"model_type": "qwen3", "transformers_version": "5.6.0"}')
    assert run(project, "diff", "step_700")[0] == 3


def test_hyper_parameters_of_two_runs(project: Stage) -> None:
    for number, rate in ((0, "0.0006"), (1, "0.0003")):
        folder = project.project / "runs" / f"version_{number}" / "checkpoints"
        folder.mkdir(parents=True)
        (folder / f"epoch=0-step={number + 1}.ckpt").write_bytes(b"weights")
        (folder.parent / "hparams.yaml").write_text(f"lr: {rate}\nmodel: !!python/object:nn.Module {{}}\n")
    code, answer = run(project, "diff", "step_1", "step_2")
    assert code == 1
    assert drifts(answer)["config", "hparams.lr"] == ("0.0006", "0.0003", "warn")


def test_bundle(project: Stage) -> None:
    assert project.envguard("collect", "-o", "before.tgz").returncode == 0
    code, answer = run(project, "diff", "before.tgz")
    assert (code, answer["a"]["label"], answer["a"]["id"]) == (0, "before.tgz", answer["b"]["id"])
    project.install("sglang")
    code, answer = run(project, "diff", "before.tgz")
    assert (code, drifts(answer)["torch", "torch"]) == (1, ("2.11.0+cu128", "2.11.0+cu130", "block"))
    (project.project / "torn.tgz").write_bytes((project.project / "before.tgz").read_bytes()[:500])
    assert run(project, "diff", "torn.tgz")[0] == 2


def test_places_to_look_in(project: Stage) -> None:
    (project.project / "elsewhere" / "step_800").mkdir(parents=True)
    assert run(project, "diff", "step_800", "--checkpoints", "elsewhere")[0] == 3
    assert run(project, "diff", "step_690", "--checkpoints", "elsewhere")[0] == 2
    assert run(project, "diff", "step_690", "--checkpoints", "elsewhere", "--checkpoints", "checkpoints")[0] == 0
    code, answer = run(project, "log", "--checkpoints", "nowhere")
    assert (code, answer["error"]) == (2, "--checkpoints nowhere: there is no such directory")


def test_the_cache_that_a_trainer_set_for_itself_is_missed_though_the_default_one_is_full(project: Stage) -> None:
    cache = project.project / ".cache" / "trainer" / "inductor" / "torch-2.11.0+cu128"
    write_cache(cache, tag_of(project))
    default = project.tmp / f"torchinductor_{getpass.getuser()}"
    write_cache(default, tag_of(project), "of a larger model", 5)
    stamp_as_trainer(project, save(project, "step_700"), cache)
    code, answer = run(project, "diff", "step_700")
    assert (code, answer["match"]) == (0, True), answer
    shutil.rmtree(cache)
    for arguments in (("step_700",), (), ("step_700", "live")):
        code, answer = run(project, "diff", *arguments)
        assert code == 1
        found = {row["subject"]: row for row in answer["drifts"] if row["facet"] == "compile_cache"}
        gone, unrelated = found["inductor"], found[f"inductor {default}"]
        assert gone["severity"] == "warn"
        assert f"{cache} is gone" in gone["why"]
        assert unrelated["severity"] == "info"
    assert project.envguard("diff", "step_700").stdout.startswith("DRIFT (1 warn): compile cache inductor")
    taken = json.loads(project.envguard("snapshot", "--json").stdout)
    assert {each["path"]: each["verdict"] for each in taken["compile_cache"]} == {
        str(default): "VALID",
        str(cache): "EMPTY",
    }


def test_a_restore_of_a_name_that_is_not_there_says_so_first(project: Stage) -> None:
    """Nobody can be asked in a test; that was complained of before the name was looked at."""
    code, answer = run(project, "restore", "step_999")
    assert (code, answer["error"][:35]) == (2, "no checkpoint is called 'step_999' ("[:35])
    code, answer = run(project, "restore", "live")
    assert (code, answer["error"]) == (2, "`live` is what the environment is already")
    code, answer = run(project, "restore", "step_690")
    assert (code, "no terminal" in answer["error"]) == (2, True)


def test_an_edited_stamp_is_believed_by_nobody(project: Stage) -> None:
    """A name that was changed in it was told as a package that is gone, under the id of what had been there."""
    stamp = project.checkpoints / "step_690" / "envguard.json"
    stamp.write_text(stamp.read_text().replace('"name": "transformers"', '"name": "transformer"'))
    says = "the stamp cannot be believed: its id is eg1-"
    for arguments in (("diff",), ("diff", "step_690")):
        code, answer = run(project, *arguments)
        assert (code, answer["match"], answer["drifts"]) == (3, False, [])
        assert [item["why"].startswith(says) for item in answer["unknown"]].count(True) == 1, answer["unknown"]
    for launch in (("launch", "--against", "step_690"), ("launch",)):
        done = project.envguard(*launch, "--json", "--dry-run", "--", "true")
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["decision"]) == (3, "refuse")
        assert [item["why"].startswith(says) for item in answer["unknown"]].count(True) == 1
    code, answer = run(project, "restore", "step_690", "-y")
    assert (code, answer["error"].startswith(f"step_690: {says}")) == (2, True)
    code, answer = run(project, "verify")
    assert (code, answer["unverifiable"][0]["package"]) == (3, "stamp of step_690")
    code, answer = run(project, "timeline")
    assert [item["why"].startswith(says) for item in answer["unknown"]].count(True) == 1
    done = project.envguard("log")
    assert f"step_690: {says}" in done.stderr.replace("\n", " ")


def test_a_stamp_that_cannot_be_read_costs_a_snapshot_no_more_than_its_word(project: Stage) -> None:
    stamp = project.checkpoints / "step_690" / "envguard.json"
    for path in (stamp, stamp.parent, stamp.parent.parent):
        with unreadable(path):
            done = envguard_held_to_modes(project, "snapshot")
        assert done.returncode == 0, done.stderr
    stamp.write_bytes(b"{")
    done = project.envguard("snapshot")
    assert (done.returncode, done.stderr) == (0, "")

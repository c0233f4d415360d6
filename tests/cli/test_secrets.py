"""Every form of a secret, planted in every place that is read, and searched for in everything that is written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envguard.demo.stage import Stage
from tests.cut_installs import take_wheels
from tests.planted import FORMS, planted

PLACES = (
    "git commit", "git branch", "git dirty file", "shell history", "wandb metadata", "wandb requirements", "hparams",
    "train log", "text log", "json log", "pip log", "requirements", "uv.lock", "direct_url", "pth", "config",
    "process", "variables", "waiver", "command", "installer", "metadata", "trainer_state", "checkpoint config",
    "pyproject", "uv.toml", "error",
)  # fmt: skip
PLANTED = {place: planted(place) for place in PLACES}
WORDS = {place: words for place, (words, _) in PLANTED.items()}
EACH = {place: texts for place, (_, texts) in PLANTED.items()}
LINES = {place: [text for text in texts if "\n" not in text] for place, texts in EACH.items()}
"""Where only one line goes, a form of two has no place."""
TEXTS = {place: "\n".join(texts) for place, texts in EACH.items()}


def plant(stage: Stage) -> None:
    """Writes each text where people, installers and trackers leave such texts."""
    project, home = stage.project, stage.home
    git = ("git", "-c", "user.email=a@b", "-c", "user.name=n", "-C", str(project))
    (project / ".gitignore").write_text(".venv\n.envguard\ncheckpoints\n")
    (project / "train.py").write_text("x = 1\n")
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    # One commit a form: the subject is what is shown.
    for text in LINES["git commit"]:
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", text or "x"], check=True)
    (project / "train.py").write_text("\n".join(LINES["git dirty file"]))
    (home / ".bash_history").write_text(
        "".join(f"#17791200{n:02d}\nuv pip install x # {line}\n{line}\nuv run {line}\n"
                for n, line in enumerate(LINES["shell history"]))
    )  # fmt: skip
    files = project / "wandb" / "run-20260518_120210-abc" / "files"
    files.mkdir(parents=True)
    lines = LINES["wandb metadata"]
    (files / "wandb-metadata.json").write_text(
        json.dumps({"startedAt": "2026-05-18T10:02:10Z", "args": lines,
                    "git": {"remote": lines[10], "commit": "a" * 40}, "root": TEXTS["wandb metadata"]}, indent=2)
    )  # fmt: skip
    (files / "requirements.txt").write_text("torch==2.11.0+cu128\n" + TEXTS["wandb requirements"] + "\n")
    run = stage.checkpoints
    step = run / "step_690"
    step.mkdir()
    (step / "model.safetensors").write_bytes(b"w" * 64)
    (step / "config.json").write_text(TEXTS["checkpoint config"])
    (step / "trainer_state.json").write_text(
        json.dumps({"log_history": [{"step": 1, "note": TEXTS["trainer_state"]}]})
    )
    (run / "hparams.yaml").write_text("lr: 0.1\n" + TEXTS["hparams"] + "\n")
    (run / "train_log.jsonl").write_text(
        "".join(json.dumps({"step": n, "time": 1.78e9 + n, "tok_s": 21500.0, "note": text}) + "\n"
                for n, text in enumerate(LINES["train log"]))
    )  # fmt: skip
    (run / "train.log").write_text(
        "".join(f"2026-05-18 20:00:{n:02d} RuntimeError: {text}\n" for n, text in enumerate(LINES["text log"]))
    )
    (run / "stdout.log").write_text(TEXTS["json log"] + "\nTraceback (most recent call last):\nValueError: x\n")
    (home / "pip.log").write_text("2026-05-18T20:00:00,000 Successfully installed torch-2.11.0\n" + TEXTS["pip log"])
    (project / "requirements.txt").write_text("torch==2.11.0\n" + TEXTS["requirements"])
    (project / "uv.lock").write_text('version = 1\n[[package]]\nname = "x"\nversion = "1"\n' + TEXTS["uv.lock"])
    (stage.site / "planted.pth").write_text("".join(f"import sys; # {t}\n" for t in LINES["pth"] if t))
    info = next(stage.site.glob("transformers-*.dist-info"))
    (info / "direct_url.json").write_text(
        json.dumps({"url": f"https://me:{WORDS['direct_url']['user info']}@host.example/x?sig="
                    f"{WORDS['direct_url']['query']}", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}})
    )  # fmt: skip
    (info / "INSTALLER").write_text(TEXTS["installer"])
    with (info / "METADATA").open("a") as out:
        out.write("\n" + TEXTS["metadata"])
    (project / "cfg.yaml").write_text(TEXTS["config"])
    (project / "pyproject.toml").write_text(
        "[project]\nname='x'\n" + "".join(f"# {text}\n" for text in LINES["pyproject"])
    )
    (project / "uv.toml").write_text("".join(f"# {text}\n" for text in LINES["uv.toml"]))
    (project / "envguard.toml").write_text('shell_history = true\nconfig = ["cfg.yaml"]\n')


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, story_wheels: Path) -> Iterator[dict[str, str]]:
    """Every answer, file, record and page that a day of commands leaves: name → text."""
    stage = Stage(tmp_path_factory.mktemp("secrets") / "stage")
    stage.make_venv()
    take_wheels(stage, story_wheels)
    stage.install("torch==2.11.0+cu128", "transformers==5.6.0")
    plant(stage)
    python = str(stage.python)
    shown: dict[str, str] = {}
    sleeper = subprocess.Popen(
        [python, "-c", "import time; time.sleep(120)", *EACH["process"]],
        cwd=stage.project,
    )
    # All forms are in the values of a variable that is kept, and names of secrets stand beside it.
    extra = {"TORCH_NOTE": TEXTS["variables"], "TORCH_HUB_PASS": WORDS["variables"]["variable _PASS"],
             "NCCL_DB_PWD": WORDS["variables"]["variable _PWD"], "PIP_LOG": str(stage.home / "pip.log")}  # fmt: skip

    def run(*arguments: str) -> None:
        done = stage.envguard(*arguments, extra=extra)
        assert "Traceback" not in done.stderr, done.stderr
        shown[" ".join(arguments)[:60]] = done.stdout + done.stderr

    try:
        run("snapshot", "--into", "step_690", "--retrospective")
        run("diff", f"https://me:{WORDS['error']['user info']}@host.example/x")
        for arguments in (
            ("snapshot",), ("diff", "step_690"), ("verify",), ("timeline",), ("log",),
            ("restore", "step_690", "--dry-run"), ("timeline", "--since-checkpoint", "step_690", "-v", "--all"),
        ):  # fmt: skip
            run(*arguments)
            run(*arguments, "--json")
        run("timeline", "--html", str(stage.root / "page.html"), "--all")
        waive = ("--against", "step_690", *(word for facet in ("unknown", "env", "packages", "code") for word in
                 ("--waive", facet)))  # fmt: skip
        for text in EACH["waiver"][::6]:
            run("launch", "--dry-run", *waive, "--because", text, "--", python, "-c", "1")
        run("launch", "--report", str(stage.root / "report.json"), *waive, "--because", TEXTS["waiver"], "--",
            python, "-c", "import time; time.sleep(0.2)", *EACH["command"])  # fmt: skip
        run("collect", "-o", str(stage.root / "b.bundle"))
        run("timeline", "--bundle", str(stage.root / "b.bundle"), "--all", "--json")
    finally:
        sleeper.kill()
        sleeper.wait()
    shown["page"] = (stage.root / "page.html").read_text()
    report = stage.root / "report.json"
    shown["report"] = report.read_text() if report.exists() else ""
    for path in stage.project.rglob("*"):
        if path.is_file() and (".envguard" in path.parts or path.name.endswith("envguard.json")):
            shown[f"file {path.name}"] = shown.get(f"file {path.name}", "") + path.read_bytes().decode("latin-1")
    with tarfile.open(stage.root / "b.bundle") as bundle:
        for member in bundle:
            data = bundle.extractfile(member)
            shown[f"bundle {member.name}"] = data.read().decode("latin-1") if data is not None else ""
    yield shown
    shutil.rmtree(stage.root)


@pytest.mark.parametrize("place", PLACES)
def test_no_planted_secret_is_written_anywhere(written: dict[str, str], place: str) -> None:
    leaks = [
        (form, name)
        for form, word in WORDS[place].items()
        for name, text in written.items()
        if word in text
    ]  # fmt: skip
    assert leaks == []


def test_the_places_were_read(written: dict[str, str]) -> None:
    """The search would find nothing in answers that hold nothing: what stands beside the secrets is there."""
    assert len(FORMS) >= 30
    assert sys.version_info >= (3, 11)
    everything = "\n".join(written.values())
    for part in ("[redacted]", "***", "step_690", "planted.pth", "uv pip install x", "TORCH_NOTE"):
        assert part in everything, part

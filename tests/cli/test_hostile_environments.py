"""Environments that nobody made on purpose, or that somebody did: each is answered, and each answer can be shown."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envguard.demo.stage import Stage


def snapshot(stage: Stage) -> dict[str, Any]:
    done = stage.envguard("snapshot", "--json")
    assert done.returncode in (0, 3), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def dist_info(stage: Stage, name: str) -> Path:
    return next(stage.site.glob(f"{name}-*.dist-info"))


def metadata_is_a_file(stage: Stage) -> None:
    (stage.site / "ghost-1.0.dist-info").write_text("")


def metadata_is_a_pipe(stage: Stage) -> None:
    os.mkfifo(stage.site / "ghost-1.0.dist-info")


def header_without_end(stage: Stage) -> None:
    path = dist_info(stage, "transformers") / "METADATA"
    path.write_bytes(path.read_bytes().rstrip() + b"\nClassifier: A :: B" * 200_000)


def search_path_without_end(stage: Stage) -> None:
    (stage.site / "long.pth").write_bytes(b"/not/there\n" * 200_000 + b"import late\n")


def version_behind_a_million_lines(stage: Stage) -> None:
    path = stage.site / "torch/version.py"
    text = path.read_bytes()
    path.unlink()
    path.write_bytes(b"# x\n" * 1_000_000 + text)


def version_is_a_pipe(stage: Stage) -> None:
    (stage.site / "torch/version.py").unlink()
    os.mkfifo(stage.site / "torch/version.py")


def links_that_lead_to_themselves(stage: Stage) -> None:
    for name in ("loop.pth", "loop", "loop-1.0.dist-info"):
        (stage.site / name).symlink_to(name)


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (metadata_is_a_file, "a file where the folder of its metadata belongs"),
        (metadata_is_a_pipe, "a file where the folder of its metadata belongs"),
        (header_without_end, "its header is longer than any that is sound"),
        (search_path_without_end, "longer than 1 MiB: only the lines before that were read"),
        (version_behind_a_million_lines, "version.py is unreadable: it is longer than 1 MiB"),
        (version_is_a_pipe, "not a regular file"),
        (links_that_lead_to_themselves, "Too many levels of symbolic links"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_cannot_be_read_is_told(torch_stage: Stage, break_it: Callable[[Stage], None], told: str) -> None:
    names = {package["name"] for package in snapshot(torch_stage)["packages"]}
    break_it(torch_stage)
    found = snapshot(torch_stage)
    said = [item["says"] for item in found["problems"]] + [item["why"] for item in found["unknown"]]
    assert [line for line in said if told in line], said
    assert names <= {package["name"] for package in found["packages"]}


NAMES = (b"red\x1b[31m-1.0", b"line\nbreak-1.0", b"latin\xe9-1.0", "left\u202e-1.0".encode())


def test_names_of_any_bytes_reach_no_terminal_and_are_no_drift(torch_stage: Stage) -> None:
    for name in NAMES:
        folder = os.path.join(os.fsencode(torch_stage.site), name + b".dist-info")
        os.mkdir(folder)
        Path(os.fsdecode(folder), "METADATA").write_bytes(b"Name: %s\nVersion: 1.0\x1b]0;x\x07\n" % name[:3])
        Path(os.fsdecode(folder), "RECORD").write_bytes(b"gone\x1b[2J.py,sha256=x,1\n")
    (torch_stage.site / "code.pth").write_bytes(b"import os; print('\x1b[2J')\n")
    for command in (["snapshot", "-v"], ["verify", "-v"], ["diff", "@1", "live", "-v"], ["log"], ["timeline", "-v"]):
        done = torch_stage.envguard(*command)
        assert done.returncode in (0, 1, 3), done.stderr
        shown = done.stdout + done.stderr
        assert not [ch for ch in shown if not ch.isprintable() and ch != "\n"], command
    assert json.loads(torch_stage.envguard("diff", "@1", "live", "--json").stdout)["drifts"] == []


SECRET = "Pl4ntedS3cretXYZ99"


def test_a_secret_that_lies_around_is_in_no_answer_and_no_file(torch_stage: Stage) -> None:
    """In variables, a command line, the git remote, a package's source and uv's index."""
    project, url = torch_stage.project, f"https://ada:{SECRET}@host/simple?user=x&token={SECRET}"
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    subprocess.run(["git", "-C", str(project), "remote", "add", "origin", url], check=True)
    (project / "pyproject.toml").write_text(
        f'[project]\nname = "x"\nversion = "1"\n[[tool.uv.index]]\nurl = "{url}"\n'
    )
    (dist_info(torch_stage, "transformers") / "direct_url.json").write_text(
        json.dumps({"url": url, "vcs_info": {"vcs": "git", "commit_id": "0" * 40, "requested_revision": "main"}})
    )
    extra = {
        "HF_TOKEN": SECRET, "WANDB_API_KEY": SECRET, "NCCL_AUTH": SECRET, "UV_INDEX_URL": url,
        "TORCH_HUB_URL": url, "TRITON_ACCESSKEY": SECRET, "CUDA_HEADERS": f"Authorization: Bearer {SECRET}",
    }  # fmt: skip
    words = [f"--header=X-API-Key: {SECRET}", "--hf-token", SECRET, "--url", url, f'{{"api_key": "{SECRET}"}}']
    code = "import torch, time; print(flush=True); time.sleep(60)"
    checkpoint = torch_stage.checkpoints / "step_1"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"weights")  # without a file, nothing dates it
    python = str(torch_stage.python)
    running = [python, "-c", code, *words]
    with subprocess.Popen(running, env=torch_stage.environ(extra), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        shown = ""
        for command in (
            ["snapshot", "--json"],
            ["snapshot", "-v", "--into", str(checkpoint), "-o", "fingerprint.json", "--lock", "pylock.x.toml"],
            ["collect", "-o", "bundle.tar.gz"],
            ["timeline", "--json", "--all"],
            ["launch", "--dry-run", "--json", "--against", "step_1", "--", python, "train.py", *words],
        ):
            done = torch_stage.envguard(*command, extra=extra)
            assert done.returncode != 2, (command, done.stderr)
            shown += done.stdout + done.stderr
        process.kill()
    assert SECRET not in shown
    assert "[redacted]" in shown
    subprocess.run(["tar", "-xzf", "bundle.tar.gz", "--one-top-level=unpacked"], cwd=project, check=True)
    ours = [project / ".envguard", project / "unpacked", checkpoint, project / "fingerprint.json"]
    found = subprocess.run(["grep", "-rl", SECRET, *map(str, ours)], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, "")

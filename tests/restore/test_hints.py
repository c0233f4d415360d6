"""Each command that a refused launch names is run here, and changes something of what was refused."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from tests.caches import tag_of, write_cache


def cache_of(stage: Stage) -> Path:
    return stage.root / "compile-cache"


@pytest.fixture
def stamped(torch_stage: Stage) -> Stage:
    """A checkpoint that was stamped with a warm compile cache."""
    (torch_stage.project / "envguard.toml").write_text("")
    (torch_stage.checkpoints / "step_10").mkdir()
    (torch_stage.checkpoints / "step_10" / "model.pt").write_bytes(b"weights")
    write_cache(cache_of(torch_stage), tag_of(torch_stage))
    done = torch_stage.envguard("snapshot", "--into", "step_10", "--keep", extra=extra(torch_stage))
    assert done.returncode == 0, done.stderr
    return torch_stage


def extra(stage: Stage) -> dict[str, str]:
    return {"TORCHINDUCTOR_CACHE_DIR": str(cache_of(stage))}


def launch(stage: Stage, python: Path | None = None) -> tuple[int, list[str], str]:
    """The code of a dry run, the restores that it names, and all that it printed."""
    command = ("--against", "step_10", "--dry-run", "--", str(python or stage.python), "-c", "1")
    done = stage.envguard("launch", *command, extra=extra(stage))
    return done.returncode, re.findall(r"bring it back: +envguard (restore .*)", done.stdout), done.stdout


def patch(stage: Stage) -> None:
    file = stage.site / "transformers" / "__init__.py"
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data + b"# patched\n")


def swap(stage: Stage) -> None:
    stage.install("torch==2.11.0+cu130", arguments=["--no-deps"])


def remove(stage: Stage) -> None:
    stage.uv("pip", "uninstall", "--python", str(stage.python), "triton")


def clear_a_cache_that_is_kept(stage: Stage) -> None:
    shutil.rmtree(cache_of(stage))


def add_to_the_torch_stack(stage: Stage) -> None:
    build_wheel(stage.wheels, "xformers", "1.0")
    stage.install("xformers", arguments=["--no-deps"])


def clear_a_cache_and_swap(stage: Stage) -> None:
    clear_a_cache_that_is_kept(stage)
    swap(stage)


HELPED = [patch, swap, remove, clear_a_cache_that_is_kept, add_to_the_torch_stack, clear_a_cache_and_swap]


@pytest.mark.parametrize("change", HELPED, ids=lambda each: each.__name__)
def test_a_restore_that_is_named_helps(stamped: Stage, change: Callable[[Stage], None]) -> None:
    assert launch(stamped)[0] == 0, launch(stamped)[2]
    change(stamped)
    code, named, said = launch(stamped)
    assert code == 78, said
    (command,) = named
    done = stamped.envguard(*shlex.split(command), "-y", extra=extra(stamped))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing to do" not in done.stdout
    assert launch(stamped)[0] == 0, launch(stamped)[2]


def clear_a_cache_that_is_not_kept(stage: Stage) -> None:
    shutil.rmtree(stage.project / ".envguard" / "vault")
    shutil.rmtree(cache_of(stage))


@pytest.mark.parametrize("change", [clear_a_cache_that_is_not_kept], ids=lambda each: each.__name__)
def test_a_restore_that_would_do_nothing_is_not_named(stamped: Stage, change: Callable[[Stage], None]) -> None:
    change(stamped)
    code, named, said = launch(stamped)
    assert (code, named) == (78, []), said
    assert "answer for it:" in said
    assert "nothing to do" in stamped.envguard("restore", "step_10", "-y", extra=extra(stamped)).stdout


def test_the_restore_of_another_environment_is_named_with_it(stamped: Stage) -> None:
    """The command runs on an environment that is not the one which a bare `restore` changes."""
    ours, other = stamped.venv, stamped.root / "venv-b"
    shutil.rmtree(stamped.checkpoints / "step_10")
    stamped.venv = other
    stamped.uv("venv", "--quiet", "--python", sys.executable, str(other))
    stamped.install("torch==2.11.0+cu128", "transformers==5.6.0")
    (stamped.checkpoints / "step_10").mkdir()
    (stamped.checkpoints / "step_10" / "model.pt").write_bytes(b"weights")
    into = stamped.envguard("snapshot", "--into", "step_10", "--python", str(other), extra=extra(stamped))
    assert into.returncode == 0, into.stderr
    patch(stamped)
    _, named, said = launch(stamped)
    assert named == [f"restore step_10 --python {other}"], said
    done = stamped.envguard(*shlex.split(named[0]), "-y", extra=extra(stamped))
    assert done.returncode == 0, done.stdout + done.stderr
    assert launch(stamped)[0] == 0
    stamped.venv = ours


def test_a_cache_that_was_filled_is_the_first_line(stamped: Stage) -> None:
    clear_a_cache_that_is_kept(stamped)
    plan = stamped.envguard("restore", "step_10", "--dry-run", extra=extra(stamped))
    assert plan.stdout.startswith("1 compile cache would be filled:")
    done = stamped.envguard("restore", "step_10", "-y", extra=extra(stamped))
    assert done.stdout.startswith("1 compile cache filled:")
    assert "nothing to do" not in plan.stdout + done.stdout
    assert stamped.envguard("restore", "step_10", "-y", extra=extra(stamped)).stdout.startswith("nothing to do")


def test_a_gpus_compile_times_are_not_those_of_a_machine_without_one(stamped: Stage) -> None:
    clear_a_cache_that_is_not_kept(stamped)
    said = stamped.envguard("restore", "step_10", "-y", extra=extra(stamped)).stdout
    assert "compiles cold" in said
    assert ("H200" in said) is (shutil.which("nvidia-smi") is not None)

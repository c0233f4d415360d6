"""What a screen advises is taken out of the screen, run as it stands in a shell, and helps: no advice is a loop."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import uv

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.model.fingerprint import Fingerprint, Gpu
from envguard.model.identity import fingerprint_id, sealed
from tests.cut_installs import take_wheels
from tests.restore.test_killed import killed

LAUNCH = "envguard launch --against step_10 --dry-run -- .venv/bin/python -c 1"


def shell(stage: Stage, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a line as a person types it; whatever asks before it changes something is answered by `-y`."""
    tools = stage.root / "tools"
    if not tools.exists():
        tools.mkdir()
        (tools / "envguard").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m envguard "$@"\n')
        (tools / "envguard").chmod(0o755)
        (tools / "uv").symlink_to(uv.find_uv_bin())
    if line.startswith("envguard restore") and not {"-y", "--dry-run"} & set(shlex.split(line)):
        line += " -y"
    offline = {"UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(stage.wheels)}
    environ = stage.environ({**offline, "PATH": f"{tools}:{os.environ['PATH']}", **variables})
    return subprocess.run(
        line, shell=True, cwd=stage.project, env=environ, capture_output=True, text=True, check=False, timeout=120
    )


def flat(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stdout + done.stderr).split())


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """What it says is wrong, without what it advises: the same twice is a loop."""
    lines = (done.stdout + done.stderr).splitlines()
    return "\n".join(line for line in lines if not line.startswith("hint:"))


def advised(done: subprocess.CompletedProcess[str], pattern: str) -> str:
    """The advice that `pattern` finds in the screen: its group, with what stands for the person's own filled in."""
    match = re.search(pattern, flat(done))
    assert match is not None, flat(done)
    return match.group(1).replace("-- …", "-- .venv/bin/python -c 1").replace("COMMAND", ".venv/bin/python -c 1")


def room(stage: Stage, story_wheels: Path) -> Stage:
    """A project with one stamped checkpoint."""
    take_wheels(stage, story_wheels)
    stage.install("torch==2.11.0+cu128", "transformers==5.6.0")
    (stage.project / "envguard.toml").write_text("")
    save(stage.checkpoints / "step_10")
    done = stage.envguard("snapshot", "--into", "step_10")
    assert done.returncode == 0, done.stderr
    return stage


def save(checkpoint: Path) -> None:
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.pt").write_bytes(b"weights")


@pytest.fixture
def own(stage: Stage, story_wheels: Path) -> Stage:
    return room(stage, story_wheels)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, story_wheels: Path) -> Stage:
    """One room for all that changes nothing of the environment."""
    made = Stage(tmp_path_factory.mktemp("shared") / "stage")
    made.make_venv()
    return room(made, story_wheels)


BACK, WAIVE = r"bring it back: +(envguard restore .*?) or answer", r"answer for it: +(envguard launch .*?-- …)"


def patch(stage: Stage) -> None:
    file = stage.site / "transformers" / "__init__.py"
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data + b"# patched\n")


def poison(stage: Stage) -> None:
    """Through the hard link: uv's cache has it too."""
    with (stage.site / "transformers" / "__init__.py").open("ab") as file:
        file.write(b"# patched\n")
    for wheel in stage.wheels.glob("transformers-*"):
        wheel.unlink()


def swap(stage: Stage) -> None:
    stage.install("torch==2.11.0+cu130", arguments=["--no-deps"])


def lose_a_package(stage: Stage) -> None:
    stage.uv("pip", "uninstall", "--python", str(stage.python), "triton")


def swap_without_a_source(stage: Stage) -> None:
    swap(stage)
    shutil.rmtree(stage.cache)
    for wheel in stage.wheels.glob("torch-2.11.0+cu128-*"):
        wheel.unlink()


def newcomer_of_the_stack(stage: Stage) -> None:
    build_wheel(stage.wheels, "xformers", "1.0")
    stage.install("xformers", arguments=["--no-deps"])


@pytest.mark.parametrize(
    "change", [patch, swap, lose_a_package, newcomer_of_the_stack], ids=lambda each: each.__name__
)
def test_a_refused_launch_is_brought_back(own: Stage, change: Callable[[Stage], object]) -> None:
    change(own)
    refused = shell(own, LAUNCH)
    assert refused.returncode == 78, flat(refused)
    done = shell(own, advised(refused, BACK))
    assert done.returncode == 0, flat(done)
    assert shell(own, LAUNCH).returncode == 0


@pytest.mark.parametrize("change", [poison, swap_without_a_source], ids=lambda each: each.__name__)
def test_what_cannot_be_brought_back_leads_to_a_download_or_a_waiver(
    own: Stage, change: Callable[[Stage], object]
) -> None:
    change(own)
    refused = shell(own, LAUNCH)
    back = advised(refused, BACK)
    impossible = shell(own, back)
    assert impossible.returncode == 4, flat(impossible)
    assert "--fetch" in flat(impossible)
    unreachable = {"UV_OFFLINE": "0", "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple"}
    fetched = shell(own, f"{back} --fetch", **unreachable)
    assert (fetched.returncode, "`--fetch`" in flat(fetched)) == (4, False), flat(fetched)
    let_pass = shell(own, advised(refused, WAIVE))
    assert let_pass.returncode == 0, flat(let_pass)


def stamped(stage: Stage) -> Fingerprint:
    return msgspec.json.decode((stage.checkpoints / "step_10" / "envguard.json").read_bytes(), type=Fingerprint)


def restamp(stage: Stage, **changes: object) -> None:
    """The stamp as another machine would have written it."""
    taken = msgspec.structs.replace(stamped(stage), **changes)
    now = fingerprint_id(taken.python, taken.packages, taken.torch, taken.driver, taken.gpus)
    whole = sealed(msgspec.structs.replace(taken, id=now))
    (stage.checkpoints / "step_10" / "envguard.json").write_bytes(msgspec.json.encode(whole))


def gpus_of_another_machine(stage: Stage) -> None:
    """The stamp saw eight GPUs that this machine does not have."""
    gpus = tuple(
        Gpu(
            index=index,
            name="NVIDIA Imaginary",
            uuid_digest=None,
            memory_bytes=1 << 40,
            compute_capability="9.9",
            mig=None,
            ecc=None,
            power_limit_w=None,
            p2p={},
            context_bytes=None,
            refused={},
        )
        for index in range(8)
    )
    restamp(stage, gpus=gpus)


def unstamped(stage: Stage) -> None:
    (stage.checkpoints / "step_10" / "envguard.json").unlink()


def an_expired_waiver(stage: Stage) -> None:
    swap(stage)
    line = "--waive torch --waive cuda --because tried --until 2001-01-01"
    assert shell(stage, LAUNCH.replace("--dry-run", line)).returncode == 78


@pytest.mark.parametrize(
    "change", [unstamped, swap, an_expired_waiver, gpus_of_another_machine], ids=lambda each: each.__name__
)
def test_a_launch_that_is_answered_for_starts(own: Stage, change: Callable[[Stage], object]) -> None:
    change(own)
    refused = shell(own, LAUNCH)
    assert refused.returncode in (3, 78), flat(refused)
    done = shell(own, advised(refused, WAIVE))
    assert done.returncode == 0, flat(done)


@dataclass(frozen=True)
class Advice:
    """A command that complains, the advice in its answer, and how it is taken: `{}` is the advice, else the advice is
    run and the command again."""

    line: str
    advice: str
    taken: str = "{}; LINE"
    before: Callable[[Stage], object] = lambda stage: None


def two_runs(stage: Stage) -> None:
    for run in ("a", "b"):
        if not (stage.project / "runs" / run).exists():
            save(stage.project / "runs" / run / "checkpoint-5")


def a_broken_bundle(stage: Stage) -> None:
    (stage.project / "FILE").write_bytes(b"\x1f\x8b nothing")


def no_fingerprint(stage: Stage) -> None:
    (stage.project / "FILE").write_text("{}")


def without_checkpoints(stage: Stage) -> None:
    (stage.checkpoints / "step_10").rename(stage.root / "step_10")


def another_venv(stage: Stage) -> None:
    if not (stage.root / "other").exists():
        stage.uv("venv", "--quiet", "--python", sys.executable, str(stage.root / "other"))


QUIET = {
    "no reference": Advice(
        "envguard launch -- .venv/bin/python -c 1",
        r"`(envguard launch --baseline -- COMMAND)`",
        before=without_checkpoints,
    ),
    "no first start": Advice(
        "envguard diff baseline", r"`(envguard launch --baseline -- COMMAND)`", before=without_checkpoints
    ),
    "no first start beside stamps": Advice(
        "envguard diff baseline", r"`(envguard log)`", "{} && envguard diff step_10"
    ),
    "no journal entry": Advice(
        "envguard diff @9", r"`(envguard snapshot)`", "{0}; {0}; {0}; {0}; {0}; {0}; {0}; {0}; {0}; LINE"
    ),
    "empty vault": Advice("envguard vault list", r"`(envguard snapshot --keep)`"),
    "no such checkpoint": Advice("envguard diff step_11", r"the nearest: ([\w-]+)", "envguard diff {}"),
    "restore to no such checkpoint": Advice(
        "envguard restore step_1", r"the nearest: ([\w-]+)", "envguard restore {}"
    ),
    "two runs": Advice("envguard diff checkpoint-5", r"(/\S+/runs/a/checkpoint-5)", "envguard diff {}", two_runs),
    "no such package": Advice("envguard verify transfomers", r"did you mean `(\w+)`", "envguard verify {}"),
    "no like package": Advice("envguard verify zzzz", r"`(envguard snapshot -v)`", "{} && envguard verify torch"),
    "no bundle": Advice("envguard timeline --bundle FILE", r"`(envguard collect -o FILE)`"),
    "broken bundle": Advice(
        "envguard timeline --bundle FILE", r"`(envguard collect -o FILE)`", before=a_broken_bundle
    ),
    "no fingerprint": Advice("envguard diff FILE", r"`(envguard snapshot -o FILE)`", before=no_fingerprint),
    "no environment": Advice(
        "envguard verify --python nowhere", r"`(--python)` takes a venv directory", "envguard verify {} .venv"
    ),
    "no reason": Advice(
        "envguard launch --against step_10 --waive env --dry-run -- .venv/bin/python -c 1",
        r"`(--because 'why it is safe')`",
        "envguard launch --against step_10 --waive env {} --dry-run -- .venv/bin/python -c 1",
    ),
    "no reference of a restore": Advice("envguard restore", r"`(envguard log)`", "{} && envguard restore step_10 -y"),
    "nobody to ask": Advice("true; envguard restore step_10", r"(-y) answers", "envguard restore step_10 {}"),
    "roll-back of a reference": Advice(
        "envguard restore --rollback step_10 -y", r"`(envguard restore step_10)`", "{}"
    ),
    "nothing to roll back": Advice(
        "envguard restore --rollback -y", r"`(envguard log)`", "{} && envguard restore step_10 -y"
    ),
    "another environment": Advice(
        "VIRTUAL_ENV=../other envguard restore step_10 -y",
        r"`(envguard restore step_10 --python \S+)` restores that one",
        "{}",
        another_venv,
    ),
    "a key": Advice(
        "envguard log",
        r"did you mean `(\w+)`",
        "sed -i s/chekpoints/{}/ envguard.toml; envguard log; rm envguard.toml; touch envguard.toml",
        lambda stage: (stage.project / "envguard.toml").write_text("chekpoints = ['checkpoints']\n"),
    ),
    "since the future": Advice(
        "envguard timeline --since 2999-01-01 --bundle nothing",
        r"`(envguard collect -o FILE)`",
        "{} && envguard timeline --since 2999-01-01 --bundle FILE",
    ),
}


@pytest.mark.parametrize("given", QUIET.values(), ids=QUIET)
def test_advice_of_what_changes_nothing_helps(shared: Stage, given: Advice) -> None:
    (shared.project / "FILE").unlink(missing_ok=True)
    try:
        given.before(shared)
        first = shell(shared, given.line)
        advice = advised(first, given.advice)
        then = given.taken.format(advice, advice).replace("LINE", given.line)
        again = shell(shared, then)
        assert complaint(again) != complaint(first)
        assert "error:" not in again.stderr, f"{then}\n{flat(again)}"
    finally:
        if (shared.root / "step_10").exists():
            (shared.root / "step_10").rename(shared.checkpoints / "step_10")
        (shared.project / ".envguard" / "baseline.json").unlink(missing_ok=True)


def test_a_killed_restore_is_put_right(own: Stage) -> None:
    swap(own)
    killed(own, "installing", "restore", "step_10", "-y")
    said = shell(own, "envguard verify")
    done = shell(own, advised(said, r"`(envguard restore --rollback -y)`"))
    assert done.returncode == 0, flat(done)
    assert "killed" not in shell(own, "envguard verify").stderr


def test_a_restore_whose_roll_back_point_is_gone_is_forced(own: Stage) -> None:
    swap(own)
    killed(own, "installing", "restore", "step_10", "-y")
    shutil.rmtree(own.project / ".envguard" / "restore")
    done = shell(own, advised(shell(own, "envguard restore step_10"), r"`(envguard restore step_10 --force)`"))
    assert done.returncode == 0, flat(done)
    assert "half-installed" not in shell(own, "envguard verify").stderr


def test_an_undo_after_a_later_install_is_forced(own: Stage) -> None:
    swap(own)
    assert shell(own, "envguard restore step_10").returncode == 0
    swap(own)
    refused = shell(own, "envguard restore --rollback -y")
    assert refused.returncode == 4
    done = shell(own, f"envguard restore --rollback -y {advised(refused, r'`(--force)` puts back')}")
    assert done.returncode == 0, flat(done)


def test_a_lock_is_written_once_its_wheels_are_found(own: Stage) -> None:
    """Wheels that came out of a folder have no hash in uv's cache, however often they are installed anew."""
    line = "envguard snapshot --lock pylock.toml"
    lacking = shell(own, line, UV_FIND_LINKS="")
    assert lacking.returncode == 3
    key = advised(lacking, r"`(find_links)`")
    (own.project / "envguard.toml").write_text(f"{key} = ['{own.wheels}']\n")
    assert shell(own, line, UV_FIND_LINKS="").returncode == 0


@pytest.mark.parametrize("words", ["", "--frozen ", "--locked "])
def test_uv_run_that_would_sync_is_started_as_advised(own: Stage, words: str) -> None:
    (own.project / "pyproject.toml").write_text('[project]\nname = "app"\nversion = "0"\n')
    line = f"envguard launch --against step_10 --dry-run -- uv run {words}python -c 1"
    refused = shell(own, line)
    assert refused.returncode == 3, flat(refused)
    option = advised(refused, r"(--no-sync)")
    done = shell(own, line.replace("uv run", f"uv run {option}"))
    assert done.returncode == 0, flat(done)


def test_an_environment_that_is_gone_is_made_anew(stage: Stage) -> None:
    shutil.rmtree(stage.venv)
    line = 'VIRTUAL_ENV="$PWD/.venv" envguard verify'
    broken = shell(stage, line)
    assert broken.returncode == 2, flat(broken)
    made = shell(stage, advised(broken, r"`(uv venv --clear)`"))
    assert made.returncode == 0, flat(made)
    assert "error:" not in shell(stage, line).stderr


def test_another_python_gets_another_environment(own: Stage) -> None:
    """The advice does not name the environment that is in use, which uv refuses to make over."""
    restamp(own, python=msgspec.structs.replace(stamped(own).python, version="3.10.1"))
    refused = shell(own, "envguard restore step_10")
    assert refused.returncode == 4, flat(refused)
    assert "`uv venv --python 3.10 .venv-3.10 && envguard restore step_10 --python .venv-3.10`" in flat(refused)
    assert "already exists" not in flat(shell(own, advised(refused, r"`(uv venv .*?) &&")))

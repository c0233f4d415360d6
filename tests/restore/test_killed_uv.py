"""uv killed at drawn moments, in plans of one package, of thirty, and of mixed changes: the whole tree afterwards."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.restore import undoing, uv
from envguard.restore.uv import Ran
from tests.restore.conftest import Swapped, fingerprint, tree

DRAWS = int(os.environ.get("DRAWN_KILLS", "4"))
SCRIPT = b"#!python\nprint('a script of the wheel')\n"


def wheel(stage: Stage, name: str, version: str, files: int = 4) -> None:
    """A wheel with everything that uv has an own way for: modules, a script, data, headers, an entry point."""
    data = f"{name}-{version}.data"
    content = {f"{name}/m{number % 7}/f{number}.py": f"# {version} {number}\n".encode() for number in range(files)}
    content |= {f"{name}/only_{version.replace('.', '_')}.py": b"", f"{data}/scripts/{name}-tool": SCRIPT}
    content |= {f"{data}/data/share/{name}/{version}.txt": b"data", f"{data}/headers/{name}.h": b"// header\n"}
    build_wheel(stage.wheels, name, version, content, scripts={f"{name}-run": f"{name}:main"})


def one(stage: Stage) -> Swapped:
    for version in ("1.0", "2.0"):
        wheel(stage, "alone", version, files=400)
    stage.install("alone==1.0")
    before = fingerprint(stage)
    stage.install("alone==2.0")
    return Swapped(stage, before, stage.root / "state")


def thirty(stage: Stage) -> Swapped:
    names = [f"each{number}" for number in range(30)]
    for name in names:
        for version in ("1.0", "2.0"):
            wheel(stage, name, version)
    stage.install(*(f"{name}==1.0" for name in names))
    before = fingerprint(stage)
    stage.install(*(f"{name}==2.0" for name in names))
    return Swapped(stage, before, stage.root / "state")


def mixed(stage: Stage) -> Swapped:
    """One replaced, one brought back after it was removed, one edited, one that came later and goes (`--exact`)."""
    for name in ("replaced", "removed", "edited", "newcomer"):
        for version in ("1.0", "2.0"):
            wheel(stage, name, version, files=80)
    stage.install("replaced==1.0", "removed==1.0", "edited==1.0")
    before = fingerprint(stage)
    stage.install("replaced==2.0", "newcomer==2.0")
    stage.uv("pip", "uninstall", "--python", str(stage.python), "removed")
    module = stage.site / "edited" / "m0" / "f0.py"
    module.unlink()
    module.write_text("# a patch\n")
    return Swapped(stage, before, stage.root / "state")


def killed_after(delay_s: float, times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes the first runs of uv die after so many seconds, as a kill of uv alone; returns all runs' codes."""
    codes: list[int] = []

    def dying(arguments: Sequence[str], cache: Path, hold: tuple[int, ...] = ()) -> Ran:
        command = [uv.find_uv(), *arguments, "--offline", "--no-config", "--no-python-downloads"]
        environ = uv.clean_environment(os.environ, cache)
        with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, pass_fds=hold, cwd=cache.parent) as run:
            timer = threading.Timer(delay_s, run.kill)
            if len(codes) < times:
                timer.start()
            _, said = run.communicate()
            timer.cancel()
        codes.append(run.returncode)
        return Ran(run.returncode, said.decode())

    monkeypatch.setattr(uv, "run", dying)
    return codes


def lasts(swapped: Swapped, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long uv takes for this plan, in seconds."""
    run, took = uv.run, []

    def timed(arguments: Sequence[str], cache: Path, hold: tuple[int, ...] = ()) -> Ran:
        began = time.monotonic()
        try:
            return run(arguments, cache, hold)
        finally:
            took.append(time.monotonic() - began)

    with monkeypatch.context() as patched:
        patched.setattr(uv, "run", timed)
        assert swapped.restore(exact=True).verified
    assert undoing.roll_back(str(swapped.stage.venv), swapped.state).rolled_back
    return sum(took)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [one, thirty, mixed], ids=lambda each: each.__name__)
def test_uv_is_killed_at_drawn_moments(stage: Stage, monkeypatch: pytest.MonkeyPatch, plan: object) -> None:
    assert callable(plan)
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    swapped = plan(stage)
    before = tree(stage.venv)
    duration_s = lasts(swapped, monkeypatch)
    assert tree(stage.venv) == before
    drawn, killed = random.Random(24), 0
    for _ in range(DRAWS):
        delay_s = drawn.uniform(0, duration_s)
        with monkeypatch.context() as patched:
            codes = killed_after(delay_s, 99, patched)
            outcome = swapped.restore(exact=True)
        if outcome.verified:
            assert set(codes) == {0}
            undoing.roll_back(str(stage.venv), swapped.state)
        else:
            killed += 1
            assert outcome.rolled_back
        assert outcome.differs == ()
        assert tree(stage.venv) == before, f"uv killed after {delay_s} s"
    assert killed
    assert swapped.restore(exact=True).verified
    assert {p.name: p.build for p in fingerprint(stage).packages} == {
        p.name: p.build for p in swapped.before.packages
    }

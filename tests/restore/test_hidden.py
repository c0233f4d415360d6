"""A package that another one hides is still there: the way back is to take out what hides it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.restore import service
from tests.restore.conftest import Swapped, fingerprint


@pytest.mark.parametrize("cached", [True, False])
def test_what_is_only_hidden_is_named_with_the_way_back(
    cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path / "stage")
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    stage.make_venv()
    for version in ("1.0", "2.0"):
        build_wheel(stage.wheels, "pine", version, {"pine/__init__.py": version.encode()})
    shared = tmp_path / "shared/site-packages"
    where = ("--offline", "--no-index", "--find-links", str(stage.wheels), "--target", str(shared))
    stage.uv("pip", "install", *where, "pine==1.0")
    (stage.site / "shared.pth").write_text(f"{shared}\n")
    swapped = Swapped(stage, fingerprint(stage), tmp_path / "state")
    assert [package.location for package in swapped.before.packages if package.name == "pine"] == [str(shared)]
    stage.install("pine==2.0")
    if not cached:
        stage.uv("cache", "clean")
    plan = service.find_and_plan(swapped.request())
    assert bool(plan.missing) is not cached
    [note] = [note for note in plan.notes if "hidden" in note]
    assert note == (
        f"pine 1.0 is still installed in {shared} and hidden by 2.0 in {stage.site}: "
        f"`uv pip uninstall --python {stage.python} pine` takes out what hides it"
    )
    proved = service.prove(swapped.request(), plan)
    assert note in service.report_of(swapped.request(), plan, proved).notes, "however far sources were sought"

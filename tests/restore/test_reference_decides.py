"""Between a plan and the end of its restore things change: what is verified at the end is the reference."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envguard.restore import service, undoing
from envguard.restore.transaction import Transaction
from tests.restore.conftest import Swapped, fingerprint, tree


def archives(swapped: Swapped, name: str) -> list[Path]:
    """The folders of uv's cache that hold a build of `name`."""
    return sorted({info.parent for info in swapped.stage.cache.glob(f"archive-v0/*/{name}-*.dist-info")})


def remove_archives(swapped: Swapped) -> None:
    for archive in archives(swapped, "torch"):
        shutil.rmtree(archive)


def remove_all_archives(swapped: Swapped) -> None:
    shutil.rmtree(swapped.stage.cache)


def remove_records(swapped: Swapped) -> None:
    for archive in archives(swapped, "torch"):
        next(archive.glob("torch-*.dist-info/RECORD")).unlink()


def remove_a_file(swapped: Swapped) -> None:
    for archive in archives(swapped, "torch"):
        (archive / "torch" / "version.py").unlink()


@pytest.mark.parametrize(
    "vanish", [remove_archives, remove_all_archives, remove_records, remove_a_file], ids=lambda each: each.__name__
)
def test_a_source_that_vanishes_after_the_plan(swapped: Swapped, vanish: Callable[[Swapped], None]) -> None:
    """The other package of the plan can still be had, and must not be restored alone."""
    install_another(swapped)
    before = tree(swapped.stage.venv)
    request = swapped.request()
    plan = service.find_and_plan(request)
    assert len(plan.steps) > 1
    assert not plan.missing
    vanish(swapped)
    outcome = service.carry_out(request, plan)
    assert (outcome.applied, outcome.verified) == (False, False)
    assert outcome.failure is not None
    assert [item.package.partition(" ")[0] for item in outcome.missing][:1] == ["torch"]
    report = service.report_of(request, plan, outcome)
    assert report.missing
    assert tree(swapped.stage.venv) == before


def edit(swapped: Swapped) -> None:
    file = swapped.stage.site / "transformers" / "__init__.py"
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data + b"# edited meanwhile\n")


def uninstall(swapped: Swapped) -> None:
    swapped.stage.uv("pip", "uninstall", "--python", str(swapped.stage.python), "transformers")


def install_another(swapped: Swapped) -> None:
    swapped.stage.install("transformers==5.8.1", arguments=["--no-deps"])


@pytest.mark.parametrize("change", [edit, uninstall, install_another], ids=lambda each: each.__name__)
def test_a_package_that_was_right_when_the_plan_was_made(swapped: Swapped, change: Callable[[Swapped], None]) -> None:
    swapped.stage.install("transformers==5.6.0", arguments=["--no-deps"])
    request = swapped.request()
    plan = service.find_and_plan(request)
    assert "transformers" in plan.same
    change(swapped)
    before = tree(swapped.stage.venv)
    outcome = service.carry_out(request, plan)
    assert (outcome.applied, outcome.verified, outcome.rolled_back) == (False, False, True)
    assert "transformers" in (outcome.failure or "")
    assert tree(swapped.stage.venv) == before


@pytest.mark.parametrize("step", ["begun", "staged", "saved", "installing", "installed", "verified", "done"])
def test_a_disk_that_is_full_when_a_step_is_written_down(
    swapped: Swapped, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write = Transaction.write

    def full(self: Transaction, name: Any, **about: Any) -> None:
        if name == step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.journal))
        write(self, name, **about)

    before, built = tree(swapped.stage.venv), {p.name: p.build for p in fingerprint(swapped.stage).packages}
    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "write", full)
        done = swapped.restore_or_failure()
    assert "No space left" in done
    assert tree(swapped.stage.venv) == before
    assert {p.name: p.build for p in fingerprint(swapped.stage).packages} == built
    assert undoing.pending(str(swapped.stage.venv), swapped.state) is None
    assert swapped.restore().verified

"""Packages with files that no install had brought: what the stamp saw of them decides what there is to do."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.restore.plan import is_there
from envguard.restore.wanted import from_fingerprint
from tests.caches import tag_of, write_cache
from tests.restore.conftest import fingerprint, tree

BUNDLE = b"-----BEGIN CERTIFICATE-----\n"
HOUSE = BUNDLE + b"# the house's own authority\n"


@dataclass
class Edited:
    """A stage with two packages whose bundle of certificates somebody edits, as images of containers do."""

    stage: Stage

    @property
    def files(self) -> tuple[Path, Path]:
        return self.stage.site / "certs" / "cacert.pem", self.stage.site / "installer" / "_vendor" / "cacert.pem"

    def write(self, data: bytes) -> None:
        for file in self.files:
            file.unlink()
            file.write_bytes(data)

    @property
    def compiled(self) -> Path:
        return self.stage.home / "compiled"

    def stamp(self, *words: str) -> None:
        folder = self.stage.checkpoints / "step_680"
        folder.mkdir()
        (folder / "model.pt").write_bytes(b"weights")
        assert self.ask("snapshot", "--into", "step_680", *words)[0] == 0

    def forget_sources(self) -> None:
        self.stage.uv("cache", "clean", "certs", "installer")

    def ask(self, *words: str) -> tuple[int, dict[str, Any]]:
        done = self.stage.envguard(*words, "--json", extra={"TORCHINDUCTOR_CACHE_DIR": str(self.compiled)})
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def edited(torch_stage: Stage) -> Edited:
    made = Edited(torch_stage)
    for file in made.files:
        name, _, path = str(file.relative_to(torch_stage.site)).partition("/")
        build_wheel(torch_stage.wheels, name, "1.0", {f"{name}/__init__.py": b"", f"{name}/{path}": BUNDLE})
        torch_stage.install(name)
    return made


def notes_of(report: dict[str, Any]) -> list[str]:
    return [note for note in report["notes"] if "cacert.pem" in note]


def test_what_is_as_the_stamp_has_it_needs_nothing_and_keeps_no_compile_cache_back(edited: Edited) -> None:
    edited.write(HOUSE)
    edited.forget_sources()
    write_cache(edited.compiled, tag_of(edited.stage))
    compiled = tree(edited.compiled)
    edited.stamp("--keep")
    shutil.rmtree(edited.compiled)
    before = tree(edited.stage.venv)
    code, report = edited.ask("restore", "step_680", "-y")
    assert (code, report["plan"], report["missing"], report["verified"]) == (0, [], [], True)
    (note,) = notes_of(report)
    assert "certs (certs/cacert.pem); installer (installer/_vendor/cacert.pem)" in note
    assert tree(edited.stage.venv) == before
    assert compiled.keys() <= tree(edited.compiled).keys()


def test_what_was_missing_then_and_is_missing_now_is_called_missing(edited: Edited) -> None:
    gone, other = edited.files
    gone.unlink()
    other.unlink()
    other.write_bytes(HOUSE)
    edited.stamp()
    code, report = edited.ask("restore", "step_680", "-y")
    assert (code, report["plan"], report["verified"]) == (0, [], True)
    assert notes_of(report) == [
        "left as the stamp has it, with files that were missing then too: certs (certs/cacert.pem)",
        "left as the stamp has it, with files that were not what was installed then either: "
        "installer (installer/_vendor/cacert.pem)",
    ]


def test_what_is_missing_now_and_in_no_source_is_called_missing(edited: Edited) -> None:
    edited.stamp()
    edited.forget_sources()
    edited.files[0].unlink()
    code, report = edited.ask("restore", "step_680", "-y")
    (missing,) = report["missing"]
    assert code == 4
    assert "1 of its files is missing (certs/cacert.pem), and a sound copy is not on" in missing["why"]


@pytest.mark.parametrize("mended", [True, False], ids=["whole-now", "otherwise-now"])
def test_what_was_missing_then_is_called_no_edit(edited: Edited, mended: bool) -> None:
    edited.files[0].unlink()
    edited.stamp()
    edited.files[0].write_bytes(BUNDLE if mended else HOUSE)
    code, report = edited.ask("restore", "step_680", "-y")
    (note,) = notes_of(report)
    assert code == 0
    assert "missing" in note
    assert "edits" not in note


def test_what_was_edited_then_and_is_whole_now_is_left_and_said(edited: Edited) -> None:
    edited.write(HOUSE)
    edited.stamp()
    edited.forget_sources()
    edited.write(BUNDLE)
    code, report = edited.ask("restore", "step_680", "-y")
    assert (code, report["plan"], report["verified"]) == (0, [], True)
    (note,) = notes_of(report)
    assert "those edits are in no wheel" in note


def test_what_was_edited_then_and_otherwise_now_gets_what_was_installed(edited: Edited) -> None:
    edited.write(HOUSE)
    edited.stamp()
    edited.write(HOUSE + b"and another\n")
    code, report = edited.ask("restore", "step_680", "-y")
    assert (code, report["applied"], report["verified"]) == (0, True, True)
    assert [item["package"] for item in report["plan"]] == ["certs", "installer"]
    assert [file.read_bytes() for file in edited.files] == [BUNDLE, BUNDLE]
    assert [note for note in notes_of(report) if "not those edits" in note] == notes_of(report)


def test_what_was_whole_then_is_mended(edited: Edited) -> None:
    edited.stamp()
    edited.write(HOUSE)
    code, report = edited.ask("restore", "step_680", "-y")
    assert (code, report["verified"], notes_of(report)) == (0, True, [])
    assert [file.read_bytes() for file in edited.files] == [BUNDLE, BUNDLE]


@pytest.mark.parametrize("then", [BUNDLE, HOUSE], ids=["whole", "edited"])
def test_what_cannot_be_mended_names_its_files_and_changes_nothing(edited: Edited, then: bytes) -> None:
    edited.write(then)
    edited.stamp()
    edited.forget_sources()
    edited.write(HOUSE + b"and another\n")
    before, said = tree(edited.stage.venv), edited.ask("diff", "step_680")
    code, report = edited.ask("restore", "step_680", "-y")
    assert (code, report["plan"], report["applied"]) == (4, [], False)
    first, second = report["missing"]
    assert "1 of its files is not what was installed (certs/cacert.pem), and a sound copy is not on" in first["why"]
    assert "(installer/_vendor/cacert.pem)" in second["why"]
    assert tree(edited.stage.venv) == before
    again = edited.ask("diff", "step_680")
    assert {**again[1], "b": None} == {**said[1], "b": None}, "a restore that changed nothing changed what diff says"
    assert again[0] == said[0]


def test_what_the_stamp_could_not_read_is_no_proof(edited: Edited) -> None:
    edited.write(HOUSE)
    live = fingerprint(edited.stage)
    (wanted,) = (each for each in from_fingerprint("then", live).packages if each.name == "certs")
    now = live.package("certs")
    assert is_there(wanted, now, []) == (True, None)
    there, why = is_there(msgspec.structs.replace(wanted, unread=("certs/__init__.py",)), now, [])
    assert there
    assert why is not None
    assert "of certs/__init__.py nothing could be read" in why

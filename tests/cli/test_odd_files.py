"""What lies odd at a place that is read costs that place alone: no command hangs, crashes or gives up over it.

The places are those that the commands open in a room with something of everything (`tests.odd_files`), tried as every
oddity: a fixed draw of the whole product, which would take a quarter of an hour.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envguard.demo.stage import Stage
from tests import odd_files
from tests.cut_installs import take_wheels

COMMANDS = {
    "timeline": ["timeline", "--since", "2020-01-01", "--json"],
    "snapshot": ["snapshot", "--json"],
    "diff": ["diff", "step_1", "--json"],
    "verify": ["verify", "--json"],
    "log": ["log", "--json"],
    "launch": ["launch", "--dry-run", "--against", "step_1", "--json", "--", "true"],
    "restore": ["restore", "step_1", "--dry-run", "--json"],
    "vault": ["vault", "list", "--json"],
    "waivers": ["waivers", "list", "--json"],
    "collect": ["collect", "-o", "made.bundle"],
}
EACH = 8
"""Cells an oddity."""
DEADLINE_S = 30
"""Most take half a second; the machine may have more to do."""
USERS = ("envguard.toml", "step_1/", "waivers.json")
"""What the user named, or what a command is about: an error there is theirs to mend."""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, story_wheels: Path) -> Stage:
    stage = Stage(tmp_path_factory.mktemp("odd") / "room")
    stage.make_venv()
    take_wheels(stage, story_wheels)
    stage.install("torch==2.11.0+cu128", "transformers==5.6.0")
    odd_files.furnish(stage)
    return stage


def drive(room: Stage, cells: list[tuple[str, str, str]] | None) -> Iterator[Any]:
    asked = {
        "project": str(room.project), "room": str(room.root), "commands": COMMANDS, "cells": cells,
        "deadline_s": DEADLINE_S,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", odd_files.__file__], input=json.dumps(asked), env=room.environ(), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    yield from map(json.loads, done.stdout.splitlines())


@pytest.fixture(scope="module")
def places(room: Stage) -> dict[str, list[str]]:
    """Command → files that it opens, one of a kind."""
    return {answer["command"]: _kinds(answer["opened"]) for answer in drive(room, None)}


def _kinds(paths: list[str]) -> list[str]:
    """Of files that differ in a package, a step or a digest alone, the first."""
    alike = re.compile(r"torch|transformers|triton|step_\d+|[0-9a-f]{8,}|archive-v0/[^/]+|\d[\d.+a-z]*")
    return list({alike.sub("*", path): path for path in sorted(paths, reverse=True)}.values())


def test_the_room_holds_something_for_every_reader(room: Stage, places: dict[str, list[str]]) -> None:
    read = {Path(path).name for command in places.values() for path in command}
    assert all(places[name] for name in COMMANDS)
    expected = {"METADATA", "RECORD", "pyvenv.cfg", "uv.lock", "envguard.json", "waivers.json", "model.safetensors",
                "wandb-metadata.json", ".bash_history", "train_log.jsonl", "digests-"}  # fmt: skip
    assert {name for name in expected if not any(each.startswith(name) for each in read)} == set()
    assert len(read) >= 40


@pytest.mark.parametrize("oddity", odd_files.ODDITIES)
def test_no_command_hangs_or_ends_over_a_file_that_nobody_named(
    room: Stage, places: dict[str, list[str]], oddity: str
) -> None:
    product = [(command, place, oddity) for command, each in places.items() for place in each]
    cells = random.Random(f"{oddity} 24").sample(product, EACH)
    assert [_fault(*answer) for answer in drive(room, cells)] == [None] * EACH


def _fault(command: str, place: str, oddity: str, code: int | str, seconds: float, out: str) -> str | None:
    where = f"{command}, {place} as {oddity}: {code} after {seconds} s: {out[-600:]}"
    if code == "hang" or "Traceback" in out or "a fault in envguard" in out:
        return where
    if code == 2 and any(part in place for part in USERS) and Path(place).name in out:
        return None
    return None if code in (0, 1, 3, 4, 75, 78) else where

"""Wheels whose WHEEL file holds the compressed tags of the file name, as maturin wrote it."""

from __future__ import annotations

import platform
import sys

import pytest

from envguard.acquire.packages.wheel_tags import parse_wheel
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from tests.restore.conftest import tree

PLATFORMS = "manylinux_2_17_{machine}.manylinux2014_{machine}"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Tag: py3-none-any\n", (("py3-none-any",), None)),
        ("Tag: py2-none-any\nTag: py3-none-any\nBuild: 7\n", (("py2-none-any", "py3-none-any"), "7")),
        ("Tag: py2.py3-none-any\n", (("py2-none-any", "py3-none-any"), None)),
        (
            "Tag: cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64\n",
            (("cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux2014_x86_64"), None),
        ),
        ("Wheel-Version: 1.0\n", ((), None)),
        ("Tag: odd\n", (("odd",), None)),
    ],
)
def test_one_tag_a_line_or_all_in_one(text: str, read: tuple[tuple[str, ...], str | None]) -> None:
    assert parse_wheel(text) == read


def test_a_wheel_with_compressed_tags_is_brought_back(stage: Stage) -> None:
    machine = platform.machine()
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = f"{python}-{python}-{PLATFORMS.format(machine=machine)}"
    for version in ("0.4.5", "0.8.0"):
        build_wheel(stage.wheels, "safetensors", version, tag=tag)
    stage.install("safetensors==0.4.5")
    (stage.checkpoints / "step_10").mkdir()
    (stage.checkpoints / "step_10" / "model.bin").write_bytes(b"weights")
    assert stage.envguard("snapshot", "--into", "step_10").returncode == 0
    before = payload(stage)
    stage.install("safetensors==0.8.0")
    done = stage.envguard("restore", "step_10", "-y")
    assert done.returncode == 0, done.stdout + done.stderr
    assert payload(stage) == before


def payload(stage: Stage) -> dict[str, str]:
    """Contents by path."""
    found = tree(stage.site / "safetensors", skip=("__pycache__",))
    return {path: entry[3] for path, entry in found.items()}

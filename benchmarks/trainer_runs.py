"""Runs of the bundled trainer that benchmarks start by its command line, as a user does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from trainer.config import Config


def write_texts(folder: Path, texts: Iterable[str]) -> Path:
    """A training file in ``folder``, written once."""
    path = folder / "text.jsonl"
    if not path.exists():
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def command_of(config: Config, folder: Path, *, ranks: bool) -> list[str]:
    """The command that trains; ``ranks``: under torchrun, also where it is one target and one drafter."""
    file = write_toml(folder / f"{Path(config.checkpoint.dir).name}.toml", config)
    command = [sys.executable, "-m", "trainer", "train", str(file)]
    if ranks:
        command += ["--targets", str(config.topology.targets), "--drafters", str(config.topology.drafters)]
    return command


def write_toml(path: Path, config: Config) -> Path:
    """The configuration as a file for the command line."""
    sections = msgspec.to_builtins(config)
    table = {name: {key: v for key, v in section.items() if v is not None} for name, section in sections.items()}
    path.write_text(tomli_w.dumps(table))
    return path


def read_log(config: Config) -> list[dict[str, Any]]:
    """The finished lines of a run's log; none where there is no log yet."""
    log = Path(config.checkpoint.dir) / config.log.jsonl
    return [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]] if log.exists() else []

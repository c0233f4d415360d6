"""Runs of the bundled trainer that benchmarks start by its command line, as a user does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.config import Config


def write_texts(folder: Path, texts: Iterable[str]) -> Path:
    """A training file in ``folder``, written once."""
    path = folder / "text.jsonl"
    if not path.exists():
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def command_of(config: Config, folder: Path, *, ranks: bool) -> list[str]:
    """The command that trains; ``ranks``: under torchrun, also where it is one target and one drafter."""
    file = folder / f"{Path(config.checkpoint.dir).name}.toml"
    file.write_text(toml(config))
    command = [sys.executable, "-m", "trainer", "train", str(file)]
    if ranks:
        command += ["--targets", str(config.topology.targets), "--drafters", str(config.topology.drafters)]
    return command


def toml(config: Config) -> str:
    """The configuration as the command line reads it."""
    lines = []
    for section in config.__struct_fields__:
        lines.append(f"[{section}]")
        values = getattr(config, section)
        for key in values.__struct_fields__:
            value = getattr(values, key)
            if value is not None:
                lines.append(f"{key} = {json.dumps(list(value) if isinstance(value, tuple) else value)}")
    return "\n".join(lines) + "\n"


def read_log(config: Config) -> list[dict[str, Any]]:
    """The finished lines of a run's log; none where there is no log yet."""
    log = Path(config.checkpoint.dir) / config.log.jsonl
    return [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]] if log.exists() else []

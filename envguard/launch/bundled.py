"""The trainer of this checkout, started without a COMMAND: at the reference checkpoint, with its settings.

The trainer itself puts its ranks under torchrun (`torch.distributed.run`) where its topology has several; options of
torchrun after `--` (several machines) are given to torchrun, all others to the trainer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.seam.host import Host
from envguard.errors import InputError, UsageError
from envguard.model.parsing import parse_json

STATE_FILE = "trainer_state.json"
# Options of torch.distributed.run, without their dashes; those that take no value are in _FLAGS.
_TORCHRUN = frozenset({
    "nnodes", "nproc-per-node", "node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "standalone",
    "max-restarts", "monitor-interval", "start-method", "role", "log-dir", "redirects", "tee", "local-ranks-filter",
    "master-addr", "master-port", "local-addr", "virtual-local-rank",
})  # fmt: skip
_FLAGS = frozenset({"standalone", "virtual-local-rank"})
# What the trainer takes as `section.key=value`; no program is named so.
_SETTING = re.compile(r"[a-z_]+(?:\.[a-z_]+)+=")
_NAMED = "name what to start: `envguard launch -- python train.py`"


@dataclass(frozen=True)
class Bundled:
    """The command, the folder that it is started in, and the configuration file that has to be written for it."""

    command: tuple[str, ...]
    folder: Path
    config_file: Path
    config: Mapping[str, Any]


def bundled_command(
    host: Host,
    root: Path | None,
    state: Path,
    python: str | None,
    checkpoint: Checkpoint | None,
    options: Sequence[str],
) -> Bundled:
    """Raises `UsageError` outside a checkout or without a checkpoint, `InputError` where it holds no settings."""
    root = require_checkout(root)
    if checkpoint is None:
        raise UsageError(
            "no COMMAND, and no checkpoint whose settings could be taken",
            "the first start names them: `envguard launch --baseline -- python -m trainer train configs/<name>.toml`",
        )
    config = _config(host, checkpoint)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
    file = (state / "configs" / f"{checkpoint.name}-{digest}.toml").absolute()
    torchrun, own = split_options(options)
    trainer = ["-m", "trainer", "train", str(file), "--checkpoint", checkpoint.path, *own]
    head = [python or "python3", *(["-m", "torch.distributed.run", *torchrun] if torchrun else [])]
    return Bundled((*head, *trainer), root, file, config)


def require_checkout(root: Path | None) -> Path:
    """The root of a checkout that holds the trainer. Raises `UsageError`."""
    if root is None or not (root / "trainer" / "__main__.py").is_file():
        raise UsageError("no COMMAND, and this is no checkout with the bundled trainer", _NAMED)
    return root


def are_options(words: Sequence[str]) -> bool:
    """Whether the words after `--` name no command: none at all, an option, or a setting (`train.max_steps=8`)."""
    return not words or words[0].startswith("-") or _SETTING.match(words[0]) is not None


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(torchrun's, the trainer's own) of the words after `--`."""
    torchrun: list[str] = []
    own: list[str] = []
    takes_value: list[str] | None = None
    for word in words:
        name = word.lstrip("-").partition("=")[0].replace("_", "-")
        if takes_value is not None and not word.startswith("--"):
            takes_value.append(word)
            takes_value = None
            continue
        takes_value = None
        target = torchrun if word.startswith("--") and name in _TORCHRUN else own
        target.append(word)
        if target is torchrun and "=" not in word and name not in _FLAGS:
            takes_value = torchrun
    return torchrun, own


def _config(host: Host, checkpoint: Checkpoint) -> Mapping[str, Any]:
    path = f"{checkpoint.path}/{STATE_FILE}"
    try:
        state = parse_json(host.read(path, 64 << 20))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", _NAMED) from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}", _NAMED) from error
    config = state.get("config") if isinstance(state, dict) else None
    if not isinstance(config, dict):
        raise InputError(
            f"{path} holds no `config`: {checkpoint.name} is no checkpoint of the bundled trainer", _NAMED
        )
    found = without_nulls(config)
    assert isinstance(found, dict)
    return found


def without_nulls(value: Any) -> Any:
    """TOML has no null: a key that is not set is not there."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def write_config(bundled: Bundled) -> None:
    """Writes the configuration file. Raises OSError."""
    import tomli_w

    from envguard.state.files import write_atomically

    bundled.config_file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(bundled.config_file, tomli_w.dumps(bundled.config).encode())

"""What is started and with which environment: COMMAND, or the trainer of this checkout under torchrun."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envguard.acquire.runs.checkpoints import step_of
from envguard.acquire.seam.collector.environment import visible_environment, withheld_names
from envguard.acquire.seam.host import Host
from envguard.acquire.torch.cache_places import INDUCTOR_CACHE
from envguard.state.runs import LAUNCH_FINGERPRINT, RUN_ID

_RESUME_WORDS = ("resume", "checkpoint", "ckpt")


def named_checkpoint(command: Sequence[str], is_one: Callable[[str], bool]) -> str | None:
    """The checkpoint that a command line resumes from: the value of an option whose name says so.

    `--resume step_690`, `--resume_from_checkpoint=outputs/step_690`, `trainer.resume_path=…`; `is_one` tells
    whether a word names a checkpoint that exists. A bare number counts under `resume` alone (`--resume-step 690`), 0
    and 1 not even there: `checkpoint.every=3` and `resume=1` name no checkpoint where a step_3 and a step_1 exist.
    """
    return next((value for _, value in _resumed(command) if is_one(value)), None)


def no_checkpoint(command: Sequence[str], is_one: Callable[[str], bool]) -> str | None:
    """The checkpoint that a command line resumes from by its words, and which is not there to be compared with.

    Said aloud: the command may find it where we do not look, or end at once, and either way the environment was held
    against another one. A path counts under `resume` alone, elsewhere only a name that a checkpoint has
    (`--ckpt step_77`): `--checkpoint-dir out/run` names where to save.
    """
    for name, value in _resumed(command):
        resumes = "resume" in name.lower()
        if not is_one(value) and (
            step_of(posixpath.basename(value)) is not None or (resumes and ("/" in value or value.isdecimal()))
        ):
            return value
    return None


def _resumed(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(option, value) of what may name a checkpoint to resume from."""
    for position, word in enumerate(command):
        name, equals, value = word.partition("=")
        if not any(part in name.lower() for part in _RESUME_WORDS):
            continue
        if equals:
            candidate = value
        elif word.startswith("-") and position + 1 < len(command):
            candidate = command[position + 1]
        else:
            continue
        if candidate.isdecimal() and ("resume" not in name.lower() or int(candidate) < 2):
            continue
        if candidate and not candidate.startswith("-"):
            yield name, candidate


def child_environment(
    environ: Mapping[str, str], run: str, fingerprint: Path | None, compile_cache: Path | None
) -> dict[str, str]:
    """The environment of the command: ours, its run, what it was started in, and its compile cache."""
    made = dict(environ)
    made[RUN_ID] = run
    if fingerprint is None:
        made.pop(LAUNCH_FINGERPRINT, None)  # another run's, where one launch runs inside another
    else:
        made[LAUNCH_FINGERPRINT] = str(fingerprint.absolute())
    if compile_cache is not None:
        made[INDUCTOR_CACHE] = str(compile_cache)
    return made


class AskedOnce(Host):
    """A host that asks NVML once: the fingerprint and the pre-flight checks see the same moment, at half the cost."""

    def __init__(self, inner: Host) -> None:
        self.inner = inner
        self.label = inner.label
        self._nvml: Any = None

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation != "nvml":
            return self.inner.call(operation, *arguments)
        if self._nvml is None:
            self._nvml = self.inner.call(operation, *arguments)
        return self._nvml


class ForChild(Host):
    """A host whose environment variables are those that the command will get, so that they are what is recorded.

    `variables` are all of them, secrets included; no more is answered than of any process.
    """

    def __init__(self, inner: Host, variables: Mapping[str, str]) -> None:
        self.inner = inner
        self.label = inner.label
        self.visible = visible_environment(variables.items())
        self.hidden = withheld_names(variables.items())

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation == "environ":
            return self.visible
        if operation == "withheld":
            return self.hidden
        return self.inner.call(operation, *arguments)


def make_private(folder: Path) -> None:
    """Makes the cache folder 0700. Raises OSError where it cannot, or where it is another's or open to others."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)

"""What is started and with which environment: COMMAND, or the trainer of this checkout under torchrun."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envguard.acquire.seam.collector.environment import visible_environment, withheld_names
from envguard.acquire.seam.host import Host
from envguard.acquire.torch.cache_places import INDUCTOR_CACHE
from envguard.state.runs import LAUNCH_FINGERPRINT, RUN_ID


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
        self.here = inner.here
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
        self.here = inner.here
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

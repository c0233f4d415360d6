"""Which checkpoint a name means."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from envguard.acquire.runs.checkpoint_names import match_name, nearest_names
from envguard.acquire.runs.checkpoint_search import Checkpoints
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.errors import UsageError


def choose_checkpoint(checkpoints: Checkpoints, name: str, looked_in: Iterable[str], start: str) -> Checkpoint:
    """The one checkpoint of that name or path. Raises `UsageError` with the nearest, or with the list of several."""
    path = posixpath.normpath(posixpath.join(start, name))
    found = tuple(item for item in checkpoints.found if item.path == path) or match_name(checkpoints.found, name)
    if len(found) == 1:
        return found[0]
    if found:
        listed = "\n".join(f"  {checkpoint.path}" for checkpoint in found)
        raise UsageError(f"{name} is found {len(found)} times:\n{listed}", "name one by its path")
    near = nearest_names(checkpoints.found, posixpath.basename(name))
    if near:
        raise UsageError(f"no checkpoint is called {name!r}", f"the nearest: {', '.join(near)}")
    places = ", ".join(looked_in) or "nowhere"
    raise UsageError(
        f"no checkpoint is called {name!r}", f"there are none in {places}; `--checkpoints DIR` says where to look"
    )

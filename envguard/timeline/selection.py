"""Which checkpoint a name means, and the bounds of the answer."""

from __future__ import annotations

from collections.abc import Iterable

from envguard.acquire.checkpoints import Checkpoint, Checkpoints, match_name, nearest_names
from envguard.errors import UsageError


def choose_checkpoint(checkpoints: Checkpoints, name: str, looked_in: Iterable[str]) -> Checkpoint:
    """The one checkpoint of that name. Raises `UsageError` with the nearest names, or with the list of several."""
    found = match_name(checkpoints.found, name)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(checkpoint.path for checkpoint in found)
        raise UsageError(f"{name} is {len(found)} checkpoints: {listed}", "name one by its path")
    near = nearest_names(checkpoints.found, name)
    if near:
        raise UsageError(f"no checkpoint {name}", f"the nearest are: {', '.join(near)}")
    places = ", ".join(looked_in) or "nowhere"
    raise UsageError(
        f"no checkpoint {name}", f"no checkpoints at all in {places}; `--checkpoints DIR` looks elsewhere"
    )

"""What people call checkpoints: which one a name means, and the shortest name that means one alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from envguard.acquire.runs.checkpoints import EXTENSION, Checkpoint, step_of


def match_name(checkpoints: Iterable[Checkpoint], name: str) -> tuple[Checkpoint, ...]:
    """The checkpoints that `name` may mean: of that very name (extension left out or not, run directory before it
    or not); where there is none, of that step in whatever layout. Several are for the person to choose from."""
    every = tuple(checkpoints)
    wanted = name.strip("/")
    exact = tuple(item for item in every if _is_called(item, wanted))
    if exact or "/" in wanted:
        return exact
    step = int(wanted) if wanted.isdecimal() else step_of(wanted)
    return tuple(item for item in every if step is not None and item.step == step)


def short_name(checkpoint: Checkpoint, checkpoints: Iterable[Checkpoint]) -> str:
    """The shortest that `match_name` takes for this one alone: its name, else folders before it, as in
    `exp1/step_200`, else its path. A command that is proposed has to work where two runs have a step_200."""
    return short_names(checkpoints)[checkpoint.path]


def short_names(checkpoints: Iterable[Checkpoint]) -> dict[str, str]:
    """Path → the short name of each: where several runs have a step_200, no list is to call them alike."""
    every = tuple(checkpoints)
    # What `match_name` would find under each name, counted once: asked for each of thousands, it takes their square.
    number = Counter(name for item in every for name in {item.name, EXTENSION.sub("", item.name), *_endings(item)})
    return {item.path: next((name for name in _ways(item) if number[name] == 1), item.path) for item in every}


def _endings(checkpoint: Checkpoint) -> list[str]:
    """The path's last two parts, its last three, and so on, shortest first."""
    parts = checkpoint.path.strip("/").split("/")
    return ["/".join(parts[-count:]) for count in range(2, len(parts) + 1)]


def _ways(checkpoint: Checkpoint) -> list[str]:
    return [checkpoint.name, *_endings(checkpoint)[:-1]]


def _is_called(checkpoint: Checkpoint, wanted: str) -> bool:
    if "/" in wanted:
        return checkpoint.path.endswith(f"/{wanted}")
    return wanted in (checkpoint.name, EXTENSION.sub("", checkpoint.name))


def nearest_names(checkpoints: Iterable[Checkpoint], name: str, most: int = 4) -> tuple[str, ...]:
    """Names to suggest where `name` is not found: by spelling, then by distance in steps."""
    import difflib  # a stamp in a trainer needs none

    every = {item.name: item.step for item in checkpoints}
    step = int(name) if name.isdecimal() else step_of(name)
    if step is None:
        close = difflib.get_close_matches(name, every, n=most, cutoff=0.5)
        return tuple(close or sorted(every, key=lambda each: (-(every[each] or 0), each))[:most])
    return tuple(sorted(every, key=lambda each: (abs((every[each] or 0) - step), each))[:most])

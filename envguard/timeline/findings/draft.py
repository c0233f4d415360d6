"""What all findings are made of: what a tired person has to read first, each with what speaks against it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from envguard.fingerprint.rules import takes_part
from envguard.model.event import Difference, Event, Finding

STACK = ("torch", "triton", "pytorch-triton", "torchvision", "torchaudio", "flash-attn", "xformers", "transformers")
"""Packages whose swap changes numbers, kernels or memory, most telling first; nvidia-* come with torch."""


@dataclass(frozen=True)
class Draft:
    """A finding before its events have places in the answer; `weight` orders, least first."""

    weight: tuple[float, ...]
    title: str
    says: str
    events: tuple[Event, ...]
    caveats: tuple[str, ...]
    about: frozenset[Difference] = frozenset()
    """What `diff` calls the subject of the finding, where no event of its own need bear that name."""
    by_times: bool = False
    """It rests on times alone, and `diff` compares the contents of all that it is about: where those are equal, there
    is no such finding."""


def importance(name: str) -> int:
    """A place in the order of packages by what their swap does to a run."""
    if name in STACK:
        return STACK.index(name)
    if name.startswith("nvidia-"):
        return len(STACK)
    return len(STACK) + (1 if takes_part(name) else 2)


def more(items: Sequence[object], shown: int) -> str:
    """` and 3 more`, of a list of which the first `shown` are named."""
    return f" and {len(items) - shown} more" if len(items) > shown else ""


def diff_against(ref: str | None) -> str:
    """The command that compares with a reference, as a sentence names it."""
    return f"`envguard diff{f' {shlex.quote(ref)}' if ref is not None else ''}`"


def finish(drafts: list[Draft], events: tuple[Event, ...]) -> tuple[Finding, ...]:
    """Ranks the drafts and turns their events into indexes of the answer."""
    place = {event.id: index for index, event in enumerate(events)}
    return tuple(
        Finding(
            rank=rank,
            title=draft.title,
            says=draft.says,
            because=tuple(place[event.id] for event in draft.events if event.id in place),
            caveats=draft.caveats,
        )
        for rank, draft in enumerate(sorted(drafts, key=lambda draft: draft.weight), 1)
    )

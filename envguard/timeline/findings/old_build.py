"""What is said of the build before: who still knows it, where a copy lies, and the command that brings it back."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from envguard.model.event import Event, PreviousBuild
from envguard.model.identity import is_id

WITNESS = {
    "process": "a process that still runs it",
    "leftovers": "what is left of it",
    "removal": "the uv cache (removed from here at that moment)",
    "stamp": "a stamp",
    "journal": "envguard's journal",
    "wandb": "W&B",
    "pip-log": "pip's log",
    "conda": "conda's history",
    "train-log": "the training log",
    "checkpoint": "a checkpoint's metadata",
    "compile-cache": "the compile cache's entries",
    "lock-file": "a lock file",
    "unlinked": "the uv cache (it lost it before this environment was made, here or elsewhere)",
    "cache": "the uv cache (it lies there)",
}
"""How a sentence names a source of `envguard.timeline.packages.previous`."""


def build_before(
    previous: Sequence[PreviousBuild], ref: str | None, python: Event | None = None, editable: bool = False
) -> list[str]:
    """Where the build before is still known from, and whether it can be brought back."""
    if not previous:
        return []
    best = previous[0]
    parts = [f"CUDA {best.cuda}"] if best.cuda else []
    parts += [f"git {best.git_version[:10]}"] if best.git_version else []
    about = f" ({', '.join(parts)})" if parts else ""
    # That it lies in the cache is said by the sentence after, where it was removed from here, too.
    lost = {"removal", "unlinked"} & set(best.witnesses)
    told = [name for name in best.witnesses if name != "cache" or not lost]
    known = f"The old build{about} is known from {_listed(tuple(WITNESS[name] for name in told))}."
    if python is not None:
        return [known, f"It is a build for Python {python.from_}, and this environment cannot take it back."]
    if editable:
        return [known, "It is an editable install, which no restore brings back: its source is what counts."]
    if best.restorable is None:
        return [known, "No copy of it is in a uv cache that was seen."]
    return [known, f"A copy lies in {best.restorable} and can be restored: {way_back(best, ref)}."]


def way_back(best: PreviousBuild, ref: str | None) -> str:
    """How the build before is brought back: by the checkpoint asked about, else by the id of a fingerprint that has
    it; without either it takes a checkpoint from before the swap, whose packages the witnesses then tell."""
    if ref is None:
        had = (item.value for item in best.evidence if item.witness in ("stamp", "journal"))
        ref = next((value for value in had if value is not None and is_id(value)), None)
    if ref is None:
        return "`envguard restore` takes a checkpoint that was saved before this (`envguard log` lists them)"
    return f"`envguard restore {shlex.quote(ref)}`"


def _listed(names: tuple[str, ...]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))

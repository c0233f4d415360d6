"""envguard: what changed on a training machine, proved, undone, and watched.

The one call that a trainer needs is `envguard.stamp(checkpoint)`. Import it where the trainer starts: what lies on
the path at that moment is read (some milliseconds), so that a stamp can name builds that a later install erased. All
else is imported when `stamp` is first called.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from envguard.acquire.processes import loading as _loading  # noqa: F401

if TYPE_CHECKING:
    from envguard.model.fingerprint import Fingerprint

__version__ = "0.1.0"
__all__ = ["__version__", "stamp"]


def stamp(checkpoint: str | os.PathLike[str], *, strict: bool = False) -> Fingerprint | None:
    """Stores the fingerprint of this process's environment with a checkpoint; see `envguard.stamping.stamp`."""
    from envguard.stamping import stamp as _stamp

    return _stamp(checkpoint, strict=strict)

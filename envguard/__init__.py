"""envguard: what changed on a training machine, proved, undone, and watched.

The one call that a trainer needs is `envguard.stamp(checkpoint)`. Importing this package costs a training process
next to nothing: the work is imported when `stamp` is first called.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envguard.model.fingerprint import Fingerprint

__version__ = "0.1.0"
__all__ = ["__version__", "stamp"]


def stamp(checkpoint: str | os.PathLike[str]) -> Fingerprint:
    """Stores the fingerprint of this process's environment with a checkpoint; see `envguard.stamping.stamp`."""
    from envguard.stamping import stamp as _stamp

    return _stamp(checkpoint)

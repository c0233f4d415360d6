"""What pip calls a folder while it takes it away: a process that mapped a library sees this name until it ends.

pip renames `torch` to `~orch` (then `~-rch`, `~.rch`, …) beside it, installs, and deletes the renamed folder. The
kernel follows the rename, so that `/proc/PID/maps` says `…/~orch/lib/libtorch_cpu.so (deleted)`.
"""

from __future__ import annotations

from collections.abc import Iterable

# The characters that `pip._internal.utils.temp_dir.AdjacentTempDirectory` puts in place of a name's beginning.
_LEADING = "~-.=%0123456789"


def before_pip(relative: str, names: Iterable[str]) -> str:
    """`torch/lib/x.so` for `~orch/lib/x.so`, where exactly one of the top-level `names` may have been so renamed.

    >>> before_pip("~orch/lib/x.so", ["torch", "torchgen", "numpy"])
    'torch/lib/x.so'
    """
    top, slash, rest = relative.partition("/")
    if not top.startswith("~"):
        return relative
    end = top.lstrip(_LEADING) or top[-1]
    fitting = [name for name in names if len(name) == len(top) and name.endswith(end)]
    return f"{fitting[0]}{slash}{rest}" if len(fitting) == 1 else relative

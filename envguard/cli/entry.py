"""Where `envguard` begins: whether what the commands require is here at all, before any of it is imported.

A training environment has envguard for its stamps, installed without what the commands require. Once that environment
is active, its `envguard` comes before the one that `uv tool install` made: it hands over to that.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from typing import NoReturn

from envguard.cli.requirements import OWN_ENVIRONMENT, REQUIRED


def main() -> NoReturn:
    """Runs the command line here, or the whole `envguard` that PATH names after this one."""
    # Ctrl-C while modules are imported: nothing is begun yet that would have to be ended.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    lacking = [name for name, module in REQUIRED.items() if importlib.util.find_spec(module) is None]
    if lacking:
        other = next_on_path(sys.argv[0], os.environ.get("PATH", os.defpath))
        if other is None:
            _explain(lacking)
        os.execv(other, [other, *sys.argv[1:]])
    from envguard.cli.app import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def next_on_path(own: str, path: str) -> str | None:
    """The next `envguard` on PATH that is another file than `own`; only ever a later one, so that no two hand over to
    each other for ever."""
    here = os.path.realpath(own)
    found: list[str] = []
    for folder in path.split(":"):
        candidate = os.path.join(folder, "envguard")
        if not folder.startswith("/") or not os.access(candidate, os.X_OK) or os.path.isdir(candidate):
            continue
        if os.path.realpath(candidate) == here:
            found = []  # those before it hand over to it
        else:
            found.append(candidate)
    return found[0] if found else None


def _explain(lacking: list[str]) -> NoReturn:
    message = (
        f"this envguard was installed into {sys.prefix} without what its commands require ({', '.join(lacking)}): "
        "that is enough for stamps alone"
    )
    hint = OWN_ENVIRONMENT
    if "--json" in sys.argv and "msgspec" not in lacking:
        from envguard.report.errors import print_error

        print_error(message, hint, 2, as_json=True)
    else:
        sys.stderr.write(f"error: {message}\nhint: {hint}\n")
    sys.exit(2)

"""What long work shows while it works: one line on a terminal's stderr, gone when it is done."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envguard.report.screen import Screen

SHOW_AFTER_S = 0.7
"""A survey that is done sooner shows nothing: rich costs more to import than it takes."""


@contextlib.contextmanager
def waiting(screen: Screen) -> Iterator[Callable[[str], None]]:
    """Takes the name of each step; draws a bar only where a person waits."""
    if screen.quiet or not sys.stderr.isatty():
        yield lambda step: None
        return
    shown = _Steps(screen)
    try:
        yield shown.step
    finally:
        shown.stop()


class _Steps:
    def __init__(self, screen: Screen) -> None:
        from rich.status import Status

        self._status: Status | None = None
        self._screen = screen
        self._began = time.monotonic()

    def step(self, name: str) -> None:
        if self._status is not None:
            self._status.update(f"reading {name}")
        elif time.monotonic() - self._began > SHOW_AFTER_S:
            self._status = self._screen.err.status(f"reading {name}")
            self._status.start()

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()

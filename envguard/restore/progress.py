"""What long work reports while it runs: a phase, and bytes done of bytes there are."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A screen implements this with a progress bar; the core knows no screen."""

    def begin(self, phase: str, total: int) -> None:
        """A phase starts ("verify", "copy", "install", …); `total` is in bytes, 0 where unknown."""

    def advance(self, count: int) -> None:
        """So many more bytes of the current phase are done."""

    def end(self) -> None:
        """The current phase is over."""


class Silent:
    """Nobody watches."""

    def begin(self, phase: str, total: int) -> None: ...

    def advance(self, count: int) -> None: ...

    def end(self) -> None: ...

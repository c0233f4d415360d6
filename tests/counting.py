"""Work counted instead of timed: what twice the volume costs is to be the same on every machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from envguard.acquire.seam.host import LiveHost


def function_calls(do: Callable[[], object]) -> int:
    """How many Python functions (and steps of generators) a call enters."""
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        do()
    finally:
        sys.setprofile(None)
    return count


class CountingHost(LiveHost):
    """This machine, with the questions that it was asked by operation, and the bytes that it read."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.bytes = 0

    def call(self, operation: str, *arguments: Any) -> Any:
        self.asked[operation] += 1
        value = super().call(operation, *arguments)
        self.bytes += len(value) if operation == "read" else 0
        return value

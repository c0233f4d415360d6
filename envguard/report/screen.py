"""The two streams: data on stdout, messages on stderr; colour, width and progress in one place."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from envguard.acquire.seam.collector.redaction import redact
from envguard.errors import UsageError
from envguard.model import plain
from envguard.report.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class Screen:
    """Where a command's answer goes: one JSON object, or text that a tired person reads top-down.

    rich is imported on first use of a console, so that `--json` and `-q` do not pay for it.
    """

    def __init__(self, json: bool = False, quiet: bool = False, verbose: int = 0, color: str = "auto") -> None:
        if color not in ("auto", "always", "never"):
            raise UsageError(
                f"--color {color!r} is none of auto, always, never", "auto, the default, asks the terminal"
            )
        self.json = json
        self.quiet = quiet
        self.verbose = verbose
        self.color = color

    def _console(self, to_stderr: bool) -> Console:
        from rich.console import Console

        class Terminal(Console):
            """Names of files, packages and checkpoints reach it as they stand: none moves the cursor or sets a title.
            A reader that went away is for the root of the command line to answer, and not for rich (exit 1)."""

            def print(self, *objects: Any, **options: Any) -> None:
                super().print(*map(_escaped, objects), **options)

            def on_broken_pipe(self) -> None:
                raise BrokenPipeError

        never = self.color == "never" or (self.color == "auto" and bool(os.environ.get("NO_COLOR")))
        return Terminal(
            stderr=to_stderr,
            force_terminal=True if self.color == "always" else None,
            no_color=never or None,
            color_system=None if never else "auto",
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
        )

    @cached_property
    def out(self) -> Console:
        return self._console(to_stderr=False)

    @cached_property
    def err(self) -> Console:
        return self._console(to_stderr=True)

    def answer(self, report: msgspec.Struct, render: Callable[[Console], None]) -> None:
        """Prints the report as one JSON object, or as text through `render`."""
        if self.json:
            sys.stdout.write(encode(report) + "\n")
        else:
            render(self.out)

    @contextlib.contextmanager
    def hashing(self) -> Iterator[Callable[[int], None] | None]:
        """While files are hashed: takes the bytes of each; a bar on stderr where a person waits longer."""
        if self.quiet or not sys.stderr.isatty():
            yield None
            return
        bar = _HashingBar(self)
        try:
            yield bar.add
        finally:
            bar.stop()

    def say(self, message: str) -> None:
        """A message for the person at the terminal, on stderr; silent under -q."""
        if not self.quiet:
            sys.stderr.write(printable(redact(message)) + "\n")

    def warn(self, message: str) -> None:
        """A warning on stderr; -q does not silence it, since it is about the answer's worth."""
        sys.stderr.write(f"warning: {printable(redact(message))}\n")


def _escaped(item: Any) -> Any:
    """Text whose unprintable characters are escaped; a style holds for what it held for."""
    from rich.text import Text

    if isinstance(item, str):
        return printable(item)
    if isinstance(item, Text) and printable(item.plain) != item.plain:
        made = Text(style=item.style, end=item.end)
        for part in item.divide(range(1, len(item.plain))):
            made.append(printable(part.plain), style=part.spans[-1].style if part.spans else None)
        return made
    return item


class _HashingBar:
    """Shown only once enough was hashed to be worth a bar: rich costs more to import than most snapshots take."""

    SHOW_FROM = 200 << 20

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._bytes = 0
        self._bar: Progress | None = None

    def add(self, count: int) -> None:
        self._bytes += count
        if self._bar is None and self._bytes >= self.SHOW_FROM:
            from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn

            columns = (SpinnerColumn(), TextColumn("hashing"), DownloadColumn())
            self._bar = Progress(*columns, console=self._screen.err, transient=True)
            self._bar.add_task("hashing", total=None)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._bar.tasks[0].id, completed=self._bytes)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def encode(report: msgspec.Struct) -> str:
    """A report as one line of JSON; strings that hold undecodable bytes are escaped, not refused."""
    return plain.encode(report).decode()

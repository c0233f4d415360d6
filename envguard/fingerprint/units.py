"""Amounts as drift rows show them: a number with its unit."""

from __future__ import annotations

from collections.abc import Sequence


def size(count: int | None) -> str | None:
    """Bytes in decimal units, as file managers and the story's own numbers have them: `353 MB`.

    >>> [size(n) for n in (0, 999, 353_000_000, 1_800_000_000, None)]
    ['0 B', '999 B', '353 MB', '1.8 GB', None]
    """
    if count is None:
        return None
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5 or unit == "GB":
            return f"{amount:.1f} {unit}" if amount < 10 and unit != "B" else f"{amount:.0f} {unit}"
        amount /= 1000
    raise AssertionError("unreachable: the last unit takes every amount")


def counted(count: int | None, noun: str) -> str | None:
    """`902087 rows`, `1 file`; None where the count is not known."""
    if count is None:
        return None
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first of several names, and how many more there are.

    >>> some_of(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest

"""Values as text that any terminal, file and JSON reader takes."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def printable(text: str) -> str:
    """Undecodable bytes and control characters are escaped; what is readable stays."""
    safe = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(ch if ch.isprintable() or ch in "\n\t" else ch.encode("unicode_escape").decode() for ch in safe)


def encode(value: object) -> bytes:
    """A value as JSON; a string that holds undecodable bytes (a file name) is escaped, not refused."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(escaped(msgspec.to_builtins(value)))


def as_stored(value: T) -> T:
    """The struct as it comes back from a file: undecodable bytes in its strings are escaped.

    What is compared with a stored one must be in the same form, or one file name in Latin-1 is a drift for ever.
    """
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.decode(encode(value), type=type(value))
    return value


def escaped(value: Any) -> Any:
    """Plain values with every string as a file gets it: undecodable bytes are spelled out."""
    if isinstance(value, str):
        # Control characters stay: JSON has its own spelling for them, and every reader gets back what was there.
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {escaped(key): escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [escaped(item) for item in value]
    return value

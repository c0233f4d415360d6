"""JSON and TOML that others wrote, or that lay where others write: every way of being unreadable is one error.

A parser of the standard library gives up in many ways: numbers of 5,000 digits, values nested 100,000 deep, bytes
that are no text. A reader that knows one of them fails at the next.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")


class Unparsed(ValueError):
    """The bytes are not what they should be; the message says what is wrong, in one short line."""


def why(error: Exception) -> str:
    """What is wrong, of any error of a parser: short, and of one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    text = next(iter(str(error).splitlines()), "")[:200]
    return (
        text if text and isinstance(error, ValueError | msgspec.MsgspecError) else f"{type(error).__name__}: {text}"
    )


@overload
def parse_json(data: bytes) -> Any: ...
@overload
def parse_json(data: bytes, kind: type[T]) -> T: ...
def parse_json(data: bytes, kind: Any = Any) -> Any:
    """A JSON value of that type. Raises `Unparsed`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
        raise Unparsed(why(error)) from error


def parse_toml(data: bytes) -> dict[str, Any]:
    """A TOML table. Raises `Unparsed`."""
    import tomllib

    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unparsed(why(error)) from error

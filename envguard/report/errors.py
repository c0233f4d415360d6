"""`error:` and `hint:`, for people and for programs."""

from __future__ import annotations

import sys

import msgspec

from envguard.acquire.seam.collector.redaction import redact
from envguard.model.action import ErrorReport
from envguard.model.plain import printable as printable


def print_error(message: str, hint: str | None, code: int, as_json: bool) -> None:
    """One JSON object on stdout under `--json`; always the two lines on stderr. Errors quote what others wrote, so
    secrets go."""
    message, hint = redact(message), redact(hint) if hint else None
    if as_json:
        report = ErrorReport(code=code, error=printable(message), hint=printable(hint) if hint else None)
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    sys.stderr.write(f"error: {printable(message)}\n")
    if hint:
        sys.stderr.write(f"hint: {printable(hint)}\n")

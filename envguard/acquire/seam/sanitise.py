"""What may enter a bundle: the same bytes with every secret overwritten, character for character.

Lengths are kept, so that sizes, offsets and binary formats stay what they are. A shell history keeps only the lines
that can have changed an environment.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from envguard.acquire.project.shell_history import TELLING
from envguard.acquire.seam.collector.redaction import SECRET_VALUE
from envguard.acquire.seam.host import without_secrets

_USER_INFO = re.compile(rb"(?<=://)[^/?#\s\"'\\]{1,256}(?=@)")
_NAMED = re.compile(
    rb"(?i)(?<![A-Za-z0-9])(?:[A-Za-z0-9]+[_-])*"
    rb"(?:api_?key|access_?key|account_?key|secret_?key|private_?key|auth_?token|access_?token|token|secret|password|"
    rb"passwd|passphrase|credentials?|cookie|auth|wandb_key|signature|bearer|(?:proxy-)?authorization)"
    rb"(?:[\"']?\s*[:=]\s*[\"']?|\s+)(?:(?:bearer|basic|token)\s+)?(?P<value>[^\s\"',;}\]]{8,})"
)
_SHAPED = re.compile(rb"(?<![A-Za-z0-9_-])" + SECRET_VALUE.pattern.encode())
_NUMBER = re.compile(rb"[-+0-9.eE_]+")
_HISTORIES = (".bash_history", ".zsh_history", "fish_history")


def sanitised(operation: str, value: Any) -> Any:
    """An answer other than bytes of a file as a bundle may keep it; the very same object where there is nothing to
    hide."""
    if operation == "query":
        return {**value, "out": without_secrets(value["out"]), "err": without_secrets(value["err"])}
    return value


def sanitised_piece(path: str, before: bytes, data: bytes, after: bytes) -> bytes:
    """A part of a file; what stands `before` and `after` it shows a secret that its edges cut for what it is."""
    if posixpath.basename(path) in _HISTORIES:
        return sanitised_file(path, data)
    around = before + data + after
    hidden = sanitised_file(path, around)
    kept = hidden[len(before) : len(before) + len(data)]
    return data if hidden is around or kept == data else kept


def sanitised_file(path: str, data: bytes) -> bytes:
    """A file's bytes, the very same object where there is nothing to hide; of a shell history only the telling lines,
    the others blanked."""
    name = posixpath.basename(path)
    if name == "RECORD":
        return data  # hashes in base64, among which some look like a token sooner or later, and nothing else
    if name in _HISTORIES:
        data = _only_telling(data)
    if not (b"://" in data or _mentions(data)):
        return data
    hidden = _USER_INFO.sub(_stars, data)
    hidden = _NAMED.sub(_hide_value, hidden)
    hidden = _SHAPED.sub(_stars, hidden)
    return data if hidden == data else hidden


def _mentions(data: bytes) -> bool:
    lower = data.lower()
    words = (b"key", b"token", b"secret", b"passw", b"passphrase", b"credential", b"cookie", b"auth", b"hf_", b"sk-",
             b"akia", b"xox", b"eyj", b"aiza", b"gh", b"wandb_", b"pypi-", b"glpat-",
             b"signature", b"bearer")  # fmt: skip
    return any(word in lower for word in words)


def _stars(match: re.Match[bytes]) -> bytes:
    return b"*" * len(match.group())


def _hide_value(match: re.Match[bytes]) -> bytes:
    value = match.group("value")
    # `token_budget: 49152000` and `max_tokens=131072.0` are settings, and numbers hide no secret worth a setting.
    if _NUMBER.fullmatch(value):
        return match.group()
    start = match.start("value") - match.start()
    return match.group()[:start] + b"*" * len(value)


def _only_telling(data: bytes) -> bytes:
    kept = []
    for line in data.split(b"\n"):
        text = line.decode("utf-8", "replace")
        stamp = line.startswith(b"#") and line[1:].strip().isdigit()
        when = text.strip().startswith("when: ")
        kept.append(line if stamp or when or TELLING.search(text) else b"")
    return b"\n".join(kept)

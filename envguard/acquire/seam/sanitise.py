"""What may enter a bundle: the same bytes with every secret overwritten, character for character.

Lengths are kept, so that sizes, offsets and binary formats stay what they are. A shell history keeps only the lines
that can have changed an environment.
"""

from __future__ import annotations

import posixpath
from typing import Any

from envguard.acquire.project.shell_history import TELLING, without_comment
from envguard.acquire.seam.collector.redaction import masked
from envguard.acquire.seam.host import without_secrets

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
    return masked(data)


def _only_telling(data: bytes) -> bytes:
    kept = []
    for line in data.split(b"\n"):
        text = line.decode("utf-8", "replace")
        stamp = line.startswith(b"#") and line[1:].strip().isdigit()
        when = text.strip().startswith("when: ")
        telling = TELLING.search(without_comment(text)) is not None
        if telling:
            line = line[: len(without_comment(line.decode("latin-1")))]
        kept.append(line if stamp or when or telling else b"")
    return b"\n".join(kept)

"""Lightning's `hparams.yaml`: plain top-level values, read line by line so that no tag can construct anything.

Lightning dumps whatever a module was given, with `!!python/object` tags that a YAML loader would have to build. Only
`name: value` lines at the left margin with a plain or quoted scalar are taken; the rest is counted.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.seam.collector.redaction import REDACTED, is_secret_name, redact
from envguard.acquire.seam.host import Host

NAME = "hparams.yaml"
MAX_BYTES = 4 << 20
_LINE = re.compile(r"(?P<key>[A-Za-z_][\w./-]*):(?:[ \t]+(?P<value>.*))?")
_COMMENT = re.compile(r"[ \t]#")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"")
# What begins a tag, an anchor, an alias, a block or a flow collection is no plain scalar.
_NOT_PLAIN = tuple("!&*|>{[%@`")


@dataclass(frozen=True)
class Hparams:
    """`values` as text, as they stand; `skipped` top-level entries were no plain scalars."""

    path: str
    values: dict[str, str]
    skipped: int


def find_hparams(host: Host, checkpoint: Checkpoint) -> Hparams | None:
    """The file of the run that saved `checkpoint`: in its run directory, or beside it (`version_0/checkpoints/…`).

    None where there is none. Raises OSError where it cannot be read.
    """
    for folder in (checkpoint.run_directory, posixpath.dirname(checkpoint.run_directory)):
        path = posixpath.join(folder, NAME)
        try:
            return parse_hparams(path, host.read(path, MAX_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None


def parse_hparams(path: str, data: bytes) -> Hparams:
    """Reads the plain values; bytes that are no text are kept as they are escaped."""
    values: dict[str, str] = {}
    skipped = 0
    for line in data.decode("utf-8", "backslashreplace").splitlines():
        if not line.strip() or line[0] in " \t#-" or line.startswith(("---", "...")):
            continue
        match = _LINE.fullmatch(line.rstrip(" \t"))
        value = _scalar(match["value"]) if match is not None else None
        if match is None or value is None:
            skipped += 1
        else:
            values[match["key"]] = REDACTED if is_secret_name(match["key"]) else redact(value)
    return Hparams(path, values, skipped)


def _scalar(text: str | None) -> str | None:
    """A plain or quoted scalar on one line; None for anything else, an empty value included."""
    if not text or text.startswith(_NOT_PLAIN):
        return None
    if text[0] in "'\"":
        if not _QUOTED.fullmatch(text):
            return None
        inner = text[1:-1]
        return inner.replace("''", "'") if text[0] == "'" else inner.replace('\\"', '"')
    comment = _COMMENT.search(text)
    return text[: comment.start()].rstrip(" \t") if comment is not None else text

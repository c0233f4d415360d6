"""The small files of a dist-info: METADATA's header, direct_url.json, and requires.txt of an egg-info."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from envguard.acquire.seam.collector.redaction import redact


@dataclass(frozen=True)
class DirectUrl:
    """direct_url.json: where an install that came from no index came from; user info is stripped."""

    url: str
    editable: bool = False
    vcs: str | None = None
    commit: str | None = None
    requested_revision: str | None = None
    archive_hash: str | None = None


class _Vcs(msgspec.Struct):
    vcs: str | None = None
    commit_id: str | None = None
    requested_revision: str | None = None


class _Directory(msgspec.Struct):
    editable: bool = False


class _Archive(msgspec.Struct):
    hash: str | None = None
    hashes: dict[str, str] = {}


class _DirectUrlFile(msgspec.Struct):
    url: str
    vcs_info: _Vcs | None = None
    dir_info: _Directory | None = None
    archive_info: _Archive | None = None


MAX_METADATA = 1 << 20
"""No header comes near; what follows it may be a manual, and in a broken tree anything at all."""

_DECODER = msgspec.json.Decoder(_DirectUrlFile)


def parse_direct_url(data: bytes) -> DirectUrl:
    """Raises `msgspec.MsgspecError` and ValueError (UnicodeDecodeError among them)."""
    found = _DECODER.decode(data)
    vcs, archive = found.vcs_info or _Vcs(), found.archive_info or _Archive()
    sha256 = archive.hashes.get("sha256")
    return DirectUrl(
        url=redact(found.url),
        editable=found.dir_info is not None and found.dir_info.editable,
        vcs=vcs.vcs,
        commit=vcs.commit_id,
        requested_revision=vcs.requested_revision,
        archive_hash=f"sha256={sha256}" if sha256 else archive.hash,
    )


def canonical(name: str) -> str:
    """The normalised name of PEP 503, as `packaging.utils.canonicalize_name` gives it.

    Written out, since that module costs a training process more to import than all the rest of a stamp.
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def header_of(data: bytes) -> bytes:
    """METADATA up to its first blank line: the description below is most of it, and nobody asks for it."""
    ends = [at for at in (data.find(b"\n\n"), data.find(b"\r\n\r\n")) if at >= 0]
    return data[: min(ends)] if ends else data


def parse_headers(text: str) -> dict[str, list[str]]:
    """The header fields of METADATA or PKG-INFO, by name in lower case, up to the first blank line.

    The standard library's email parser does the same at ten times the cost, and gives up at the first broken field.
    """
    headers: dict[str, list[str]] = {}
    last: list[str] | None = None
    for line in text.splitlines():
        if not line.strip():
            break
        if line[0] in " \t":
            if last:
                last[-1] = f"{last[-1]}\n{line.strip()}"
            continue
        name, colon, value = line.partition(":")
        if colon:
            last = headers.setdefault(name.strip().lower(), [])
            last.append(value.strip())
    return headers


def parse_requires_txt(text: str) -> tuple[str, ...]:
    """setuptools' requires.txt as Requires-Dist lines: `[extra:marker]` sections become markers."""
    found: list[str] = []
    condition = ""
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            extra, _, marker = line[1:-1].partition(":")
            parts = [f"({marker})" if extra and marker else marker, f'extra == "{extra}"' if extra else ""]
            condition = " and ".join(part for part in parts if part)
        else:
            found.append(f"{line}; {condition}" if condition else line)
    return tuple(found)

"""What envguard's own restores say of an earlier moment: an install of ours is a way back, not a change since.

A restore overwrites the evidence that it rested on: the dist-info of the swap that it undoes is gone, and what it
removed looks like what was there before. So each restore notes in the journal to which moment it went, what it put
there, and since when that which it took away had been there; without this a checkpoint that was just restored would
seem to differ from what was brought back for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.packages.installs import Install
from envguard.acquire.runs.own_records import Entry
from envguard.model.evidence import Evidence


@dataclass(frozen=True)
class Restored:
    """One package that a restore put there; times in ns since the epoch, None where the journal does not say."""

    reference: str
    """As it was named to `restore`."""
    name: str
    was: str | None
    """The full version that it took away, None where there was none."""
    version: str | None
    """As METADATA declares it; None where the restore removed the package."""
    full_version: str | None
    build: str | None
    done_ns: int
    moment_ns: int | None
    """The moment that was restored: when the checkpoint was saved, the fingerprint taken."""
    was_since_ns: int | None
    """Since when `was` had been installed."""
    proof: Evidence


def read_restored(journal: Iterable[Entry]) -> tuple[Restored, ...]:
    """Every package of every restore in the journal that was not rolled back, oldest first."""
    standing: list[Entry] = []
    for entry in journal:
        if entry.kind == "restore":
            standing.append(entry)
        elif entry.kind == "rollback" and entry.fields.get("undone") is True:
            last = next((item for item in reversed(standing) if item.path == entry.path), None)
            standing = [item for item in standing if item is not last]
    return tuple(item for entry in standing for item in _of_entry(entry))


def _of_entry(entry: Entry) -> Iterator[Restored]:
    packages = entry.fields.get("packages")
    done = _ns(entry.time)
    if done is None or not isinstance(packages, list):
        return
    for item in packages:
        if not isinstance(item, dict) or not isinstance(item.get("package"), str):
            continue
        yield Restored(
            reference=_text(entry.fields, "reference") or "?",
            name=item["package"],
            was=_text(item, "from"),
            version=_text(item, "version"),
            full_version=_text(item, "to"),
            build=_text(item, "build"),
            done_ns=done,
            moment_ns=_ns(_text(entry.fields, "moment")),
            was_since_ns=_ns(_text(item, "from_since")),
            proof=Evidence(
                witness="journal",
                path=entry.path,
                field=f"line {entry.line}",
                value=f"restored {item['package']} {_text(item, 'to') or 'away'}",
            ),
        )


def _text(fields: Mapping[str, object], key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) else None


def _ns(text: str | None) -> int | None:
    try:
        return round(clock.seconds(text) * 1_000_000) * 1000 if text is not None else None
    except ValueError:
        return None


def maker(install: Install, restored: Sequence[Restored]) -> Restored | None:
    """The restore that made this install, None where it was somebody else's."""
    return next((item for item in reversed(restored) if _made(item, install)), None)


def _made(item: Restored, install: Install) -> bool:
    """Whether what is installed is what that restore put there: of its build, and no newer than the restore."""
    if item.name != install.name or install.end_ns is None or install.end_ns > item.done_ns:
        return False
    if item.build is not None and install.build is not None:
        return item.build == install.build
    return item.full_version in (install.full_version, install.version)

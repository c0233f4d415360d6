"""Where a run writes down what it does: JSON-lines, text logs and TensorBoard files of the usual names."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

from envguard.acquire.seam.host import Host, Stat
from envguard.model.evidence import Unknown

LogKind = Literal["jsonl", "text", "tensorboard"]
NAMES: dict[LogKind, tuple[str, ...]] = {
    "jsonl": ("*.jsonl", "*.ndjson", "*log*.json"),
    "text": ("*.log", "*.out", "*.err", "*log*.txt", "train*.txt", "nohup.out"),
    "tensorboard": ("events.out.tfevents.*",),
}
NOT_LOGS = ("requirements*.txt", "*.lock", "package*.json", "tokenizer*.json*", "*data*.jsonl", "*dataset*.jsonl")
DEPTH = 2
MOST = 200
SKIP = frozenset({".git", "node_modules", "__pycache__", "site-packages", "wandb", ".venv", "venv", ".envguard"})


def _any_of(patterns: Iterable[str]) -> str:
    return "|".join(fnmatch.translate(pattern) for pattern in patterns)


# One expression: sharded checkpoints hold hundreds of thousands of names that are asked about.
_LOG = re.compile(
    f"(?!{_any_of(NOT_LOGS)})(?:" + "|".join(f"(?P<{kind}>{_any_of(names)})" for kind, names in NAMES.items()) + ")"
)


@dataclass(frozen=True)
class LogFile:
    """One log as it lies there."""

    path: str
    kind: LogKind
    stat: Stat


def find_logs(
    host: Host, places: Iterable[str], named: Iterable[str]
) -> tuple[tuple[LogFile, ...], tuple[Unknown, ...]]:
    """Logs in `places` to a depth of two folders, and those that configuration names (whatever they are called). Of
    very many the ones that were written last: those of the run that somebody asks about."""
    found: dict[str, LogFile] = {}
    met: dict[str, LogKind] = {}
    unknown: list[Unknown] = []
    for path in named:
        _named(host, path, found, unknown)
    seen: set[str] = set()
    stack = [(posixpath.normpath(place), 0) for place in places]
    while stack:
        folder, depth = stack.pop()
        if folder in seen:
            continue
        seen.add(folder)
        try:
            names = host.listing(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unknown.append(Unknown.refused(f"logs in {folder}", error))
            continue
        if any(name == "pyvenv.cfg" for name, _ in names):
            continue
        for name, kind in names:
            path = f"{folder}/{name}"
            if kind == "directory" and depth < DEPTH and name not in SKIP:
                stack.append((path, depth + 1))
            elif kind == "file" and (log := kind_of(name)) is not None and path not in found:
                met[path] = log
    there = [LogFile(path, log, stat) for path, log in met.items() if (stat := host.find(path)) is not None]
    if len(there) > MOST:
        why = f"{len(there)} log files, of which the {MOST} that were written last were read; `logs = ` names others"
        unknown.append(Unknown("logs", why))
    there.sort(key=lambda log: log.stat.mtime_ns, reverse=True)
    found.update((log.path, log) for log in there[:MOST])
    return _sorted(found), tuple(unknown)


def _sorted(found: dict[str, LogFile]) -> tuple[LogFile, ...]:
    return tuple(found[path] for path in sorted(found))


def kind_of(name: str) -> LogKind | None:
    """What a file of that name is likely to be; None for no log."""
    match = _LOG.fullmatch(name)
    return cast(LogKind, match.lastgroup) if match is not None else None


def _named(host: Host, path: str, found: dict[str, LogFile], unknown: list[Unknown]) -> None:
    try:
        stat = host.stat_target(path)
    except OSError as error:
        unknown.append(Unknown.refused(f"log {path}", error))
        return
    if stat.is_directory:
        inner, missed = find_logs(host, (path,), ())
        found.update((log.path, log) for log in inner)
        unknown.extend(missed)
    else:
        found[path] = LogFile(path, kind_of(posixpath.basename(path)) or _by_content(host, path), stat)


def _by_content(host: Host, path: str) -> LogKind:
    try:
        return "jsonl" if host.read(path, 64).lstrip()[:1] == b"{" else "text"
    except OSError:
        return "text"  # the reader of text logs meets the same error and reports it

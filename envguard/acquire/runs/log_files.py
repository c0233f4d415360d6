"""Where a run writes down what it does: JSON lines, CSV, text, TensorBoard and MLflow files of the usual names."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

from envguard.acquire.seam.host import Host, Stat
from envguard.model.evidence import Unknown

LogKind = Literal["jsonl", "csv", "text", "tensorboard", "mlflow", "unread"]
NAMES: dict[LogKind, tuple[str, ...]] = {
    "jsonl": (
        "*.jsonl",
        "*.ndjson",
        "*log*.json",
        "trainer_state.json",
        "scalars.json",
        "wandb-summary.json",
        "*metrics*.json",
        "result.json",
    ),
    "csv": ("*metrics*.csv", "progress.csv", "results.csv", "*log*.csv", "*history*.csv", "*loss*.csv", "*log*.tsv"),
    "text": (
        "*.log",
        "*.out",
        "*.err",
        "*log*.txt",
        "train*.txt",
        "nohup.out",
        "*.log.[0-9]*",
        "*.out.[0-9]*",
        "stdout*",
        "stderr*",
        "*.stdout",
        "*.stderr",
        "*.[oe][0-9][0-9]*",
        "log",
        "console*.txt",
        "output*.txt",
    ),
    "tensorboard": ("events.out.tfevents.*", "*.tfevents.*"),
}
NOT_LOGS = ("requirements*.txt", "pip*.log", "pip*.txt", "*.lock", "package*.json", "tokenizer*.json*",
            "*data*.jsonl", "*dataset*.jsonl",
            "*.py", "*.sh", "*.so*", "*catalog*.json", "*eval*results*.json", "all_results.json",
            "train_results.json")  # fmt: skip
DEPTH = 2
DEEP = 6
"""Folders below one that is named as frameworks name the place of their logs: Hydra's dates, Lightning's versions."""
LOG_FOLDERS = frozenset({
    "lightning_logs", "tb_logs", "tensorboard", "logs", "log", "outputs", "output", "runs", "multirun", "mlruns",
    "nemo_experiments", "ray_results", "experiments", "exp", "results", "trainer_output", "checkpoints", "work_dirs",
    "slurm_logs", "slurm", "tb", "csv_logs", "train_logs", "saves", "models", "wandb",
})  # fmt: skip
MOST = 200
MOST_FOLDERS = 20_000
SKIP = frozenset({".git", "node_modules", "__pycache__", "site-packages", ".venv", "venv", ".envguard", "artifacts"})
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_OF_A_RUN = re.compile(r"log|metric|progress|history|slurm|scalar", re.IGNORECASE)


def _any_of(patterns: Iterable[str]) -> str:
    return "|".join(fnmatch.translate(pattern) for pattern in patterns)


# One expression: sharded checkpoints hold hundreds of thousands of names that are asked about.
_LOG = re.compile(
    f"(?!{_any_of(NOT_LOGS)})(?:" + "|".join(f"(?P<{kind}>{_any_of(names)})" for kind, names in NAMES.items()) + ")"
)


@dataclass(frozen=True)
class LogFile:
    """One log as it lies there; `named` where the configuration names it."""

    path: str
    kind: LogKind
    stat: Stat
    named: bool = False


def find_logs(
    host: Host, places: Iterable[str], named: Iterable[str]
) -> tuple[tuple[LogFile, ...], tuple[Unknown, ...]]:
    """Logs in `places` to a depth of two folders, deeper where frameworks keep them, and those that configuration
    names (whatever they are called). Of very many the ones that were written last: those of the run that is asked
    about.

    A folder that several places reach is searched from the nearest of them.
    """
    found: dict[str, LogFile] = {}
    unknown: list[Unknown] = []
    for path in named:
        _named(host, path, found, unknown)
    met = _search(host, places, unknown)
    there = [LogFile(path, log, stat) for path, log in met.items()
             if path not in found and (stat := host.find(path)) is not None]  # fmt: skip
    there.sort(key=lambda log: log.stat.mtime_ns, reverse=True)
    unread = [log for log in there if log.kind == "unread"]
    there = [log for log in _last_states(there) if log.kind != "unread"]
    if len(there) > MOST:
        why = f"{len(there)} log files, of which the {MOST} that were written last were read; `logs = ` names others"
        unknown.append(Unknown("logs", why))
    found.update((log.path, log) for log in (*there[:MOST], *unread))
    return _sorted(found), tuple(unknown)


def _search(host: Host, places: Iterable[str], unknown: list[Unknown]) -> dict[str, LogKind]:
    """Paths of logs by their kind; nearer folders first, so that each is reached at its best depth."""
    met: dict[str, LogKind] = {}
    left: dict[str, int] = {}
    queue: deque[tuple[str, int]] = deque(
        (path, DEEP if posixpath.basename(path) in LOG_FOLDERS else DEPTH)
        for path in dict.fromkeys(posixpath.normpath(place) for place in places)
    )
    while queue:
        folder, depth = queue.popleft()
        if left.get(folder, -1) >= depth:
            continue
        if len(left) >= MOST_FOLDERS:
            unknown.append(Unknown("logs", f"of more than {MOST_FOLDERS:,} folders the rest was not searched"))
            break
        left[folder] = depth
        try:
            names = host.listing(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unknown.append(Unknown.refused(f"logs in {folder}", error))
            continue
        if any(name == "pyvenv.cfg" for name, _ in names):
            continue
        if posixpath.basename(folder) == "metrics" and _of_mlflow(host, folder):
            met[folder] = "mlflow"
            continue
        for name, kind in names:
            path = f"{folder}/{name}"
            if kind == "directory" and depth > 0 and _goes_into(folder, name):
                queue.append((path, max(depth - 1, DEEP if name in LOG_FOLDERS and depth == DEPTH else 0)))
            elif kind == "link":
                _follow(host, path, depth, queue, met, unknown)
            elif kind == "file" and (log := kind_of(name)) is not None and (log == "unread" or _counts(folder)):
                met[path] = log
    return met


def _follow(
    host: Host, path: str, depth: int, queue: deque[tuple[str, int]], met: dict[str, LogKind], unknown: list[Unknown]
) -> None:
    """A link to a log leads to it; one to a folder only where frameworks make such links (`runs/latest`)."""
    folder, name = posixpath.split(path)
    log = kind_of(name)
    into = depth > 0 and bool({name, posixpath.basename(folder)} & LOG_FOLDERS) and _goes_into(folder, name)
    if log is None and not into:
        return
    try:
        target = host.stat_target(path)
        real = host.realpath(path)
    except (FileNotFoundError, NotADirectoryError):
        return  # it leads nowhere
    except OSError as error:
        if log is not None:
            unknown.append(Unknown.refused(f"log {path}", error))
        return
    if target.is_directory and into:
        queue.append((real, depth - 1))
    elif target.is_file and log is not None:
        met.setdefault(real, log)


def _goes_into(folder: str, name: str) -> bool:
    if name in SKIP:
        return False
    above = posixpath.basename(folder)
    if above == "wandb":  # of a run of W&B only what the run itself wrote
        return name.startswith(("run-", "offline-run-"))
    if posixpath.basename(posixpath.dirname(folder)) == "wandb":
        return name == "files"
    return True


def _counts(folder: str) -> bool:
    """Whether files of a folder are a run's own: W&B's `debug.log` is not."""
    parts = folder.rsplit("/", 3)
    return "wandb" not in parts[-2:] or parts[-1] == "files"


def _of_mlflow(host: Host, folder: str) -> bool:
    try:
        return host.find(posixpath.join(posixpath.dirname(folder), "meta.yaml")) is not None
    except OSError:
        return False


def _last_states(logs: Iterable[LogFile]) -> Iterable[LogFile]:
    """Of the copies of `trainer_state.json` in a run's checkpoints the one written last, which holds the others."""
    seen: set[str] = set()
    for log in logs:
        folder, name = posixpath.split(log.path)
        if name == "trainer_state.json":
            run = posixpath.dirname(folder) if "checkpoint" in posixpath.basename(folder) else folder
            if run in seen:
                continue
            seen.add(run)
        yield log


def _sorted(found: dict[str, LogFile]) -> tuple[LogFile, ...]:
    return tuple(found[path] for path in sorted(found))


def kind_of(name: str) -> LogKind | None:
    """What a file of that name is likely to be; None for no log."""
    return "unread" if why_unread(name) is not None else _read_as(name)


def _read_as(name: str) -> LogKind | None:
    match = _LOG.fullmatch(name)
    return cast(LogKind, match.lastgroup) if match is not None else None


def why_unread(name: str) -> str | None:
    """Why a log of that name is not read; None for one that is read, and for what is no log."""
    if name in ("mlflow.db", "mlruns.db"):
        return "MLflow's store in SQLite is not read"
    if name.endswith(".wandb"):
        return "W&B's binary log is not read"
    if name.endswith(_COMPRESSED):
        stem = posixpath.splitext(name)[0]
        # Shards of data are compressed JSON lines too: of those, a name that a log has decides.
        if (kind := _read_as(stem)) is not None and (kind == "text" or _OF_A_RUN.search(stem)):
            return "a compressed log is not read"
    return None


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
        kind = kind_of(posixpath.basename(path))
        if kind != "unread":
            host.note_log(path, "text")
        found[path] = LogFile(path, kind or _by_content(host, path), stat, named=True)


def _by_content(host: Host, path: str) -> LogKind:
    if path.endswith((".csv", ".tsv")):
        return "csv"
    try:
        return "jsonl" if host.read(path, 64).lstrip()[:1] == b"{" else "text"
    except OSError:
        return "text"  # the reader of text logs meets the same error and reports it

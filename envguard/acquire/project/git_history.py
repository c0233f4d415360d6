"""git as a witness: commits, moves of HEAD (reflog), and files that differ from HEAD with the time of their writing.

git is asked with options that keep it from writing; nothing of `.git/config` is read, which may hold a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envguard.acquire.seam.collector.redaction import redact
from envguard.acquire.seam.host import Answer, Host
from envguard.clock import NS
from envguard.model.evidence import Unknown

MOST_COMMITS = 200
MOST_FILES = 200
_SEP = "\x1f"


@dataclass(frozen=True)
class Commit:
    """A commit on HEAD's history; times in ns since the epoch."""

    id: str
    committed_ns: int
    authored_ns: int
    subject: str


@dataclass(frozen=True)
class Move:
    """One entry of HEAD's reflog: a commit, checkout, reset, pull."""

    to: str
    time_ns: int
    action: str
    tree: str | None = None
    """git's name for its files: two commits of one tree have the same files. None where nobody asked for it."""


@dataclass(frozen=True)
class DirtyFile:
    """A tracked file that differs from HEAD (or an untracked one); `mtime_ns` is None for a deleted file.

    `ctime_ns` is the file's; of a deleted one the mtime of the nearest folder that is there, which lost it then or
    before.
    """

    path: str
    status: str
    mtime_ns: int | None
    ctime_ns: int | None
    added: tuple[str, ...] = ()
    """The first changed lines of the diff, as they stand."""


@dataclass(frozen=True)
class GitHistory:
    """One work tree."""

    root: str
    commits: tuple[Commit, ...]
    moves: tuple[Move, ...]
    dirty: tuple[DirtyFile, ...]
    more_dirty: int = 0


def read_git_history(host: Host, folder: str) -> tuple[GitHistory | None, list[Unknown]]:
    """The history of the work tree around `folder`; None where there is none."""
    unknown: list[Unknown] = []
    try:
        if host.find(folder) is None:
            return None, []  # what is not there has no history; whoever needs it says that it is gone
        top = host.query(("git", "-C", folder, "rev-parse", "--show-toplevel"))
    except OSError as error:
        return None, [Unknown.refused(f"git history of {folder}", f"git cannot be asked: {error.strerror or error}")]
    if top.code != 0:
        why = top.err.strip().splitlines()[0] if top.err.strip() else f"git ended with {top.code}"
        return None, [] if "not a git repository" in why else [Unknown.refused(f"git history of {folder}", why)]
    root = top.out.strip()
    odd = odd_file(host, root)
    if odd is not None:
        return None, [Unknown.refused(odd, "not a regular file: git would wait for it")]
    log = _ask(host, root, unknown, "log", f"-{MOST_COMMITS}", f"--format=%H{_SEP}%ct{_SEP}%at{_SEP}%s")
    reflog = _ask(
        host,
        root,
        unknown,
        "reflog",
        "show",
        f"-{MOST_COMMITS}",
        f"--format=%H{_SEP}%gd{_SEP}%gs",
        "--date=unix",
        "HEAD",
    )
    status = _ask(
        host, root, unknown, "status", "--porcelain=v1", "-z", "--untracked-files=normal", "--ignore-submodules=none"
    )
    commits = tuple(_commits(log))
    dirty, more = _dirty(host, root, status, bool(commits), unknown)
    return GitHistory(root, commits, tuple(_moves(reflog, _trees(host, root))), dirty, more), unknown


def odd_file(host: Host, root: str) -> str | None:
    """A pipe, socket or device among git's own files, for which git would wait until each question times out."""
    for name in ("logs/HEAD", "index", "packed-refs"):
        path = f"{root}/.git/{name}"
        try:
            if host.stat_target(path).kind == "other":
                return path
        except OSError:
            continue  # not there, below a `.git` that is a file, or unreadable: git says so in its answer
    return None


def _ask(host: Host, root: str, unknown: list[Unknown], *words: str) -> str:
    try:
        answer: Answer = host.query(("git", "-C", root, *words))
    except OSError as error:
        unknown.append(Unknown.refused(f"git {words[0]} of {root}", error))
        return ""
    if answer.code != 0:
        # A repository without a commit yet has no log, which is a fact and no failure.
        if "does not have any commits" not in answer.err and "unknown revision" not in answer.err:
            unknown.append(
                Unknown.refused(
                    f"git {words[0]} of {root}", answer.err.strip().splitlines()[0] if answer.err else "failed"
                )
            )
        return ""
    return answer.out


def _commits(text: str) -> list[Commit]:
    found = []
    for line in text.splitlines():
        parts = line.split(_SEP)
        if len(parts) == 4 and parts[1].isdigit() and parts[2].isdigit():
            found.append(Commit(parts[0], int(parts[1]) * NS, int(parts[2]) * NS, redact(parts[3])))
    return found


def _moves(text: str, trees: Mapping[str, str]) -> list[Move]:
    found = []
    for line in text.splitlines():
        parts = line.split(_SEP)
        if len(parts) == 3 and parts[1].startswith("HEAD@{") and parts[1][6:-1].isdigit():
            found.append(Move(parts[0], int(parts[1][6:-1]) * NS, redact(parts[2]), trees.get(parts[0])))
    return found


def _trees(host: Host, root: str) -> dict[str, str]:
    """Commit → tree, of every place where HEAD stood. Without it commits are told apart by their names alone, as from
    a bundle of a version that did not ask."""
    try:
        answer = host.query(("git", "-C", root, "reflog", "show", f"-{MOST_COMMITS}", "--format=%H %T", "HEAD"))
    except OSError:
        return {}
    lines = answer.out.splitlines() if answer.code == 0 else []
    return {commit: tree for commit, _, tree in (line.partition(" ") for line in lines)}


def _dirty(
    host: Host, root: str, status: str, has_head: bool, unknown: list[Unknown]
) -> tuple[tuple[DirtyFile, ...], int]:
    entries = [entry for entry in status.split("\0") if entry]
    found: list[DirtyFile] = []
    more = index = 0
    while index < len(entries):
        code, path = entries[index][:2], entries[index][3:]
        if code[0] == "R":  # the old name follows: that one is gone
            entries.insert(index + 2, f"D  {entries[index + 1]}")
        index += 2 if code[0] in "RC" else 1
        if path.endswith("/") or (
            code == "??" and not path.endswith((".py", ".toml", ".yaml", ".yml", ".json", ".sh"))
        ):
            continue
        if len(found) >= MOST_FILES:
            more += 1
            continue
        stat = host.find(f"{root}/{path}")
        lines = _changed_lines(host, root, path, unknown) if has_head and code != "??" and len(found) < 20 else ()
        changed = stat.ctime_ns if stat else _folder_changed(host, f"{root}/{path}")
        found.append(DirtyFile(path, code.strip(), stat.mtime_ns if stat else None, changed, lines))
    return tuple(found), more


def _folder_changed(host: Host, path: str) -> int | None:
    """When the nearest folder above a path that is gone last lost or got a name."""
    while path.rpartition("/")[0]:
        path = path.rpartition("/")[0]
        stat = host.find(path)
        if stat is not None:
            return stat.mtime_ns
    return None


def _changed_lines(host: Host, root: str, path: str, unknown: list[Unknown]) -> tuple[str, ...]:
    diff = _ask(
        host, root, unknown, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "-U0", "HEAD", "--", path
    )
    lines = [line for line in diff.splitlines() if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    return tuple(redact(line)[:160] for line in lines[:6])

"""What was computed from a file is kept for as long as the file's stat stays the same."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping

from envguard.acquire.seam.host import Stat
from envguard.state.digests import Key, is_racy

Memo = MutableMapping[str, str]
"""Question → "mark answer"; the state folder keeps one between runs, a plain dict serves a single run."""


def key_of(stat: Stat) -> Key:
    """What ties a content to a file: size, mtime, ctime and inode."""
    return (stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode)


def remembered(memo: Memo, question: str, mark: str, compute: Callable[[], str]) -> str:
    """The kept answer where it was given under the same mark, else the computed one, which is then kept."""
    known = memo.get(question)
    if known is not None:
        kept_mark, _, answer = known.partition(" ")
        if kept_mark == mark:
            return answer
    answer = compute()
    memo[question] = f"{mark} {answer}"
    return answer


def remembered_file(memo: Memo, question: str, path: str, stat: Stat, compute: Callable[[], str]) -> str:
    """What was computed from one file. `stat` was taken before; a file that may still move is not kept."""
    key = key_of(stat)
    if is_racy(key, time.time_ns()):
        return compute()
    return remembered(memo, f"{question} {path}", ":".join(map(str, key)), compute)

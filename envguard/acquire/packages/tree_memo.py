"""What each file of a tree said when it had its stat, kept in one piece of the state's memo."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec

from envguard.acquire.memo import Memo
from envguard.state.digests import Key, is_racy

MOST_FILES = 1_000_000
"""A larger tree is not kept file by file. Up to there the memo costs a tenth of what it saves, and a data set or a
compile cache of a hundred thousand files is not hashed anew by every command."""


class Keyed(Protocol):
    """Anything that remembers the stat it belongs to."""

    @property
    def key(self) -> Key: ...


T = TypeVar("T", bound=Keyed)


class TreeMemo(Generic[T]):
    """Relative path → what was seen there; `fresh` replaces what was known when `save` is called."""

    def __init__(self, memo: Memo, question: str, kind: type[T], forget: bool = False) -> None:
        self.memo, self.question = memo, question
        self.known: dict[str, T] = {}
        self.fresh: dict[str, T] = {}
        if not forget:
            try:
                self.known = msgspec.json.decode(memo.get(question, "{}"), type=dict[str, kind])  # type: ignore[valid-type]
            except msgspec.MsgspecError:
                self.known = {}  # another version's memo saves no work, and costs none

    def recall(self, path: str, key: Key) -> T | None:
        """What is known of a file whose stat is still the same; it counts as fresh from now on."""
        found = self.known.get(path)
        if found is None or found.key != key:
            return None
        self.fresh[path] = found
        return found

    def save(self, now_ns: int) -> None:
        """Keeps what is fresh, without files that may still move; a tree with a name that is no text is not kept."""
        kept = {path: seen for path, seen in self.fresh.items() if not is_racy(seen.key, now_ns)}
        if kept == self.known:
            return
        try:
            text = msgspec.json.encode(kept if len(kept) <= MOST_FILES else {}).decode()
        except UnicodeEncodeError:
            text = "{}"
        self.memo[self.question] = text

"""The options before a wrapper's command, by the table of `wrappers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envguard.launch.wrappers import Wrapper


@dataclass(frozen=True)
class Options:
    """`found`: (option, its values) in order. `rest`: the words behind them. `unknown`: the option that is not in the
    table, so that the place of the command is not known."""

    found: tuple[tuple[str, tuple[str, ...]], ...]
    rest: tuple[str, ...]
    unknown: str | None = None

    def last(self, *names: str) -> str | None:
        """The value of an option where it was given last."""
        return next((values[0] for option, values in reversed(self.found) if option in names and values), None)

    def has(self, *names: str) -> bool:
        return any(option in names for option, _ in self.found)


def read_options(wrapper: Wrapper, words: Sequence[str]) -> Options:
    """Splits a wrapper's words into its options and what follows."""
    found: list[tuple[str, tuple[str, ...]]] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if word in wrapper.values:
            count = wrapper.values[word]
            found.append((word, tuple(rest[:count])))
            del rest[:count]
        elif word in wrapper.flags or word[1:].isdigit():  # `nice -5`
            found.append((word, ()))
        elif equals and (word.startswith("--") or name in wrapper.values):
            found.append((name, (value,)))
        else:
            cluster = _cluster(wrapper, word, rest)
            if cluster is None:
                return Options(tuple(found), tuple(rest), word)
            found += cluster
    return Options(tuple(found), tuple(rest))


def _cluster(wrapper: Wrapper, word: str, rest: list[str]) -> list[tuple[str, tuple[str, ...]]] | None:
    """`-Eu NAME`, `-n5`, `-oL`: letters of which the last may take what follows; None where one is not known."""
    found: list[tuple[str, tuple[str, ...]]] = []
    if word.startswith("--"):
        return None
    for position, letter in enumerate(word[1:], 1):
        option = f"-{letter}"
        if option in wrapper.values:
            attached = word[position + 1 :]
            found.append((option, (attached,) if attached else tuple(rest[:1])))
            if not attached:
                del rest[:1]
            return found
        if option not in wrapper.flags:
            return None
        found.append((option, ()))
    return found

"""Which extras and dependency groups of a uv.lock were synced. No file states it.

A lock writes each as `extra-<length of the package's name>-<package>-<extra>`, or `group-…`, in the markers of what
conflicting ones bring in. A set of them is a choice: a marker holds under a choice or does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name

Choice = frozenset[str]
Kind = Literal["extra", "group"]
MOST_CHOICES = 1 << 10
_ATOM = re.compile(r"\bextra\s*(==|!=)\s*('[^']*'|\"[^\"]*\")")


@dataclass(frozen=True)
class AskedOfUv:
    """What a command line of `uv run` or `uv sync` names: (kind, name) of each, `None` for all of a kind."""

    named: tuple[tuple[Kind, str | None], ...] = ()
    left_out: tuple[tuple[Kind, str], ...] = ()
    package: str | None = None


def normalised(name: str) -> str:
    return str(canonicalize_name(name))


def encoded(kind: str, package: str, name: str) -> str:
    """`extra-7-trainer-cu128`: as the markers of a uv.lock name an extra (or group) of a package."""
    return f"{kind}-{len(package)}-{package}-{name}"


def holds(marker: str | None, environment: Mapping[str, str], choice: Choice) -> bool:
    """Whether a marker of a uv.lock holds under a choice; one that cannot be evaluated is taken to hold."""
    if marker is None:
        return True
    text = _ATOM.sub(lambda match: f"{match[2]} {'in' if match[1] == '==' else 'not in'} extras", marker)
    try:
        return Marker(text).evaluate({**environment, "extras": choice}, context="lock_file")
    except (InvalidMarker, ValueError, KeyError):
        return True


def choices(conflicts: Sequence[Choice], asked: Choice) -> Iterator[Choice]:
    """What may have been synced: `asked`, and of each set of conflicting ones that it names none of at most one."""
    free = [sorted(each) for each in conflicts if not each & asked]
    count = 1
    for each in free:
        count *= len(each) + 1
    if count <= MOST_CHOICES:
        for picked in product(*((None, *each) for each in free)):
            yield asked | _named(picked)
    else:
        yield asked
        yield from (asked | {name} for each in free for name in each)


def _named(picked: Iterable[str | None]) -> Choice:
    return frozenset(name for name in picked if name is not None)

"""What a reader gives back: one section of the fingerprint, its findings, and what it could not see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Problem

T = TypeVar("T")


@dataclass(frozen=True)
class Section(Generic[T]):
    """A value, and beside it what is wrong with what was seen (`problems`) and what was not seen (`unknown`)."""

    value: T
    problems: tuple[Problem, ...] = ()
    unknown: tuple[Unknown, ...] = ()


class Notes:
    """Collects problems and unknowns while a reader works, so that one refusal does not end the reading."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.unknown: list[Unknown] = []

    def problem(self, kind: str, subject: str, says: str, path: str | None = None) -> None:
        self.problems.append(Problem(kind=kind, subject=subject, says=says, path=path))

    def unseen(self, what: str, why: str | OSError) -> None:
        """Something could not be determined; an `OSError` is told in the system's words."""
        self.unknown.append(Unknown(what, reason(why) if isinstance(why, OSError) else why))

    def take(self, problems: Iterable[Problem], unknown: Iterable[Unknown]) -> None:
        self.problems.extend(problems)
        self.unknown.extend(unknown)

    def section(self, value: T) -> Section[T]:
        return Section(value, tuple(self.problems), tuple(self.unknown))


def reason(error: OSError) -> str:
    """An `OSError` without its path, which the caller names itself."""
    return error.strerror or str(error) or type(error).__name__

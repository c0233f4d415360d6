"""What a reader gives back: one section of the fingerprint, its findings, and what it could not see."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from envguard.errors import Error
from envguard.model.evidence import Code, Unknown
from envguard.model.fingerprint import Problem
from envguard.model.parsing import why

T = TypeVar("T")


@dataclass(frozen=True)
class Section(Generic[T]):
    """A value, and beside it what is wrong with what was seen (`problems`) and what was not seen (`unknown`)."""

    value: T
    problems: tuple[Problem, ...] = ()
    unknown: tuple[Unknown, ...] = ()


@contextlib.contextmanager
def witness(unknown: list[Unknown], what: str) -> Iterator[None]:
    """The boundary around one witness: whatever is odd about it costs only itself, and is named.

    An `OSError` is a refusal (or, where it says so, an absence). Any other error is a parser's, which has many: what
    was read of the witness does not count. The errors that a command ends with pass, since the user named their file.
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:
        whole = error if isinstance(error, OSError) else why(error)
        unknown.append(Unknown.refused(what, whole))


class Notes:
    """Collects problems and unknowns while a reader works, so that one refusal does not end the reading."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.unknown: list[Unknown] = []

    def problem(self, kind: str, subject: str, says: str, path: str | None = None) -> None:
        self.problems.append(Problem(kind=kind, subject=subject, says=says, path=path))

    def unseen(self, what: str, why: str | OSError, code: Code = "") -> None:
        """Something could not be determined: an `OSError` refused it, a text says why it is undecided."""
        refused = isinstance(why, OSError)
        self.unknown.append(Unknown.refused(what, why, code) if refused else Unknown(what, str(why), code=code))

    def take(self, problems: Iterable[Problem], unknown: Iterable[Unknown]) -> None:
        self.problems.extend(problems)
        self.unknown.extend(unknown)

    def section(self, value: T) -> Section[T]:
        return Section(value, tuple(self.problems), tuple(self.unknown))


def reason(error: OSError) -> str:
    """An `OSError` without its path, which the caller names itself."""
    return error.strerror or str(error) or type(error).__name__

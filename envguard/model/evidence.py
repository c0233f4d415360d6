"""Evidence: one observed fact, and how sure several of them make a claim."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

import msgspec


class Writer(StrEnum):
    """Who made the thing that a witness reads; two witnesses are independent when their writers differ."""

    INSTALLER = "installer"
    CACHE = "cache"
    TRAINER = "trainer"
    KERNEL = "kernel"
    VERSION_CONTROL = "version control"
    PACKAGE_MANAGER = "package manager"
    COMPILER = "compiler"
    TRACKER = "experiment tracker"
    INTERPRETER = "interpreter"
    PERSON = "person"
    ENVGUARD = "envguard"


WRITERS: dict[str, Writer] = {
    "dist-info": Writer.INSTALLER,
    "payload": Writer.INSTALLER,
    "venv": Writer.INSTALLER,
    "pip-log": Writer.INSTALLER,
    "conda": Writer.INSTALLER,
    "pip-cache": Writer.INSTALLER,
    "uv-cache": Writer.CACHE,
    "pyc": Writer.INTERPRETER,
    "compile-cache": Writer.COMPILER,
    "checkpoint": Writer.TRAINER,
    "train-log": Writer.TRAINER,
    "text-log": Writer.TRAINER,
    "tensorboard": Writer.TRAINER,
    "wandb": Writer.TRACKER,
    "git": Writer.VERSION_CONTROL,
    "lock-file": Writer.PERSON,
    "shell-history": Writer.PERSON,
    "data": Writer.PERSON,
    "file": Writer.PERSON,
    "apt": Writer.PACKAGE_MANAGER,
    "dpkg": Writer.PACKAGE_MANAGER,
    "wtmp": Writer.KERNEL,
    "process": Writer.KERNEL,
    "driver": Writer.KERNEL,
    "boot": Writer.KERNEL,
    "journal": Writer.ENVGUARD,
    "stamp": Writer.ENVGUARD,
    "run-record": Writer.ENVGUARD,
}
"""Witness name → writer. A witness that is not listed here is a programming error, not a new writer."""


Confidence = Literal["certain", "strong", "weak"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One observed fact: which witness, which path or PID, which field, what value."""

    witness: str
    path: str
    field: str
    value: str

    @property
    def writer(self) -> Writer:
        return WRITERS[self.witness]


Reason = Literal["absent", "refused", "undecided", "aside"]
"""Why something is unknown, and so whether an all-clear may be given without it.

`absent`: a witness is not there. That is a fact, and nothing rests on it.
`refused`: it is there and could not be read.
`undecided`: it was read, and does not decide.
`aside`: it bears on how or why something changed, and not on whether anything did.
"""
Code = Literal["", "witness", "since", "stamp", "site"]
"""What an unknown is about, where a reader has to know: a `witness` that is not there, what changed `since` a moment
that no witness reaches, the `stamp` of the checkpoint asked about, the packages of a `site` folder."""


class Unknown(msgspec.Struct, frozen=True, order=True):
    """Something that could not be determined, and why; carried to the screen, never dropped."""

    what: str
    why: str
    reason: Reason = "undecided"
    code: Code = ""

    @classmethod
    def refused(cls, what: str, why: str | Exception, code: Code = "") -> Unknown:
        """It is there and could not be read; an `OSError` speaks in the system's words, without its path.

        Of all errors, `FileNotFoundError` and `NotADirectoryError` alone mean that it is not there: a fact.
        """
        text = why if isinstance(why, str) else getattr(why, "strerror", None) or str(why) or type(why).__name__
        absent = isinstance(why, FileNotFoundError | NotADirectoryError)
        return cls(what, text, "absent" if absent else "refused", code)

    @property
    def decides(self) -> bool:
        """Whether an all-clear may not be given without it."""
        return self.reason in ("refused", "undecided")

    @property
    def same(self) -> tuple[str, str]:
        """What makes two of them one, also where an older envguard stored no reason."""
        return self.what, self.why


def independent_writers(evidence: Iterable[Evidence]) -> int:
    """How many different writers stand behind a claim; two are needed for the word "certain"."""
    return len({item.writer for item in evidence})


def confidence_of(evidence: Iterable[Evidence], best: Confidence = "strong") -> Confidence:
    """The confidence of a claim on which all of `evidence` agrees.

    `best` is what the strongest single witness is worth alone ("weak" for a payload's mtime, say); two independent
    writers make it "certain" unless every one of them is weak.
    """
    if best == "weak":
        return "weak"
    return "certain" if independent_writers(evidence) >= 2 else best

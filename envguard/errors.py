"""Every error that envguard raises on purpose: its message, its hint, its exit code.

    Error                    2
    ├── UsageError           2   the command line or the configuration asks for what cannot be
    ├── InputError           2   a file that was named cannot be read or understood
    ├── NotDetermined        3   a witness is missing; never reported as a match
    ├── RestoreError         4   restore impossible or failed; everything is as it was before
    └── RollbackError        5   restore failed and the roll-back too

`LaunchRefused` is no error but a decision, and lives with the gate.
"""

from __future__ import annotations

from typing import ClassVar


class Error(Exception):
    """Shown as ``error: …`` and ``hint: …``; a traceback only with ``-vv``."""

    code: ClassVar[int] = 2
    hint: str | None = None

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class UsageError(Error):
    """The command line or the configuration asks for what cannot be."""


class InputError(Error):
    """A file that was named cannot be read or understood."""


class NotDetermined(Error):
    """The question cannot be answered from here, and is not answered by a guess."""

    code = 3


class RestoreError(Error):
    """A restore that cannot be or did not work out; everything is as it was before."""

    code = 4


class RollbackError(Error):
    """A restore failed and putting the previous state back failed too; the message says what is where."""

    code = 5

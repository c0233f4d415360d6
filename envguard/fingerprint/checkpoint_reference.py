"""A checkpoint as a reference: its stamp, where one counts, and what keeps it from being a complete one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from envguard.acquire.runs.checkpoint_content import examined
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.runs.hparams import find_hparams
from envguard.acquire.runs.stamps import read_stamp
from envguard.acquire.seam.host import Host
from envguard.acquire.section import reason
from envguard.errors import InputError
from envguard.fingerprint.places import Reference
from envguard.model.evidence import Unknown


def of_checkpoint(checkpoint: Checkpoint, host: Host, label: str | None = None) -> Reference:
    """A checkpoint with its stamp, where it has one that counts, examined by its content. Raises `InputError` where
    it cannot be seen."""
    found = with_stamp(checkpoint, host, label)
    assert found.checkpoint is not None
    try:
        content = examined(host, found.checkpoint)
    except OSError as error:
        return replace(found, undecided=(Unknown.refused(f"checkpoint {checkpoint.name}", error),))
    if content.incomplete is None:
        return found
    # No run goes on from it as the one before did.
    why = Unknown(f"checkpoint {checkpoint.name}", f"it is not complete: {content.incomplete}")
    return replace(found, checkpoint=content, undecided=(why,))


def with_stamp(checkpoint: Checkpoint, host: Host, label: str | None = None) -> Reference:
    """A checkpoint with its stamp, where it has one that counts. Raises `InputError` where it cannot be seen."""
    try:
        stamp = read_stamp(host, checkpoint.path)
    except OSError as error:
        raise unreadable(checkpoint.path, checkpoint.path, error) from error
    no_stamp = "it has no stamp" if stamp is None else stamp.why_not
    settings, notes = _settings(checkpoint, host)
    if stamp is not None and no_stamp is None:
        checkpoint, notes = stamp.checkpoint, (*notes, *stamp.notes)
    return Reference(
        label=label or checkpoint.name,
        kind="checkpoint",
        path=checkpoint.path,
        fingerprint=stamp.fingerprint if stamp is not None and no_stamp is None else None,
        checkpoint=checkpoint,
        no_stamp=no_stamp,
        altered=stamp is not None and stamp.altered,
        unread=stamp is not None and stamp.unread,
        settings=settings,
        notes=notes,
    )


def _settings(checkpoint: Checkpoint, host: Host) -> tuple[Mapping[str, str] | None, tuple[str, ...]]:
    try:
        found = find_hparams(host, checkpoint)
    except OSError as error:
        return None, (f"its hyper-parameters cannot be read: {reason(error)}",)
    return (found.values if found is not None else None), ()


def unreadable(named: str, path: str, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{named} is not there: {path}", "it is configured or was recorded; name another reference")
    inner = error.filename if isinstance(error.filename, str) and error.filename != path else None
    of_it = f"{inner}: " if inner is not None else ""
    return InputError(f"{named} cannot be read: {of_it}{reason(error)}", f"`ls -ld {inner or path}` shows who may")

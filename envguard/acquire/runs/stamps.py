"""Stamps beside checkpoints: read, and judged whether they count as evidence of the past."""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from envguard import clock
from envguard.acquire.runs.checkpoint_parts import STAMP_NAME, STAMP_SUFFIX, File, is_stamp_file, judge, roles
from envguard.acquire.runs.checkpoints import Checkpoint, read_checkpoint, step_of
from envguard.acquire.seam.host import Host
from envguard.acquire.section import reason
from envguard.model.fingerprint import CheckpointRef, Fingerprint
from envguard.model.identity import why_altered

MAX_STAMP = 64 << 20
# Two steps of one run have files of the same names and sizes. Their weights differ everywhere, and a zip ends with
# the checksums of what it holds, so that a few bytes from both ends tell them apart.
SAMPLE_BYTES = 4096
# A file server's clock, and the milliseconds to which a stamp has its own time.
SKEW_NS = 2 * clock.NS


@dataclass(frozen=True)
class Stamp:
    """The stamp of a checkpoint. `why_not` says why it counts as none; None where it counts.

    `fingerprint` is None where the file could not be read as one, and where it is not as it was written (`altered`).
    Of one that counts, `checkpoint` has its time (`dated`), and `notes` say what changed in the checkpoint since.
    """

    path: str
    checkpoint: Checkpoint
    fingerprint: Fingerprint | None
    why_not: str | None
    altered: bool = False
    notes: tuple[str, ...] = ()
    undecided: bool = False
    """Whether it is this checkpoint's cannot be determined."""

    @property
    def unread(self) -> bool:
        """Whether it is there and what it says of this checkpoint is not known: nobody may act as if it were not."""
        return self.fingerprint is None or self.undecided

    @property
    def counts(self) -> bool:
        return self.why_not is None


def stamp_path(checkpoint: str, is_directory: bool) -> str:
    """Where the stamp of a checkpoint lies: inside a directory, beside a file."""
    return f"{checkpoint.rstrip('/')}/{STAMP_NAME}" if is_directory else checkpoint + STAMP_SUFFIX


def reference(host: Host, checkpoint: str) -> CheckpointRef:
    """What a stamp says of the checkpoint that it is for: step, files, sizes and samples. Raises OSError."""
    path = checkpoint.rstrip("/")
    name = posixpath.basename(path)
    found = host.stat_target(path)
    if not found.is_directory:
        one = {name: sample(host, path, found.size)}
        return CheckpointRef(name=name, step=step_of(name), files={name: found.size}, samples=one)
    walk = host.walk(path)
    # Other ranks write and rename while this one looks: what is gone again is no part of the checkpoint.
    walk.refused()
    files = {inner: facts.size for inner, facts in walk.entries if facts.is_file and not is_stamp_file(inner)}
    samples: dict[str, str] = {}
    for inner, size in files.items():
        with contextlib.suppress(FileNotFoundError):
            samples[inner] = sample(host, f"{path}/{inner}", size)
    files = {inner: size for inner, size in files.items() if inner in samples}
    return CheckpointRef(name=name, step=step_of(name), files=files, samples=samples)


def sample(host: Host, path: str, size: int, at: int | None = None) -> str:
    """A digest of the first and the last bytes of a file, 16 hex digits; `at`: as it was when it ended there. Raises
    OSError."""
    hasher = hashlib.sha256(host.read(path, SAMPLE_BYTES if at is None else min(at, SAMPLE_BYTES)))
    if size > SAMPLE_BYTES:
        hasher.update(host.read(path, SAMPLE_BYTES, -SAMPLE_BYTES if at is None else at - SAMPLE_BYTES))
    return hasher.hexdigest()[:16]


def describe_unreadable(error: OSError, checkpoint: str) -> str:
    """One sentence for a checkpoint that a person named and that cannot be seen."""
    if isinstance(error, FileNotFoundError):
        return f"there is no checkpoint at {checkpoint}"
    return f"the checkpoint {checkpoint} cannot be read: {reason(error)}"


class NoFingerprint(ValueError):
    """The bytes are no fingerprint that this version reads; the message says what is wrong."""


class Altered(NoFingerprint):
    """They are one, and not as it was written: its id or its checksum is not what its content gives."""


def parse_fingerprint(data: bytes) -> Fingerprint:
    """A fingerprint or stamp from its JSON. Raises `NoFingerprint`, and `Altered` for one that was edited."""
    try:
        stored = msgspec.json.decode(data)
        taken = msgspec.convert(stored, Fingerprint)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NoFingerprint(f"it is no fingerprint: {error}") from error
    altered = why_altered(taken, stored)
    if altered is not None:
        raise Altered(altered)
    return taken


def read_stamp(host: Host, checkpoint: Checkpoint | str) -> Stamp | None:
    """The stamp of a checkpoint, or None where it has none. Raises OSError where the checkpoint cannot be seen."""
    found = read_checkpoint(host, checkpoint) if isinstance(checkpoint, str) else checkpoint
    if found is None or found.stamp_path is None:
        return None
    try:
        fingerprint = parse_fingerprint(host.read(found.stamp_path, MAX_STAMP))
    except OSError as error:
        return Stamp(found.stamp_path, found, None, f"the stamp cannot be read: {reason(error)}")
    except Altered as error:
        return Stamp(found.stamp_path, found, None, f"the stamp cannot be believed: {error}", altered=True)
    except NoFingerprint as error:
        return Stamp(found.stamp_path, found, None, f"the stamp cannot be read: {error}")
    why_not = _why_not(found, fingerprint)
    if why_not is not None or fingerprint.checkpoint is None:
        return Stamp(found.stamp_path, found, fingerprint, why_not or "the stamp names no checkpoint")
    same = _identity(host, found, fingerprint.checkpoint)
    if same.why_not is not None:
        return Stamp(found.stamp_path, found, fingerprint, same.why_not, undecided=same.undecided)
    return Stamp(found.stamp_path, dated(found, fingerprint), fingerprint, None, notes=same.notes)


def dated(checkpoint: Checkpoint, stamp: Fingerprint) -> Checkpoint:
    """The checkpoint with the time that its stamp proves: it was saved no later than that, whatever a copy, a move or
    an object store wrote as the times of its files."""
    try:
        taken = clock.nanoseconds(stamp.taken_at)
    except ValueError:
        return checkpoint
    if checkpoint.dated and checkpoint.saved_ns <= taken + SKEW_NS:
        return checkpoint
    first = min(checkpoint.first_ns, taken) if checkpoint.dated else taken
    return replace(checkpoint, began_ns=first, saved_ns=taken, dated=True, by_stamp=True)


def _why_not(checkpoint: Checkpoint, stamp: Fingerprint) -> str | None:
    if stamp.origin == "retrospective":
        return f"the stamp was made afterwards ({clock.local(stamp.taken_at)}) and says nothing of the time of saving"
    named = stamp.checkpoint
    if named is not None and named.step is not None and checkpoint.step is not None and named.step != checkpoint.step:
        return f"the stamp is of step {named.step} ({named.name}) and was copied here"
    return None


Now = Literal["same", "grown", "other", "gone"]


@dataclass(frozen=True)
class _Held:
    """How a file that a stamp names is now. `grown`: it begins with all that the stamp saw of it."""

    name: str
    now: Now
    how: str = ""


@dataclass(frozen=True)
class _Identity:
    why_not: str | None
    undecided: bool = False
    notes: tuple[str, ...] = ()


def _identity(host: Host, checkpoint: Checkpoint, named: CheckpointRef) -> _Identity:
    """Whether a stamp is of this checkpoint, and what has changed in it since.

    Weights decide; where none of them is here, the trainer's state, a consolidated copy, whatever else was named.
    Files that were pruned since are no objection. A file that has grown from what the stamp saw of it is one whose
    save went on, as an asynchronous one does.
    """
    rank = roles(named.files)
    unended = _unended(named)
    ended_since = unended and checkpoint.incomplete is None
    notes: list[str] = []
    decided = False
    for role in ("weights", "state", "consolidated", "side"):
        try:
            every = [_held(host, checkpoint, named, name) for name, each in rank.items() if each == role]
        except OSError as error:
            why = f"the stamp cannot be held against this checkpoint: {reason(error)}"
            return _Identity(why, undecided=True)
        went_on = ("other", "grown") if unended and not ended_since else ("other",)
        others = [item for item in every if item.now in went_on]
        grown = [item.name for item in every if item.now == "grown" and item not in others]
        notes += [f"{name} was still being written when it was stamped" for name in grown]
        if others and not decided:
            if role == "weights" and ended_since:
                why = (
                    f"the stamp was made while the checkpoint was being written, and {others[0].name} {others[0].how}"
                )
                return _Identity(why, undecided=True)
            return _Identity(f"the stamp is of another {named.name}: {others[0].name} {others[0].how}")
        notes += [f"{item.name} was edited after it was stamped" for item in others]
        decided = decided or any(item.now != "gone" for item in every)
    if named.files and not decided:
        return _Identity(f"the stamp is of another {named.name}: none of its files is here")
    return _Identity(None, notes=tuple(notes))


def _unended(named: CheckpointRef) -> bool:
    """Whether the save had not ended when the stamp was made, by the files that it names."""
    return judge(named.name, [File(name, size, 0) for name, size in named.files.items()]).incomplete is not None


def _held(host: Host, checkpoint: Checkpoint, named: CheckpointRef, name: str) -> _Held:
    """Raises OSError."""
    size = named.files[name]
    if checkpoint.kind == "directory":
        path = posixpath.normpath(f"{checkpoint.path}/{name}")
        if not path.startswith(f"{checkpoint.path}/"):
            return _Held(name, "gone")
    else:
        # A file that was renamed with its stamp is still the file of that size.
        path = checkpoint.path if len(named.files) == 1 else f"{posixpath.dirname(checkpoint.path)}/{name}"
    try:
        there = host.stat_target(path).size
        if there == size:
            if name not in named.samples or sample(host, path, size) == named.samples[name]:
                return _Held(name, "same")
            return _Held(name, "other", "has its size and not its content")
        if there > size and named.samples.get(name) == sample(host, path, size, at=size):
            return _Held(name, "grown", f"had {size} bytes and has {there}")
    except (FileNotFoundError, NotADirectoryError):
        return _Held(name, "gone")
    return _Held(name, "other", f"had {size} bytes and has {there}")

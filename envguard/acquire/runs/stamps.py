"""Stamps beside checkpoints: read, and judged whether they count as evidence of the past."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import posixpath
from dataclasses import dataclass

import msgspec

from envguard import clock
from envguard.acquire.runs.checkpoints import STAMP_NAME, STAMP_SUFFIX, Checkpoint, read_checkpoint, step_of
from envguard.acquire.seam.host import Host
from envguard.acquire.section import reason
from envguard.model.fingerprint import CheckpointRef, Fingerprint
from envguard.model.identity import why_altered

MAX_STAMP = 64 << 20
# Two steps of one run have files of the same names and sizes. Their weights differ everywhere, and a zip ends with
# the checksums of what it holds, so that a few bytes from both ends tell them apart.
SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class Stamp:
    """The stamp of a checkpoint. `why_not` says why it counts as none; None where it counts.

    `fingerprint` is None where the file could not be read as one, and where it is not as it was written (`altered`).
    """

    path: str
    checkpoint: Checkpoint
    fingerprint: Fingerprint | None
    why_not: str | None
    altered: bool = False

    @property
    def counts(self) -> bool:
        return self.why_not is None


def stamp_path(checkpoint: str, is_directory: bool) -> str:
    """Where the stamp of a checkpoint lies: inside a directory, beside a file."""
    return f"{checkpoint.rstrip('/')}/{STAMP_NAME}" if is_directory else checkpoint + STAMP_SUFFIX


def saved_ns(host: Host, checkpoint: str) -> int:
    """When the newest of the checkpoint's own files was written (ns). Raises OSError."""
    found = read_checkpoint(host, checkpoint)
    return found.saved_ns if found is not None else host.stat(checkpoint).mtime_ns


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
    unseen = [(inner, why) for inner, why in walk.failed if why != os.strerror(errno.ENOENT)]
    if unseen:
        raise PermissionError(errno.EACCES, unseen[0][1], f"{path}/{unseen[0][0]}")
    files = {inner: facts.size for inner, facts in walk.entries if facts.is_file and not is_stamp_file(inner)}
    samples: dict[str, str] = {}
    for inner, size in files.items():
        with contextlib.suppress(FileNotFoundError):
            samples[inner] = sample(host, f"{path}/{inner}", size)
    files = {inner: size for inner, size in files.items() if inner in samples}
    return CheckpointRef(name=name, step=step_of(name), files=files, samples=samples)


def is_stamp_file(path: str) -> bool:
    """A stamp, or one that is being written: never a part of the checkpoint."""
    name = posixpath.basename(path)
    return name == STAMP_NAME or name.startswith(f".{STAMP_NAME}.") or STAMP_SUFFIX in name


def sample(host: Host, path: str, size: int) -> str:
    """A digest of the first and the last bytes of a file, 16 hex digits. Raises OSError."""
    hasher = hashlib.sha256(host.read(path, SAMPLE_BYTES))
    if size > SAMPLE_BYTES:
        hasher.update(host.read(path, SAMPLE_BYTES, -SAMPLE_BYTES))
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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
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
    return Stamp(found.stamp_path, found, fingerprint, _why_not(host, found, fingerprint))


def _why_not(host: Host, checkpoint: Checkpoint, stamp: Fingerprint) -> str | None:
    if stamp.origin == "retrospective":
        return f"the stamp was made afterwards ({clock.local(stamp.taken_at)}) and says nothing of the time of saving"
    if stamp.checkpoint is None:
        return "the stamp names no checkpoint"
    if stamp.checkpoint.step is not None and checkpoint.step is not None and stamp.checkpoint.step != checkpoint.step:
        return f"the stamp is of step {stamp.checkpoint.step} ({stamp.checkpoint.name}) and was copied here"
    return _other_files(host, checkpoint, stamp.checkpoint)


def _other_files(host: Host, checkpoint: Checkpoint, named: CheckpointRef) -> str | None:
    """Sizes tell a stamp that was copied from another run; files that were pruned since are no objection."""
    same = 0
    for name, size in named.files.items():
        if checkpoint.kind == "directory":
            path = posixpath.normpath(f"{checkpoint.path}/{name}")
        else:
            # A file that was renamed with its stamp is still the file of that size.
            path = checkpoint.path if len(named.files) == 1 else f"{posixpath.dirname(checkpoint.path)}/{name}"
        if checkpoint.kind == "directory" and (not path.startswith(f"{checkpoint.path}/") or name == STAMP_NAME):
            continue
        try:
            there = host.stat_target(path)
            if there.size != size:
                return f"the stamp is of another {named.name}: {name} had {size} bytes and has {there.size}"
            if name in named.samples and sample(host, path, size) != named.samples[name]:
                return f"the stamp is of another {named.name}: {name} has its size and not its content"
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"whether the stamp is of this checkpoint cannot be told: {name}: {reason(error)}"
        same += 1
    if named.files and not same:
        return f"the stamp is of another {named.name}: none of its files is here"
    return None

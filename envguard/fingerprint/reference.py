"""REF: what a person means by `step_690`, a path, a lock, a bundle, `live` or `@1`.

live                    the environment now
eg1-…                   the fingerprint of that id: of a snapshot, of a stamp, of the first start
@1                      the last snapshot in this host's journal, @2 the one before it
baseline                what `launch --baseline` recorded, where no checkpoint has that name
path/to/step_690        a checkpoint; path/to/fingerprint.json, pylock.toml, uv.lock, requirements.txt, a bundle
step_690                a checkpoint of that name (or step) in the places where checkpoints are looked up
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from envguard.acquire.runs.checkpoint_at import NotOne, checkpoint_at
from envguard.acquire.runs.checkpoint_names import match_name, nearest_names, short_name, short_names
from envguard.acquire.runs.checkpoint_parts import WEIGHTS
from envguard.acquire.runs.checkpoint_search import Checkpoints
from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.runs.own_records import read_journal
from envguard.acquire.runs.stamps import Altered, NoFingerprint, parse_fingerprint, read_stamp
from envguard.acquire.seam.host import Host
from envguard.acquire.seam.lines import backwards
from envguard.errors import InputError, UsageError
from envguard.fingerprint.checkpoint_reference import of_checkpoint, unreadable, with_stamp
from envguard.fingerprint.lock import lock_kind, parse_lock
from envguard.fingerprint.places import Places, Reference, ReferenceKind
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint
from envguard.model.identity import is_id
from envguard.state import journal

BASELINE = "baseline"
_JOURNAL = re.compile(r"@(\d+)")
_GZIP = b"\x1f\x8b"
_MOST_RUNS = 200
"""Run directories in which a name without a step is looked for."""


def resolve(text: str, places: Places) -> Reference:
    """The reference that `text` names. Raises `UsageError` and `InputError`, each with a hint."""
    if text == "live":
        return Reference("live", "live", fingerprint=places.live())
    if match := _JOURNAL.fullmatch(text):
        return _journal_entry(int(match[1]), places)
    path = places.path(text)
    try:
        there = bool(text) and places.host.stat_target(path) is not None
    except (FileNotFoundError, NotADirectoryError):
        there = False
    except OSError as error:
        raise unreadable(text, path, error) from error
    if there:
        return _of_path(text, path, places)
    if is_id(text):
        return _of_id(text, places)
    return _of_name(text, places)


def resolve_default(places: Places) -> Reference:
    """The REF that is meant where none is given: the highest stamped step of the run whose newest checkpoint is
    newest; the recorded first start; the configured lock. Raises `UsageError`.

    A stamp that cannot be read or believed is not passed over: an older one that matches would open the gate that it
    should close.
    """
    checkpoints = places.checkpoints()
    passed_over: list[Reference] = []
    names = short_names(checkpoints.found)
    run = newest_run(places)
    doubts, undecided = _doubts(checkpoints, run)
    for checkpoint in reversed(run):
        found = of_checkpoint(checkpoint, places.host, names[checkpoint.path])
        if found.fingerprint is not None or found.unread:
            pairs = [item.says for item in checkpoints.disorder if checkpoint in (item.lower, item.higher)]
            notes = (*found.notes, *_passed_over(passed_over), *doubts, *pairs)
            return replace(found, notes=notes, undecided=(*found.undecided, *undecided))
        passed_over.append(found)
    doubts = [*_passed_over(passed_over), *doubts]
    if places.baseline is not None and places.host.find(places.baseline) is not None:
        found = _of_fingerprint_file(BASELINE, places.baseline, places.host, "baseline")
        return replace(found, notes=(*found.notes, *doubts), undecided=(*found.undecided, *undecided))
    if places.lock is not None:
        found = _of_path(places.lock, places.path(places.lock), places)
        return replace(found, notes=(*found.notes, *doubts), undecided=(*found.undecided, *undecided))
    others = [item for item in checkpoints.found if item.stamp_path is not None and item not in run]
    if others:
        last = short_name(max(others, key=lambda item: item.saved_ns), checkpoints.found)
        where = _shown(run[-1].run_directory, places.start)
        raise UsageError(
            f"no reference is given, and the newest run, {where}, has no stamped checkpoint",
            f"other runs have {len(others)}: name one, such as {last}",
        )
    raise UsageError(
        "no reference is given and none is recorded: no stamped checkpoint, no baseline, no lock",
        "name one (a checkpoint, a fingerprint file, a lock file, @1), or record one at the first start: "
        "`envguard launch --baseline -- COMMAND`",
    )


def _doubts(checkpoints: Checkpoints, run: Sequence[Checkpoint]) -> tuple[list[str], tuple[Unknown, ...]]:
    """What of the places could not be read: in words, and what of it may be a later checkpoint of the run taken."""
    words = [f"{item.what} could not be read: {item.why}" for item in checkpoints.unknown]
    later = [path for path in checkpoints.unseen if run and posixpath.dirname(path) == run[0].run_directory]
    why = "it could not be read, and may be the later one"
    return words, tuple(Unknown(f"checkpoint {path}", why, "refused") for path in later)


def newest_run(places: Places) -> tuple[Checkpoint, ...]:
    """The checkpoints, by step, of the run whose newest checkpoint is newest, by the times that stamps prove."""

    def dated(checkpoint: Checkpoint) -> Checkpoint:
        try:
            stamp = read_stamp(places.host, checkpoint)
        except OSError:
            return checkpoint  # who takes the run meets the same error and reports it
        return stamp.checkpoint if stamp is not None else checkpoint

    return places.checkpoints().newest_run(dated)


def _passed_over(unstamped: Sequence[Reference]) -> Iterator[str]:
    """Says which checkpoint was not taken though it is further on: whoever reads "matches step_3" beside a step_6
    would else take it for a mistake, or overlook that step_6 proves nothing."""
    if len(unstamped) == 1:
        yield f"taken because the later {unstamped[0].label} does not count: {unstamped[0].no_stamp}"
    elif unstamped:
        last = unstamped[0]
        yield f"taken because {len(unstamped)} later checkpoints do not count ({last.label}: {last.no_stamp})"


def stamps_of_newest(places: Places, unseen: list[Unknown]) -> dict[str, Fingerprint]:
    """The last stamp that counts and the recorded first start, by label: second witnesses for `verify`. A later stamp
    that cannot be read or believed goes into `unseen`: what it would have said against RECORD is not known."""
    found: dict[str, Fingerprint] = {}
    for checkpoint in reversed(newest_run(places)):
        reference = with_stamp(checkpoint, places.host)
        if reference.unread:
            unseen.append(Unknown(f"stamp of {checkpoint.name}", reference.no_stamp or ""))
        if reference.fingerprint is not None:
            found[f"stamp of {checkpoint.name}"] = reference.fingerprint
            break
    if places.baseline is not None and places.host.find(places.baseline) is not None:
        recorded = _of_fingerprint_file(BASELINE, places.baseline, places.host, "baseline")
        if recorded.fingerprint is not None:
            found["the recorded first start"] = recorded.fingerprint
    return found


def stamped(places: Places) -> Iterator[Reference]:
    """Every checkpoint with a stamp that counts, of all runs, the last saved first. Raises `InputError` for one that
    cannot be seen."""
    marked = (item for item in places.checkpoints().found if item.stamp_path is not None)
    for checkpoint in sorted(marked, key=lambda item: item.saved_ns, reverse=True):
        reference = with_stamp(checkpoint, places.host)
        if reference.fingerprint is not None:
            yield reference


def no_live() -> Fingerprint:
    """For places where nobody may ask for the environment of now."""
    raise UsageError("`live` is no answer here", "name a checkpoint, a fingerprint file, a lock file or @1")


def _of_name(text: str, places: Places) -> Reference:
    checkpoints = places.checkpoints()
    found = match_name(checkpoints.found, text) if text else ()
    if len(found) == 1:
        return of_checkpoint(found[0], places.host, short_name(found[0], checkpoints.found))
    if not found and text and "/" not in text:
        found = called(text, places)
        if len(found) == 1:
            return of_checkpoint(found[0], places.host, text)
    if found:
        listed = "\n".join(f"  {item.path}" for item in found)
        runs = {item.run_directory for item in found}
        where = (
            f"in {len(runs)} run directories" if len(runs) > 1 else f"{len(found)} times in {found[0].run_directory}"
        )
        raise UsageError(f"{text!r} is found {where}:\n{listed}", "name one by its path")
    if text == BASELINE and places.baseline is not None and places.host.find(places.baseline) is not None:
        return _of_fingerprint_file(BASELINE, places.baseline, places.host, "baseline")
    raise _not_found(text, places, checkpoints)


def called(name: str, places: Places) -> tuple[Checkpoint, ...]:
    """The checkpoints that lie under a name without a step (`latest`, `last`, `best`) in the places to look in or in
    a run directory. Raises `InputError` for one that cannot be seen."""
    checkpoints = places.checkpoints()
    runs = sorted({item.run_directory for item in checkpoints.found}, reverse=True)[:_MOST_RUNS]
    found: dict[str, Checkpoint] = {}
    names = [f"{name}{ending}" for ending in ("", *WEIGHTS)]
    paths = [f"{folder}/{each}" for folder in (*checkpoints.roots, *runs) for each in names]
    paths += [path for path in checkpoints.others if posixpath.basename(path) in names]
    for path in dict.fromkeys(paths):
        if path in checkpoints.unseen:
            continue  # the search has reported it
        try:
            item = checkpoint_at(places.host, path)
        except OSError as error:
            raise unreadable(name, path, error) from error
        if isinstance(item, Checkpoint):
            found.setdefault(item.path, item)
    return tuple(found.values())


def _shown(root: str, start: str) -> str:
    """A place as a person wrote it: relative where it lies below the folder in which the command was given."""
    near = posixpath.relpath(root, start)
    return root if near.startswith("..") else near


def _not_found(text: str, places: Places, checkpoints: Checkpoints) -> InputError:
    if text == BASELINE:
        # `--baseline` records nothing where a reference is there already.
        decided = places.lock is not None or any(item.stamp_path is not None for item in checkpoints.found)
        return InputError(
            "no first start is recorded, which `baseline` would name",
            "another reference is there: `envguard log` lists the stamped checkpoints"
            if decided
            else "`envguard launch --baseline -- COMMAND` records one",
        )
    looked = ", ".join(_shown(root, places.start) for root in places.roots) or "no place"
    if "/" in text or lock_kind(text) or text.endswith(".json"):
        missing = f"there is no {text}"
    else:
        missing = f"no checkpoint is called {text!r} (looked in {looked})"
    for item in checkpoints.unknown:
        if item.what.endswith(f"/{posixpath.basename(text)}"):
            return InputError(
                f"{item.what} could not be read: {item.why}", "it is there; ask for the right to read it"
            )
    near = nearest_names(checkpoints.found, posixpath.basename(text))
    if near:
        return InputError(missing, f"the nearest: {', '.join(near)}")
    if checkpoints.unknown:
        return InputError(missing, f"{checkpoints.unknown[0].what} could not be read: {checkpoints.unknown[0].why}")
    return InputError(missing, "there are no checkpoints there; `--checkpoints DIR` says where to look")


def _of_path(text: str, path: str, places: Places) -> Reference:
    host = places.host
    try:
        found = checkpoint_at(host, path)
        if isinstance(found, Checkpoint):
            return of_checkpoint(found, host, text)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if host.stat_target(path).is_directory:
            raise _no_checkpoint(text, found)
        head = host.read(path, 2)
    except OSError as error:
        raise unreadable(text, path, error) from error
    if head == _GZIP:
        return Reference(text, "bundle", path)
    if lock_kind(path) or path.endswith(".toml"):
        return _of_lock(text, path, host)
    return _of_fingerprint_file(text, path, host, "fingerprint")


def _no_checkpoint(text: str, found: NotOne) -> InputError | UsageError:
    if found.kind == "environment":
        return UsageError(f"{text} is an environment, not a reference", f"examine it with `--python {text}`")
    if found.inner:
        near = ", ".join(posixpath.relpath(item.path, found.path) for item in found.inner[-4:])
        return UsageError(f"{text} is a directory of checkpoints, not one of them", f"it holds: {near}")
    return InputError(
        f"{text} is a directory without weights or a stamp, and no checkpoint",
        "name a checkpoint's directory or file, a fingerprint, a lock or a bundle",
    )


def _of_lock(text: str, path: str, host: Host) -> Reference:
    try:
        data = host.read(path, 64 << 20)
    except OSError as error:
        raise unreadable(text, path, error) from error
    return Reference(text, "lock", path, lock=parse_lock(path, data))


def _of_fingerprint_file(label: str, path: str, host: Host, kind: ReferenceKind) -> Reference:
    try:
        return Reference(label, kind, path, fingerprint=parse_fingerprint(host.read(path, 64 << 20)))
    except OSError as error:
        raise unreadable(label, path, error) from error
    except Altered as error:
        raise _unbelievable(label, path, error) from error
    except NoFingerprint as error:
        raise InputError(
            f"{label} is neither a checkpoint nor a fingerprint, lock or bundle: {error}",
            "`envguard snapshot -o FILE` writes a fingerprint",
        ) from error


def _unbelievable(label: str, path: str, error: Altered) -> InputError:
    where = "" if path.endswith(label) else f" (in {path})"
    return InputError(
        f"{label} cannot be believed: {error}{where}", "name another reference; `envguard log` lists them"
    )


def _journal_entry(number: int, places: Places) -> Reference:
    """The Nth snapshot from the end of this host's journal."""
    if number < 1:
        raise UsageError("@0 is no journal entry", "@1 is the last snapshot, `live` is now")
    path = posixpath.join(places.state, posixpath.basename(_journal_path(places)))
    try:
        count = 0
        for line in backwards(places.host, path):
            entry = journal.entry(line) or {}
            count += entry.get("kind") == "snapshot" and "fingerprint" in entry
            if count == number:
                taken = _parsed(f"@{number}", entry["fingerprint"], path)
                return Reference(f"@{number}", "journal", path, fingerprint=taken)
    except FileNotFoundError:
        count = 0
    except OSError as error:
        raise unreadable("the journal", path, error) from error
    held = f"{count} snapshot{'' if count == 1 else 's'}"
    raise InputError(f"there is no @{number}: the journal holds {held}", "`envguard snapshot` adds one")


def _of_id(text: str, places: Places) -> Reference:
    """The newest stamp of that id, a snapshot in the state folder, whatever its host, or the recorded first start."""
    unknown: list[Unknown] = []
    for found in stamped(places):
        if found.fingerprint is not None and found.fingerprint.id == text:
            return found
    for entry in reversed(read_journal(places.host, places.state, unknown) or ()):
        if entry.kind == "snapshot" and entry.fields.get("id") == text:
            if entry.why_not is not None:
                raise InputError(f"{text} cannot be read: {entry.why_not}", f"it is in {entry.path}")
            return Reference(text, "journal", entry.path, fingerprint=entry.fingerprint)
    if places.baseline is not None and places.host.find(places.baseline) is not None:
        found = _of_fingerprint_file(BASELINE, places.baseline, places.host, "baseline")
        if found.fingerprint is not None and found.fingerprint.id == text:
            return found
    unseen = f"{unknown[0].what} could not be read: {unknown[0].why}" if unknown else None
    raise InputError(
        f"no snapshot and no stamp has the id {text}", unseen or "`envguard log` lists those that there are"
    )


def _parsed(label: str, data: bytes, path: str) -> Fingerprint:
    try:
        return parse_fingerprint(data)
    except Altered as error:
        raise _unbelievable(label, path, error) from error
    except NoFingerprint as error:
        raise InputError(f"{label} cannot be read: {error}", f"it is in {path}") from error


def _journal_path(places: Places) -> str:
    from pathlib import Path

    return str(journal.journal_file(Path(places.state), places.host.machine().host))

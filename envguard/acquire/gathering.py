"""Making a bundle, and opening one: a survey and a fingerprint asked of a recording host, and what was asked for."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec

from envguard import __version__
from envguard.acquire.runs.checkpoint_at import checkpoint_at
from envguard.acquire.runs.checkpoint_content import examined
from envguard.acquire.runs.checkpoint_search import find_checkpoints
from envguard.acquire.runs.checkpoints import POINTERS, STAMP_NAME, Checkpoint, is_weights
from envguard.acquire.seam import bundle
from envguard.acquire.seam.bundle import BundleError, Manifest
from envguard.acquire.seam.host import Host, Kind
from envguard.acquire.seam.recorded import BundleHost, RecordingHost
from envguard.acquire.survey import Progress, Request, Survey, no_progress, survey
from envguard.errors import InputError
from envguard.model.action import Unavailable

MOST_SPELLED = 500
Also = Callable[[Host, Request, Survey], None]
"""Another reader whose questions the bundle has to answer later; it knows what the survey saw."""


@dataclass(frozen=True)
class Gathered:
    """The bytes of a bundle, how many pieces of evidence it holds, and the survey that filled it."""

    data: bytes
    evidence: int
    seen: Survey
    left_out: tuple[Unavailable, ...] = ()
    """Files that opening would have no room for; the bundle tells the same."""


@dataclass(frozen=True)
class OpenBundle:
    """A bundle as a host, with the request that it was gathered for."""

    host: BundleHost
    request: Request
    manifest: Manifest
    path: str


def gather(host: Host, request: Request, also: tuple[Also, ...] = (), progress: Progress = no_progress) -> Gathered:
    """Asks every witness, and `also` those of other commands, and packs all the answers.

    Raises `InputError` where there is no environment to examine, and where opening would refuse the evidence.
    """
    recording = RecordingHost(host)
    progress("checkpoints by their paths")
    seen = survey(recording, replace(request, named=spelled(recording, request)), progress)
    for ask in also:
        ask(recording, request, seen)
    about = {
        "request": msgspec.json.encode(request).decode(),
        "envguard": __version__,
        "host": seen.machine.host,
        "prefix": seen.env.prefix,
    }
    progress("packing")
    stream = io.BytesIO()
    recording.seal()
    evidence = bundle.save(recording.record, about, stream)
    left_out = tuple(
        Unavailable(witness=path, why=f"{bundle.LEFT_OUT} ({size >> 20} MiB)")
        for path, size in sorted(recording.left_out.items())
    )
    return Gathered(stream.getvalue(), evidence, seen, left_out)


def spelled(host: Host, request: Request) -> tuple[str, ...]:
    """Checkpoints that only a path names, so that a bundle knows of them: links, files of weights without a step, run
    directories, and what lies in the folders of the project."""
    found = find_checkpoints(host, request.checkpoint_roots)
    runs = sorted({item.run_directory for item in found.found})
    paths = dict.fromkeys((*found.others, *runs, *(f"{run}/{name}" for run in runs for name in POINTERS)))
    for folder in (request.start, *_folders(host, request.start)):
        try:
            every = [(f"{folder}/{name}", kind) for name, kind in host.listing(folder)]
            paths.update(dict.fromkeys(path for path, kind in every if _may_be_one(host, path, kind)))
        except OSError:
            continue  # a folder that nobody named
    for item in found.found[-MOST_SPELLED:]:
        with contextlib.suppress(OSError):  # who asks the bundle about it meets the same error
            examined(host, item)
            checkpoint_at(host, item.path)
    known = {item.path for item in found.found}
    named: dict[str, None] = {}
    for path in list(paths)[:MOST_SPELLED]:
        try:
            host.stat_target(path)  # what a path leads to is asked first of each reference
            at = checkpoint_at(host, path)
        except OSError:
            continue
        if isinstance(at, Checkpoint) and at.path not in known:
            named[at.path] = None
            with contextlib.suppress(OSError):
                examined(host, at)
    return tuple(named)


def _may_be_one(host: Host, path: str, kind: Kind) -> bool:
    """Whether a person may call it a checkpoint by its path: weights, a folder with a stamp, a link to one."""
    if is_weights(path) and kind in ("file", "link"):
        return True
    return kind in ("directory", "link") and host.find(f"{path}/{STAMP_NAME}") is not None


def _folders(host: Host, start: str) -> Iterator[str]:
    try:
        names = host.listing(start)
    except OSError:
        return
    yield from (f"{start}/{name}" for name, kind in names if kind == "directory" and name[0] not in "._")


def open_bundle(path: str) -> OpenBundle:
    """Reads a bundle from this machine's disk. Raises `InputError` (`BundleError` for what cannot be believed)."""
    try:
        with open(path, "rb") as stream:
            record, manifest = bundle.load(path, stream)
    except FileNotFoundError as error:
        raise InputError(f"there is no bundle {path}", "`envguard collect -o FILE` gathers one") from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}", "`--bundle` takes a file of `collect`"
        ) from error
    try:
        request = msgspec.json.decode(manifest.about.get("request", ""), type=Request)
    except msgspec.MsgspecError as error:
        raise BundleError(f"{path} does not say what it was gathered for: {error}") from error
    return OpenBundle(BundleHost(record, path), request, manifest, path)

"""From a REF to what is to be had: a stamp, a fingerprint file, a lock file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from envguard.acquire.checkpoints import find_checkpoints
from envguard.acquire.host import Host
from envguard.errors import InputError
from envguard.model.fingerprint import Fingerprint
from envguard.project import Project
from envguard.restore.wanted import Target, from_fingerprint


def find_target(host: Host, project: Project, roots: tuple[Path, ...], reference: str) -> Target:
    """Resolves a REF. Raises `InputError` where it names nothing."""
    path = reference
    checkpoints = find_checkpoints(host, tuple(str(root) for root in roots))
    named = [
        item for item in checkpoints.found if item.name == reference or item.path == str(Path(reference).absolute())
    ]
    if named:
        if named[0].stamp_path is None:
            raise InputError(f"{reference} has no stamp")
        path = named[0].stamp_path
    try:
        taken = msgspec.json.decode(host.read(str(Path(path).absolute())), type=Fingerprint)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{reference}: {error}") from error
    return from_fingerprint(reference, taken)

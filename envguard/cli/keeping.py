"""What `snapshot --keep` and `snapshot --lock` add to a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envguard.cli.options import Session
from envguard.errors import InputError
from envguard.fingerprint.units import counted

if TYPE_CHECKING:
    from envguard.model.fingerprint import Fingerprint
    from envguard.report.screen import Screen


def keep_builds(session: Session, taken: Fingerprint, screen: Screen) -> None:
    """Puts the installed builds and the compile caches into the vault. Raises `InputError`."""
    from envguard.acquire.packages.environment import locate
    from envguard.acquire.seam.host import LiveHost
    from envguard.report.restore import progress_bar
    from envguard.restore.keeping import keep_live

    host = LiveHost()
    env = locate(host, session.python, str(session.start))
    try:
        with progress_bar(screen.err, not screen.quiet and not screen.json) as bar:
            kept = keep_live(host, session.project, env, taken, bar)
    except OSError as error:
        where = error.filename or session.project.state
        raise InputError(
            f"the vault cannot be written: {where}: {error.strerror or error}",
            "`state` in envguard.toml names another folder",
        ) from error
    screen.say(f"kept {counted(len(kept.wheels), 'wheel')} in the vault; {len(kept.known)} there already")
    for says in kept.caches:
        screen.say(says)
    for note in kept.notes:
        screen.warn(note)


def write_lock(session: Session, path: str, taken: Fingerprint, screen: Screen) -> None:
    """Writes the lock of the installed builds. Raises `InputError`, `UsageError` and `NotDetermined`."""
    import os

    from envguard.acquire.packages.environment import locate
    from envguard.acquire.packages.uv_cache import read_caches
    from envguard.acquire.packages.uv_cache_places import cache_directories
    from envguard.acquire.packages.uv_indexes import configured_indexes
    from envguard.acquire.seam.host import LiveHost
    from envguard.restore.fetching import index_urls
    from envguard.restore.locking import local_wheels, lock_text
    from envguard.state.files import write_atomically

    host = LiveHost()
    env = locate(host, session.python, str(session.start))
    caches = read_caches(host, cache_directories(host, env, session.project.config))
    indexes = index_urls(None, os.environ, configured_indexes(host))
    wheels = local_wheels(host, session.project, taken, os.path.dirname(os.path.abspath(session.start / path)))
    text = lock_text(path, taken, caches, indexes, wheels)
    try:
        write_atomically(session.start / path, text.encode())
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}", "`--lock` names a file in a folder that is there"
        ) from error
    folders = text.count("\n[packages.directory]")
    by_path = f"; {counted(folders, 'package')} by the path of a source folder, without a hash" if folders else ""
    screen.say(f"wrote {path}: {counted(len(taken.packages) - folders, 'package')} by hash{by_path}")

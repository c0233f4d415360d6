"""What the readers are about to ask of a far machine, asked in a few trips instead of thousands.

Nothing here decides anything: a question that is missing costs its reader one trip, one too many costs its bytes.
"""

from __future__ import annotations

from typing import Any

from envguard.acquire.packages import environment
from envguard.acquire.packages.archive_uses import sample_names
from envguard.acquire.packages.cached_archives import archive_folders
from envguard.acquire.packages.metadata import MAX_METADATA
from envguard.acquire.packages.record_file import parse_record
from envguard.acquire.packages.uv_cache_places import cache_directories
from envguard.acquire.seam.remote import RemoteHost
from envguard.acquire.survey import Request
from envguard.errors import InputError

Question = tuple[str, tuple[Any, ...]]
METADATA = (("METADATA", MAX_METADATA), ("RECORD", None), ("INSTALLER", 1 << 20), ("direct_url.json", 1 << 20))
SKIP = ("__pycache__",)


def ask_ahead(host: RemoteHost, request: Request) -> None:
    """Walks site-packages once, and reads the metadata of every distribution and of every cached archive."""
    try:
        env = environment.locate(host, request.python, request.start)
    except InputError:
        return  # the survey meets the same error and reports it
    for site in env.site:
        host.know_tree(site, SKIP)
        names = _listing(host, site)
        folders = [f"{site}/{name}" for name in names if name.endswith(".dist-info")]
        host.prefetch([("read", (f"{folder}/{name}", limit, 0)) for folder in folders for name, limit in METADATA])
    for cache in cache_directories(host, env, request.config):
        _cache(host, cache)


def _listing(host: RemoteHost, path: str) -> list[str]:
    try:
        return [name for name, _ in host.listing(path)]
    except OSError:
        return []  # whoever reads it reports it


def _cache(host: RemoteHost, cache: str) -> None:
    archives = list(archive_folders(host, (cache,)))
    questions: list[Question] = [("listing", (path,)) for path in archives]
    host.prefetch([*questions, *(("stat", (path,)) for path in archives)])
    found = [(path, name) for path in archives for name in _listing(host, path) if name.endswith(".dist-info")]
    questions = [("read", (f"{path}/{name}/RECORD", None, 0)) for path, name in found]
    questions += [("read", (f"{path}/{name}/WHEEL", 1 << 16, 0)) for path, name in found]
    host.prefetch([*questions, *(("stat", (f"{path}/{name}/RECORD",)) for path, name in found)])
    questions = []
    for path, name in found:
        try:
            rows = parse_record(host.read(f"{path}/{name}/RECORD")).rows
        except OSError:
            continue
        questions += [("stat", (f"{path}/{sample}",)) for sample in sample_names(rows, name)]
    host.prefetch(questions)

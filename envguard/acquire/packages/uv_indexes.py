"""The package indexes that uv's configuration names."""

from __future__ import annotations

from collections.abc import Iterator

from envguard.acquire.packages.uv_cache_places import settings
from envguard.acquire.seam.host import Host


def configured_indexes(host: Host) -> tuple[tuple[str | None, str], ...]:
    """(name, URL) of each index, the nearest configuration first; the name is None where it has none."""
    found: dict[tuple[str | None, str], None] = {}
    for _, table in settings(host):
        pip = table.get("pip")
        for each in (table, pip if isinstance(pip, dict) else {}):
            for entry in _entries(each):
                found[entry] = None
    return tuple(found)


def _entries(table: dict[str, object]) -> Iterator[tuple[str | None, str]]:
    indexes = table.get("index")
    for each in indexes if isinstance(indexes, list) else ():
        if isinstance(each, dict) and isinstance(each.get("url"), str):
            name = each.get("name")
            yield (name if isinstance(name, str) else None), each["url"]
    more = table.get("extra-index-url")
    for url in [table.get("index-url"), *(more if isinstance(more, list) else [])]:
        if isinstance(url, str):
            yield None, url

"""Editable installs whose source is not there any more."""

from __future__ import annotations

from collections.abc import Iterable

from envguard.acquire.packages.distributions import Distribution


def source_gone(dist: Distribution) -> bool:
    """Whether the source that an editable install points to is not there any more: whatever imports it fails. One
    that cannot be seen is not said to be gone."""
    if dist.editable is None or dist.host is None:
        return False
    try:
        return dist.host.find(dist.editable) is None
    except OSError:
        return False


def gone_sources(dists: Iterable[Distribution]) -> tuple[tuple[str, str], ...]:
    """(package, path) of the editable installs whose source is gone."""
    return tuple((dist.name, dist.editable) for dist in dists if dist.editable is not None and source_gone(dist))

"""Every path in a folder of packages with its stat, walked once for all who ask."""

from __future__ import annotations

from collections.abc import Mapping

from envguard.acquire.seam.host import Host, Stat
from envguard.model.evidence import Unknown


class SiteTrees:
    """The walks of site-packages folders, `__pycache__` not entered; one that cannot be walked is empty and noted."""

    def __init__(self, host: Host, unknown: list[Unknown]) -> None:
        self._host = host
        self._unknown = unknown
        self._walked: dict[str, Mapping[str, Stat]] = {}
        self._held: dict[str, Mapping[str, list[str]]] = {}

    def of(self, location: str) -> Mapping[str, Stat]:
        """Path relative to `location` → the stat of the path itself."""
        if location not in self._walked:
            try:
                self._walked[location] = dict(self._host.walk(location, skip=("__pycache__",)).entries)
            except OSError as error:
                self._unknown.append(Unknown.refused(f"edits in {location}", error))
                self._walked[location] = {}
        return self._walked[location]

    def held(self, location: str) -> Mapping[str, list[str]]:
        """Folder relative to `location` ("" for itself) → the paths directly in it."""
        if location not in self._held:
            held: dict[str, list[str]] = {}
            for path in self.of(location):
                held.setdefault(path.rpartition("/")[0], []).append(path)
            self._held[location] = held
        return self._held[location]

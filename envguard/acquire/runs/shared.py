"""Fingerprints of one environment over time list the same packages again and again; kept once, a history of thousands
takes the memory of a few."""

from __future__ import annotations

import msgspec

from envguard.model.fingerprint import Fingerprint, Package


class SharedPackages:
    """Makes equal packages one object, and equal lists of them one tuple."""

    def __init__(self) -> None:
        self._each: dict[Package, Package] = {}
        self._lists: dict[tuple[int, ...], tuple[Package, ...]] = {}

    def of(self, taken: Fingerprint) -> Fingerprint:
        """The fingerprint with the packages that are known already."""
        packages = tuple(self._each.setdefault(package, package) for package in taken.packages)
        whole = self._lists.setdefault(tuple(map(id, packages)), packages)
        return msgspec.structs.replace(taken, packages=whole)

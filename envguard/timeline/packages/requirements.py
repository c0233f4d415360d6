"""Requirement edges between installed distributions: who asks for whom, and what a version has to be.

packaging decides specifiers and markers; a line that it cannot parse asks for nothing and is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.markers import InvalidMarker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Parsed
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envguard.acquire.packages.installs import Install
from envguard.model.event import Requirement
from envguard.model.evidence import Unknown


@dataclass(frozen=True)
class Edge:
    """`requirer` asks for `target`; `line` is the Requires-Dist line as it stands."""

    requirer: str
    requirer_version: str
    target: str
    line: str
    parsed: Parsed
    by_extra: bool
    """The line only counts under an extra of the requirer."""

    def admits(self, version: str | None) -> bool | None:
        """Whether that version meets the line; None for what is no version (`4.0.0-unsupported`)."""
        try:
            return self.parsed.specifier.contains(Version(version or ""), prereleases=True)
        except InvalidVersion:
            return None

    def as_model(self) -> Requirement:
        return Requirement(package=self.requirer, version=self.requirer_version, requires=self.line)


@dataclass
class Graph:
    """Edges by target and by requirer, and the lines that could not be read."""

    to: dict[str, list[Edge]] = field(default_factory=dict)
    of: dict[str, list[Edge]] = field(default_factory=dict)
    unknown: list[Unknown] = field(default_factory=list)

    def closure(self, names: Iterable[str]) -> set[str]:
        """`names` and everything that they ask for, through and through."""
        seen: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                stack.extend(edge.target for edge in self.of.get(name, ()))
        return seen


def build_graph(installs: Iterable[Install], markers: Mapping[str, str]) -> Graph:
    """All edges whose marker holds in the environment; `markers` are PEP 508's variables of its interpreter.

    A line under an extra is kept where its marker holds for some extra that the requirer's lines name: which extras
    were asked for is written nowhere, so such an edge may join a transaction and says that it is by an extra.
    """
    graph = Graph()
    for install in installs:
        for line in install.requires:
            edge = _edge(install, line, markers, graph.unknown)
            if edge is not None and edge.target != install.name:
                graph.to.setdefault(edge.target, []).append(edge)
                graph.of.setdefault(install.name, []).append(edge)
    return graph


def _edge(install: Install, line: str, markers: Mapping[str, str], unknown: list[Unknown]) -> Edge | None:
    try:
        parsed = Parsed(line)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        unknown.append(Unknown(f"requirement of {install.name}: {line!r}", f"not a requirement: {reason}", "aside"))
        return None
    by_extra = False
    if parsed.marker is not None:
        try:
            if not parsed.marker.evaluate({**markers, "extra": ""}):
                by_extra = any(
                    parsed.marker.evaluate({**markers, "extra": extra}) for extra in _extras(str(parsed.marker))
                )
                if not by_extra:
                    return None
        except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName) as error:
            unknown.append(
                Unknown(f"requirement of {install.name}: {line!r}", f"its marker cannot be judged: {error}", "aside")
            )
            return None
    return Edge(install.name, install.version or "", canonicalize_name(parsed.name), line, parsed, by_extra)


def _extras(marker: str) -> list[str]:
    """The extras that a marker names: the quoted word on the other side of `extra`."""
    words = marker.replace("(", " ").replace(")", " ").split()
    found = []
    for index, word in enumerate(words):
        if word == "extra" and index + 2 < len(words):
            found.append(words[index + 2].strip("\"'"))
        elif word == "extra" and index >= 2:
            found.append(words[index - 2].strip("\"'"))
    return found

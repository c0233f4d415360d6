"""What restore cannot bring back, as sentences with commands: code, driver, data, configuration, variables. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator

from envguard.fingerprint.diff import compare
from envguard.fingerprint.rules import STARTUP_CODE
from envguard.model.drift import Drift
from envguard.model.fingerprint import Code, Fingerprint

# Packages are what restore is for; these facets are about the rest of the machine.
FACETS = ("python", "driver", "gpu", "code", "config", "data", "env", "system")


OF_NO_BUILD = frozenset({*(f"problem:{kind}" for kind in STARTUP_CODE), "startup", "shadowed", "hooks"})
"""Kinds of drift in packages that go away with no build: start-up code of no package, and what came beside one."""


def said_for_hand(stamped: Fingerprint, live: Fingerprint, changed: Collection[str] = ()) -> list[str]:
    """Everything above info that differs from the stamp and that no build of a package mends, code first. `changed`
    are the packages that the restore takes away or exchanges."""
    out = list(_code(stamped.code or (), live.code or ()))
    for drift in compare(stamped, live).drifts:
        if drift.facet in FACETS and drift.severity != "info" and drift.facet != "code":
            out.append(_sentence(drift))
        elif drift.kind in OF_NO_BUILD and drift.severity != "info" and drift.subject not in changed:
            out.append(f"not restored: {drift.facet} {drift.subject}: {drift.why}")
    return out


def _code(stamped: tuple[Code, ...], live: tuple[Code, ...]) -> Iterator[str]:
    now = {tree.path: tree for tree in live}
    for then in stamped:
        tree, where = now.get(then.path), shlex.quote(then.path)
        if then.commit is not None and (tree is None or tree.commit != then.commit):
            at = (
                f"is at {tree.commit[:12]}"
                if tree is not None and tree.commit
                else "was not looked at: nothing that is installed leads there now"
                if tree is None
                else "is no git tree"
            )
            how = f"`git -C {where} checkout {then.commit}`"
            yield f"not restored: code {then.path} {at}; the reference ran {then.commit[:12]}: {how}"
        if then.dirty and (tree is None or tree.diff_digest != then.diff_digest):
            files = ", ".join(then.dirty_files[:4]) or "files that were not named"
            yield f"not restored: {then.path} had uncommitted edits ({files}), and no copy of them was kept"
        elif not then.dirty and tree is not None and tree.dirty:
            files = ", ".join(tree.dirty_files[:4])
            yield (
                f"not restored: {then.path} has uncommitted edits that the reference had not ({files}): "
                f"`git -C {where} diff`, and `git -C {where} stash` to put them aside"
            )


def _sentence(drift: Drift) -> str:
    says = f"not restored: {drift.facet} {drift.subject}: {drift.b or 'nothing'} here, {drift.a or 'nothing'} there"
    if drift.facet == "env" and drift.a is not None and drift.subject.isidentifier():
        return f"{says}: `export {drift.subject}={shlex.quote(drift.a)}`"
    return f"{says} ({drift.why})"

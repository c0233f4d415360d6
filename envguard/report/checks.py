"""The plain command with which a reader can check a piece of evidence by hand."""

from __future__ import annotations

import shlex

from envguard.model.evidence import Evidence

_STAT = {"mtime": "%y", "ctime": "%z, %h links", "btime": "%w"}


def check_command(evidence: Evidence) -> str:
    """One shell line that shows the fact; it only reads."""
    path = shlex.quote(evidence.path)
    if evidence.witness == "process":
        pid = evidence.path.split("/")[2]
        if evidence.field == "starttime":
            return f"ps -o lstart= -p {pid}"
        return f"grep -F {shlex.quote(evidence.field)} {path}"
    if evidence.field in _STAT:
        return f"stat -c '{_STAT[evidence.field]}' {path}"
    if evidence.field == "Version":
        return f"grep ^Version: {path}"
    return f"cat {path}"

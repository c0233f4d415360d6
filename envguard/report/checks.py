"""The plain command with which a reader can check a piece of evidence by hand; each only reads."""

from __future__ import annotations

import re
import shlex

from envguard.model.evidence import Evidence

_STAT = {"mtime": "%y", "ctime": "%z, %h links", "btime": "%w"}
_LINE = re.compile(r"line (\d+)")


def check_command(evidence: Evidence) -> str:
    """One shell line that shows the fact."""
    path, field = shlex.quote(evidence.path), evidence.field
    if evidence.witness == "process":
        return _of_process(evidence)
    if evidence.witness == "git":
        return _of_git(evidence)
    if field in _STAT:
        return f"stat -c '{_STAT[field]}' {path}"
    if field == "newest mtime":
        return f"find {path} -type f ! -name envguard.json -printf '%T+ %p\\n' | sort | tail -1"
    if field == "boot record":
        return "last -x reboot --time-format iso"
    if evidence.path == "/proc/stat":
        return "uptime -s"
    if field == "sha256":
        return f"sha256sum {path}"
    line = _LINE.match(field)
    if line is not None:
        return f"sed -n {line.group(1)}p {path}"
    if evidence.witness in ("apt", "dpkg"):
        sought = evidence.value.partition("T")[0] if evidence.witness == "apt" else field
        return f"zgrep -F {shlex.quote(sought)} {path}"
    if field == "source mtime in its header":
        return f"date --iso-8601=seconds -d @$(od -An -tu4 -j8 -N4 {path} | tr -d ' ')"
    if field == "Version":
        return f"grep ^Version: {path}"
    if evidence.witness == "lock-file":
        return f"grep -n -A2 -F {shlex.quote(field)} {path}"
    if field.startswith("writer tag"):
        tag = field.removeprefix("writer tag ").rstrip("…")
        return f"grep -rlaF {shlex.quote('[' + tag)} {path}"
    return f"cat {path}"


def _of_process(evidence: Evidence) -> str:
    pid = evidence.path.split("/")[2] if evidence.path.startswith("/proc/") else evidence.path
    if evidence.field == "starttime":
        return f"ps -o lstart= -p {shlex.quote(pid)}"
    return f"grep -F {shlex.quote(evidence.field)} {shlex.quote(evidence.path)}"


def _of_git(evidence: Evidence) -> str:
    git = f"git -C {shlex.quote(evidence.path)}"
    what, _, rest = evidence.field.partition(" ")
    if what == "status":
        return f"{git} --no-optional-locks status --short -- {shlex.quote(rest)}"
    if what == "diff":
        return f"{git} --no-optional-locks diff HEAD -- {shlex.quote(rest)}"
    if what == "reflog":
        return f"{git} reflog --date=iso"
    return f"{git} log -1 --format=%cI {shlex.quote(evidence.field.rpartition(' ')[2])}"

"""Code that every start of this Python runs, and paths that it adds, which no package answers for."""

from __future__ import annotations

import hashlib
import posixpath
import time
from collections.abc import Iterable, Mapping
from functools import partial

from envguard.acquire.memo import Memo, remembered
from envguard.acquire.packages.contents import Contents
from envguard.acquire.packages.distributions import Distribution, Distributions
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.startup_files import is_strange, read_customizers
from envguard.acquire.packages.sys_path import PthLine
from envguard.acquire.seam.collector.redaction import redact
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
from envguard.fingerprint.rules import PTH_LEAVES
from envguard.model.plain import printable
from envguard.state.digests import is_racy

# Some code in a .pth is a program of its own; a person wants to see how it begins.
_SHOWN = 80
_MOST_READ = 4096


def startup_owners(
    host: Host,
    env: Environment,
    distributions: Distributions,
    contents: Mapping[str, Contents],
    notes: Notes,
    memo: Memo,
) -> dict[str, str]:
    """File that has a say in every start → the directory of the distribution whose RECORD lists it; of no package,
    it is not there."""
    files = {line.file for line in env.pth if is_strange(line)}
    files |= {item.path for item in read_customizers(host, env, notes)}
    return _listed(files, distributions, contents, memo)


def judge_pth(lines: Iterable[PthLine], owners: Mapping[str, str], notes: Notes) -> None:
    """Start-up code and paths out of the environment that no package answers for."""
    for line in lines:
        if not is_strange(line) or line.file in owners:
            continue
        name = posixpath.basename(line.file)
        if line.kind == "code":
            code = _shown(line.text)
            says = f"line {line.number} is code that every start of this Python runs, of no package: {code}"
            notes.problem("pth-code", name, says, line.file)
        else:
            says = f"line {line.number} adds {line.path}, outside the environment, and is of no package"
            notes.problem(PTH_LEAVES, name, says, line.file)


def judge_customizers(host: Host, env: Environment, owners: Mapping[str, str], notes: Notes) -> None:
    """`sitecustomize` and its like, which every start imports, where no package answers for them."""
    found = {item.path: item for item in read_customizers(host, env, Notes())}
    for path in sorted(found.keys() - owners.keys()):
        try:
            digest = host.digest(path)
        except OSError as error:
            notes.unseen(f"start-up code {path}", error)
            continue
        says = f"{path} is code that every start of this Python runs, of no package (sha256 {digest[:12]})"
        notes.problem("startup-code", found[path].name, says, path)


def _shown(code: str) -> str:
    """How a line of code begins, without secrets and control characters: it goes onto screens and into stamps. What
    is cut off is told by a digest, so that another end is another line."""
    safe = printable(redact(code[:_MOST_READ]))
    if len(safe) <= _SHOWN:
        return safe
    whole = hashlib.sha256(redact(code).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{safe[:_SHOWN]}… (sha256 {whole[:12]})"


def _listed(
    files: set[str], distributions: Distributions, contents: Mapping[str, Contents], memo: Memo
) -> dict[str, str]:
    """Those of `files` that a RECORD lists, each with the directory of that distribution."""
    owned: dict[str, str] = {}
    for file in sorted(files):
        folder, name = posixpath.split(file.removesuffix("/__init__.py"))
        here = [dist for dist in distributions.found if dist.location == folder and not dist.is_egg]
        ask = partial(_owner, file[len(folder) + 1 :], name, here)
        mark = mark_of_records(here, contents)
        owner = ask() if mark is None else remembered(memo, f"owner of {file}", mark, ask)
        if owner:
            owned[file] = owner
    return owned


def mark_of_records(dists: Iterable[Distribution], contents: Mapping[str, Contents]) -> str | None:
    """What stays the same while every RECORD does; None where one may still move, or could not be seen."""
    hasher, now = hashlib.sha256(), time.time_ns()
    for dist in dists:
        key = contents[dist.directory].record_key if dist.directory in contents else None
        if key is not None and (key[0] < 0 or is_racy(key, now)):
            return None
        hasher.update(f"{dist.directory}\0{key}\n".encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()


def _owner(path: str, name: str, here: Iterable[Distribution]) -> str:
    """The directory of the distribution whose RECORD lists a file; empty where none does.

    Likely owners, by the `name` of the file or its folder, are asked first: reading every RECORD takes time.
    """
    hint = name.removesuffix(".pth").lstrip("_").replace("-", "_").lower()
    ordered = sorted(here, key=lambda dist: dist.name.replace("-", "_") not in hint)
    return next((dist.directory for dist in ordered if dist.lists(path)), "")

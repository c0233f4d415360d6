"""Distributions and their contents → the packages of a fingerprint, and what is wrong with them. Pure."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Mapping

import msgspec

from envguard import clock
from envguard.acquire.memo import Memo, remembered
from envguard.acquire.packages.contents import MISSING, Contents, dangling
from envguard.acquire.packages.cut_short import is_hollow, never_ended
from envguard.acquire.packages.distributions import Distribution, Distributions, managed_by
from envguard.acquire.packages.editable_sources import source_gone
from envguard.acquire.packages.owners import overwriters
from envguard.acquire.section import Notes
from envguard.fingerprint.startup import mark_of_records
from envguard.fingerprint.units import some_of
from envguard.model import plain
from envguard.model.fingerprint import Code, Cuda, Package, Shadowed, Torch


def packages_of(
    distributions: Distributions,
    contents: Mapping[str, Contents],
    notes: Notes,
    sources: Mapping[str, str] | None = None,
    memo: Memo | None = None,
) -> tuple[tuple[Package, ...], tuple[Shadowed, ...]]:
    """One package a name, by name: the one that import picks; and every distribution that loses to it. `sources` are
    the digests of what no RECORD describes, by directory."""
    duplicates = distributions.duplicates()
    picked: dict[str, Distribution] = {}
    shadowed: list[Shadowed] = []
    for dist in distributions.found:
        picked.setdefault(dist.name, dist)
    for name, claimants in sorted(duplicates.items()):
        picked[name] = pick(claimants, contents, notes)
        shadowed += (
            Shadowed(name=name, wins=picked[name].directory, loses=each.directory)
            for each in claimants
            if each is not picked[name]
        )
    found = []
    for _, dist in sorted(picked.items()):
        content = contents.get(dist.directory, Contents(None))
        owners = () if managed_by(dist) else _overwritten(dist, contents, distributions, memo)
        _judge(dist, content, owners, notes)
        package = package_of(dist, content)
        found.append(msgspec.structs.replace(package, source=(sources or {}).get(dist.directory), overwritten=owners))
    judge_asides(distributions, notes)
    return tuple(found), tuple(shadowed)


def _overwritten(
    dist: Distribution, contents: Mapping[str, Contents], distributions: Distributions, memo: Memo | None
) -> tuple[tuple[str, str], ...]:
    """(path, package) of each file over which another package installed its own; asked again only where a RECORD, or
    what departs from this one, has changed."""
    departs = {
        path: got for path, got in contents.get(dist.directory, Contents(None)).departs.items() if got != MISSING
    }
    if not departs:
        return ()

    def ask() -> str:
        found = overwriters(dist.host, dist, departs, distributions).items()
        return plain.encode(sorted((path, other.name) for path, other in found)).decode()

    records = mark_of_records([each for each in distributions.found if each.location == dist.location], contents)
    if records is None or memo is None:
        text = ask()
    else:
        mark = hashlib.sha256(plain.encode((records, sorted(departs.items())))).hexdigest()
        text = remembered(memo, f"owners of {dist.directory}", mark, ask)
    return tuple(msgspec.json.decode(text, type=list[tuple[str, str]]))


def pick(claimants: tuple[Distribution, ...], contents: Mapping[str, Contents], notes: Notes) -> Distribution:
    """Which of several distributions of one name is the one that an import gets.

    The folder that comes first on the path wins. In one folder there is one set of files and several descriptions of
    it: the one whose RECORD matches what lies there is true, whichever `importlib.metadata` names.
    """
    named = claimants[0]
    rivals = tuple(each for each in claimants if each.location == named.location)
    if len(rivals) == 1:
        return named
    if all(managed_by(each) for each in rivals):
        return named
    matching = [each for each in rivals if _matches(contents.get(each.directory))]
    true = matching[0] if matching else named
    others = ", ".join(posixpath.basename(each.directory) for each in rivals if each is not true)
    if named in matching:
        verdict = "its RECORD matches the files, and importlib.metadata names it"
    elif matching:
        wrong = named.version or "nothing"
        verdict = f"its RECORD matches the files, but importlib.metadata names {wrong}"
    else:
        verdict = "importlib.metadata names it, and no RECORD of them matches the files"
    says = (
        f"described twice: {posixpath.basename(true.directory)} beside {others}; of the first, {verdict}; "
        f"reinstall {true.name} to have one (deleting a dist-info by hand leaves its files)"
    )
    notes.problem("duplicate-metadata", true.name, says, true.directory)
    return true


def _matches(content: Contents | None) -> bool:
    return content is not None and content.identity is not None and not content.departs and not content.unread


def closely(distributions: Distributions) -> frozenset[str]:
    """Distributions whose files must be hashed to tell which of two descriptions is true."""
    return frozenset(
        each.directory
        for claimants in distributions.duplicates().values()
        for each in claimants
        if sum(other.location == each.location for other in claimants) > 1
    )


def package_of(dist: Distribution, content: Contents) -> Package:
    """A distribution with what its files are."""
    url = dist.direct_url
    return Package(
        name=dist.name,
        version=dist.version,
        build=content.build,
        record=content.identity if content.departs else None,
        installer=dist.installer,
        location=dist.location,
        editable=dist.editable,
        direct_url=url.url if url is not None else None,
        commit=url.commit if url is not None else None,
        requires=dist.requires,
        requires_python=dist.requires_python,
        departs=tuple(sorted(content.departs)),
        unread=tuple(sorted(content.unread)),
        files=content.files,
        bytes=content.bytes,
        depth=content.depth,
        installed_at=clock.iso_ns(content.installed_ns) if content.installed_ns else None,
        missing=tuple(sorted(path for path, got in content.departs.items() if got == MISSING)),
    )


def with_sources(packages: Iterable[Package], trees: Iterable[Code]) -> tuple[Package, ...]:
    """Editable packages with the commit of the git tree that their source lies in, and whether it is edited."""
    trees = tuple(trees)
    found = []
    for package in packages:
        source = package.editable
        within = [
            tree for tree in trees if source is not None and f"{source}/".startswith(f"{tree.path.rstrip('/')}/")
        ]
        if within:
            tree = max(within, key=lambda tree: len(tree.path))
            package = msgspec.structs.replace(package, commit=tree.commit, dirty=tree.dirty)
        found.append(package)
    return tuple(found)


def judge_asides(distributions: Distributions, notes: Notes) -> None:
    """Versions that pip put aside and never took away: what the package is now, half installed or whole again."""
    for aside in distributions.aside:
        label = f"{aside.name} {aside.version or ''}".strip()
        moved = f" at {clock.iso(aside.moved_ns / clock.NS, 0)}" if aside.moved_ns is not None else ""
        whole = next((each for each in distributions.beside(aside) if not never_ended(each)), None)
        if whole is None:
            says = (
                f"half installed: pip put {label} aside as {aside.folder}{moved}, and nothing whole has taken its "
                "place: an install or removal was cut short, or is at work"
            )
            notes.problem("interrupted-install", aside.name, says, aside.directory)
        else:
            says = (
                f"{', '.join(aside.names)} beside a whole {whole.version}: what pip left of {label} when it was cut "
                f"short{moved}; it takes room, and nothing imports it"
            )
            notes.problem("install-leftovers", aside.name, says, aside.directory)


def _judge(dist: Distribution, content: Contents, overwritten: tuple[tuple[str, str], ...], notes: Notes) -> None:
    if source_gone(dist):
        says = f"an editable install of {dist.editable}, which is not there: whatever imports it fails"
        notes.problem("source-gone", dist.name, says, dist.editable)
    if managed_by(dist) is not None:
        return  # strips, patches and moves files after RECORD was written, and verifies them by its own lists
    missing = sorted(path for path, got in content.departs.items() if got == MISSING)
    taken = dict(overwritten)
    edited = sorted(path for path, got in content.departs.items() if got != MISSING and path not in taken)
    if missing:
        of_all = f"{len(missing)} of its {content.files} files"
        says = f"installed, but {of_all} {_are(missing)} missing: {some_of(missing)}"
        if never_ended(dist):
            says = (
                f"half installed: {of_all} are not there ({some_of(missing)}), nor is INSTALLER, which is written "
                "last: the install was cut short, or is at work"
            )
        target = dangling(dist.host, f"{dist.location}/{missing[0]}")
        if target is not None:
            says = f"{of_all} {_are(missing)} links that lead nowhere: {missing[0]} to {target}"
        notes.problem("files-missing", dist.name, says, posixpath.join(dist.location, missing[0]))
    if taken:
        by = ", ".join(sorted(set(taken.values())))
        says = f"{by} installed its own files over {len(taken)} of its files: {some_of(list(taken))}"
        notes.problem("files-overwritten", dist.name, says, posixpath.join(dist.location, overwritten[0][0]))
    if edited:
        says = f"{len(edited)} of its files {_are(edited)} not what was installed: {some_of(edited)}"
        notes.problem("files-modified", dist.name, says, posixpath.join(dist.location, edited[0]))
    if content.identity is None and content.record_key is None and not dist.is_egg:
        says = "there is no RECORD: which files belong to it, and whether they are sound, cannot be told"
        if is_hollow(dist):
            says = (
                "its dist-info holds neither METADATA nor RECORD: an install or removal was cut short, or is at "
                "work, and which files belong to it cannot be told"
            )
        notes.problem("record-missing", dist.name, says, f"{dist.directory}/RECORD")


def _are(paths: list[str]) -> str:
    return "is" if len(paths) == 1 else "are"


def cuda_of(torch: Torch | None, packages: Iterable[Package]) -> Cuda | None:
    """What torch was built for, and the nvidia-* packages that it runs on; None where there is neither."""
    runtime = {each.name: each.version or "" for each in packages if each.name.startswith("nvidia-")}
    runtime.pop("nvidia-ml-py", None)
    if (torch is None or torch.cuda is None) and not runtime:
        return None
    return Cuda(build=torch.cuda if torch is not None else None, packages=runtime)

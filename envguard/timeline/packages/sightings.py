"""Which version of a package was in the environment at some earlier time, by every witness that wrote it down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from envguard.acquire.packages.cut_short import CutShort
from envguard.acquire.packages.pip_logs import PipStep
from envguard.acquire.project.watched_files import Watched
from envguard.acquire.survey import Survey
from envguard.errors import InputError
from envguard.fingerprint.lock import parse_lock
from envguard.model.evidence import Evidence
from envguard.timeline.packages.conda_history import conda_sightings
from envguard.timeline.packages.previous import Sighting, by_name
from envguard.timeline.packages.records import Record
from envguard.timeline.packages.transactions import Version


class Sightings(Mapping[str, Sequence[Sighting]]):
    """What is known of each package, records first. A record's word on a package is made when that package is asked
    for: at once, the words of a thousand stamps on hundreds of packages are a gigabyte."""

    def __init__(self, records: Sequence[Record], others: Iterable[Sighting]) -> None:
        self._records = sorted(records, key=lambda record: record.proof.witness != "stamp")
        self._others = by_name(others)
        lists = {id(record.named): record.named.packages for record in records}
        self._names = dict.fromkeys([*(name for names in lists.values() for name in names), *self._others])

    def __getitem__(self, name: str) -> Sequence[Sighting]:
        if name not in self._names:
            raise KeyError(name)
        said = (record.sighting(name) for record in self._records if name in record.named.packages)
        return [*(item for item in said if item is not None), *self._others.get(name, ())]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_sightings(survey: Survey, records: Sequence[Record]) -> Sightings:
    """Everything that names a version with a time; what the uv cache knows comes with the install runs."""
    others = (
        *_leftovers(survey.cut_short),
        *_wandb(survey),
        *_written_by(survey),
        *pip_sightings(survey.pip_steps),
        *conda_sightings(survey.conda, survey.installs),
        *_log_fields(survey),
        *_locks(survey.locks),
        *_cache_tags(survey),
    )
    return Sightings(records, others)


def _leftovers(cut_short: Iterable[CutShort]) -> Iterable[Sighting]:
    """What pip put aside was there until then, and lies there still."""
    for cut in cut_short:
        aside = cut.aside
        if aside is not None and aside.version is not None:
            version = Version(aside.version, cut.going or aside.version)
            yield Sighting(
                aside.name,
                version,
                aside.moved_ns,
                "leftovers",
                cut.evidence,
                build=aside.build,
                archive=aside.directory,
                unpacked_ns=aside.installed_ns,
            )


def _wandb(survey: Survey) -> Iterable[Sighting]:
    for run in survey.wandb:
        # A run of another interpreter says nothing about this environment.
        if run.started is None or (run.executable and not run.executable.startswith(f"{survey.env.prefix}/")):
            continue
        for pin in run.pins:
            proof = Evidence(
                witness="wandb", path=run.requirements, field=f"line {pin.line}", value=f"{pin.name}=={pin.version}"
            )
            yield Sighting(pin.name, Version(pin.version, pin.version), run.started.start_ns, "wandb", (proof,))


def _written_by(survey: Survey) -> Iterable[Sighting]:
    for item in survey.written_by:
        proof = Evidence(witness="checkpoint", path=item.path, field=item.field, value=item.version)
        # config.json may have come with the base model, whoever saved that: a weak word on what runs here.
        yield Sighting(
            item.package, Version(item.version, item.version), item.saved_ns, "checkpoint", (proof,), best="weak"
        )


def pip_sightings(steps: Iterable[PipStep]) -> Iterable[Sighting]:
    """What a pip run met or removed was there until then; what it installed was there from then on."""
    for step in steps:
        proof = Evidence(
            witness="pip-log",
            path=step.path,
            field=f"line {step.line}",
            value=f"{step.what} {step.name} {step.version}",
        )
        time = step.time.start_ns if step.time is not None else None
        yield Sighting(step.name, Version(step.version, step.version), time, "pip-log", (proof,))


def _log_fields(survey: Survey) -> Iterable[Sighting]:
    for log in survey.train_logs:
        for held in log.held:
            if held.field != "torch" or not log.time_ns[held.row]:
                continue
            version = json.loads(held.value)
            if isinstance(version, str):
                field = f"line {log.line[held.row]}, {log.fields['torch']}"
                proof = Evidence(witness="train-log", path=log.path, field=field, value=version)
                yield Sighting("torch", Version(version, version), log.time_ns[held.row], "train-log", (proof,))


def _locks(locks: Iterable[Watched]) -> Iterable[Sighting]:
    for lock in locks:
        if lock.content is None:
            continue
        try:
            packages = parse_lock(lock.path, lock.content).packages
        except InputError:
            continue  # named as unreadable by whoever compares with it; here it merely knows nothing
        for item in packages:
            if item.version is not None:
                proof = Evidence(witness="lock-file", path=lock.path, field=item.name, value=item.version)
                yield Sighting(
                    item.name, Version(item.version, item.version), lock.newest_ns, "lock-file", (proof,), best="weak"
                )


def _cache_tags(survey: Survey) -> Iterable[Sighting]:
    """A compile cache's entries name the torch build that wrote them by a tag; an archive's tag tells which it is."""
    uses: Mapping[str, str] = survey.archive_tags
    by_tag = {tag: path for path, tag in uses.items()}
    for cache in survey.compile_caches:
        for tag, _, last in cache.tags:
            use = next((item for item in survey.archive_uses if item.archive.path == by_tag.get(tag)), None)
            if use is None:
                continue
            proof = Evidence(
                witness="compile-cache",
                path=cache.path,
                field=f"writer tag {tag[:12]}…",
                value=f"that of {use.archive.path}",
            )
            yield Sighting(
                name="torch",
                version=Version(use.archive.version, use.full_version),
                time_ns=last,
                source="compile-cache",
                evidence=(proof,),
                build=use.archive.build,
                cuda=use.version.cuda if use.version else None,
                git_version=use.version.git_version if use.version else None,
                archive=use.archive.path,
            )

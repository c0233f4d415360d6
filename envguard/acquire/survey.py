"""Every witness asked once: what `timeline` understands and what `collect` puts into a bundle.

The order does not matter to the answer; a witness that is missing or refuses is noted and never ends the survey.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from envguard.acquire.machine import boots, driver, package_logs
from envguard.acquire.machine.zone import Zone, read_zone
from envguard.acquire.packages import (
    conda,
    environment,
    installs,
    lost_files,
    pip_logs,
    pyc_files,
    startup_files,
    uv_cache,
)
from envguard.acquire.packages.archive_uses import ArchiveUse, read_archive_uses
from envguard.acquire.packages.cut_short import CutShort, read_cut_short
from envguard.acquire.packages.distributions import Distributions, read_distributions
from envguard.acquire.packages.editable_sources import gone_sources
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.installs import Install
from envguard.acquire.packages.site_trees import SiteTrees
from envguard.acquire.packages.uv_cache_places import cache_directories
from envguard.acquire.processes import live_processes
from envguard.acquire.processes.live_processes import EnvironmentProcess
from envguard.acquire.project import git_history, shell_history, watched_files
from envguard.acquire.runs import (
    checkpoint_metadata,
    log_files,
    own_records,
    run_logs,
    stamps,
    text_log,
    train_log,
    wandb_runs,
)
from envguard.acquire.runs.checkpoint_search import Checkpoints, find_checkpoints
from envguard.acquire.runs.elsewhere import other_environment
from envguard.acquire.runs.shared import SharedPackages
from envguard.acquire.seam.host import Host, Machine
from envguard.acquire.section import Notes, witness
from envguard.acquire.torch import compile_times
from envguard.acquire.torch.cache_evidence import with_evident_places
from envguard.acquire.torch.cache_places import cache_places
from envguard.config import Config
from envguard.model.action import Unavailable
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Driver
from envguard.model.run import RunRecord

Progress = Callable[[str], None]


def no_progress(step: str) -> None:
    """For those who do not want to hear of it."""


@dataclass(frozen=True)
class Request:
    """Whose past is asked for: paths as they are on the host (absolute)."""

    start: str
    python: str | None
    root: str | None
    state: str | None
    checkpoint_roots: tuple[str, ...]
    config: Config = field(default_factory=Config)
    own_pids: frozenset[int] = frozenset()
    named: tuple[str, ...] = ()
    """Checkpoints by their paths, wherever they lie."""
    journaled: bool = True
    """Stamps that the journal knows of are looked up, too: not where a person said where to look."""

    def path(self, name: str) -> str:
        """A configured path, taken from the project root."""
        return posixpath.normpath(posixpath.join(self.root or self.start, name))


@dataclass
class Survey:
    """What the witnesses said; a witness that was not there is in `unavailable`, with the reason."""

    machine: Machine
    env: Environment
    zone: Zone
    distributions: Distributions
    installs: tuple[Install, ...] = ()
    processes: tuple[EnvironmentProcess, ...] = ()
    archive_uses: tuple[ArchiveUse, ...] = ()
    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints((), (), (), ()))
    stamps: tuple[stamps.Stamp, ...] = ()
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Path of a stamp → the prefix that it is of, where that is another environment of this machine."""
    prefixes: frozenset[str] = frozenset()
    """The names of this environment: the prefix, and what stamps name that leads there by way of links."""
    made_ns: int | None = None
    """When pyvenv.cfg was written, with which a venv begins; None where there is none."""
    written_by: tuple[checkpoint_metadata.WrittenBy, ...] = ()
    train_logs: tuple[train_log.TrainLog, ...] = ()
    text_logs: tuple[text_log.TextLog, ...] = ()
    wandb: tuple[wandb_runs.WandbRun, ...] = ()
    git: tuple[git_history.GitHistory, ...] = ()
    pip_steps: tuple[pip_logs.PipStep, ...] = ()
    conda: tuple[conda.CondaStep, ...] = ()
    pycs: tuple[pyc_files.Compiled, ...] = ()
    compile_caches: tuple[compile_times.CacheTimes, ...] = ()
    archive_tags: dict[str, str] = field(default_factory=dict)
    """Path of a torch archive in the uv cache → the tag that this build leaves in compile-cache entries."""
    apt: tuple[package_logs.AptRun, ...] = ()
    dpkg: tuple[package_logs.DpkgChange, ...] = ()
    boots: boots.Boots = field(default_factory=lambda: boots.Boots((), ()))
    driver: Driver | None = None
    commands: tuple[shell_history.Command, ...] = ()
    journal: tuple[own_records.Entry, ...] = ()
    runs: tuple[tuple[str, RunRecord], ...] = ()
    locks: tuple[watched_files.Watched, ...] = ()
    data: tuple[watched_files.Watched, ...] = ()
    config: tuple[watched_files.Watched, ...] = ()
    edits: tuple[watched_files.Edited, ...] = ()
    startup_files: tuple[startup_files.StartupFile, ...] = ()
    lost: tuple[lost_files.Lost, ...] = ()
    cut_short: tuple[CutShort, ...] = ()
    gone_sources: tuple[tuple[str, str], ...] = ()
    """(package, path): editable installs whose source is not there."""
    busy: str | None = None
    """Who was changing the environment just then, or left it half changed: what is not there may be about to come."""
    site_changes: dict[str, int] = field(default_factory=dict)
    """Site-packages folder → its mtime in ns: its last change by a name that came or went."""
    unavailable: list[Unavailable] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)

    def lacks(self, witness: str, why: str) -> None:
        """Notes a witness that is not there."""
        self.unavailable.append(Unavailable(witness=witness, why=why))


def survey(host: Host, request: Request, progress: Progress = no_progress) -> Survey:
    """Asks every witness. Raises `InputError` where there is no environment to examine."""
    machine = host.machine()
    env = environment.locate(host, request.python, request.start)
    progress("installed distributions")
    seen = Survey(machine, env, read_zone(host, machine), read_distributions(host, env))
    seen.unknown += [*env.unknown, *seen.distributions.unknown]
    try:
        made = host.find(f"{env.prefix}/pyvenv.cfg")
    except OSError:  # whoever cannot see it is told so by what reads it
        made = None
    seen.made_ns = made.mtime_ns if made is not None else None
    seen.gone_sources = gone_sources(seen.distributions.found)
    dated = installs.read_installs(host, seen.distributions)
    seen.installs = dated.found
    seen.unknown += dated.unknown
    for name, ask in _WITNESSES:
        progress(name)
        # A reader names what it cannot see itself; what slips through must not cost the other witnesses.
        with witness(seen.unknown, name):
            ask(host, request, seen)
    seen.unknown = list(dict.fromkeys(seen.unknown))
    return seen


def _processes(host: Host, request: Request, seen: Survey) -> None:
    found = live_processes.read_processes(host, seen.env, request.own_pids)
    seen.processes = found.value
    seen.unknown += found.unknown


def _uv_cache(host: Host, request: Request, seen: Survey) -> None:
    caches = uv_cache.read_caches(host, cache_directories(host, seen.env, request.config, seen.unknown))
    if not caches.directories:
        seen.lacks("uv-cache", "there is none in the usual places, nor where UV_CACHE_DIR or `uv_caches` says")
    seen.archive_uses, unseen = read_archive_uses(host, caches, seen.processes, seen.env.site)
    seen.unknown += [*caches.unknown, *unseen]


def _checkpoints(host: Host, request: Request, seen: Survey) -> None:
    stamped = own_records.stamped_paths(host, request.state, seen.unknown) if request.journaled else ()
    seen.checkpoints = find_checkpoints(host, request.checkpoint_roots, request.named, stamped)
    seen.unknown += seen.checkpoints.unknown
    if not seen.checkpoints.roots:
        seen.lacks("checkpoint", "none of the places to look in exists")
    found, shared = [], SharedPackages()
    for checkpoint in seen.checkpoints.found:
        try:
            stamp = stamps.read_stamp(host, checkpoint)
        except OSError as error:
            seen.unknown.append(Unknown.refused(f"stamp of {checkpoint.name}", error))
            continue
        if stamp is not None:
            if stamp.fingerprint is not None:
                stamp = replace(stamp, fingerprint=shared.of(stamp.fingerprint))
            found.append(stamp)
            why = [stamp.why_not] if stamp.why_not is not None else stamp.notes
            seen.unknown += [Unknown(f"stamp of {checkpoint.name}", text, "aside") for text in why]
    seen.checkpoints = seen.checkpoints.with_times_of(stamp.checkpoint for stamp in found)
    # The order is the step's; what the times say against it is told, since every gap is counted from a time.
    seen.unknown += [Unknown(f"time of {name}", says, "aside") for name, says in seen.checkpoints.disorder_told()]
    seen.stamps = tuple(found)
    for stamp in found:
        other = other_environment(host, stamp.fingerprint, seen.env.prefix) if stamp.fingerprint is not None else None
        if other is not None:
            seen.elsewhere[stamp.path] = other
    seen.prefixes = frozenset(_names_of(host, seen.env.prefix, seen.stamps))
    seen.written_by = checkpoint_metadata.read_checkpoint_metadata(host, seen.checkpoints.found, seen.unknown)


def _names_of(host: Host, prefix: str, taken: Iterable[stamps.Stamp]) -> Iterator[str]:
    yield prefix
    real = host.realpath(prefix)
    for name in {stamp.fingerprint.python.environment for stamp in taken if stamp.fingerprint is not None}:
        with contextlib.suppress(OSError):
            if host.realpath(name) == real:
                yield name


def _logs(host: Host, request: Request, seen: Survey) -> None:
    runs = {checkpoint.run_directory for checkpoint in seen.checkpoints.found}
    places = [*seen.checkpoints.roots, *sorted(runs), request.root or request.start]
    named = [request.path(name) for name in request.config.logs]
    files, unseen = log_files.find_logs(host, places, named)
    seen.unknown += unseen
    read = run_logs.read_logs(host, files, request.config.log_fields, seen.zone)
    seen.train_logs, seen.text_logs = read.trained, read.texts
    seen.unknown += read.unknown
    if not read.trained:
        seen.lacks("train-log", "no log with steps and rates in the run directories; `logs = ` names others")


def _wandb(host: Host, request: Request, seen: Survey) -> None:
    runs = sorted({checkpoint.run_directory for checkpoint in seen.checkpoints.found})
    places = tuple(dict.fromkeys([request.root or request.start, *seen.checkpoints.roots, *runs]))
    seen.wandb, unseen = wandb_runs.read_wandb_runs(host, places, seen.zone)
    seen.unknown += unseen
    if not seen.wandb:
        seen.lacks("wandb", "no run directory of W&B in the project or beside the checkpoints")


def _git(host: Host, request: Request, seen: Survey) -> None:
    editable = [install.editable for install in seen.distributions.found if install.editable]
    places = [request.root or request.start, *(request.path(name) for name in request.config.code), *editable]
    found: dict[str, git_history.GitHistory] = {}
    for place in dict.fromkeys(places):
        history, unseen = git_history.read_git_history(host, place)
        seen.unknown += unseen
        if history is not None:
            found.setdefault(history.root, history)
    seen.git = tuple(found.values())
    if not found:
        seen.lacks("git", "the project is no git work tree")


def _installer_logs(host: Host, request: Request, seen: Survey) -> None:
    home = seen.machine.home
    places = tuple(dict.fromkeys([request.root or request.start, home, f"{home}/.pip", f"{home}/.local/state/pip"]))
    seen.pip_steps = pip_logs.read_pip_logs(host, places, host.environ().get("PIP_LOG"), seen.zone, seen.unknown)
    if not seen.pip_steps:
        seen.lacks("pip-log", "pip keeps a log only where --log or PIP_LOG asks for one, uv never")
    seen.conda = conda.read_history(host, seen.env.prefix, seen.zone, seen.unknown)
    if seen.env.kind == "conda" and not seen.conda:
        seen.lacks("conda", "there is no conda-meta/history, which pixi does not write, or it names no revision")
    version = (seen.env.version or "").split(".")
    tag = f"cpython-{version[0]}{version[1]}" if len(version) > 1 else None
    seen.pycs = pyc_files.read_pycs(host, seen.installs, tag) if tag else ()
    if not seen.pycs:
        seen.lacks("pyc", "no package has compiled files: none was imported, or bytecode is kept elsewhere")
    trees = SiteTrees(host, seen.unknown)
    notes = Notes()
    seen.startup_files = startup_files.read_startup_files(host, seen.env, seen.distributions, notes)
    seen.unknown += notes.unknown
    seen.site_changes = lost_files.site_changes(host, seen.env)
    seen.busy = lost_files.at_work(host, seen.env, request.state)
    cut = read_cut_short(host, seen.env, seen.distributions, trees, seen.unknown)
    if seen.busy is not None:
        seen.unknown += [
            Unknown(f"whether the install of {item.package} ended", seen.busy) for item in cut if item.mended is None
        ]
        cut = tuple(item for item in cut if item.mended is not None)
    seen.cut_short = cut
    seen.installs = tuple(installs.with_ends(seen.installs, cut))
    ended = tuple(install for install in seen.installs if install.cut_short is None)
    seen.edits = watched_files.read_edits(host, seen.distributions, ended, trees, seen.unknown)
    seen.lost = lost_files.read_lost(host, seen.distributions, trees, seen.busy, seen.unknown)


def _compile_caches(host: Host, request: Request, seen: Survey) -> None:
    environs = [process.environ for process in seen.processes]
    base, unseen = request.root or request.start, list[Unknown]()
    named = cache_places(host, request.config.compile_caches, environs, base, unseen)
    # A trainer may set its own place, and then only its stamps say where that was.
    taken = [stamp.fingerprint for stamp in seen.stamps if stamp.counts and stamp.fingerprint is not None]
    places = with_evident_places(host, named, seen.env.site, seen.env.abi or "", taken)
    seen.unknown += unseen
    # All of them, unlike in a fingerprint: whether a torch or triton that is gone by now used them is what is asked.
    seen.compile_caches = compile_times.read_cache_times(host, places, seen.unknown)
    if seen.env.version is not None and any(cache.tags for cache in seen.compile_caches):
        seen.archive_tags = compile_times.read_archive_tags(host, seen.archive_uses, seen.env.version, seen.unknown)
    if not any(cache.exists for cache in seen.compile_caches):
        seen.lacks("compile-cache", "none of " + ", ".join(cache.path for cache in seen.compile_caches) + " exists")


def _system(host: Host, request: Request, seen: Survey) -> None:
    apt = package_logs.read_apt(host, seen.zone, seen.unknown)
    dpkg = package_logs.read_dpkg(host, seen.zone, seen.unknown)
    if apt is None:
        seen.lacks("apt", "/var/log/apt is not there")
    if dpkg is None:
        seen.lacks("dpkg", "/var/log/dpkg.log is not there")
    seen.apt, seen.dpkg = apt or (), dpkg or ()
    seen.boots = boots.read_boots(host, seen.machine, seen.unknown)
    notes = Notes()
    # NVML is not asked: it answers of now, and here the loaded module and the installed library are what matters.
    seen.driver = driver.read_driver(host, {}, notes).driver
    seen.unknown += notes.unknown
    if seen.driver is None:
        seen.lacks("driver", "no trace of an NVIDIA driver")


def _person(host: Host, request: Request, seen: Survey) -> None:
    if request.config.shell_history:
        seen.commands = shell_history.read_shell_history(host, seen.machine, seen.unknown)
    else:
        seen.lacks("shell-history", "not asked for: `shell_history = true` opts in")
    seen.locks = watched_files.read_locks(host, request.root, seen.unknown)
    seen.data = watched_files.read_trees(host, [request.path(name) for name in request.config.data], seen.unknown)
    seen.config = watched_files.read_trees(host, [request.path(name) for name in request.config.config], seen.unknown)
    if not request.config.data:
        seen.lacks("data", "no data directories are configured (`data = `)")
    if not seen.locks:
        seen.lacks("lock-file", "no lock or requirements file in the project")


def _own(host: Host, request: Request, seen: Survey) -> None:
    journal = own_records.read_journal(host, request.state, seen.unknown)
    seen.journal = journal or ()
    seen.runs = own_records.read_run_records(host, request.state, seen.unknown)
    if journal is None:
        seen.lacks("journal", "envguard kept none here yet")


_WITNESSES: tuple[tuple[str, Callable[[Host, Request, Survey], None]], ...] = (
    ("running processes", _processes),
    ("uv cache", _uv_cache),
    ("checkpoints", _checkpoints),
    ("logs", _logs),
    ("W&B runs", _wandb),
    ("git", _git),
    ("installer logs and edits", _installer_logs),
    ("compile caches", _compile_caches),
    ("system", _system),
    ("locks, data, history", _person),
    ("journal", _own),
)

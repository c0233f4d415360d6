"""Everything of a fingerprint that is no package: torch, machine, compile caches, code, data, variables."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

import msgspec

from envguard.acquire.machine.gpu import read_gpus
from envguard.acquire.machine.system import read_system
from envguard.acquire.memo import Memo, remembered
from envguard.acquire.packages.distributions import Distributions
from envguard.acquire.packages.editable_sources import source_gone
from envguard.acquire.packages.environment import Environment
from envguard.acquire.processes import loading
from envguard.acquire.processes.live_processes import EnvironmentProcess, read_processes
from envguard.acquire.project.code import read_code
from envguard.acquire.project.filesets import read_filesets
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes, Section, T, reason
from envguard.acquire.torch.cache_evidence import with_evident_places
from envguard.acquire.torch.cache_places import Place, cache_places
from envguard.acquire.torch.compile_cache import DIGEST_LIMIT, Build, read_cache
from envguard.acquire.torch.torch_build import find_torch, read_pairs, read_torch
from envguard.acquire.torch.torch_key import cache_tag, read_torch_key
from envguard.config import Config
from envguard.fingerprint.pairs import check_driver, check_pairs
from envguard.fingerprint.variables import read_variables
from envguard.model import fingerprint as model
from envguard.state.digests import TORCH_OF

STAMP_BUDGET = 64 << 20
"""Bytes of a data set, and of a cache's compiled files, that a stamp hashes at most inside a training process;
`snapshot` hashes the rest."""


@dataclass(frozen=True)
class Wish:
    """What is asked for; paths are as they are on the host."""

    start: str
    root: str | None
    config: Config
    deep: bool = False
    probe: bool = False
    in_process: bool = False
    own_pids: frozenset[int] = frozenset()
    witnesses: tuple[model.Fingerprint, ...] = ()


@dataclass(frozen=True)
class Surroundings:
    """The sections by the fingerprint's own names; None where a section could not be read or was not asked for."""

    torch: model.Torch | None
    driver: model.Driver | None
    gpus: tuple[model.Gpu, ...] | None
    compile_cache: tuple[model.CompileCache, ...]
    code: tuple[model.Code, ...]
    config: tuple[model.FileSet, ...]
    data: tuple[model.FileSet, ...]
    env: model.Environment | None
    system: model.System
    processes: tuple[model.LiveProcess, ...] | None
    runtime: model.Runtime | None


def read_surroundings(
    host: Host, wish: Wish, env: Environment, dists: Distributions, torch_build: str | None, memo: Memo
) -> Section[Surroundings]:
    """Reads every section. `torch_build` is the build identity of the installed torch, None where it is not known."""
    notes = Notes()
    torch = _take(notes, read_torch(host, env, dists, memo))
    machine = _take(notes, read_gpus(host))
    processes = None if wish.in_process else _processes(host, wish, env, memo, notes)
    if torch is not None and torch.version is not None:
        notes.take(check_pairs(torch, read_pairs(host, torch, dists)), ())
        notes.take(check_driver(torch.cuda, machine.driver.cuda if machine.driver else None), ())
    environs = tuple(process.environ for process in processes or ())
    places = _places(host, wish, env, torch, machine.gpus, environs, notes)
    if torch is not None and (wish.deep or any(place.kind == "inductor" and there for place, there in places)):
        torch = _with_key(host, env, torch, torch_build, memo, notes)
    gpus, runtime = machine.gpus, None
    if wish.probe and torch is not None:
        gpus, runtime = _probed(host, env, torch, gpus, notes)
    budget = STAMP_BUDGET if wish.in_process else None
    base = wish.root or wish.start
    return notes.section(
        Surroundings(
            torch=torch,
            driver=machine.driver,
            gpus=gpus,
            compile_cache=_caches(host, wish, places, torch, gpus, memo, notes),
            code=_take(notes, read_code(host, _trees(wish, dists))),
            config=_take(
                notes, read_filesets(host, "config", wish.config.config, base, memo, deep=wish.deep, budget=budget)
            ),
            data=_take(
                notes, read_filesets(host, "data", wish.config.data, base, memo, deep=wish.deep, budget=budget)
            ),
            env=_take(notes, read_variables(host, loading.AT_IMPORT.started if wish.in_process else None)),
            system=_take(notes, read_system(host)),
            processes=None if processes is None else tuple(process.as_model() for process in processes),
            runtime=runtime,
        )
    )


def _take(notes: Notes, section: Section[T]) -> T:
    notes.take(section.problems, section.unknown)
    return section.value


def _processes(host: Host, wish: Wish, env: Environment, memo: Memo, notes: Notes) -> tuple[EnvironmentProcess, ...]:
    # The uv cache's reader needs msgpack, which a stamp inside a training process must do without.
    from envguard.acquire.packages.uv_cache_places import cache_directories

    caches = cache_directories(host, env, wish.config)
    found = _take(notes, read_processes(host, env, wish.own_pids, caches, _known_builds(memo)))
    notes.take([problem for process in found if (problem := process.as_problem()) is not None], ())
    return found


def _known_builds(memo: Memo) -> dict[str, str]:
    """Build-id of a torch library → full version, of every torch that an earlier snapshot read."""
    found: dict[str, str] = {}
    for question in [question for question in memo if question.startswith(TORCH_OF)]:
        try:
            torch = msgspec.json.decode(memo[question], type=model.Torch)
        except msgspec.MsgspecError:
            continue  # of another version of envguard
        if torch.version is not None:
            found.update((build_id, torch.version) for build_id in torch.libraries.values() if build_id is not None)
    return found


def _places(
    host: Host,
    wish: Wish,
    env: Environment,
    torch: model.Torch | None,
    gpus: tuple[model.Gpu, ...] | None,
    environs: tuple[dict[str, str], ...],
    notes: Notes,
) -> tuple[tuple[Place, bool], ...]:
    """Compile caches of this environment, and whether each is there. Without torch there is nothing to compile.

    inductor's place is named even where it is empty, since a cleared cache is a cold start; triton's own default is
    used by few, and named where both it and a triton are there. A process that stamps itself knows its own place;
    whoever asks from outside also looks where `launch` puts one, and where the witnesses had theirs.
    """
    if torch is None and not wish.config.compile_caches:
        return ()
    places = cache_places(host, wish.config.compile_caches, environs, wish.root or wish.start, notes.unknown)
    if torch is not None and not wish.in_process:
        places = with_evident_places(host, places, env.site, env.abi or "", wish.witnesses, gpus)
    found = []
    for place in places:
        try:
            there = host.find(place.path) is not None
        except OSError:
            there = True  # its reader says why it cannot be seen
        if (
            place.kind == "inductor"
            or not place.default
            or (there and torch is not None and torch.triton is not None)
        ):
            found.append((place, there))
    return tuple(found)


def _with_key(
    host: Host, env: Environment, torch: model.Torch, build: str | None, memo: Memo, notes: Notes
) -> model.Torch:
    """With `torch_key` and the cache tag, which cost a reading of torch's sources unless its build is known."""
    directory = find_torch(host, env, Notes())  # what stands in the way was noted when its version was read
    version, python = torch.version, env.version
    if directory is None or version is None or python is None:
        return torch
    minor = ".".join(python.split(".")[:2])
    try:
        if build is None:
            key = read_torch_key(host, directory, version, python)
        else:
            mark = f"{build}:{version}:{minor}"
            key = remembered(
                memo, f"torch_key {directory}", mark, lambda: read_torch_key(host, directory, version, python)
            )
    except OSError as error:
        notes.unseen("torch torch_key", reason(error))
        return torch
    return msgspec.structs.replace(torch, torch_key=key, cache_tag=cache_tag(key, python))


def _caches(
    host: Host,
    wish: Wish,
    places: tuple[tuple[Place, bool], ...],
    torch: model.Torch | None,
    gpus: tuple[model.Gpu, ...] | None,
    memo: Memo,
    notes: Notes,
) -> tuple[model.CompileCache, ...]:
    names = None if gpus is None else frozenset(gpu.name for gpu in gpus if gpu.name is not None)
    build = Build(
        tag=torch.cache_tag if torch is not None else None,
        tag_unknown="the cache tag of this torch could not be computed",
        triton=torch.triton if torch is not None else None,
        gpus=names,
    )
    budget = STAMP_BUDGET if wish.in_process else DIGEST_LIMIT
    return tuple(read_cache(host, place, build, memo, notes, wish.deep, budget) for place, _ in places)


def _trees(wish: Wish, dists: Distributions) -> tuple[str, ...]:
    """Configured code (by default the project's own tree) and the source of each editable install."""
    base = wish.root or wish.start
    named = [posixpath.normpath(posixpath.join(base, path)) for path in wish.config.code]
    if not named and wish.root is not None:
        named = [wish.root]
    # A source that is gone is known to be, and is a finding of its package.
    sources = [dist.editable for dist in dists.found if dist.editable is not None and not source_gone(dist)]
    return tuple(dict.fromkeys([*named, *sources]))


def _probed(
    host: Host, env: Environment, torch: model.Torch, gpus: tuple[model.Gpu, ...] | None, notes: Notes
) -> tuple[tuple[model.Gpu, ...] | None, model.Runtime | None]:
    """GPUs with the memory that an idle context takes, and what torch said when it was imported."""
    from envguard.acquire.machine.probe import run_probe

    if env.executable is None:
        notes.unseen("torch: run-time facts", "the environment has no interpreter to run")
        return gpus, None
    probe = _take(notes, run_probe(host, env.executable))
    runtime = probe.runtime
    if runtime.torch is not None and torch.version is not None and runtime.torch != torch.version:
        says = f"its files say {torch.version}, imported it says {runtime.torch}: another one comes first on the path"
        notes.problem("torch-import", "torch", says)
    if runtime.cuda_available is False and torch.cuda is not None and gpus:
        says = f"torch is built for CUDA {torch.cuda}, the driver shows {len(gpus)} GPUs, and torch cannot use them"
        notes.problem("cuda-unavailable", "torch", says)
    if gpus is None:
        return None, runtime
    measured = []
    for gpu in gpus:
        refused = {"context_bytes": probe.refused[gpu.index]} if gpu.index in probe.refused else {}
        context = probe.contexts.get(gpu.index)
        measured.append(msgspec.structs.replace(gpu, context_bytes=context, refused={**gpu.refused, **refused}))
    return tuple(measured), runtime

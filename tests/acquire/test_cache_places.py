"""Where compile caches lie: by the rules of inductor and triton, by the configuration, by what fingerprints name."""

from __future__ import annotations

from pathlib import Path

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.acquire.torch.cache_evidence import evident_places, with_evident_places
from envguard.acquire.torch.cache_places import cache_places, filled_launch_place, launch_place
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint, Gpu
from tests.acquire.made_up import MACHINE, MadeUp
from tests.fingerprint.made import SYSTEM, cache, fingerprint, gpu, replace
from tests.permissions import held_host, unreadable

HOST = LiveHost()


def test_where_caches_lie_by_default() -> None:
    found = cache_places(MadeUp(), ())
    assert [(place.kind, place.path, place.default) for place in found] == [
        ("inductor", "/tmp/torchinductor_ada", True),
        ("triton", "/home/ada/.triton/cache", True),
    ]


@pytest.mark.parametrize(
    ("environ", "paths"),
    [
        ({"TORCHINDUCTOR_CACHE_DIR": "/fast/c"}, ["/fast/c", "/home/ada/.triton/cache"]),
        ({"TORCHINDUCTOR_CACHE_DIR": "c/"}, ["/srv/c", "/home/ada/.triton/cache"]),
        ({"TRITON_CACHE_DIR": "/t"}, ["/tmp/torchinductor_ada", "/t"]),
        ({"TRITON_HOME": "/th"}, ["/tmp/torchinductor_ada", "/th/.triton/cache"]),
        ({"TMPDIR": "/scratch/"}, ["/scratch/torchinductor_ada", "/home/ada/.triton/cache"]),
        ({"LOGNAME": "a:b", "USER": "c"}, ["/tmp/torchinductor_a_b", "/home/ada/.triton/cache"]),
    ],
)
def test_variables_move_them(environ: dict[str, str], paths: list[str]) -> None:
    assert [place.path for place in cache_places(MadeUp(environ=environ), ())] == paths


def test_a_trainer_s_own_variables_come_first_and_configuration_adds() -> None:
    host = MadeUp({"/big/tri/" + "A" * 52 + "/k.json": b""})
    found = cache_places(host, ("/big/tri", "rel"), ({"TORCHINDUCTOR_CACHE_DIR": "/fast/c"},), "/project")
    assert [(place.kind, place.path) for place in found] == [
        ("inductor", "/fast/c"),
        ("triton", "/home/ada/.triton/cache"),
        ("inductor", "/tmp/torchinductor_ada"),
        ("triton", "/big/tri"),
        ("inductor", "/project/rel"),
    ]


def test_a_pattern_names_the_folders_that_fit_and_no_empty_cache_of_its_own(tmp_path: Path) -> None:
    for name in ("torch-1", "torch-2", ".torch-3.tmp", "run[1]"):
        (tmp_path / "inductor" / name / "fxgraph").mkdir(parents=True)
    (tmp_path / "inductor" / "notes.txt").write_text("x")

    def found(*configured: str) -> list[str]:
        places = cache_places(HOST, configured, (), str(tmp_path))
        return [place.path for place in places if place.how == "configuration"]

    assert found("inductor/*") == [f"{tmp_path}/inductor/{name}" for name in ("run[1]", "torch-1", "torch-2")]
    assert found(f"{tmp_path}/*/torch-?/", "inductor/torch-1") == [f"{tmp_path}/inductor/torch-{n}" for n in (1, 2)]
    assert found("inductor/cu*", "gone/*", "*/gone") == []
    assert found("gone") == [f"{tmp_path}/gone"], "a path without a mark is a place, there or not"
    assert found("inductor/run[1]") == [f"{tmp_path}/inductor/run[1]"], "a folder may have a mark in its name"


def test_a_folder_that_a_pattern_leads_to_and_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    (tmp_path / "inductor" / "torch-1").mkdir(parents=True)
    unknown: list[Unknown] = []
    with unreadable(tmp_path / "inductor"), held_host() as host:
        cache_places(host, ("inductor/*",), (), str(tmp_path), unknown)
    assert [item.what for item in unknown] == [f"compile_cache {tmp_path}/inductor/*"]


def test_the_folder_that_launch_uses_is_a_place_when_it_holds_something(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "version.py").write_text("__version__ = '2.11.0'")
    (site / "torch-2.11.0.dist-info").mkdir()
    environ = {"HOME": str(tmp_path)}
    path = launch_place(HOST, environ, [str(site)], "cp311")
    assert path is not None
    assert path.startswith(f"{tmp_path}/.cache/envguard/inductor/torch-2.11.0-")
    assert launch_place(HOST, environ, [str(site)], "cp312") != path, "another ABI is another build"
    assert launch_place(HOST, {**environ, "TORCHINDUCTOR_CACHE_DIR": "/c"}, [str(site)], "cp311") is None
    assert launch_place(HOST, environ, [str(tmp_path)], "cp311") is None, "no torch"
    assert filled_launch_place(HOST, environ, [str(site)], "cp311") is None
    Path(path).mkdir(parents=True)
    assert filled_launch_place(HOST, environ, [str(site)], "cp311") is None, "made, and nothing was compiled yet"
    (Path(path) / "fxgraph").mkdir()
    found = filled_launch_place(HOST, environ, [str(site)], "cp311")
    assert found is not None
    assert (found.kind, found.path, found.how) == ("inductor", path, "envguard launch")


# --- what fingerprints name -------------------------------------------------------------------------------------


def test_a_fingerprint_of_this_machine_says_where_this_user_s_caches_lay() -> None:
    machine = MadeUp().machine()
    system = SYSTEM
    run = cache(path="/project/.cache/inductor", owner="ada")
    more = (
        cache(kind="triton", path="/project/.cache/triton", owner="ada"),
        cache(path="/tmp/torchinductor_ada", owner="ada", verdict="EMPTY", entries=0),
        cache(path="/tmp/torchinductor_bob", owner="uid 1001"),
        cache(path="relative", owner="ada"),
        cache(path="/project/../etc", owner="ada"),
    )
    taken = fingerprint(system=system, compile_cache=(run, *more))
    places = evident_places((taken, taken), machine, taken.gpus)
    assert [(place.kind, place.path) for place in places] == [
        ("inductor", "/project/.cache/inductor"),
        ("triton", "/project/.cache/triton"),
    ]

    def seen(taken: Fingerprint, gpus: tuple[Gpu, ...] | None = None) -> int:
        return len(evident_places((taken,), machine, gpus))

    assert seen(taken) == seen(taken, ()) == 2, "by its name where no GPU speaks against it"
    assert seen(taken, (gpu(7), gpu(9))) == 2, "one GPU in common: another was replaced"
    assert seen(taken, (gpu(8), gpu(9))) == 0, "another machine of the same name"
    assert seen(replace(taken, system=replace(system, host="other"))) == 0
    assert seen(replace(taken, system=None)) == 0
    assert seen(replace(taken, compile_cache=None)) == 0


def test_what_held_entries_joins_the_named_places_and_is_no_default_any_more() -> None:
    """One rule for a fingerprint and the timeline: each place once, in the order of the named ones."""
    files: dict[str, bytes | OSError] = {
        "/env/site/torch/version.py": b"__version__ = '2.11.0'", "/env/site/torch-2.11.0.dist-info/METADATA": b"",
    }  # fmt: skip
    environ = {"HOME": "/home/ada"}
    private = launch_place(MadeUp(files), environ, ["/env/site"], "cp311")
    host = MadeUp({**files, f"{private}/fxgraph/entry": b"x"}, environ=environ)
    paths = ("/tmp/torchinductor_ada", "/project/.cache/inductor", "/home/bob/.cache")
    held = tuple(cache(path=path, owner="bob" if "bob" in path else "ada") for path in paths)
    taken = fingerprint(system=SYSTEM, compile_cache=held)
    named = cache_places(host, ())
    found = with_evident_places(host, named, ["/env/site"], "cp311", (taken, taken))
    assert [(place.path, place.default, place.how.partition(" ")[0]) for place in found] == [
        ("/tmp/torchinductor_ada", False, "inductor's"),
        ("/home/ada/.triton/cache", True, "triton's"),
        (private, False, "envguard"),
        ("/project/.cache/inductor", False, "fingerprint"),
    ]
    assert with_evident_places(host, named, ["/env"], "cp311", ()) == named, "no torch, and nobody saw another"


def test_a_name_that_any_machine_may_have_names_none() -> None:
    machine = MadeUp(machine={**MACHINE, "host": "localhost"}).machine()
    system = replace(SYSTEM, host="localhost")
    taken = fingerprint(system=system, compile_cache=(cache(path="/c", owner="ada"),))
    assert evident_places((taken,), machine) == ()
    assert len(evident_places((taken,), machine, taken.gpus)) == 1

"""Downloads by hash from an index on the loopback address, and locks that uv installs from."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import shutil
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from packaging.pylock import Pylock

from envguard.acquire.packages.uv_cache import index_digest, read_caches
from envguard.acquire.packages.uv_cache_places import cache_directories
from envguard.acquire.seam.address import Address
from envguard.acquire.seam.host import LiveHost
from envguard.config import Config
from envguard.demo.index import serve_index
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel, stand_in_torch
from envguard.errors import NotDetermined, UsageError
from envguard.fingerprint.lock import parse_lock
from envguard.restore import fetching, service
from envguard.restore.locking import lock_text
from envguard.restore.plan import Plan
from envguard.restore.target import from_lock
from tests.restore.conftest import Swapped, fingerprint, tree


@pytest.fixture
def bare(swapped: Swapped) -> Swapped:
    """Nothing on the machine holds the old build any more."""
    shutil.rmtree(swapped.stage.cache)
    return swapped


def test_without_the_flag_nothing_is_downloaded(
    bare: Swapped, story_wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_index(story_wheels) as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index)
        (missing,) = service.find_and_plan(bare.request()).missing
    assert "not on this machine" in missing.why
    assert not (bare.state / "fetched").exists()


def test_what_is_missing_is_fetched_and_held_against_the_stamp(
    bare: Swapped, story_wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_index(story_wheels) as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index)
        outcome = bare.restore(fetch=True)
    assert (outcome.failure, outcome.verified) == (None, True)
    assert outcome.chosen["torch"].place == "fetched"
    assert "2.11.0+cu128" in bare.torch_says()


def test_another_build_of_that_version_is_not_taken(
    bare: Swapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_torch(tmp_path / "index", "2.11.0+cu128", seed="not the one")
    before = tree(bare.stage.venv)
    with serve_index(tmp_path / "index") as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index)
        plan = service.find_and_plan(bare.request(fetch=True))
    assert plan.missing
    assert any("it is build" in note for note in plan.notes)
    assert tree(bare.stage.venv) == before
    assert not list((bare.state / "fetched").rglob("*.whl"))


def test_a_locks_own_url_is_used_and_its_hash_decides(bare: Swapped, story_wheels: Path, tmp_path: Path) -> None:
    (wheel,) = story_wheels.glob("torch-2.11.0+cu128-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = bare.stage.project / "pylock.toml"
    with serve_index(story_wheels) as index:
        url = index.replace("/simple/", f"/files/{wheel.name.replace('+', '%2B')}")
        lock.write_text(
            'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "torch"\nversion = "2.11.0+cu128"\n'
            f'wheels = [{{ name = "{wheel.name}", url = "{url}", hashes = {{ sha256 = "{digest}" }} }}]\n'
        )
        done = bare.stage.envguard("restore", "pylock.toml", "-y", "--fetch")
        assert done.returncode == 0, done.stderr
        assert "2.11.0+cu128" in bare.torch_says()
        bare.stage.install("torch==2.11.0+cu130")
        lock.write_text(lock.read_text().replace(digest, "1" * 64))
        shutil.rmtree(bare.stage.cache)
        before = tree(bare.stage.venv)
        refused = bare.stage.envguard("restore", "pylock.toml", "-y", "--fetch", "--json")
    assert refused.returncode == 4
    assert any("its sha256 is" in note for note in json.loads(refused.stdout)["notes"])
    assert tree(bare.stage.venv) == before


@pytest.fixture
def fetched_stage(stage: Stage, story_wheels: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Stage, str]:
    monkeypatch.setenv("UV_CACHE_DIR", str(stage.cache))
    with serve_index(story_wheels) as index:
        stage.install("torch==2.11.0+cu128", "transformers==5.6.0", index=index)
    for wheel in story_wheels.iterdir():
        (stage.wheels / wheel.name).symlink_to(wheel)
    return stage, index


def test_uvs_name_of_an_index_is_its_digest(fetched_stage: tuple[Stage, str]) -> None:
    stage, index = fetched_stage
    (folder,) = (path for path in stage.cache.glob("wheels-v*/index/*") if path.is_dir())
    assert folder.name == index_digest(index)


def test_a_lock_of_what_is_installed_is_valid_and_uv_installs_from_it(
    fetched_stage: tuple[Stage, str], tmp_path: Path
) -> None:
    stage, index = fetched_stage
    done = stage.envguard("snapshot", "--lock", "pylock.now.toml", "-q", extra={"UV_DEFAULT_INDEX": index})
    assert done.returncode == 0, done.stderr
    path = stage.project / "pylock.now.toml"
    lock = Pylock.from_dict(tomllib.loads(path.read_text()))
    lock.validate()
    assert {package.name: package.index for package in lock.packages} == {
        "torch": index,
        "triton": index,
        "transformers": index,
    }
    for package in lock.packages:
        (wheel,) = package.wheels or ()
        assert re.fullmatch(r"[0-9a-f]{64}", wheel.hashes["sha256"])
    stage.install("transformers==5.8.1")
    stage.uv("pip", "install", "--offline", "--python", str(stage.python), "--reinstall", "-r", str(path))
    assert "5.6.0" in (stage.site / "transformers" / "__init__.py").read_text()
    stage.install("transformers==5.8.1")
    restored = stage.envguard("restore", "pylock.now.toml", "-y")
    assert restored.returncode == 0, restored.stderr
    assert "5.6.0" in (stage.site / "transformers" / "__init__.py").read_text()


def test_what_cannot_be_locked_is_named_and_no_lock_is_written(torch_stage: Stage) -> None:
    # Installed from a folder: uv keeps no hash of such wheels.
    done = torch_stage.envguard("snapshot", "--lock", "pylock.toml", "-q")
    assert done.returncode == 3
    assert "torch 2.11.0+cu128" in done.stderr
    assert not (torch_stage.project / "pylock.toml").exists()


def test_a_name_that_no_installer_reads_is_refused(torch_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(torch_stage.cache))
    host = LiveHost()
    caches = read_caches(host, cache_directories(host, None, Config()))
    with pytest.raises(UsageError):
        lock_text("lock.toml", fingerprint(torch_stage), caches)
    with pytest.raises(NotDetermined):
        lock_text("pylock.toml", fingerprint(torch_stage), caches)


def test_the_shipped_locks_are_valid() -> None:
    folder = Path(__file__).parents[2] / "lockfiles"
    locks = sorted(folder.glob("pylock.*.toml"))
    assert locks
    for path in locks:
        lock = Pylock.from_dict(tomllib.loads(path.read_text()))
        lock.validate()
        for package in lock.packages:
            assert package.index
            assert all("sha256" in wheel.hashes for wheel in package.wheels or ())


SECRET = "s3cretPW"


class Answers:
    """A server on the loopback address: `pages` by path, a `Location` where a page is one; what was asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []


@contextmanager
def private_server() -> Iterator[tuple[str, Answers]]:
    state = Answers()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append((self.path, self.headers.get("Authorization")))
            body = state.pages.get(self.path)
            moved = body is not None and body.startswith(b"http")
            self.send_response(404 if body is None else 302 if moved else 200)
            if body is not None and moved:
                self.send_header("Location", body.decode())
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on stderr."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_credentials_of_a_url_go_to_its_own_origin_and_not_along_a_redirect() -> None:
    basic = "Basic " + base64.b64encode(f"user:{SECRET}".encode()).decode()
    with private_server() as (one, first), private_server() as (two, second):
        link = f'<a href="/files/b-1.0-py3-none-any.whl">b</a><a href="http://{two}/b-1.0-py3-none-any.whl">b</a>'
        first.pages["/simple/b/"] = f"http://{one}/other/b/".encode()
        first.pages["/other/b/"] = link.encode()
        first.pages["/files/b-1.0-py3-none-any.whl"] = f"http://{two}/moved".encode()
        second.pages["/moved"] = b"wheel"
        offers = fetching.list_index(Address(f"http://user:{SECRET}@{one}/simple"), "b")
        assert [offer.url.authorization for offer in offers] == [basic, None]
        with fetching._open(offers[0].url, "*/*") as answer:
            assert answer.read() == b"wheel"
    assert {authorization for _, authorization in first.asked} == {basic}
    assert second.asked == [("/moved", None)]


@pytest.mark.parametrize(
    "url",
    [
        "http://user:{s}@127.0.0.1:x/",
        "http://user:{s}@[::1/",
        "https://user:{s}@127.0.0.1:1/",
        "http://user:a/{s}@127.0.0.1:1/",
        "http://127.0.0.1:1/?token={s}",
        "ftp://user:{s}@h/",
    ],
)
def test_a_failed_download_shows_no_credentials(url: str) -> None:
    with pytest.raises(fetching.FetchFailed) as failed:
        fetching._open(Address(url.format(s=SECRET)), "*/*")
    assert SECRET not in str(failed.value)
    assert failed.value.__cause__ is None


def test_the_index_of_a_requirements_file_is_asked_with_its_credentials(bare: Swapped, story_wheels: Path) -> None:
    (wheel,) = story_wheels.glob("torch-2.11.0+cu128-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = bare.stage.project / "requirements.txt"
    with private_server() as (origin, server):
        server.pages["/simple/torch/"] = f'<a href="/w/{wheel.name}">torch</a>'.encode()
        server.pages[f"/w/{wheel.name}"] = wheel.read_bytes()
        lock.write_text(
            f"--index-url http://user:{SECRET}@{origin}/simple\ntorch==2.11.0+cu128 --hash=sha256:{digest}\n"
        )
        dry = bare.stage.envguard("restore", "requirements.txt", "--dry-run", "-v")
        done = bare.stage.envguard("restore", "requirements.txt", "-y", "--fetch", "-v")
    assert done.returncode == 0, done.stderr
    assert SECRET not in dry.stdout + dry.stderr + done.stdout + done.stderr
    stored = [path for path in bare.state.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert stored == []


def configured(stage: Stage) -> dict[str, str]:
    (stage.project / "envguard.toml").write_text('find_links = ["../wheels"]\n')
    return {}


def in_a_variable(stage: Stage) -> dict[str, str]:
    return {"UV_FIND_LINKS": str(stage.wheels)}


def in_uv_toml(stage: Stage) -> dict[str, str]:
    (stage.project / "uv.toml").write_text('find-links = ["../wheels"]\n')
    return {}


@pytest.mark.parametrize("place", [configured, in_a_variable, in_uv_toml], ids=lambda each: each.__name__)
def test_what_was_installed_from_a_folder_of_wheels_is_locked_by_path(
    torch_stage: Stage, place: Callable[[Stage], dict[str, str]]
) -> None:
    extra = place(torch_stage)
    done = torch_stage.envguard("snapshot", "--lock", "pylock.toml", "-q", extra=extra)
    assert done.returncode == 0, done.stderr
    lock = Pylock.from_dict(tomllib.loads((torch_stage.project / "pylock.toml").read_text()))
    lock.validate()
    for package in lock.packages:
        (wheel,) = package.wheels or ()
        assert wheel.name is not None
        assert wheel.path == f"../wheels/{wheel.name}"
        assert wheel.hashes["sha256"] == hashlib.sha256((torch_stage.wheels / wheel.name).read_bytes()).hexdigest()
    torch_stage.install("transformers==5.8.1")
    shutil.rmtree(torch_stage.cache)
    for leftover in ("envguard.toml", "uv.toml"):
        (torch_stage.project / leftover).unlink(missing_ok=True)
    restored = torch_stage.envguard("restore", "pylock.toml", "-y")  # by the path that the lock names
    assert restored.returncode == 0, restored.stdout + restored.stderr
    assert "5.6.0" in (torch_stage.site / "transformers" / "__init__.py").read_text()
    torch_stage.install("transformers==5.8.1")
    lock_file = str(torch_stage.project / "pylock.toml")
    torch_stage.uv("pip", "install", "--offline", "--python", str(torch_stage.python), "--reinstall", "-r", lock_file)
    assert "5.6.0" in (torch_stage.site / "transformers" / "__init__.py").read_text()


def test_what_was_installed_from_a_wheel_file_is_locked(stage: Stage, story_wheels: Path) -> None:
    (wheel,) = story_wheels.glob("transformers-5.6.0-*.whl")
    copy = shutil.copy(wheel, stage.root / wheel.name)
    stage.uv("pip", "install", "--offline", "--no-deps", "--python", str(stage.python), str(copy))
    done = stage.envguard("snapshot", "--lock", "pylock.toml", "-q")
    assert done.returncode == 0, done.stderr
    lock = Pylock.from_dict(tomllib.loads((stage.project / "pylock.toml").read_text()))
    assert [each.path for package in lock.packages for each in package.wheels or ()] == [f"../{wheel.name}"]


def test_a_wheel_of_another_build_is_not_locked(torch_stage: Stage) -> None:
    other = torch_stage.root / "other"
    stand_in_torch(other, "2.11.0+cu128", seed="not the one")
    done = torch_stage.envguard("snapshot", "--lock", "pylock.toml", "-q", extra={"UV_FIND_LINKS": str(other)})
    assert done.returncode == 3
    assert "torch 2.11.0+cu128" in done.stderr
    assert not (torch_stage.project / "pylock.toml").exists()


def test_what_was_built_from_a_folder_is_locked_by_its_path(torch_stage: Stage, tmp_path: Path) -> None:
    """As `uv pip install path/to/checkout` leaves it: no index and no wheel has that build."""
    taken = fingerprint(torch_stage)
    built = msgspec.structs.replace(taken.packages[0], name="mine", version="1.0", direct_url=tmp_path.as_uri())
    caches = read_caches(LiveHost(), ())
    text = lock_text("pylock.toml", msgspec.structs.replace(taken, packages=(built,)), caches)
    (package,) = Pylock.from_dict(tomllib.loads(text)).packages
    assert package.directory is not None
    assert (package.directory.path, package.directory.editable) == (str(tmp_path), False)
    gone = msgspec.structs.replace(built, direct_url=(tmp_path / "gone").as_uri())
    with pytest.raises(NotDetermined):
        lock_text("pylock.toml", msgspec.structs.replace(taken, packages=(gone,)), caches)


def test_two_restores_of_one_project_download_side_by_side(
    bare: Swapped, story_wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one to end leaves what the other has downloaded; what a killed one left goes."""
    left = bare.state / "fetched" / "tmpkilled"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"")
    with serve_index(story_wheels) as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index)
        first, second = bare.request(fetch=True), bare.request(fetch=True)
        with first.downloads, second.downloads:
            plan = service.find_and_plan(first)
            with second.downloads:
                assert service.prove(second, service.find_and_plan(second)).missing == []
            assert service.carry_out(first, plan).verified
    assert not list((bare.state / "fetched").rglob("*.whl"))
    assert not left.exists()


def uv_lock_of(folder: str, how: str) -> str:
    return (
        'version = 1\n[[package]]\nname = "app"\nversion = "0"\nsource = { virtual = "." }\n'
        'dependencies = [{ name = "mine" }]\n'
        f'[[package]]\nname = "mine"\nversion = "1.0"\nsource = {{ {how} = "{folder}" }}\n'
    )


def pylock_of(folder: str, editable: str) -> str:
    return (
        'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "mine"\n'
        f'[packages.directory]\npath = "{folder}"\n{editable}'
    )


FOLDER_LOCKS = {
    "pylock": ("pylock.toml", pylock_of("../mine", "")),
    "pylock that says it": ("pylock.toml", pylock_of("../mine", "editable = false\n")),
    "uv.lock": ("uv.lock", uv_lock_of("../mine", "directory")),
}
EDITABLE_LOCKS = {
    "pylock": ("pylock.toml", pylock_of("../mine", "editable = true\n")),
    "uv.lock": ("uv.lock", uv_lock_of("../mine", "editable")),
}


def install_as_built_from(stage: Stage, folder: Path, editable: bool) -> None:
    """The package as an installer leaves it that built it from `folder`, or as an editable install."""
    build_wheel(stage.wheels, "mine", "1.0")
    stage.install("mine==1.0")
    (info,) = stage.site.glob("mine-1.0.dist-info")
    dir_info = {"editable": True} if editable else {}
    (info / "direct_url.json").write_text(json.dumps({"url": folder.as_uri(), "dir_info": dir_info}))


def planned(swapped: Swapped, lock: tuple[str, str]) -> Plan:
    path = swapped.stage.project / lock[0]
    path.write_text(lock[1])
    live = fingerprint(swapped.stage)
    request = swapped.request(from_lock(lock[0], parse_lock(str(path), path.read_bytes()), live), only=("mine",))
    return service.find_and_plan(request)


@pytest.mark.parametrize("lock", FOLDER_LOCKS.values(), ids=FOLDER_LOCKS)
def test_what_a_lock_has_built_from_a_folder_is_no_editable_install(swapped: Swapped, lock: tuple[str, str]) -> None:
    folder = swapped.stage.root / "mine"
    folder.mkdir()
    install_as_built_from(swapped.stage, folder, editable=False)
    plan = planned(swapped, lock)
    assert (plan.steps, plan.missing, plan.unmet) == ((), (), ())
    assert any("built from" in note and "no hash" in note for note in plan.notes)
    install_as_built_from(swapped.stage, folder.parent / "another", editable=False)
    plan = planned(swapped, lock)
    assert (plan.steps, plan.missing, plan.unmet) == ((), (), ("mine",))
    assert any(f"`uv pip install --no-deps --reinstall {folder}`" in note for note in plan.notes)
    install_as_built_from(swapped.stage, folder, editable=True)
    assert planned(swapped, lock).unmet == ("mine",)


@pytest.mark.parametrize("lock", EDITABLE_LOCKS.values(), ids=EDITABLE_LOCKS)
def test_an_editable_install_of_a_relative_folder_is_as_the_lock_has_it(
    swapped: Swapped, lock: tuple[str, str]
) -> None:
    folder = swapped.stage.root / "mine"
    folder.mkdir()
    install_as_built_from(swapped.stage, folder, editable=True)
    assert planned(swapped, lock).unmet == ()
    install_as_built_from(swapped.stage, folder, editable=False)
    assert planned(swapped, lock).unmet == ("mine",)

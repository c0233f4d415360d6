"""`--fetch` from an index that asks for a login: it is used for that server alone, and nowhere written or shown."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from envguard.demo.index import _Handler
from tests.restore.conftest import Swapped
from tests.restore.test_said_first import flat

USER, PASSWORD = "some-user", "p@ss:w/rd-4711-zebra"
EXPECTED = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


class Guarded(_Handler):
    """An index that answers 401 without the right login."""

    def do_GET(self) -> None:  # noqa: N802
        if self.headers.get("Authorization") == EXPECTED:
            super().do_GET()
        else:
            self.send_error(401)


@contextlib.contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Yields `host:port` of a server on the loopback address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server(story_wheels: Path) -> Iterator[str]:
    with serving(partial(Guarded, directory=str(story_wheels))) as address:
        yield address


@pytest.fixture
def bare(swapped: Swapped) -> Swapped:
    """Nothing on the machine holds the old build any more."""
    swapped.save_checkpoint("step_690")
    shutil.rmtree(swapped.stage.cache)
    return swapped


INFO = f"{USER}:{quote(PASSWORD, safe='')}"
Extra = dict[str, str]


def in_the_url(bare: Swapped, server: str) -> Extra:
    return {"UV_DEFAULT_INDEX": f"http://{INFO}@{server}/simple/"}


def in_a_named_url(bare: Swapped, server: str) -> Extra:
    return {"UV_INDEX": f"corp=http://{INFO}@{server}/simple/"}


def in_variables(bare: Swapped, server: str) -> Extra:
    return {
        "UV_INDEX": f"my-corp.x=http://{server}/simple/",
        "UV_INDEX_MY_CORP_X_USERNAME": USER,
        "UV_INDEX_MY_CORP_X_PASSWORD": PASSWORD,
    }


def in_variables_for_a_configured_index(bare: Swapped, server: str) -> Extra:
    config = f'[project]\nname = "mine"\n[[tool.uv.index]]\nname = "corp"\nurl = "http://{server}/simple/"\n'
    (bare.stage.project / "pyproject.toml").write_text(config)
    return {"UV_INDEX_CORP_USERNAME": USER, "UV_INDEX_CORP_PASSWORD": PASSWORD}


def in_uv_toml(bare: Swapped, server: str) -> Extra:
    (bare.stage.project / "uv.toml").write_text(f'extra-index-url = ["http://{INFO}@{server}/simple"]\n')
    return {}


def in_netrc(bare: Swapped, server: str) -> Extra:
    path = bare.stage.home / ".netrc"
    path.write_text(f"machine {server.partition(':')[0]}\nlogin {USER}\npassword {PASSWORD}\n")
    path.chmod(0o600)
    return {"UV_DEFAULT_INDEX": f"http://{server}/simple/"}


def in_a_netrc_elsewhere(bare: Swapped, server: str) -> Extra:
    extra = in_netrc(bare, server)
    shutil.move(bare.stage.home / ".netrc", bare.stage.home / "other")
    return {**extra, "NETRC": str(bare.stage.home / "other")}


PLACES = [
    in_the_url,
    in_a_named_url,
    in_variables,
    in_variables_for_a_configured_index,
    in_uv_toml,
    in_netrc,
    in_a_netrc_elsewhere,
]


def has_secret(root: Path) -> list[Path]:
    """Files that hold the password in any of its forms, other than those that the user wrote it into."""
    forms = (PASSWORD.encode(), quote(PASSWORD, safe="").encode(), EXPECTED.removeprefix("Basic ").encode())
    theirs = (".netrc", "other", "uv.toml")
    files = (path for path in root.rglob("*") if path.is_file() and path.name not in theirs)
    return [path for path in files if any(form in path.read_bytes() for form in forms)]


@pytest.mark.parametrize("place", PLACES, ids=lambda each: each.__name__)
def test_a_login_is_used_and_nowhere_written(
    bare: Swapped, server: str, place: Callable[[Swapped, str], Extra]
) -> None:
    extra = place(bare, server)
    plan = bare.stage.envguard("restore", "step_690", "--fetch", "--dry-run", extra=extra)
    done = bare.stage.envguard("restore", "step_690", "--fetch", "-y", "--json", extra=extra)
    assert (plan.returncode, done.returncode) == (0, 0), plan.stdout + plan.stderr + done.stderr
    assert "2.11.0+cu128" in bare.torch_says()
    said = plan.stdout + plan.stderr + done.stdout + done.stderr
    assert PASSWORD not in said
    assert quote(PASSWORD, safe="") not in said
    assert not has_secret(bare.stage.root)


def without_any(bare: Swapped, server: str) -> Extra:
    return {"UV_DEFAULT_INDEX": f"http://{server}/simple/"}


def with_a_wrong_one(bare: Swapped, server: str) -> Extra:
    return {"UV_DEFAULT_INDEX": f"http://{USER}:{PASSWORD[::-1].replace('/', '').replace('@', '')}@{server}/simple/"}


@pytest.mark.parametrize("place", [without_any, with_a_wrong_one], ids=lambda each: each.__name__)
def test_a_login_that_is_refused_is_said(bare: Swapped, server: str, place: Callable[[Swapped, str], Extra]) -> None:
    extra = place(bare, server)
    done = bare.stage.envguard("restore", "step_690", "--fetch", "-y", extra=extra)
    assert done.returncode == 4
    assert f"http://{server}/simple/: HTTP 401" in flat(done.stdout)
    assert "arbez-1174" not in done.stdout + done.stderr
    assert not has_secret(bare.stage.root)


def test_the_url_of_a_lock_with_a_login(bare: Swapped, server: str, story_wheels: Path) -> None:
    (wheel,) = story_wheels.glob("torch-2.11.0+cu128-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    url = f"http://{INFO}@{server}/files/{wheel.name.replace('+', '%2B')}"
    (bare.stage.project / "pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "torch"\nversion = "2.11.0+cu128"\n'
        f'wheels = [{{ name = "{wheel.name}", url = "{url}", hashes = {{ sha256 = "{digest}" }} }}]\n'
    )
    refused = bare.stage.envguard("restore", "pylock.toml", "-y")
    assert refused.returncode == 4
    done = bare.stage.envguard("restore", "pylock.toml", "-y", "--fetch")
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (refused, done):
        assert PASSWORD not in said.stdout + said.stderr
        assert quote(PASSWORD, safe="") not in said.stdout + said.stderr


def test_a_login_is_not_sent_to_where_a_redirect_leads(bare: Swapped, story_wheels: Path) -> None:
    seen: list[str | None] = []

    class Open(_Handler):
        def do_GET(self) -> None:  # noqa: N802
            seen.append(self.headers.get("Authorization"))
            super().do_GET()

    with serving(partial(Open, directory=str(story_wheels))) as elsewhere:

        class Redirecting(Guarded):
            def do_GET(self) -> None:  # noqa: N802
                if self.headers.get("Authorization") != EXPECTED:
                    self.send_error(401)
                    return
                self.send_response(302)
                self.send_header("Location", f"http://localhost:{elsewhere.partition(':')[2]}{self.path}")
                self.end_headers()

        with serving(partial(Redirecting, directory=str(story_wheels))) as address:
            extra = {"UV_DEFAULT_INDEX": f"http://{INFO}@{address}/simple/"}
            done = bare.stage.envguard("restore", "step_690", "--fetch", "-y", extra=extra)
    assert done.returncode == 0, done.stdout + done.stderr
    assert seen
    assert set(seen) == {None}


def test_a_login_follows_a_redirect_on_its_own_server(bare: Swapped, story_wheels: Path) -> None:
    class Moved(Guarded):
        def do_GET(self) -> Any:  # noqa: N802
            if self.path.startswith("/old/"):
                self.send_response(301)
                self.send_header("Location", self.path.removeprefix("/old"))
                self.end_headers()
                return
            super().do_GET()

    with serving(partial(Moved, directory=str(story_wheels))) as address:
        extra = {"UV_DEFAULT_INDEX": f"http://{INFO}@{address}/old/simple/"}
        done = bare.stage.envguard("restore", "step_690", "--fetch", "-y", extra=extra)
    assert done.returncode == 0, done.stdout + done.stderr

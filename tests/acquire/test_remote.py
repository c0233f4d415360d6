"""Another machine through a prefix: shells that parse again, old Pythons, banners, and what can go wrong."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.acquire.seam.remote import RemoteError, RemoteHost
from envguard.demo.stage import Stage
from tests.interpreters import python38

# What ssh and `pct exec N --` do: the words are joined and a shell over there parses them again.
SHELL = '#!/bin/sh\nshift\nexec env -i PATH="{path}" HOME="{home}" TMPDIR="{home}" sh -c "$*"\n'


def prefix(folder: Path, script: str = SHELL, path: str | None = None) -> str:
    """A command that runs the words after its first one as a far shell would."""
    far = folder / "far"
    search = path or f"{Path(sys.executable).resolve().parent}:/usr/bin:/bin"
    far.write_text(script.format(path=search, home=folder))
    far.chmod(far.stat().st_mode | stat.S_IXUSR)
    return f"{far} some-host"


def test_the_same_answers_as_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"\xff\x00 bytes")
    (tmp_path / "link").symlink_to("one")
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd-\xff")
    Path(odd).write_text("x")
    here = LiveHost()
    with RemoteHost(prefix(tmp_path)) as there:
        for operation, arguments in (
            ("stat", (str(tmp_path / "one"),)), ("stat", (odd,)), ("readlink", (str(tmp_path / "link"),)),
            ("digest", (str(tmp_path / "one"),)), ("realpath", (str(tmp_path / "link"),)),
        ):  # fmt: skip
            mine, theirs = here.call(operation, *arguments), there.call(operation, *arguments)
            assert (list(theirs) if isinstance(mine, tuple) else theirs) == (
                list(mine) if isinstance(mine, tuple) else mine
            )
        assert there.read(str(tmp_path / "one")) == b"\xff\x00 bytes"
        assert there.find(str(tmp_path / "missing")) is None
        assert there.listing(str(tmp_path)) == here.listing(str(tmp_path))


def test_a_python_of_3_8_is_enough(tmp_path: Path) -> None:
    old = python38()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(old)
    with RemoteHost(prefix(tmp_path, path=f"{tmp_path}/bin:/usr/bin:/bin")) as there:
        assert there.machine().system == "Linux"
        assert there.stat("/proc/self").kind == "link"
        assert there.walk(str(tmp_path), births=True).failed == ()
        assert any(process.pid == there.pid for process in there.processes())


def test_a_banner_before_the_first_answer_is_passed_over(tmp_path: Path) -> None:
    script = SHELL.replace("shift\n", "shift\necho Welcome; echo '{{\"nonce\": 1}}'\n")
    with RemoteHost(prefix(tmp_path, script)) as there:
        assert there.machine().arch


def test_walked_trees_answer_without_a_trip(tmp_path: Path) -> None:
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "inner" / "file").write_text("x")
    with RemoteHost(prefix(tmp_path)) as there:
        there.know_tree(str(tmp_path / "tree"))
        trips = there.trips
        assert there.stat(str(tmp_path / "tree" / "inner" / "file")).size == 1
        assert there.find(str(tmp_path / "tree" / "inner" / "nothing")) is None
        assert there.trips == trips


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n", "exit code 255): Permission denied"),
        ("#!/bin/sh\nshift\nexec sh -c 'exit 3'\n", "exit code 3"),
        ("#!/bin/sh\nexec cat\n", "prints something else"),
        ("#!/bin/sh\nhead -c 3000 >/dev/null; kill -9 $$\n", "exit code -9"),
    ],
)
def test_what_goes_wrong_is_told_in_the_far_side_s_own_words(tmp_path: Path, script: str, message: str) -> None:
    far = tmp_path / "far"
    far.write_text(script)
    far.chmod(0o755)
    with pytest.raises(RemoteError) as caught:
        RemoteHost(f"{far} host")
    assert message in str(caught.value)


def test_a_question_that_breaks_the_far_side_is_told_by_its_error(tmp_path: Path) -> None:
    with (
        RemoteHost(prefix(tmp_path)) as there,
        pytest.raises(RemoteError, match="ValueError: not a query program: 'rm'"),
    ):
        there.query(("rm", "-rf", str(tmp_path)))


def test_a_machine_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envguard.acquire.seam.remote.START_S", 0.5)
    with pytest.raises(RemoteError, match="has not answered for"):
        RemoteHost(prefix(tmp_path, "#!/bin/sh\nexec sleep 30\n"))


def test_a_prefix_that_is_no_command(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="cannot be started"):
        RemoteHost(f"{tmp_path}/nothing host")
    with pytest.raises(RemoteError, match="empty"):
        RemoteHost("  ")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="No such file"):
        RemoteHost(prefix(tmp_path), chdir="/no/such/folder")


def test_collect_via_and_the_timeline_of_the_bundle(torch_stage: Stage, tmp_path: Path) -> None:
    """A bundle brought back from "another machine" gives the same events as on it; nothing is written there."""
    (torch_stage.checkpoints / "step_690").mkdir()
    (torch_stage.checkpoints / "step_690" / "model.bin").write_bytes(b"weights")
    (torch_stage.project / "envguard.toml").write_text(f'uv_caches = ["{torch_stage.cache}"]\n')
    before = sorted(str(path) for path in torch_stage.root.rglob("*"))
    bundle = tmp_path / "far.bundle"
    done = torch_stage.envguard(
        "collect", "-o", str(bundle), "--via", prefix(tmp_path), "--chdir", str(torch_stage.project), "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["evidence"] > 50
    assert sorted(str(path) for path in torch_stage.root.rglob("*")) == before
    live = json.loads(torch_stage.envguard("timeline", "--json").stdout)
    far = json.loads(torch_stage.envguard("timeline", "--json", "--bundle", str(bundle), cwd=tmp_path).stdout)
    kept = [event["id"] for event in live["events"] if event["kind"].startswith(("package", "checkpoint"))]
    assert kept
    assert [event["id"] for event in far["events"] if event["kind"].startswith(("package", "checkpoint"))] == kept

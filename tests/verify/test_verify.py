"""Damage of every kind, done to a real environment by real means, and what `verify` makes of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envguard.acquire.packages import verification
from envguard.acquire.packages.contents import Contents, Policy, hash_as
from envguard.acquire.packages.distributions import Distribution, read_distributions
from envguard.acquire.packages.environment import locate
from envguard.acquire.packages.uv_cache import read_caches
from envguard.acquire.packages.verification import MOST_MISSING, Observations, Observed, observe
from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.fingerprint.verify import judge
from envguard.model.evidence import Unknown
from envguard.model.schema import schema
from envguard.state.digests import Digests

OLD = 1_600_000_000


def verify(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and answer, held to its schema."""
    done = stage.envguard("verify", "--json", *arguments)
    answer: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(answer, schema("verify"))
    return done.returncode, answer


def kinds(report: dict[str, Any], package: str) -> dict[str, str]:
    """File name → kind of each problem of a package."""
    return {
        f"{problem['kind']} {Path(problem['path']).name}": problem["detail"]
        for problem in report["problems"]
        if problem["package"] == package
    }


@pytest.fixture
def tree(stage: Stage) -> Stage:
    """Two packages, installed by uv with hard links into its cache."""
    build_wheel(
        stage.wheels,
        "pine",
        "1.0",
        {"pine/__init__.py": b"ONE = 1\nTWO = 2\n", "pine/cone.py": b"SEEDS = 40\n", "pine/blob.bin": bytes(5000)},
    )
    build_wheel(stage.wheels, "oak", "2.0", {"oak/__init__.py": b"ACORN = True\n", "oak/leaf.py": b"LOBES = 7\n"})
    stage.install("pine", "oak")
    return stage


def break_link(path: Path) -> None:
    """Gives the file an inode of its own, so that an edit stays here."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def test_sound(tree: Stage) -> None:
    code, report = verify(tree)
    assert (code, report["problems"], report["unverifiable"]) == (0, [], [])
    assert report["checked"] == 2
    code, report = verify(tree, "--deep")
    assert (code, report["problems"], report["hashed"]) == (0, [], report["files"])


def test_edited_file_is_named_with_its_owner_and_a_diff(tree: Stage) -> None:
    path = tree.site / "pine" / "__init__.py"
    break_link(path)
    path.write_bytes(b"ONE = 1\nTWO = 3\nTHREE = 3\n")
    code, report = verify(tree)
    assert code == 1
    (problem,) = report["problems"]
    assert (problem["package"], problem["path"], problem["kind"]) == ("pine", str(path), "modified")
    assert problem["expected"].startswith("sha256=")
    assert problem["got"].startswith("sha256=")
    assert problem["detail"] == "edited: 16 → 26 bytes"
    assert "-TWO = 2" in problem["diff"].splitlines()
    assert "+THREE = 3" in problem["diff"].splitlines()


def test_edit_that_keeps_size_and_time_needs_deep(tree: Stage) -> None:
    path = tree.site / "pine" / "cone.py"
    facts = path.stat()
    break_link(path)
    path.write_bytes(b"SEEDS = 41\n")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    code, report = verify(tree)
    assert (code, report["hashed"]) == (0, 0)
    assert "only with --deep" in tree.envguard("verify").stdout
    code, report = verify(tree, "--deep")
    assert code == 1
    assert kinds(report, "pine") == {
        "modified cone.py": "edited: its content is not what was installed, at the same size"
    }


def test_edit_is_found_by_stat_once_the_file_was_seen(tree: Stage) -> None:
    path = tree.site / "pine" / "cone.py"
    break_link(path)
    os.utime(path, (OLD, OLD))
    verify(tree, "--deep")
    path.write_bytes(b"SEEDS = 41\n")
    os.utime(path, (OLD, OLD))
    code, report = verify(tree)
    assert code == 1
    assert list(kinds(report, "pine")) == ["modified cone.py"]


def test_of_a_record_without_end_the_missing_are_counted_and_not_all_told(tree: Stage) -> None:
    record = tree.site / "oak-2.0.dist-info" / "RECORD"
    rows = "".join(f"oak/gone_{number:05}.py,sha256={number:043},9\n" for number in range(MOST_MISSING + 50))
    break_link(record)
    record.write_text(record.read_text() + rows)
    (tree.site / "oak" / "leaf.py").write_text("LOBES = 11\n")
    code, report = verify(tree, "oak")
    first, *rest = (each for each in report["problems"] if each["kind"] == "missing")
    assert (code, len(rest)) == (1, MOST_MISSING)
    assert (first["path"], first["expected"]) == (str(tree.site), f"{MOST_MISSING + 50} files")
    assert "modified leaf.py" in kinds(report, "oak"), "what was edited is told however many are missing"
    shown = " ".join(tree.envguard("verify", "oak").stdout.split())
    assert f"{MOST_MISSING + 50} files that RECORD lists are missing" in shown


def test_of_an_archive_without_its_files_they_are_counted_too(tree: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MOST_MISSING", 1)
    host = LiveHost()
    found = read_distributions(host, locate(host, str(tree.venv), "/"))
    archive = next(path for path in tree.cache.rglob("archive-v*/*/pine-1.0.dist-info")).parent
    for path in (archive / "pine").iterdir():
        path.unlink()
    caches = read_caches(host, (str(tree.cache),))
    seen = observe(host, found, frozenset({"pine"}), caches, Policy(), Digests())
    told = [item for item in judge(seen).problems if item.kind == "cache-poisoned"]
    assert [item.path for item in told] == [f"{archive}/pine/__init__.py", str(archive)]
    assert told[1].detail is not None
    assert told[1].detail.startswith("2 more files are gone from the cache archive of pine 1.0")


def test_truncated_and_deleted(tree: Stage) -> None:
    for name in ("blob.bin", "__init__.py"):
        break_link(tree.site / "pine" / name)
    os.truncate(tree.site / "pine" / "blob.bin", 1000)
    (tree.site / "pine" / "__init__.py").write_bytes(b"")
    (tree.site / "oak" / "leaf.py").unlink()
    code, report = verify(tree)
    assert code == 1
    assert kinds(report, "pine") == {
        "modified blob.bin": "truncated: 5000 → 1000 bytes",
        "modified __init__.py": "truncated: 16 → 0 bytes",
    }
    assert kinds(report, "oak") == {"missing leaf.py": "deleted"}


def test_extra_file_but_not_what_python_writes(tree: Stage) -> None:
    (tree.site / "pine" / "hook.py").write_text("print('here')\n")
    (tree.site / "pine" / "__pycache__").mkdir()
    (tree.site / "pine" / "__pycache__" / "cone.cpython-311.pyc").write_bytes(b"")
    code, report = verify(tree)
    assert code == 1
    assert kinds(report, "pine") == {"extra hook.py": "no package's RECORD lists it"}


LITTER = (
    ".nfs000000000001", "__init__.py~", ".__init__.py.swp", "cone.py.orig", "cone.py.rej", "cone.py.bak", "#cone.py#",
    "core", "core.1234", ".DS_Store", ".ipynb_checkpoints/cone-checkpoint.py", "nohup.out", "build.log",
)  # fmt: skip


@pytest.mark.parametrize("name", LITTER)
def test_litter_is_told_and_no_damage(name: str, tree: Stage) -> None:
    path = tree.site / "pine" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    code, report = verify(tree, "--deep")
    assert (code, report["problems"]) == (0, [])
    assert [(each["package"], each["path"]) for each in report["litter"]] == [("pine", str(path))]
    assert path.name in tree.envguard("verify").stdout.replace("\n", "")


@pytest.mark.parametrize("name", ["core.py", "core.so", "logging.py", ".libs/libx.so.1", "config.json", "bak/a.py"])
def test_what_can_be_loaded_is_no_litter(name: str, tree: Stage) -> None:
    path = tree.site / "pine" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    code, report = verify(tree)
    assert (code, list(kinds(report, "pine")), report["litter"]) == (1, [f"extra {path.name}"], [])


@pytest.mark.parametrize(
    "rows",
    [
        "pine/,sha256={empty},0\npine/data/,,\n",
        "pine,sha256={empty},0\n",
        "pine,sha256={empty},\n",
        "pine-1.0.data/purelib/pine/other.py,sha256={empty},0\n",
        "pine-1.0.data/scripts/pine,sha256={empty},5\n",
    ],
)
def test_rows_that_are_no_files_of_an_install_are_not_missing(rows: str, tree: Stage) -> None:
    """As cmake 3.27.2 lists its folders, and old builders what no installer took over."""
    record = tree.site / "pine-1.0.dist-info" / "RECORD"
    break_link(record)
    record.write_text(record.read_text() + rows.format(empty="47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"))
    for deep in ((), ("--deep",)):
        _code, report = verify(tree, "pine", *deep)
        assert [(item["kind"], item["path"]) for item in report["problems"] if item["kind"] == "missing"] == []
    problems = json.loads(tree.envguard("snapshot", "--json").stdout)["problems"]
    assert [item for item in problems if item["subject"] == "pine"] == []


def test_edit_through_a_hard_link_poisons_the_cache(tree: Stage) -> None:
    path = tree.site / "pine" / "__init__.py"
    assert path.stat().st_nlink > 1, "uv links into its cache on this file system"
    with path.open("ab") as stream:
        stream.write(b"PATCH = True\n")
    code, report = verify(tree)
    assert code == 1
    found = kinds(report, "pine")
    assert set(found) == {"modified __init__.py", "shared-file __init__.py", "cache-poisoned __init__.py"}
    archives = [problem["path"] for problem in report["problems"] if problem["kind"] == "cache-poisoned"]
    assert archives
    assert archives[0].startswith(str(tree.cache))
    assert str(tree.cache) in found["shared-file __init__.py"]


def test_two_packages_that_install_the_same_path(tree: Stage) -> None:
    """As opencv-python over opencv-python-headless: nobody edited anything, and no cache is spoilt."""
    # Hashes of another algorithm tell the same.
    build_wheel(tree.wheels, "yew", "3.0", {"oak/leaf.py": b"LOBES = 9000\n", "yew.py": b""}, algorithm="sha512")
    tree.install("yew")
    code, report = verify(tree)
    assert (code, kinds(report, "yew")) == (1, {})
    [says] = kinds(report, "oak").values()
    assert says == (
        "overwritten by yew 3.0, which installs a file of the same path (oak/leaf.py): keep one of the two packages"
    )
    assert list(kinds(report, "oak")) == ["shared-file leaf.py"]
    break_link(tree.site / "oak/leaf.py")
    (tree.site / "oak/leaf.py").write_bytes(b"LOBES = 11000\n")  # an edit after it is nobody's
    code, report = verify(tree)
    assert kinds(report, "oak").keys() == kinds(report, "yew").keys() == {"modified leaf.py"}
    assert all(says.startswith("edited") for says in kinds(report, "oak").values())


def test_a_poisoned_archive_is_told_with_the_command_that_ends_it(tree: Stage) -> None:
    path = tree.site / "pine" / "__init__.py"
    with path.open("ab") as stream:
        stream.write(b"PATCH = True\n")
    detail = kinds(verify(tree)[1], "pine")["cache-poisoned __init__.py"]
    assert "every reinstall from this cache brings it back" in detail
    (wheel,) = tree.wheels.glob("pine-1.0-*.whl")
    os.utime(wheel)  # uv unpacks a wheel that looks new, and no name leads to the edited archive any more
    tree.install("pine", arguments=["--reinstall"])
    report = verify(tree, "--deep")[1]
    assert list(kinds(report, "pine")) == ["cache-poisoned __init__.py"]
    detail = kinds(report, "pine")["cache-poisoned __init__.py"]
    assert "uv does not install from it any more" in detail
    subprocess.run(["sh", "-c", detail.split("`")[1]], check=True)
    assert verify(tree, "--deep")[0] == 0
    with path.open("ab") as stream:
        stream.write(b"PATCH = True\n")
    command = kinds(verify(tree)[1], "pine")["cache-poisoned __init__.py"].split("`")[1]
    assert command == f"uv cache clean pine --cache-dir {tree.cache}"
    tree.uv(*command.split()[1:])
    assert set(kinds(verify(tree)[1], "pine")) == {"modified __init__.py"}


def test_edit_through_a_symbolic_link_poisons_the_cache_too(tree: Stage) -> None:
    tree.install("pine", arguments=["--reinstall", "--link-mode", "symlink"])
    path = tree.site / "pine" / "__init__.py"
    assert path.is_symlink()
    assert verify(tree, "--deep")[0] == 0
    with path.open("ab") as stream:
        stream.write(b"PATCH = True\n")
    code, report = verify(tree)
    assert code == 1
    assert set(kinds(report, "pine")) == {
        "modified __init__.py",
        "shared-file __init__.py",
        "cache-poisoned __init__.py",
    }


def test_copies_are_not_shared(tree: Stage) -> None:
    tree.install("pine", arguments=["--reinstall", "--link-mode", "copy"])
    path = tree.site / "pine" / "__init__.py"
    path.write_bytes(b"")
    code, report = verify(tree)
    assert (code, set(kinds(report, "pine"))) == (1, {"modified __init__.py"})
    assert "-ONE = 1" in report["problems"][0]["diff"]


def test_archives_of_other_builds_are_looked_at_with_deep(tree: Stage) -> None:
    build_wheel(tree.wheels, "pine", "1.1", {"pine/__init__.py": b"ONE = 1\n"})
    tree.install("pine==1.1")
    archive = next(path for path in tree.cache.rglob("archive-v*/*/pine-1.0.dist-info")).parent
    (archive / "pine" / "cone.py").write_bytes(b"SEEDS = 400\n")
    code, report = verify(tree)
    assert (code, report["problems"]) == (0, [])
    code, report = verify(tree, "--deep")
    assert code == 1
    assert list(kinds(report, "pine")) == ["cache-poisoned cone.py"]
    assert "not installed here" in kinds(report, "pine")["cache-poisoned cone.py"]


def test_edited_record_is_held_against_the_archive(tree: Stage) -> None:
    path, record = tree.site / "pine" / "cone.py", tree.site / "pine-1.0.dist-info" / "RECORD"
    old = hash_as(LiveHost(), str(path), "sha256=?")
    assert old is not None
    break_link(path)
    path.write_bytes(b"SEEDS = 41\n")
    record.write_text(record.read_text().replace(old, hash_as(LiveHost(), str(path), old) or ""))
    code, report = verify(tree, "--deep")
    assert code == 1
    (problem,) = report["problems"]
    assert (problem["kind"], problem["path"], problem["expected"]) == ("record-changed", str(path), old)
    assert "RECORD was rewritten" in problem["detail"]


def test_wheel_replaced_under_the_same_version_is_held_against_the_stamp(tree: Stage) -> None:
    checkpoint = tree.checkpoints / "step_690"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    assert tree.envguard("snapshot", "--into", str(checkpoint)).returncode == 0
    assert verify(tree)[0] == 0
    build_wheel(tree.wheels, "oak", "2.0", {"oak/__init__.py": b"ACORN = False\n"})
    tree.install("oak", arguments=["--reinstall"])
    code, report = verify(tree)
    assert code == 1
    (problem,) = report["problems"]
    assert (problem["package"], problem["kind"], problem["witness"]) == ("oak", "record-changed", "stamp of step_690")


def test_missing_record_is_damage_unless_another_manager_answers(tree: Stage) -> None:
    (tree.site / "pine-1.0.dist-info" / "RECORD").unlink()
    (tree.site / "oak-2.0.dist-info" / "RECORD").unlink()
    (tree.site / "oak-2.0.dist-info" / "INSTALLER").write_text("debian\n")
    code, report = verify(tree)
    assert code == 1
    assert kinds(report, "pine").keys() == {"record-missing RECORD"}
    assert not kinds(report, "oak")
    assert [item["package"] for item in report["unverifiable"]] == ["oak"]
    code, report = verify(tree, "oak")
    assert (code, report["problems"]) == (3, [])
    assert "managed by debian" in report["unverifiable"][0]["why"]


def test_two_metadata_of_one_package(tree: Stage) -> None:
    """A copied dist-info: which one's RECORD the files bear out, and which one importlib picks."""
    before = tree.site / "pine-1.0.dist-info"
    shutil.copytree(before, tree.root / "kept")
    build_wheel(tree.wheels, "pine", "1.1", {"pine/__init__.py": b"ONE = 11\n", "pine/needle.py": b""})
    tree.install("pine==1.1")
    shutil.copytree(tree.root / "kept", before)
    code, report = verify(tree, "pine")
    assert code == 1
    (problem,) = report["problems"]
    assert (problem["kind"], problem["path"]) == ("stale-metadata", str(before))
    assert (problem["expected"], problem["got"]) == ("1.1", "1.0")
    asked = [str(tree.python), "-c", "import importlib.metadata as m; print(m.version('pine'))"]
    picked = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    assert f"importlib.metadata picks {picked}" in problem["detail"]
    assert "reinstall" in problem["detail"]


def test_what_a_distribution_ships_twice_is_its_own(tree: Stage) -> None:
    """Debian ships an egg-info beside the dist-info of some packages."""
    (tree.site / "pine.egg-info").write_text("Metadata-Version: 2.1\nName: pine\nVersion: 1.0\n")
    code, report = verify(tree, "pine")
    assert code == 1
    assert [problem["kind"] for problem in report["problems"]] == ["stale-metadata"]
    (tree.site / "pine-1.0.dist-info" / "INSTALLER").write_text("debian\n")
    code, report = verify(tree, "pine")
    assert (code, report["problems"]) == (3, [])


def test_record_that_cannot_be_read_is_no_damage_and_no_pass() -> None:
    dist = Distribution("pine", "pine", "1.0", "/site/pine-1.0.dist-info", "/site", installer="uv", host=LiveHost())
    seen = Observed(dist, True, None, "unreadable: Permission denied", Contents(None))
    report = judge(Observations((seen,), (), (), (), False))
    assert (report.problems, report.exit_code()) == ((), 3)
    assert report.unverifiable[0].why == "RECORD is unreadable: Permission denied"


def test_files_that_cannot_be_read_are_not_counted_as_looked_at() -> None:
    dist = Distribution("pine", "pine", "1.0", "/site/pine-1.0.dist-info", "/site", installer="uv", host=LiveHost())
    unseen = (Unknown("/site/pine/a.py", "Permission denied"), Unknown("/site/pine/b.py", "Permission denied"))
    seen = Observed(dist, True, None, "read", Contents(None, files=5, depth="watched"), unseen=unseen)
    report = judge(Observations((seen,), (), (), (), False))
    assert (report.files, report.hashed, report.exit_code()) == (3, 3, 3)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00,,\n", b"pine/cone.py\n"])
def test_record_that_is_no_record(tree: Stage, data: bytes) -> None:
    (tree.site / "pine-1.0.dist-info" / "RECORD").write_bytes(data)
    code, report = verify(tree, "pine")
    assert code == 1
    assert {problem["kind"] for problem in report["problems"]} & {"record-missing", "record-changed"}


def test_an_environment_made_by_pip_is_sound(tree: Stage) -> None:
    """pip compiles and lists .pyc files, and writes scripts outside site-packages."""
    build_wheel(tree.wheels, "elm", "1.0", {"elm/__init__.py": b"def main(): pass\n"}, scripts={"elm": "elm:main"})
    pip = [sys.executable, "-m", "pip", "--python", str(tree.python), "--disable-pip-version-check"]
    offline = ["--no-index", "--find-links", str(tree.wheels), "elm"]
    subprocess.run([*pip, "install", *offline], check=True, capture_output=True, env=tree.environ())
    assert list((tree.site / "elm").rglob("*.pyc"))
    assert (tree.venv / "bin" / "elm").exists()
    code, report = verify(tree, "elm", "--deep")
    assert (code, report["problems"], report["unverifiable"]) == (0, [], [])


def test_a_pair_of_owners_is_one_finding_however_many_files_they_share(tree: Stage) -> None:
    files = {"oak/__init__.py": b"ACORN = False\n", "oak/leaf.py": b"LOBES = 5\n", "oak/own.py": b""}
    build_wheel(tree.wheels, "oak-headless", "2.0", files)
    tree.install("oak-headless")
    code, report = verify(tree, "--deep")
    assert (code, list(kinds(report, "oak-headless"))) == (1, [])
    [(what, says)] = kinds(report, "oak").items()
    assert what == "shared-file __init__.py"
    assert says.startswith("overwritten by oak-headless 2.0, which installs files of the same path (oak/__init__.py")
    taken = json.loads(tree.envguard("snapshot", "--json").stdout)
    [oak] = [item for item in taken["packages"] if item["name"] == "oak"]
    assert oak["overwritten"] == [[path, "oak-headless"] for path in ("oak/__init__.py", "oak/leaf.py")]
    # What is one and the same in both is no fault, as the `__init__` of a namespace is.
    build_wheel(tree.wheels, "pine-extra", "1.0", {"pine/__init__.py": b"ONE = 1\nTWO = 2\n"})
    tree.install("pine-extra")
    assert kinds(verify(tree)[1], "pine") == {}


def test_two_packages_in_one_namespace(tree: Stage) -> None:
    build_wheel(tree.wheels, "ns-one", "1.0", {"ns/one/__init__.py": b""})
    build_wheel(tree.wheels, "ns-two", "1.0", {"ns/two/__init__.py": b""})
    tree.install("ns-one", "ns-two")
    assert verify(tree)[0] == 0
    (tree.site / "ns" / "two" / "more.py").write_text("")
    code, report = verify(tree)
    assert (code, list(kinds(report, "ns-two"))) == (1, ["extra more.py"])
    assert verify(tree, "ns-one")[0] == 0


def test_crlf_record_is_no_damage(tree: Stage) -> None:
    record = tree.site / "pine-1.0.dist-info" / "RECORD"
    record.write_bytes(record.read_bytes().replace(b"\n", b"\r\n"))
    assert verify(tree, "--deep")[0] == 0


def test_oddities_of_a_cache_say_nothing_of_what_is_installed(tree: Stage) -> None:
    odd = next(tree.cache.glob("wheels-v*")) / "odd"
    odd.mkdir()
    (odd / "broken-1.0.http").write_bytes(b"\xff\xff")
    (next(tree.cache.glob("archive-v*")) / "half").mkdir()
    assert verify(tree)[0] == 0


def test_unknown_package_names_the_nearest(tree: Stage) -> None:
    done = tree.envguard("verify", "pines", "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)
    assert error["error"] == "pines is not installed"
    assert "pine" in error["hint"]


def test_nothing_is_changed(tree: Stage) -> None:
    def state() -> dict[str, tuple[int, int]]:
        roots = (tree.venv, tree.cache)
        return {
            str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for root in roots for path in root.rglob("*")
        }

    before = state()
    verify(tree, "--deep")
    assert state() == before

"""Distributions: every state that people's environments are in, made with real wheels, uv and pip."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envguard.acquire.packages.distributions import (
    Distribution,
    Distributions,
    Parsed,
    managed_by,
    read_distributions,
)
from envguard.acquire.packages.environment import locate
from envguard.acquire.packages.metadata import parse_direct_url, parse_headers, parse_requires_txt
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.seam.record import Record
from envguard.acquire.seam.recorded import BundleHost, RecordingHost
from envguard.demo import wheels
from envguard.demo.stage import Stage


def read(stage: Stage) -> Distributions:
    host = LiveHost()
    return read_distributions(host, locate(host, str(stage.python), "/"))


def only(stage: Stage, name: str) -> Distribution:
    found = [each for each in read(stage).found if each.name == name]
    assert len(found) == 1
    return found[0]


def install(stage: Stage, name: str, version: str = "1.0", **kwargs: object) -> Path:
    wheels.build_wheel(stage.wheels, name, version, **kwargs)  # type: ignore[arg-type]
    stage.install(f"{name}=={version}", arguments=["--no-deps"])
    return next(stage.site.glob(f"{name.lower().replace('-', '_')}-{version}.dist-info"))


def kinds(found: Distributions) -> list[tuple[str, str]]:
    return [(problem.kind, problem.subject) for problem in found.problems]


def test_what_uv_installed(stage: Stage) -> None:
    folder = install(stage, "Demo-Pkg", requires=["numpy>=1; extra == 'np'"])
    dist = only(stage, "demo-pkg")
    assert (dist.raw_name, dist.version, dist.installer) == ("Demo-Pkg", "1.0", "uv")
    assert (dist.directory, dist.location) == (str(folder), str(stage.site))
    assert dist.requires == ("numpy>=1; extra == 'np'",)
    assert dist.record is not None
    assert read(stage).problems == ()


def test_the_list_is_importlibs(stage: Stage) -> None:
    for name in ("a", "b", "c-d"):
        install(stage, name)
    found = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions(path=[str(stage.site)])}
    assert {dist.raw_name: dist.version for dist in read(stage).found} == found


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"", "metadata-empty"), (b"\0" * 400, "metadata-empty"), (None, "metadata-missing")],
)
def test_metadata_that_a_cleaner_took_leaves_the_package_in_the_list(
    stage: Stage, content: bytes | None, kind: str
) -> None:
    folder = install(stage, "demo")
    (folder / "METADATA").unlink()
    if content is not None:
        (folder / "METADATA").write_bytes(content)
    assert kinds(read(stage)) == [(kind, "demo")]
    assert only(stage, "demo").version == "1.0"


def test_undecodable_metadata_keeps_its_other_fields(stage: Stage) -> None:
    folder = install(stage, "demo")
    metadata = folder / "METADATA"
    (folder / "METADATA").write_bytes(metadata.read_bytes() + b"Author: Ren\xe9\nRequires-Dist: other\n")
    assert kinds(read(stage)) == [("metadata-undecodable", "demo")]
    assert only(stage, "demo").requires == ("other",)


def test_unreadable_metadata_is_unknown_and_the_package_listed(stage: Stage) -> None:
    folder = install(stage, "demo")
    (folder / "METADATA").unlink()
    (folder / "METADATA").mkdir()
    found = read(stage)
    assert [dist.name for dist in found.found] == ["demo"]
    assert [item.what for item in found.unknown] == ["metadata of demo"]


def test_a_version_that_contradicts_its_folder(stage: Stage) -> None:
    folder = install(stage, "demo")
    (folder / "METADATA").write_text("Name: demo\nVersion: 2.0\n")
    assert kinds(read(stage)) == [("metadata-mismatch", "demo")]


@pytest.mark.parametrize("version", ["1.0+cu128", "1.0.post1", "2026.1.0", "1!2.0"])
def test_a_version_that_its_folder_spells_otherwise_is_no_contradiction(stage: Stage, version: str) -> None:
    folder = stage.site / f"demo-{version.replace('!', '_')}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: demo\nVersion: {version}\n")
    assert read(stage).problems == ()


def test_what_an_interrupted_install_left_is_told_and_is_no_package(stage: Stage) -> None:
    folder = install(stage, "demo")
    folder.rename(stage.site / "~emo-1.0.dist-info")
    found = read(stage)
    assert found.found == ()
    (aside,) = found.aside
    assert (aside.name, aside.version, aside.was) == ("demo", "1.0", "demo-1.0.dist-info")
    assert aside.moved_ns == (stage.site / "~emo-1.0.dist-info").stat().st_ctime_ns


def test_two_dist_infos_stand_in_importlibs_order(stage: Stage) -> None:
    folder = install(stage, "demo")
    shutil.copytree(folder, stage.site / "demo-0.9.dist-info")
    (stage.site / "demo-0.9.dist-info/METADATA").write_text("Name: demo\nVersion: 0.9\n")
    named = next(iter(importlib.metadata.Distribution.discover(name="demo", path=[str(stage.site)])))
    found = read(stage)
    assert [dist.name for dist in found.found] == ["demo", "demo"]
    assert found.found[0].version == named.version
    assert set(found.duplicates()) == {"demo"}


def test_the_first_folder_on_the_path_comes_first(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(stage, "demo")
    wheels.build_wheel(stage.wheels, "demo", "2.0")
    target = tmp_path / "other"
    stage.uv(
        "pip",
        "install",
        "--offline",
        "--no-index",
        "--find-links",
        str(stage.wheels),
        "--target",
        str(target),
        "demo",
    )
    monkeypatch.setenv("PYTHONPATH", str(target))
    found = read(stage)
    assert [(dist.version, dist.location) for dist in found.found] == [("2.0", str(target)), ("1.0", str(stage.site))]
    assert [(item.name, item.wins, item.loses) for item in found.shadowed] == [
        ("demo", f"{target}/demo", f"{stage.site}/demo")
    ]


def test_lib64_beside_lib_is_one_folder(stage: Stage) -> None:
    install(stage, "demo")
    with (stage.site / "again.pth").open("w") as stream:
        stream.write(str(stage.venv / "lib64" / stage.site.parent.name / "site-packages") + "\n")
    if not (stage.venv / "lib64").exists():
        (stage.venv / "lib64").symlink_to("lib")
    assert only(stage, "demo").location == str(stage.site)


def test_a_namespace_shared_by_two_packages_is_no_shadow(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(stage, "ns-a", files={"ns/a/__init__.py": b""})
    (tmp_path / "more/ns/b").mkdir(parents=True)
    (tmp_path / "more/ns/b/__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "more"))
    assert read(stage).shadowed == ()


def test_a_stray_module_hides_a_package(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(stage, "demo")
    (tmp_path / "demo.py").write_text("surprise = True\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert [(item.wins, item.loses) for item in read(stage).shadowed] == [
        (str(tmp_path / "demo.py"), str(stage.site / "demo"))
    ]


PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "mine"
version = "3.1"
[tool.setuptools]
packages = ["mine"]
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "my source"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine/__init__.py").write_text("x = 1\n")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    return folder


def install_editable(stage: Stage, source: Path) -> None:
    """With the setuptools of the interpreter that runs the tests: a build must not need the network."""
    pytest.importorskip("setuptools", reason="builds an editable install, which needs setuptools beside the tests")
    python = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(stage.python)]
    environ = stage.environ({"PYTHONPATH": str(importlib.metadata.distribution("setuptools").locate_file(""))})
    done = subprocess.run(
        [*python, "install", "--quiet", "--no-index", "--no-build-isolation", "--editable", str(source)],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_an_editable_install_names_its_source(stage: Stage, source: Path) -> None:
    install_editable(stage, source)
    dist = next(dist for dist in read(stage).found if dist.name == "mine")
    assert (dist.version, dist.editable, dist.installer) == ("3.1", str(source), "pip")
    assert dist.directory.endswith(".dist-info")


def test_a_copy_on_the_path_hides_an_editable_install(stage: Stage, source: Path) -> None:
    (stage.site / "__editable___mine_3_1_finder.py").write_text(f"MAPPING = {{'mine': {str(source / 'mine')!r}}}\n")
    shutil.copytree(source / "mine", stage.site / "mine")
    assert [(item.wins, item.loses) for item in read(stage).shadowed] == [
        (str(stage.site / "mine"), str(source / "mine"))
    ]


def test_what_setuptools_leaves_in_the_source_is_no_second_install(
    stage: Stage, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a `src` folder, setuptools puts that folder on the path, and its egg-info lies right there.
    (source / "src").mkdir()
    (source / "mine").rename(source / "src/mine")
    pytest.importorskip("setuptools", reason="is what leaves an egg-info behind")
    (source / "pyproject.toml").write_text(PYPROJECT + 'package-dir = {"" = "src"}\n')
    # A build in isolation, which needs the network, first asks for what the build needs: that writes it.
    hook = "from setuptools import build_meta; build_meta.get_requires_for_build_editable()"
    subprocess.run([sys.executable, "-c", hook], cwd=source, check=True, capture_output=True)
    install_editable(stage, source)
    egg = source / "src/mine.egg-info"
    assert (egg / "PKG-INFO").exists()
    on_path = locate(LiveHost(), str(stage.python), "/").sys_path
    assert [entry.origin for entry in on_path if entry.path == str(source / "src")] == ["pth"]
    assert [(dist.version, dist.is_egg) for dist in read(stage).found if dist.name == "mine"] == [("3.1", False)]
    # The tree went on to another version, and was not installed again: the install is what it was.
    (egg / "PKG-INFO").write_text("Name: mine\nVersion: 3.2\n")
    assert [(dist.version, dist.is_egg) for dist in read(stage).found if dist.name == "mine"] == [("3.1", False)]
    # Before site-packages on the path it is what importlib names, and that is told.
    monkeypatch.setenv("PYTHONPATH", str(source / "src"))
    assert [(dist.version, dist.is_egg) for dist in read(stage).found if dist.name == "mine"] == [
        ("3.2", True),
        ("3.1", False),
    ]


def test_an_egg_info_of_another_tree_is_found_behind_the_install(stage: Stage, source: Path, tmp_path: Path) -> None:
    install_editable(stage, source)
    egg = tmp_path / "an older copy/mine.egg-info"
    egg.mkdir(parents=True)
    (egg / "PKG-INFO").write_text("Name: mine\nVersion: 2.9\n")
    (stage.site / "easy-install.pth").write_text(f"{egg.parent}\n")
    found = [dist for dist in read(stage).found if dist.name == "mine"]
    assert [(dist.version, dist.is_egg, dist.editable) for dist in found] == [
        ("3.1", False, str(source)),
        ("2.9", True, str(egg.parent)),
    ]


def test_egg_info_as_a_file_and_as_a_folder(stage: Stage) -> None:
    (stage.site / "old_style-1.2-py3.11.egg-info").write_text("Name: old-style\nVersion: 1.2\n")
    folder = stage.site / "folder_style.egg-info"
    folder.mkdir()
    (folder / "PKG-INFO").write_text("Name: folder-style\nVersion: 0.3\n")
    (folder / "requires.txt").write_text("numpy\n\n[dev]\npytest\n\n[:python_version < '3.12']\ntomli\n")
    found = {dist.name: dist for dist in read(stage).found}
    assert (found["old-style"].version, found["old-style"].record) == ("1.2", None)
    assert found["folder-style"].requires == (
        "numpy",
        'pytest; extra == "dev"',
        "tomli; python_version < '3.12'",
    )


def test_what_debian_manages_is_said_to_be(stage: Stage) -> None:
    folder = install(stage, "demo")
    (folder / "INSTALLER").write_text("debian\n")
    (folder / "RECORD").unlink()
    assert managed_by(only(stage, "demo")) == "managed by debian (INSTALLER says so)"
    assert managed_by(only(stage, "demo")) is not None


def test_direct_urls() -> None:
    vcs = parse_direct_url(
        b'{"url": "https://user:secret@git.example/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc",'
        b' "requested_revision": "main"}}'
    )
    assert (vcs.url, vcs.vcs, vcs.commit, vcs.requested_revision) == (
        "https://git.example/x.git",
        "git",
        "abc",
        "main",
    )
    archive = parse_direct_url(b'{"url": "file:///w.whl", "archive_info": {"hashes": {"sha256": "ff"}}}')
    assert (archive.archive_hash, archive.editable) == ("sha256=ff", False)
    assert parse_direct_url(b'{"url": "file:///src", "dir_info": {"editable": true}}').editable


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"url": 3}', b"\xff\xfe"])
def test_a_broken_direct_url_is_told_where_it_holds_anything(stage: Stage, content: bytes) -> None:
    folder = install(stage, "demo")
    (folder / "direct_url.json").write_bytes(content)
    assert kinds(read(stage)) == ([("direct-url-broken", "demo")] if content else [])
    assert only(stage, "demo").version == "1.0"


def test_an_editable_path_may_hold_any_character(stage: Stage, tmp_path: Path) -> None:
    folder = install(stage, "demo")
    url = (tmp_path / "a b%é").as_uri()
    (folder / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    assert only(stage, "demo").editable == str(tmp_path / "a b%é")


def test_headers_end_at_the_first_blank_line_and_survive_a_broken_one() -> None:
    found = parse_headers(
        "Name: x\nnonsense\nVersion: 1\r\nSummary: a\n  b\nRequires-Dist: p\nRequires-Dist: q\n\nName: y\n"
    )
    assert found["name"] == ["x"]
    assert found["version"] == ["1"]
    assert found["summary"] == ["a\nb"]
    assert found["requires-dist"] == ["p", "q"]


def test_requires_txt_with_an_extra_and_a_marker() -> None:
    assert parse_requires_txt('[dev:sys_platform == "linux"]\nx>1\n') == (
        'x>1; (sys_platform == "linux") and extra == "dev"',
    )


def test_a_bundle_answers_as_the_machine_did(stage: Stage) -> None:
    folder = install(stage, "demo")
    shutil.copytree(folder, stage.site / "demo-0.9.dist-info")
    recording = RecordingHost(LiveHost(), Record())
    live = read_distributions(recording, locate(recording, str(stage.python), "/"))
    bundle = BundleHost(recording.record, "bundle")
    again = read_distributions(bundle, locate(bundle, str(stage.python), "/"))
    assert again == live


def test_what_was_parsed_counts_while_the_files_are_the_same(stage: Stage) -> None:
    folder = install(stage, "demo", requires=["numpy"])
    broken = install(stage, "broken")
    (broken / "METADATA").write_bytes(b"")
    time.sleep(0.1)  # so that the stats can vouch for what is read
    parsed: Parsed = {}
    host = LiveHost()

    def again() -> Distributions:
        return read_distributions(host, locate(host, str(stage.python), "/"), parsed)

    first, second = again(), again()
    assert (first, kinds(second)) == (second, [("metadata-empty", "broken")])
    assert [each.name for each in second.found if each.directory in parsed] == ["demo"]
    (dist,) = (each for each in second.found if each.name == "demo")
    assert dist.record is not None
    with (folder / "RECORD").open("a") as stream:
        stream.write("more.py,sha256=x,1\n")
    text = (folder / "METADATA").read_text().replace("Requires-Dist: numpy", "Requires-Dist: scipy")
    (folder / "METADATA").write_text(text)
    (folder / "INSTALLER").unlink()
    (third,) = (each for each in again().found if each.name == "demo")
    assert (third.requires, third.installer) == (("scipy",), None)
    assert third.record is not None
    assert third.record.rows[-1].path == "more.py"


def test_whether_a_record_lists_a_path(stage: Stage) -> None:
    install(stage, "demo", files={"demo.pth": b"", "demo.pth.txt": b""})
    found = [only(stage, "demo").lists(path) for path in ("demo.pth", "demo", "other.pth")]
    assert found == [True, False, False]
    record = stage.site / "demo-1.0.dist-info" / "RECORD"
    record.write_text(f'"a ""b"", c.pth",sha256=x,0\n{record.read_text()}')
    assert only(stage, "demo").lists('a "b", c.pth')

"""Modules that a process imported from elsewhere than their package: told where it is so, and nowhere else."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

from envguard.acquire.packages.distributions import read_distributions
from envguard.acquire.packages.environment import locate
from envguard.acquire.processes.elsewhere import imported_elsewhere
from envguard.acquire.seam.host import LiveHost


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A venv with `single` (a package) and `shared-part` (a part of the namespace `shared`)."""
    made = tmp_path / "venv"
    site = site_of(made)
    site.mkdir(parents=True)
    (made / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\ninclude-system-site-packages = false\n")
    install(site, "single", "single/__init__.py")
    install(site, "shared-part", "shared/part/__init__.py")
    return made


def site_of(prefix: Path) -> Path:
    return prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def install(site: Path, name: str, *files: str, url: dict[str, object] | None = None) -> None:
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    if url is not None:
        (folder / "direct_url.json").write_text(json.dumps(url))
    for file in files:
        write(site / file)


def write(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return file


def loaded(name: str, origin: Path) -> types.ModuleType:
    """A module as an import leaves it."""
    spec = importlib.util.spec_from_file_location(name, origin)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


def namespace(name: str, *paths: Path) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = [str(path) for path in paths]
    return module


def told(prefix: Path, *modules: types.ModuleType, pythonpath: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    host = LiveHost()
    env = locate(host, str(prefix), "/", pythonpath)
    found = read_distributions(host, env).found
    seen = imported_elsewhere(host, env, found, {module.__name__: module for module in modules})
    return [(each.package, each.path) for each in seen]


@pytest.mark.parametrize("file", ["single/__init__.py", "single.py", "deep/vendor/single/__init__.py"])
def test_another_folder_is_told(prefix: Path, tmp_path: Path, file: str) -> None:
    origin = write(tmp_path / "project" / file)
    assert told(prefix, loaded("single", origin)) == [("single", str(origin))]


def test_a_folder_below_one_on_the_path_is_another_folder(prefix: Path, tmp_path: Path) -> None:
    origin = write(tmp_path / "project" / "vendor" / "single" / "__init__.py")
    assert told(prefix, loaded("single", origin), pythonpath=(str(tmp_path / "project"),)) == [
        ("single", str(origin))
    ]


def test_what_the_environment_itself_has_is_not_told(prefix: Path, tmp_path: Path) -> None:
    site = site_of(prefix)
    vendored = write(site / "bundle" / "_vendor" / "single" / "__init__.py")
    assert told(prefix, loaded("single", site / "single" / "__init__.py")) == []
    assert told(prefix, loaded("single", vendored)) == []
    assert told(prefix, loaded("single", site / "egg.egg" / "single" / "__init__.py")) == []


def test_a_module_of_no_package_and_one_of_the_standard_library_are_not_told(prefix: Path, tmp_path: Path) -> None:
    install(site_of(prefix), "json", "json/__init__.py")
    own = [loaded(name, write(tmp_path / "project" / f"{name}.py")) for name in ("model", "json", "__main__")]
    assert told(prefix, *own, types.ModuleType("single")) == []


def test_a_module_beside_what_a_package_is_about_is_a_common_name(prefix: Path, tmp_path: Path) -> None:
    """A project's own `tests` is no other version of a package that installs one, too."""
    install(site_of(prefix), "thing", "thing/__init__.py", "tests/__init__.py")
    install(site_of(prefix), "PyOther", "other/__init__.py", "_other/__init__.py", "../../../bin/other")
    project = tmp_path / "project"
    own = [loaded(name, write(project / name / "__init__.py")) for name in ("tests", "thing", "other")]
    assert [package for package, _ in told(prefix, *own)] == ["pyother", "thing"]


def test_folders_that_pythonpath_and_a_pth_name_are_the_environments_own(prefix: Path, tmp_path: Path) -> None:
    module = loaded("single", write(tmp_path / "more" / "single" / "__init__.py"))
    assert told(prefix, module, pythonpath=(str(tmp_path / "more"),)) == []
    (site_of(prefix) / "more.pth").write_text(f"{tmp_path / 'more'}\n")
    assert told(prefix, module) == []


@pytest.mark.parametrize("linked", ["prefix", "folder", "file"])
def test_a_link_is_the_place_that_it_leads_to(prefix: Path, tmp_path: Path, linked: str) -> None:
    """Named by either: as a venv behind a link, as a link to a package's folder, as uv links single files."""
    installed = site_of(prefix) / "single" / "__init__.py"
    if linked == "prefix":
        (tmp_path / "alias").symlink_to(prefix)
        assert told(tmp_path / "alias", loaded("single", installed)) == []
        assert told(prefix, loaded("single", site_of(tmp_path / "alias") / "single" / "__init__.py")) == []
        return
    archive = write(tmp_path / "archive" / "single" / "__init__.py")
    installed.unlink()
    if linked == "folder":
        installed.parent.rmdir()
        installed.parent.symlink_to(archive.parent)
    else:
        installed.symlink_to(archive)
    assert told(prefix, loaded("single", archive)) == []
    assert told(prefix, loaded("single", installed)) == []


def test_parts_of_a_namespace_are_looked_at_one_by_one(prefix: Path, tmp_path: Path) -> None:
    here, there = site_of(prefix) / "shared", tmp_path / "project" / "shared"
    top = namespace("shared", there, here)
    other = loaded("shared.other", write(there / "other.py"))
    assert told(prefix, top, loaded("shared.part", here / "part" / "__init__.py"), other) == []
    stray = write(there / "part" / "__init__.py")
    assert told(prefix, top, loaded("shared.part", stray)) == [("shared-part", str(stray))]


@pytest.mark.parametrize("how", ["pth", "finder", "hook"])
def test_the_source_of_an_editable_install_is_its_own_and_another_copy_is_not(
    prefix: Path, tmp_path: Path, how: str
) -> None:
    site, source = site_of(prefix), tmp_path / "source"
    file = write(source / "src" / "mine" / "__init__.py")
    lines = {"pth": f"{source}/src\n", "finder": "import __editable___mine_finder\n", "hook": "import _mine_loader\n"}
    (site / "__editable__.mine.pth").write_text(lines[how])
    files = ["__editable__.mine.pth"]
    if how == "finder":
        (site / "__editable___mine_finder.py").write_text(
            f"MAPPING: dict[str, str] = {{'mine': {str(file.parent)!r}}}\nNAMESPACES: dict[str, list[str]] = {{}}\n"
        )
        files.append("__editable___mine_finder.py")
    install(site, "mine", *files, url={"url": source.as_uri(), "dir_info": {"editable": True}})
    assert told(prefix, loaded("mine", file)) == []
    copy = write(tmp_path / "copy" / "mine" / "__init__.py")
    # Where only a hook knows what it imports, nobody else can tell that this is not it.
    assert told(prefix, loaded("mine", copy)) == ([] if how == "hook" else [("mine", str(copy))])


def test_the_folder_that_a_package_was_installed_from_is_its_own(prefix: Path, tmp_path: Path) -> None:
    source = tmp_path / "a source"
    install(site_of(prefix), "mine", "mine/__init__.py", url={"url": source.as_uri(), "dir_info": {}})
    assert told(prefix, loaded("mine", write(source / "mine" / "__init__.py"))) == []


def test_a_module_that_answers_for_everything_costs_nothing(prefix: Path) -> None:
    class Loud(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    loud = Loud("single")
    loud.__spec__ = None
    assert told(prefix, loud) == []


def test_nothing_is_told_of_this_very_process() -> None:
    """Real modules of a real environment, however it is laid out: none is told that is not elsewhere."""
    host = LiveHost()
    env = locate(host, sys.prefix, "/", ())
    found = read_distributions(host, env).found
    for each in imported_elsewhere(host, env, found):
        assert not each.path.startswith(env.site), each

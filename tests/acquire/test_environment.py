"""Which environment is meant, and the path that its interpreter would have: held against the interpreter itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envguard.acquire.packages.environment import Environment, locate
from envguard.acquire.packages.sys_path import added_site_folders, parse_finder
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.seam.record import Record
from envguard.acquire.seam.recorded import BundleHost, RecordingHost
from envguard.demo.stage import Stage
from envguard.errors import InputError

ASK = """
import json, platform, sys, sysconfig
print(json.dumps({"path": [p for p in sys.path if p], "version": platform.python_version(),
    "abi": sysconfig.get_config_var("SOABI"), "platform": sysconfig.get_platform(), "prefix": sys.prefix,
    "base": sys.base_prefix, "implementation": platform.python_implementation()}))
"""


def agrees(python: Path, **variables: str) -> Environment:
    """Reads an environment and holds it against what its interpreter says of itself."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    said = json.loads(
        subprocess.run([str(python), "-c", ASK], env=environ, cwd="/", capture_output=True, check=True).stdout
    )
    env = locate(LiveHost(), str(python), "/")
    read = {
        "path": [entry.path for entry in env.sys_path],
        "version": env.version,
        "abi": env.abi,
        "platform": env.platform,
        "prefix": env.prefix,
        "base": env.base,
        "implementation": env.implementation,
    }
    assert read == said
    assert env.unknown == ()
    return env


def test_a_uv_venv(stage: Stage) -> None:
    env = agrees(stage.python)
    assert env.kind == "venv"
    assert env.site == (str(stage.site),)


def test_a_venv_of_the_standard_library(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    assert agrees(tmp_path / "v/bin/python").problems == ()


def test_the_base_interpreter() -> None:
    base = Path(os.path.realpath(sys.executable))
    assert agrees(base).kind in ("system", "conda")


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no system Python on this machine")
def test_the_system_python() -> None:
    agrees(Path("/usr/bin/python3"))


def test_a_venv_of_the_system_python_with_its_packages(tmp_path: Path) -> None:
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    command = [python, "-m", "venv", "--without-pip", "--system-site-packages", str(tmp_path / "v")]
    subprocess.run(command, check=True)
    env = agrees(tmp_path / "v/bin/python")
    assert env.sys_path[-1].origin in ("system site", "site")


def test_user_site_comes_after_the_venv_and_before_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(tmp_path / "v")]
    subprocess.run(command, check=True)
    folder = f"python{sys.version_info.major}.{sys.version_info.minor}"
    user = tmp_path / "user/lib" / folder / "site-packages"
    user.mkdir(parents=True)
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    env = agrees(tmp_path / "v/bin/python", PYTHONUSERBASE=str(tmp_path / "user"))
    origins = [entry.origin for entry in env.sys_path if entry.origin != "stdlib"]
    assert origins.index("site") < origins.index("user site") < origins.index("system site")
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    assert str(user) not in [entry.path for entry in locate(LiveHost(), str(tmp_path / "v"), "/").sys_path]


def test_pythonpath_comes_first(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = f"{tmp_path / 'a'}:{tmp_path / 'b'}"
    (tmp_path / "a").mkdir()
    monkeypatch.setenv("PYTHONPATH", value)
    env = agrees(stage.python, PYTHONPATH=value)
    assert [entry.origin for entry in env.sys_path[:2]] == ["PYTHONPATH", "PYTHONPATH"]


def test_pth_files_as_site_reads_them(stage: Stage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (stage.site / "inside").mkdir()
    marker = tmp_path / "executed"
    (stage.site / "b.pth").write_text(
        f"# a comment\n\n{outside}\n../../../\ninside\ngone\nimport pathlib; pathlib.Path({str(marker)!r}).touch()\n"
    )
    (stage.site / "a.pth").write_text("inside\n")
    env = locate(LiveHost(), str(stage.python), "/")
    assert not marker.exists()
    lines = {line.text: line for line in env.pth if line.file.endswith("b.pth")}
    assert (lines[str(outside)].kind, lines[str(outside)].leaves) == ("path", True)
    assert (lines["../../../"].path, lines["../../../"].leaves) == (str(stage.venv), True)
    assert (lines["inside"].kind, lines["inside"].leaves) == ("path", False)
    assert lines["gone"].kind == "missing"
    code = next(line for line in env.pth if line.kind == "code" and line.file.endswith("b.pth"))
    assert (code.number, code.text.startswith("import pathlib;")) == (7, True)
    assert agrees(stage.python).pth == env.pth


@pytest.mark.parametrize(
    ("line", "folders"),
    [
        ("import site; site.addsitedir('/a/b')", ("/a/b",)),
        (
            'import site; site.addsitedir(__import__("os").fsdecode(b"/a/\\xff")); site.addsitedir("/c")',
            ("/a/\udcff", "/c"),
        ),
        ("import site, os; site.addsitedir(os.environ['HERE'])", ()),
        ("import site; print(1); site.addsitedir('/a')", ()),
        ("import site; site.addsitedir('/a'", ()),
        ("import os", ()),
    ],
)
def test_folders_that_a_line_of_code_adds(line: str, folders: tuple[str, ...]) -> None:
    assert added_site_folders(line) == folders


def test_an_undecodable_pth_is_named_and_its_other_lines_read(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (stage.site / "odd.pth").write_bytes(b"# caf\xe9\n" + os.fsencode(tmp_path / "there") + b"\n")
    env = locate(LiveHost(), str(stage.python), "/")
    assert [problem.kind for problem in env.problems] == ["pth-undecodable"]
    assert str(tmp_path / "there") in [entry.path for entry in env.sys_path]


def test_editable_finders_are_read_and_never_imported(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "src/pkg").mkdir(parents=True)
    (stage.site / "__editable___pkg_1_0_finder.py").write_text(
        "from __future__ import annotations\n"
        f"MAPPING: dict[str, str] = {{'pkg': {str(tmp_path / 'src/pkg')!r}, 'lost': '/nowhere/lost'}}\n"
        "NAMESPACES: dict[str, list[str]] = {'ns': ['/somewhere']}\n"
        "raise SystemExit('imported')\n"
    )
    env = locate(LiveHost(), str(stage.python), "/")
    assert [finder.mapping["pkg"] for finder in env.finders] == [str(tmp_path / "src/pkg")]
    assert env.finders[0].namespaces == {"ns": ("/somewhere",)}
    assert [(problem.kind, problem.subject) for problem in env.problems] == [("editable-gone", "lost")]


def test_a_finder_that_assigns_code_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed node"):
        parse_finder("f.py", b"MAPPING = __import__('os').environ\n")
    with pytest.raises(ValueError, match="no MAPPING"):
        parse_finder("f.py", b"OTHER = {}\n")


def test_the_order_of_the_contract(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = LiveHost()
    other = tmp_path / "other"
    stage.uv("venv", "--quiet", "--python", sys.executable, str(other))
    deep = stage.project / "a/b"
    deep.mkdir(parents=True)
    assert locate(host, None, str(deep)).prefix == str(stage.venv)
    monkeypatch.setenv("CONDA_PREFIX", str(other))
    assert locate(host, None, str(deep)).how == "CONDA_PREFIX"
    monkeypatch.setenv("VIRTUAL_ENV", str(other))
    assert (locate(host, None, str(deep)).prefix, locate(host, None, str(deep)).how) == (str(other), "VIRTUAL_ENV")
    assert locate(host, str(stage.python), str(deep)).prefix == str(stage.venv)
    assert locate(host, "../../.venv", str(deep)).prefix == str(stage.venv)


def test_python3_on_path_comes_last(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{stage.venv}/bin:{os.environ['PATH']}")
    assert locate(LiveHost(), None, "/").prefix == str(stage.venv)
    assert locate(LiveHost(), "python3", "/").prefix == str(stage.venv)


def test_a_tools_own_environment_is_taken_only_by_name(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage.venv / "uv-receipt.toml").write_text("[tool]\n")
    monkeypatch.setenv("VIRTUAL_ENV", str(stage.venv))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as caught:
        locate(LiveHost(), None, "/")
    assert str(stage.venv) in str(caught.value.hint)
    assert locate(LiveHost(), str(stage.venv), "/").prefix == str(stage.venv)


@pytest.mark.parametrize("named", ["nowhere", "empty", "a-file"])
def test_what_is_no_environment_is_refused_with_a_hint(tmp_path: Path, named: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").write_text("#!/bin/sh\n")
    with pytest.raises(InputError) as caught:
        locate(LiveHost(), named, str(tmp_path))
    assert caught.value.hint


def test_a_base_that_was_upgraded_is_told(stage: Stage) -> None:
    file = stage.venv / "pyvenv.cfg"
    version = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    file.write_text(file.read_text().replace(version, f"{sys.version_info.major}.{sys.version_info.minor}.99"))
    env = locate(LiveHost(), str(stage.venv), "/")
    assert env.version == version
    assert [problem.kind for problem in env.problems] == ["base-changed"]


def test_a_base_that_is_gone_is_told_and_the_packages_still_read(stage: Stage) -> None:
    file = stage.venv / "pyvenv.cfg"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("home")]
    file.write_text("\n".join(["home = /gone/bin", *lines]) + "\n")
    for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
        (stage.venv / "bin" / name).unlink(missing_ok=True)
        (stage.venv / "bin" / name).symlink_to("/gone/bin/python3")
    env = locate(LiveHost(), str(stage.venv), "/")
    assert env.base is None
    assert [problem.kind for problem in env.problems] == ["base-gone"]
    assert env.site == (str(stage.site),)


BROKEN = {
    "dead link": lambda path: path.symlink_to("/nowhere/at/all"),
    "empty folder": lambda path: path.mkdir(),
    "file": lambda path: path.write_text("name-of-an-environment\n"),
    "folder of something else": lambda path: (path / "bin").mkdir(parents=True),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_venv_is_an_error_and_no_reason_to_take_another(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BROKEN[name](tmp_path / ".venv")
    with pytest.raises(InputError, match=str(tmp_path / ".venv")) as caught:
        locate(LiveHost(), None, str(tmp_path))
    assert "--python" in (caught.value.hint or "")
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.setenv(variable, str(tmp_path / ".venv"))
        with pytest.raises(InputError, match=variable):
            locate(LiveHost(), None, "/")
        monkeypatch.delenv(variable)


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT"])
def test_a_variable_that_names_what_is_gone_is_an_error(
    stage: Stage, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage.project / "pyproject.toml").write_text("")
    monkeypatch.setenv(variable, str(stage.root / "gone"))
    with pytest.raises(InputError, match=f"{variable} names .*gone, which is not there"):
        locate(LiveHost(), None, str(stage.project))
    assert locate(LiveHost(), str(stage.python), str(stage.project)).prefix == str(stage.venv)


def test_uv_names_another_place_for_the_environment_of_a_project(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    stage.uv("venv", "--quiet", "--python", sys.executable, str(other))
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", os.path.relpath(other, stage.project))
    assert locate(LiveHost(), None, str(stage.project)).prefix == str(stage.venv)  # no project of uv
    (stage.project / "pyproject.toml").write_text("")
    env = locate(LiveHost(), None, str(stage.project))
    assert (env.prefix, env.how) == (str(other), "UV_PROJECT_ENVIRONMENT")


@pytest.mark.parametrize(
    ("made", "now", "folders", "kinds", "sees"),
    [
        ("3.11.7", "3.13", ("3.11",), ["base-minor"], None),
        ("3.11.7", "3.13", ("3.11", "3.13"), ["base-minor"], "3.13"),
        ("3.13.0", "3.13t", ("3.13", "3.13t"), [], "3.13t"),
        ("3.13.0", "3.13", ("3.13", "3.13t"), [], "3.13"),
        ("3.11.2", "3.11", ("3.11",), ["base-changed"], "3.11"),
        ("3.11.7", "3.11", ("3.11", "3.9"), [], "3.11"),
    ],
)
def test_what_starts_decides_which_folder_is_read(
    tmp_path: Path, made: str, now: str, folders: tuple[str, ...], kinds: list[str], sees: str | None
) -> None:
    base, venv = tmp_path / "usr", tmp_path / "venv"
    for folder in ("bin", f"lib/python{now}", f"include/python{now}"):
        (base / folder).mkdir(parents=True)
    (base / f"lib/python{now}/os.py").touch()
    full = {"3.13": "3.13.0", "3.13t": "3.13.0", "3.11": "3.11.7"}[now]
    (base / f"include/python{now}/patchlevel.h").write_text(f'#define PY_VERSION "{full}"\n')
    (base / f"bin/python{now}").touch(0o755)
    (base / "bin/python3").symlink_to(f"python{now}")
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to(base / "bin/python3")
    (venv / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = {made}\ninclude-system-site-packages = false\n")
    for version in folders:
        (venv / f"lib/python{version}/site-packages").mkdir(parents=True)
    env = locate(LiveHost(), str(venv), "/")
    assert [problem.kind for problem in env.problems] == kinds
    assert env.version == full
    assert env.site == ((f"{venv}/lib/python{sees}/site-packages",) if sees else ())
    if sees is None:
        assert "lib/python3.11 cannot be imported" in env.problems[0].says


@pytest.mark.parametrize("left", ["nothing", "a link to nothing"])
def test_an_environment_without_its_interpreter_starts_nothing(stage: Stage, left: str) -> None:
    for path in (stage.venv / "bin").glob("python*"):
        path.unlink()
    if left != "nothing":
        (stage.venv / "bin/python").symlink_to("/nowhere/python3")
    assert [problem.kind for problem in locate(LiveHost(), str(stage.venv), "/").problems] == ["base-gone"]


def test_a_moved_venv_is_read_where_it_is(stage: Stage, tmp_path: Path) -> None:
    shutil.move(stage.venv, tmp_path / "moved")
    assert locate(LiveHost(), str(tmp_path / "moved"), "/").prefix == str(tmp_path / "moved")


def test_the_version_stands_in_the_binary_where_there_are_no_headers(tmp_path: Path) -> None:
    """As on Debian without the development package."""
    base = tmp_path / "usr"
    library = base / "lib/python3.11"
    library.mkdir(parents=True)
    (library / "os.py").touch()
    (base / "bin").mkdir()
    (base / "bin/python3.11").write_bytes(b"\x7fELF...\0%.80s (%.80s) %.80s\x003.11.2\x00more\0")
    (base / "bin/python3.11").chmod(0o755)
    env = locate(LiveHost(), str(base / "bin/python3.11"), "/")
    assert (env.version, env.kind) == ("3.11.2", "system")


def test_conda_names_its_python_in_its_records(tmp_path: Path) -> None:
    prefix = tmp_path / "conda"
    (prefix / "lib/python3.12/site-packages").mkdir(parents=True)
    (prefix / "conda-meta").mkdir()
    (prefix / "conda-meta/python-3.12.4-h5148396_1.json").write_text("{}")
    env = locate(LiveHost(), str(prefix), "/")
    assert (env.kind, env.version, env.base) == ("conda", "3.12.4", str(prefix))


def test_a_bundle_answers_as_the_machine_did(stage: Stage) -> None:
    recording = RecordingHost(LiveHost(), Record())
    live = locate(recording, str(stage.python), "/")
    assert locate(BundleHost(recording.record, "bundle"), str(stage.python), "/") == live

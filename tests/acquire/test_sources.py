"""What import takes from installs that no RECORD describes: editable ones of every style, and eggs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard.acquire.memo import Memo
from envguard.acquire.packages import sources
from envguard.acquire.packages.distributions import read_distributions
from envguard.acquire.packages.environment import locate
from envguard.acquire.packages.record_file import record_hash
from envguard.acquire.packages.sources import read_sources
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.section import Notes
from envguard.demo.stage import Stage
from tests.permissions import held_host, unreadable

FINDER = "MAPPING: dict[str, str] = {mapping!r}\nNAMESPACES: dict[str, list[str]] = {names!r}\n"


def project(root: Path) -> Path:
    """A project of the package `mine` in `src/`, with what lies about in one."""
    for path, text in {
        "pyproject.toml": "[project]\n",
        "src/mine/__init__.py": "A = 1\n",
        "src/mine/deep/er.py": "B = 1\n",
        "src/mine/conf/train.yaml": "lr: 1\n",
        "src/mine/kernels.so": "ELF",
        "src/mine/README.md": "read me\n",
        "src/mine/outputs/run/config.yaml": "seed: 1\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def write_install(stage: Stage, source: Path, files: dict[str, str]) -> None:
    """A dist-info as an installer leaves it of an editable install that put `files` into site-packages."""
    for old in (*stage.site.glob("*mine*"), *stage.site.glob("easy-install.pth")):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    info = stage.site / "mine-0.1.dist-info"
    url = {"url": source.as_uri(), "dir_info": {"editable": True}}
    files = {
        **files,
        "mine-0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 0.1\n",
        "mine-0.1.dist-info/INSTALLER": "uv",
        "mine-0.1.dist-info/direct_url.json": json.dumps(url),
    }
    info.mkdir()
    for path, text in files.items():
        (stage.site / path).write_text(text)
    digests = {path: record_hash("sha256", hashlib.sha256(text.encode()).digest()) for path, text in files.items()}
    (info / "RECORD").write_text("".join(f"{path},{digest},\n" for path, digest in digests.items()))


def by_path(name: str) -> Callable[[Stage, Path], None]:
    return lambda stage, source: write_install(stage, source, {name: f"{source}/src\n"})


def by_finder(stage: Stage, source: Path) -> None:
    text = FINDER.format(mapping={"mine": f"{source}/src/mine"}, names={})
    pth = "import __editable___mine_0_1_finder; __editable___mine_0_1_finder.install()"
    write_install(stage, source, {"__editable__.mine-0.1.pth": pth, "__editable___mine_0_1_finder.py": text})


def by_namespace(stage: Stage, source: Path) -> None:
    text = FINDER.format(mapping={}, names={"mine": [f"{source}/src/mine"]})
    write_install(stage, source, {"__editable___mine_0_1_finder.py": text})


def by_url_alone(stage: Stage, source: Path) -> None:
    """As meson-python has it: a loader of its own leads there."""
    write_install(
        stage, source / "src", {"_mine_editable_loader.py": "install()\n", "mine-editable.pth": "import x\n"}
    )


def by_egg_link(stage: Stage, source: Path) -> None:
    write_install(stage, source, {})
    shutil.rmtree(stage.site / "mine-0.1.dist-info")
    (source / "src/mine.egg-info").mkdir(exist_ok=True)
    (source / "src/mine.egg-info/PKG-INFO").write_text("Name: mine\nVersion: 0.1\n")
    (stage.site / "mine.egg-link").write_text(f"{source}/src\n.")
    (stage.site / "easy-install.pth").write_text(f"{source}/src\n")


STYLES = {
    "setuptools": by_path("__editable__.mine-0.1.pth"),
    "hatch": by_path("_mine.pth"),
    "poetry, pdm, flit, maturin": by_path("mine.pth"),
    "setuptools finder": by_finder,
    "setuptools namespace": by_namespace,
    "meson-python": by_url_alone,
    "setup.py develop": by_egg_link,
}
each_style = pytest.mark.parametrize("style", STYLES)


def look(stage: Stage, memo: Memo | None = None, budget: int | None = None) -> tuple[str | None, list[str]]:
    """The digest of the one install, and why there is none."""
    host, notes = LiveHost(), Notes()
    env = locate(host, str(stage.python), "/")
    found = read_sources(host, env, read_distributions(host, env), {} if memo is None else memo, notes, budget)
    assert len(found) <= 1
    return next(iter(found.values()), None), [f"{item.what}: {item.why}" for item in notes.unknown]


@each_style
def test_the_source_of_an_editable_install_is_known_by_content(style: str, stage: Stage, tmp_path: Path) -> None:
    source = project(tmp_path / "a")
    STYLES[style](stage, source)
    before, unseen = look(stage)
    assert before is not None
    assert unseen == []
    for path, text in {
        "src/mine/__init__.py": "A = 2\n",
        "src/mine/deep/er.py": "B = 2\n",
        "src/mine/conf/train.yaml": "lr: 2\n",
        "src/mine/kernels.so": "FLE",
        "src/mine/new.py": "",
    }.items():
        old = (source / path).read_text() if (source / path).exists() else None
        (source / path).write_text(text)
        assert look(stage)[0] != before, path
        if old is None:
            (source / path).unlink()
        else:
            (source / path).write_text(old)
        assert look(stage)[0] == before, path


@each_style
def test_what_lies_about_in_a_source_is_no_part_of_it(style: str, stage: Stage, tmp_path: Path) -> None:
    source = project(tmp_path / "a")
    STYLES[style](stage, source)
    before = look(stage)[0]
    for path in (
        "src/mine/__pycache__/deep.cpython-311.pyc",
        "src/mine/README.md",
        "src/mine/outputs/run/config.yaml",
        "src/mine/wandb/run-1/files/config.yaml",
        "src/mine/.hydra/config.yaml",
        "src/mine/notes.txt",
        ".git/HEAD",
        "runs/step_10/config.json",
        "build/lib/mine/__init__.py",
    ):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text("other")
        assert look(stage)[0] == before, path


@each_style
def test_a_copy_at_another_place_is_the_same_until_it_is_edited(style: str, stage: Stage, tmp_path: Path) -> None:
    STYLES[style](stage, project(tmp_path / "a"))
    before = look(stage)[0]
    STYLES[style](stage, project(tmp_path / "elsewhere/b"))
    assert look(stage)[0] == before
    (tmp_path / "elsewhere/b/src/mine/__init__.py").write_text("A = 3\n")
    assert look(stage)[0] != before


def test_a_project_folder_on_the_path_offers_its_modules_and_packages(stage: Stage, tmp_path: Path) -> None:
    source = tmp_path / "flat"
    for path in ("mine/__init__.py", "train.py", "space/part/__init__.py", "tools/run.py"):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text("A = 1\n")
    write_install(stage, source, {"_mine.pth": f"{source}\n"})
    before = look(stage)[0]
    for path in ("data/shard.py", ".venv/lib/x.py", "runs/a/config.yaml", "docs/conf.txt", "setup.cfg"):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text("A = 1\n")
        assert look(stage)[0] == before, path
    for path in ("mine/__init__.py", "train.py", "space/part/__init__.py", "tools/run.py"):
        (source / path).write_text("A = 2\n")
        assert look(stage)[0] != before, path
        (source / path).write_text("A = 1\n")


def test_a_mapping_may_name_a_module(stage: Stage, tmp_path: Path) -> None:
    source = tmp_path / "one"
    source.mkdir()
    (source / "mine.py").write_text("A = 1\n")
    text = FINDER.format(mapping={"mine": f"{source}/mine"}, names={})
    write_install(stage, source, {"__editable___mine_0_1_finder.py": text})
    before = look(stage)[0]
    assert before is not None
    (source / "mine.py").write_text("A = 2\n")
    assert look(stage)[0] != before


def test_an_extension_that_was_built_beside_counts(stage: Stage, tmp_path: Path) -> None:
    """As scikit-build-core has it: Python from the source, the extension in site-packages."""
    source = project(tmp_path / "a")
    leads = {"_mine_editable.pth": "import _mine_editable", "_mine_editable.py": "x"}
    (stage.site / "mine").mkdir()
    write_install(stage, source / "src", leads)
    before = look(stage)[0]
    (stage.site / "mine").mkdir(exist_ok=True)
    write_install(stage, source / "src", leads)
    (stage.site / "mine").mkdir()
    record = stage.site / "mine-0.1.dist-info/RECORD"
    (stage.site / "mine/_C.so").write_text("ELF 1")
    record.write_text(f"{record.read_text()}mine/_C.so,sha256=x,5\n")
    first = look(stage)[0]
    (stage.site / "mine/_C.so").write_text("ELF 2")
    assert len({before, first, look(stage)[0]}) == 3


def test_what_was_hashed_is_remembered_and_a_budget_is_kept(stage: Stage, tmp_path: Path) -> None:
    source = project(tmp_path / "a")
    STYLES["hatch"](stage, source)
    assert look(stage, budget=3) == (
        None,
        ["packages: source of mine: not all of it has been hashed yet: `envguard snapshot` does it"],
    )
    for path in (source / "src").rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    memo: dict[str, str] = {}
    before = look(stage, memo)[0]
    assert before is not None
    assert look(stage, memo)[0] == before


def test_what_is_too_much_or_cannot_be_read_is_unknown(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = project(tmp_path / "a")
    STYLES["hatch"](stage, source)
    monkeypatch.setattr(sources, "MOST_FILES", 2)
    digest, unseen = look(stage)
    assert digest is None
    assert unseen[0].startswith("packages: source of mine: 4 files of 0 MiB are more than are compared")


def test_an_egg_info_whose_files_are_not_found_is_unknown(stage: Stage) -> None:
    (stage.site / "mine-0.1-py3.11.egg-info").write_text("Metadata-Version: 1.0\nName: mine\nVersion: 0.1\n")
    assert look(stage) == (None, ["packages: source of mine: nothing says which files are its own"])


@pytest.mark.parametrize("zipped", [False, True])
def test_an_egg_is_known_by_content_and_no_editable_install(zipped: bool, stage: Stage) -> None:
    """As `setup.py install` leaves one, and as `easy_install` left it zipped."""

    def install(code: str) -> None:
        egg = stage.site / "mine-0.1-py3.11.egg"
        files = {"mine/__init__.py": code, "EGG-INFO/PKG-INFO": "Metadata-Version: 1.0\nName: mine\nVersion: 0.1\n"}
        shutil.rmtree(egg) if egg.is_dir() else egg.unlink(missing_ok=True)
        if zipped:
            with zipfile.ZipFile(egg, "w") as archive:
                for name, text in files.items():
                    archive.writestr(zipfile.ZipInfo(name), text)
            return
        for name, text in files.items():
            (egg / name).parent.mkdir(parents=True, exist_ok=True)
            (egg / name).write_text(text)

    (stage.site / "easy-install.pth").write_text("./mine-0.1-py3.11.egg\n")
    install("A = 1\n")
    host = LiveHost()
    dist = read_distributions(host, locate(host, str(stage.python), "/")).of("mine")
    assert dist is not None
    assert (dist.version, dist.editable, dist.is_egg) == ("0.1", None, True)
    before, unseen = look(stage)
    assert before is not None
    assert unseen == []
    install("A = 2\n")
    assert look(stage)[0] not in (before, None)


@pytest.mark.parametrize("noted", ["installed-files.txt", "top_level.txt", "nothing"])
def test_an_egg_info_answers_for_what_was_installed_beside_it(noted: str, stage: Stage) -> None:
    """As `setup.py install --single-version-externally-managed` and distutils leave one."""
    info = stage.site / "mine-0.1-py3.11.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: mine\nVersion: 0.1\n")
    texts = {"installed-files.txt": "../mine/__init__.py\n../mine/core.bin\nPKG-INFO\n", "top_level.txt": "mine\n"}
    if noted in texts:
        (info / noted).write_text(texts[noted])
    (stage.site / "mine").mkdir()
    (stage.site / "mine/__init__.py").write_text("A = 1\n")
    (stage.site / "mine/core.bin").write_text("1")
    before = look(stage)[0]
    assert before is not None
    (stage.site / "mine/__init__.py").write_text("A = 2\n")
    assert look(stage)[0] not in (before, None)


def test_a_source_that_cannot_be_read_has_no_digest(stage: Stage, tmp_path: Path) -> None:
    source = project(tmp_path / "a")
    STYLES["hatch"](stage, source)
    with unreadable(source / "src/mine/deep/er.py"), held_host() as host:
        notes = Notes()
        env = locate(host, str(stage.python), "/")
        assert read_sources(host, env, read_distributions(host, env), {}, notes) == {}
    assert [item.what for item in notes.unknown] == ["packages: source of mine"]

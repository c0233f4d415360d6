"""Stamps: what a process loaded against what lies on disk, and whether a stamp counts where it is found."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.runs.own_records import read_journal
from envguard.acquire.seam.host import LiveHost
from envguard.demo import wheels
from envguard.demo.elf import shared_library
from envguard.demo.stage import Stage
from envguard.errors import InputError
from envguard.stamping import read_stamp, stamp

TRAINER = """
import pathlib, sys
if "early" in sys.argv: import envguard
for name in sys.argv[1].split(","):
    if name: __import__(name)
print("ready", flush=True)
for line in sys.stdin:
    if line.startswith("import "):
        exec(line)
        print("ran", flush=True)
        continue
    path = pathlib.Path(line.strip())
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.pt").write_bytes(path.name.encode() * 5000)
    import envguard
    envguard.stamp(path)
    print("stamped", flush=True)
"""


class Trainer:
    """A process of the stage's venv that imports packages, waits, and stamps when it is told to."""

    def __init__(self, stage: Stage, imports: str, when: str, **variables: str) -> None:
        self.stage = stage
        script = stage.project / "trainer_loop.py"
        script.write_text(TRAINER)
        stage.lend_envguard()
        self.process = subprocess.Popen(
            [str(stage.python), str(script), imports, when],
            cwd=stage.project,
            env=stage.environ(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("ready")

    def _expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def run(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        self._expect("ran")

    def stamp(self, name: str = "step_700") -> dict[str, Any]:
        path = self.stage.checkpoints / name
        assert self.process.stdin is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        self._expect("stamped")
        found: dict[str, Any] = json.loads((path / "envguard.json").read_text())
        return found

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@contextlib.contextmanager
def training(stage: Stage, imports: str = "torch", when: str = "early", **variables: str) -> Iterator[Trainer]:
    trainer = Trainer(stage, imports, when, **variables)
    try:
        yield trainer
    finally:
        trainer.end()


def snapshot(stage: Stage, *arguments: str) -> dict[str, Any]:
    done = stage.envguard("snapshot", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def builds(fingerprint: dict[str, Any]) -> dict[str, str]:
    return {package["name"]: package["build"] for package in fingerprint["packages"]}


def diverged(fingerprint: dict[str, Any]) -> dict[str, tuple[str | None, str | None]]:
    return {item["what"]: (item["loaded"], item["disk"]) for item in fingerprint["diverged"]}


def cu130(stage: Stage, mode: str = "hardlink") -> None:
    stage.install("torch==2.11.0+cu130", arguments=["--link-mode", mode])


def test_a_stamp_is_the_snapshot_while_nothing_moves(torch_stage: Stage) -> None:
    with training(torch_stage) as trainer:
        stamped = trainer.stamp()
    live = snapshot(torch_stage)
    assert stamped["id"] == live["id"]
    assert builds(stamped) == builds(live)
    assert (stamped["origin"], stamped["diverged"]) == ("loaded", [])
    assert stamped["checkpoint"]["step"] == 700
    assert stamped["checkpoint"]["files"] == {"model.pt": 40_000}


@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize("mode", ["hardlink", "copy"])
@pytest.mark.parametrize("remembered", [True, False], ids=["state", "no-state"])
def test_a_process_on_the_old_torch_stamps_the_old_torch(
    torch_stage: Stage, when: str, mode: str, remembered: bool
) -> None:
    """Imported at the start or only to stamp, linked or copied, with a store of digests or none: the old build."""
    torch_stage.install("torch==2.11.0+cu128", arguments=["--link-mode", mode, "--reinstall"])
    before = snapshot(torch_stage)
    if not remembered:
        shutil.rmtree(torch_stage.home)
        torch_stage.home.mkdir()
    with training(torch_stage, when=when) as trainer:
        cu130(torch_stage, mode)
        stamped = trainer.stamp()
    assert stamped["torch"]["version"] == "2.11.0+cu128"
    assert stamped["torch"]["cuda"] == "12.8"
    assert builds(stamped)["torch"] == builds(before)["torch"]
    if remembered:
        assert stamped["torch"] == before["torch"]
    else:  # what memory holds: the libraries that are mapped
        assert stamped["torch"]["libraries"].items() <= before["torch"]["libraries"].items()
        assert stamped["torch"]["libraries"]
    assert diverged(stamped) == {"torch": ("2.11.0+cu128", "2.11.0+cu130")}
    assert stamped["id"] == before["id"]
    assert builds(snapshot(torch_stage))["torch"] != builds(before)["torch"]


def test_without_any_witness_the_build_is_unknown_and_the_version_is_told(torch_stage: Stage) -> None:
    with training(torch_stage, when="late") as trainer:
        torch_stage.install("torch==2.11.0+cu130", arguments=["--link-mode", "copy"])
        shutil.rmtree(torch_stage.cache)
        stamped = trainer.stamp()
    torch = next(package for package in stamped["packages"] if package["name"] == "torch")
    assert (torch["version"], torch["build"]) == ("2.11.0+cu128", None)
    assert [item["what"] for item in stamped["unknown"] if "torch" in item["what"]] == ["build of torch as loaded"]


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_swap_by_pip_is_seen_through_the_name_that_pip_gave_the_folder(torch_stage: Stage, when: str) -> None:
    """pip renames `torch` to `~orch` before it deletes it, and leaves no archive: envguard's own store knows it."""
    before = snapshot(torch_stage)
    with training(torch_stage, when=when) as trainer:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(torch_stage.python)]
        install = [*pip, "install", "--quiet", "--no-index", "--find-links", str(torch_stage.wheels)]
        subprocess.run([*install, "torch==2.11.0+cu130"], env=torch_stage.environ(), check=True)
        shutil.rmtree(torch_stage.cache)
        stamped = trainer.stamp()
        live = snapshot(torch_stage)
    assert builds(stamped)["torch"] == builds(before)["torch"]
    assert stamped["torch"] == before["torch"]
    assert diverged(stamped) == {"torch": ("2.11.0+cu128", "2.11.0+cu130")}
    assert any("still runs the old torch 2.11.0+cu128" in problem["says"] for problem in live["problems"])


def test_a_library_that_was_edited_in_place_is_looked_at_again(torch_stage: Stage) -> None:
    """RECORD has not moved; the mapped file has, and what a process maps follows the file."""
    torch_stage.install("torch==2.11.0+cu128", arguments=["--link-mode", "copy", "--reinstall"])
    before = snapshot(torch_stage)
    with training(torch_stage) as trainer:
        assert trainer.stamp("step_1")["id"] == before["id"]
        library = torch_stage.site / "torch/lib/libtorch_cuda.so"
        with library.open("r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            last = stream.read(1)
            stream.seek(-1, os.SEEK_END)
            stream.write(bytes([last[0] ^ 1]))
        stamped = trainer.stamp("step_2")
    assert builds(stamped)["torch"] != builds(before)["torch"]
    assert any(problem["kind"] == "files-modified" for problem in stamped["problems"])


CHANGING = """
import ctypes, os, pathlib, sys, envguard
if "title" in sys.argv:  # as setproctitle sets one: over arguments and environment, the rest of both zero
    fields = open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[48])
    ctypes.memmove(start, b"trainer".ljust(end - start, bytes(1)), end - start)
os.environ.update(TRITON_PTXAS_PATH="/usr/lib/ptxas", NCCL_DEBUG="WARN", TORCH_HUB="hf_hunter2hunter2hunter2")
del os.environ["OMP_NUM_THREADS"]
path = pathlib.Path("checkpoints/step_30")
path.mkdir()
(path / "model.pt").write_bytes(b"x")
envguard.stamp(path)
"""
HANDED = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("title", ["title", "none"])
def test_what_a_process_set_itself_is_told_apart_from_what_it_was_started_with(
    torch_stage: Stage, title: str
) -> None:
    """A shell like the one that started it matches; one that would hand over something else does not."""
    torch_stage.lend_envguard()
    script = torch_stage.project / "changing.py"
    script.write_text(CHANGING)
    command = [str(torch_stage.python), str(script), title]
    subprocess.run(command, cwd=torch_stage.project, env=torch_stage.environ(HANDED), check=True)
    text = (torch_stage.checkpoints / "step_30/envguard.json").read_text()
    stamped = json.loads(text)["env"]
    assert "hunter2" not in text
    assert stamped["withheld"] == ["TORCH_HUB"]
    assert stamped["started"] == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "TRITON_PTXAS_PATH": None}
    assert "OMP_NUM_THREADS" not in stamped["variables"]
    assert stamped["variables"].items() >= {"NCCL_DEBUG": "WARN", "TRITON_PTXAS_PATH": "/usr/lib/ptxas"}.items()

    def rows(**variables: str) -> dict[str, tuple[str | None, str | None, str]]:
        done = torch_stage.envguard("diff", "step_30", "live", "--json", extra={**HANDED, **variables})
        found = json.loads(done.stdout)["drifts"]
        return {row["subject"]: (row["a"], row["b"], row["severity"]) for row in found if row["facet"] == "env"}

    own = {
        "NCCL_DEBUG": ("WARN", "INFO", "info"),
        "OMP_NUM_THREADS": (None, "4", "info"),
        "TRITON_PTXAS_PATH": ("/usr/lib/ptxas", None, "info"),
    }
    assert rows() == own
    assert rows(NCCL_DEBUG="WARN") == {**own, "NCCL_DEBUG": ("INFO", "WARN", "warn")}
    assert rows(OMP_NUM_THREADS="8") == {**own, "OMP_NUM_THREADS": ("4", "8", "warn")}
    live = torch_stage.envguard("snapshot", "--json", extra=HANDED)
    assert json.loads(live.stdout)["env"]["digest"] == stamped["digest"]


def test_a_checkpoint_of_an_earlier_process_gets_no_evidence(torch_stage: Stage) -> None:
    folder = save(torch_stage.checkpoints / "step_3")
    old = time.time() - 3600
    for file in folder.rglob("*"):
        os.utime(file, (old, old))
    script = torch_stage.project / "later.py"
    script.write_text("import envguard\nenvguard.stamp('checkpoints/step_3')\n")
    torch_stage.lend_envguard()
    environ = torch_stage.environ()
    subprocess.run([str(torch_stage.python), str(script)], cwd=torch_stage.project, env=environ, check=True)
    assert json.loads((folder / "envguard.json").read_text())["origin"] == "retrospective"
    assert counts(folder) is not None


def test_a_reinstall_of_the_same_build_is_no_divergence(torch_stage: Stage) -> None:
    with training(torch_stage) as trainer:
        torch_stage.install("torch==2.11.0+cu128", arguments=["--reinstall", "--link-mode", "copy"])
        stamped = trainer.stamp()
    assert stamped["diverged"] == []
    assert stamped["id"] == snapshot(torch_stage)["id"]


MAPS_ITS_CORE = """
import mmap, os
with open(os.path.join(os.path.dirname(__file__), "_core.abi3.so"), "rb") as stream:
    core = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
"""


def extension(stage: Stage, version: str) -> None:
    """A wheel with a library that has no build-id, as those that Rust and auditwheel make have none."""
    library = shared_library("core.so", version).replace(b"GNU\0", b"nil\0")
    init = f"__version__ = {version!r}\n{MAPS_ITS_CORE}".encode()
    wheels.build_wheel(stage.wheels, "rusty", version, {"rusty/__init__.py": init, "rusty/_core.abi3.so": library})
    stage.install(f"rusty=={version}", arguments=["--reinstall-package", "rusty", "--link-mode", "copy"])


@pytest.mark.parametrize("between", [None, "1.1"])
def test_a_library_without_a_build_id_that_came_back_is_no_divergence(
    torch_stage: Stage, between: str | None
) -> None:
    """The same wheel installed anew, or another one and then this again: the process and the disk have one build."""
    extension(torch_stage, "1.0")
    before = snapshot(torch_stage)
    with training(torch_stage, imports="rusty") as trainer:
        if between is not None:
            extension(torch_stage, between)
            assert diverged(trainer.stamp("step_1")) == {"rusty": ("1.0", between)}
        extension(torch_stage, "1.0")
        stamped = trainer.stamp("step_2")
    assert (stamped["id"], stamped["diverged"]) == (before["id"], [])
    assert [item for item in stamped["unknown"] if "rusty" in item["what"]] == []


def test_a_library_of_a_build_that_no_one_saw_is_unknown(torch_stage: Stage) -> None:
    extension(torch_stage, "1.0")
    with training(torch_stage, imports="") as trainer:
        extension(torch_stage, "1.1")
        trainer.run("import rusty")
        extension(torch_stage, "1.0")
        shutil.rmtree(torch_stage.cache)
        stamped = trainer.stamp()
    assert diverged(stamped)["rusty"][0] == "1.1"
    [doubt] = [item["why"] for item in stamped["unknown"] if "rusty" in item["what"]]
    assert doubt.startswith("its files were replaced while this process ran;")


def test_what_is_imported_after_the_swap_is_stamped_as_new(torch_stage: Stage) -> None:
    with training(torch_stage, imports="") as trainer:
        cu130(torch_stage)
        stamped = trainer.stamp()
        assert stamped["torch"]["version"] == "2.11.0+cu128"
    with training(torch_stage) as trainer:
        assert trainer.stamp("step_701")["torch"]["version"] == "2.11.0+cu130"


def test_a_package_that_came_later_is_told_apart(torch_stage: Stage) -> None:
    with training(torch_stage) as trainer:
        wheels.build_wheel(torch_stage.wheels, "latecomer", "1.0")
        torch_stage.install("latecomer")
        stamped = trainer.stamp()
    assert "latecomer" not in builds(stamped)
    assert diverged(stamped) == {"latecomer": (None, "1.0")}


def test_a_package_that_was_removed_stays_in_the_stamp(torch_stage: Stage) -> None:
    before = snapshot(torch_stage)
    with training(torch_stage, imports="torch,transformers") as trainer:
        torch_stage.uv("pip", "uninstall", "--python", str(torch_stage.python), "transformers")
        stamped = trainer.stamp()
    assert builds(stamped) == builds(before)
    assert diverged(stamped) == {"transformers": ("5.6.0", None)}


def lay(folder: Path, name: str, version: str) -> None:
    """A package as `pip install --target` lays it into a folder."""
    wheel = wheels.build_wheel(folder.parent / "wheels-of-others", name, version, {f"{name}.py": b"value = 1\n"})
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)


def without_record(site: Path, version: str) -> None:
    """Two packages of the kinds that have no RECORD: an egg-info, and a dist-info as distributions ship it."""
    for folder, name in (("eggy.egg-info", "PKG-INFO"), ("bare-1.0.dist-info", "METADATA")):
        (site / folder).mkdir(exist_ok=True)
        (site / folder / name).write_text(f"Metadata-Version: 2.1\nName: {folder[:4]}\nVersion: {version}\n")


@pytest.mark.parametrize("when", ["early", "late"])
def test_packages_of_every_kind_and_place_are_stamped_as_import_finds_them(
    torch_stage: Stage, tmp_path: Path, when: str
) -> None:
    """A folder on PYTHONPATH that hides packages of the venv and has some of its own; packages without RECORD."""
    wheels.build_wheel(torch_stage.wheels, "hidden", "1.0")
    torch_stage.install("hidden==1.0")
    lay(tmp_path / "site", "hidden", "2.0")
    lay(tmp_path / "site", "single", "1.0")
    without_record(torch_stage.site, "1.0")
    variables = {"PYTHONPATH": str(tmp_path / "site")}
    with training(torch_stage, when=when, **variables) as trainer:
        stamped = trainer.stamp()
    done = torch_stage.envguard("snapshot", "--json", "--python", str(torch_stage.venv), extra=variables)
    versions = {package["name"]: package["version"] for package in stamped["packages"]}
    assert stamped["diverged"] == []
    assert (versions["hidden"], versions["single"], versions["eggy"], versions["bare"]) == (
        "2.0",
        "1.0",
        "1.0",
        "1.0",
    )
    assert builds(stamped) == builds(json.loads(done.stdout))


def test_a_swap_in_a_folder_on_pythonpath_and_of_an_egg_is_seen(torch_stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    lay(folder, "single", "1.0")
    without_record(torch_stage.site, "1.0")
    with training(torch_stage, PYTHONPATH=str(folder)) as trainer:
        shutil.rmtree(folder)
        lay(folder, "single", "2.0")
        lay(folder, "latecomer", "1.0")
        without_record(torch_stage.site, "2.0")
        stamped = trainer.stamp()
    versions = {package["name"]: package["version"] for package in stamped["packages"]}
    assert (versions["single"], versions["eggy"], "latecomer" in versions) == ("1.0", "1.0", False)
    assert diverged(stamped) == {
        "single": ("1.0", "2.0"),
        "eggy": ("1.0", "2.0"),
        "bare": ("1.0", "2.0"),
        "latecomer": (None, "1.0"),
    }


INSERTED = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import single, envguard
checkpoint = Path("step_1").absolute()
checkpoint.mkdir()
(checkpoint / "model.pt").write_bytes(b"x")
envguard.stamp(checkpoint)
"""


def test_a_folder_that_the_program_put_before_a_package_is_told(torch_stage: Stage, tmp_path: Path) -> None:
    lay(torch_stage.site, "single", "1.0")
    lay(tmp_path / "mine", "single", "2.0")
    torch_stage.lend_envguard()
    (torch_stage.project / "train.py").write_text(INSERTED)
    for folder, told in ((tmp_path / "mine", True), (torch_stage.site, False)):
        shutil.rmtree(torch_stage.project / "step_1", ignore_errors=True)
        subprocess.run(
            [str(torch_stage.python), "train.py", str(folder)],
            cwd=torch_stage.project,
            env=torch_stage.environ(),
            check=True,
        )
        stamped = json.loads((torch_stage.project / "step_1" / "envguard.json").read_text())
        why = f"what this process imported lies at {folder}/single.py, outside the package that is installed"
        assert [each["why"] for each in stamped["unknown"] if each["what"] == "packages: single"] == [why] * told


def lay_editable(stage: Stage, source: Path, version: str) -> None:
    """A package as `pip install -e` leaves it, whose version changes with each commit."""
    for old in stage.site.glob("mine-*.dist-info"):
        shutil.rmtree(old)
    (stage.site / "__editable__.mine.pth").write_text(f"{source}\n")
    folder = stage.site / f"mine-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mine\nVersion: {version}\n")
    url = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (folder / "direct_url.json").write_text(json.dumps(url))
    (folder / "RECORD").write_text(f"__editable__.mine.pth,,\n{folder.name}/METADATA,,\n{folder.name}/RECORD,,\n")


def test_a_source_tree_that_is_installed_anew_is_still_one_in_the_stamp(torch_stage: Stage, tmp_path: Path) -> None:
    """Taken for a package of an index, it would be one that no machine has, and no restore could bring it back."""
    lay_editable(torch_stage, tmp_path, "1.0.dev1")
    with training(torch_stage) as trainer:
        lay_editable(torch_stage, tmp_path, "1.0.dev2")
        stamped = trainer.stamp()
    assert diverged(stamped) == {"mine": ("1.0.dev1", "1.0.dev2")}
    (mine,) = (package for package in stamped["packages"] if package["name"] == "mine")
    assert (mine["version"], mine["editable"], mine["direct_url"]) == ("1.0.dev1", str(tmp_path), tmp_path.as_uri())
    done = torch_stage.envguard("restore", str(torch_stage.checkpoints / "step_700"), "--dry-run", "--json")
    assert (done.returncode, json.loads(done.stdout)["missing"]) == (0, [])


MOVED = """
import json, os, sys
from pathlib import Path
if "early" in sys.argv: import envguard
for name in ("single", "other"): __import__(name)
os.environ["PYTHONPATH"] = sys.argv[2]
checkpoint = Path("step_1").absolute()
checkpoint.mkdir()
(checkpoint / "model.pt").write_bytes(b"x")
os.chdir("/")
if "late" in sys.argv: os.environ["PYTHONPATH"] = sys.argv[3]
import envguard
stamped = envguard.stamp(checkpoint)
print((checkpoint / "envguard.json").read_text())
"""


UNDER_UV_RUN = """
import importlib.metadata, json, pathlib, sys
import envguard, extra, torch
path = pathlib.Path("checkpoints/step_1")
path.mkdir()
(path / "model.pt").write_bytes(b"1")
envguard.stamp(path)
print(json.dumps(sorted(dist.metadata["Name"] for dist in importlib.metadata.distributions())))
"""


def test_what_uv_run_lays_over_the_environment_for_one_command(torch_stage: Stage) -> None:
    """`uv run --with` makes an environment in the cache that lasts as long as the command, over the project's."""
    stage = torch_stage
    stage.lend_envguard()
    wheels.build_wheel(stage.wheels, "extra", "1.0")
    (stage.project / "train.py").write_text(UNDER_UV_RUN)
    where = ("--no-project", "--offline", "--no-index", "--find-links", str(stage.wheels))
    done = stage.uv("run", *where, "--with", "extra", "--python", str(stage.python), "train.py")
    stamped = json.loads((stage.checkpoints / "step_1/envguard.json").read_text())
    assert sorted(package["name"] for package in stamped["packages"]) == json.loads(done.stdout)
    assert {"extra", "torch"} <= builds(stamped).keys()
    assert stamped["python"]["extends"] == str(stage.venv)
    assert "_uv_ephemeral_overlay.pth" not in {problem["subject"] for problem in stamped["problems"]}
    # What the command brought with it is no loss of the environment that it was laid over, and a change there shows.
    same = stage.envguard("diff", "--json", "step_1")
    assert same.returncode == 0, same.stdout
    laid = [drift for drift in json.loads(same.stdout)["drifts"] if drift["subject"] == "extra"]
    assert [(drift["severity"], drift["a"], drift["b"]) for drift in laid] == [("info", "1.0", None)]
    assert stage.envguard("timeline", "--since-checkpoint", "step_1").returncode == 0
    cu130(stage)
    assert stage.envguard("diff", "step_1").returncode == 1


@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize("named", ["../site:inner", "inner:../site", ".:../site/../site", "{root}/site:.:inner"])
def test_a_process_that_goes_elsewhere_keeps_the_path_that_it_was_started_with(
    torch_stage: Stage, tmp_path: Path, when: str, named: str
) -> None:
    """As hydra does, for each run; and one that sets PYTHONPATH for its children has not set it for itself. With a
    `late` import the variable is as at the start."""
    named = named.format(root=torch_stage.root)
    wheels.build_wheel(torch_stage.wheels, "single", "1.0", {"single.py": b"__version__ = '1.0'\n"})
    torch_stage.install("single==1.0")
    lay(torch_stage.root / "site", "single", "2.0")
    for folder in ("inner", "."):
        lay(torch_stage.project / folder, "other", "1.0")
    torch_stage.lend_envguard()
    script = torch_stage.root / "moves.py"
    script.write_text(MOVED)
    command = [str(torch_stage.python), str(script), when, str(tmp_path), named]
    done = subprocess.run(
        command,
        cwd=torch_stage.project,
        env=torch_stage.environ({"PYTHONPATH": named}),
        check=True,
        capture_output=True,
    )
    stamped = json.loads(done.stdout)
    live = torch_stage.envguard("snapshot", "--json", "--python", str(torch_stage.venv), extra={"PYTHONPATH": named})
    assert (stamped["diverged"], stamped["unknown"]) == ([], [])
    assert builds(stamped) == builds(json.loads(live.stdout))
    assert {package["name"]: package["version"] for package in stamped["packages"]}["single"] == "2.0"


JUNK = """
import os, pathlib, sys
sys.path += [None, 5, b"/bytes", pathlib.Path("/path"), "/nul\\0", "relative", ""]
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
import envguard
from envguard.acquire.processes import loading
print(*loading.AT_IMPORT.pythonpath, sep=":")
"""


def test_no_path_and_no_lost_folder_keeps_envguard_from_being_imported(tmp_path: Path) -> None:
    """Whatever a training process has done to its path, and where it is: import passes over such entries as well."""
    (tmp_path / "lost").mkdir()
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(["beside", *filter(None, sys.path)])}
    command = [sys.executable, "-c", JUNK, str(tmp_path / "lost")]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition(":")[0] == str(tmp_path / "beside")


COUNTED = """
import json, os, sys, time, torch
from pathlib import Path
from envguard import stamping
from envguard.acquire.processes import own_process
from envguard.acquire.seam.host import LiveHost
from envguard.project import open_project

seen = []
libraries = own_process.mapped_libraries

def counted():
    seen.append("maps")
    return libraries()

class Counting(LiveHost):
    def call(self, operation, *arguments):
        if operation == "read":
            seen.append(str(arguments[0]))
        return super().call(operation, *arguments)

own_process.mapped_libraries = counted
project = open_project(Path.cwd(), os.environ, prefix=sys.prefix)
stamps = []
for _ in range(2):
    seen.clear()
    stamps.append(stamping.loaded_fingerprint(project, Counting()))
kinds = [[problem.kind for problem in each.problems] for each in stamps]
print(json.dumps({"seen": seen, "kinds": kinds, "diverged": len(stamps[1].diverged)}))
"""


def test_a_later_stamp_reads_no_metadata_and_no_record_again(torch_stage: Stage) -> None:
    """With a .pth of nobody's, for whose owner every RECORD is asked, and a package that was edited."""
    torch_stage.lend_envguard()
    (torch_stage.site / "_corporate.pth").write_text("import os;exec('pass')\n")
    edited = torch_stage.site / "transformers" / "__init__.py"
    data = edited.read_bytes()
    edited.unlink()
    edited.write_bytes(data + b"# edited\n")
    time.sleep(0.1)  # so that the stats can vouch for what is read
    command = [str(torch_stage.python), "-c", COUNTED]
    done = subprocess.run(
        command, cwd=torch_stage.project, env=torch_stage.environ(), check=True, capture_output=True
    )
    said = json.loads(done.stdout)
    assert {"pth-code", "files-modified"} <= set(said["kinds"][0])
    assert (said["kinds"][0], said["diverged"]) == (said["kinds"][1], 0)
    assert [path for path in said["seen"] if ".dist-info/" in path] == []
    assert said["seen"].count("maps") == 1, "the kernel is asked once what this process maps: it takes its time"


@pytest.mark.parametrize("version", ["2.0", "1.0"])
def test_a_pure_python_package_is_told_by_its_version(torch_stage: Stage, version: str, tmp_path: Path) -> None:
    wheels.build_wheel(torch_stage.wheels, "plain", "1.0")
    torch_stage.install("plain==1.0")
    before = builds(snapshot(torch_stage))
    with training(torch_stage, imports="torch,plain") as trainer:
        other = tmp_path / "other"
        source = f"__version__ = {version!r}\nmore = 1\n".encode()
        wheel = wheels.build_wheel(other, "plain", version, {"plain/__init__.py": source})
        torch_stage.install(str(wheel), arguments=["--reinstall"])
        stamped = trainer.stamp()
    assert builds(stamped)["plain"] == before["plain"]
    loaded, disk = diverged(stamped)["plain"]
    assert (loaded or "").startswith("1.0")
    assert (disk or "").startswith(version)
    unknown = [item["what"] for item in stamped["unknown"] if "plain" in item["what"]]
    assert unknown == ([] if version == "2.0" else ["build of plain as loaded"])


UNDECIDED = ["build of plain as loaded"]


@pytest.mark.parametrize(
    ("source", "version", "order", "build", "told", "unknown"),
    [
        # Imported before the swap, and envguard after it: nobody saw the old build.
        ("__version__ = {!r}\n", "2.0", "plain, swap, envguard", None, "1.0", UNDECIDED),
        ("__version__ = {!r}\n# again\n", "1.0", "plain, swap, envguard", None, "1.0", UNDECIDED),
        ("more = {!r}\n", "2.0", "plain, swap, envguard", None, "2.0", UNDECIDED),
        # Imported after the swap, which a process cannot show where envguard came last.
        ("__version__ = {!r}\n", "2.0", "swap, plain, envguard", None, "2.0", UNDECIDED),
        # envguard was there first, and saw what was imported then.
        ("__version__ = {!r}\n", "2.0", "swap, envguard, plain", "disk", "2.0", []),
        ("more = {!r}\n", "2.0", "swap, envguard, plain", "disk", "2.0", []),
        ("__version__ = {!r}\n", "2.0", "envguard, plain, swap", "before", "1.0", []),
    ],
)
def test_what_was_imported_and_when_decides(
    torch_stage: Stage, source: str, version: str, order: str, build: str | None, told: str, unknown: list[str]
) -> None:
    """A process that imported envguard after a swap stamped the new build of a package whose old one it ran."""
    stage = torch_stage
    wheels.build_wheel(stage.wheels, "plain", "1.0", {"plain/__init__.py": source.format("1.0").encode() + b"#\n"})
    stage.install("plain==1.0")
    before = builds(snapshot(stage))["plain"]
    first, *steps = order.split(", ")
    with training(
        stage, imports="plain" if first == "plain" else "", when="early" if first == "envguard" else "late"
    ) as trainer:
        time.sleep(0.3)
        for step in steps if first != "swap" else order.split(", "):
            if step == "swap":
                wheel = wheels.build_wheel(
                    stage.root / "other", "plain", version, {"plain/__init__.py": source.format(version).encode()}
                )
                stage.install(str(wheel), arguments=["--reinstall", "--link-mode", "copy"])
            else:
                trainer.run(f"import {step}")
        stamped = trainer.stamp()
    disk = builds(snapshot(stage))["plain"]
    (package,) = [item for item in stamped["packages"] if item["name"] == "plain"]
    assert (package["version"], package["build"]) == (told, {"disk": disk, "before": before, None: None}[build])
    assert [item["what"] for item in stamped["unknown"] if "plain" in item["what"]] == unknown


def test_what_launch_recorded_is_believed(torch_stage: Stage) -> None:
    """The command imports envguard late, and the cache is gone: launch knows what it started."""
    recorded = torch_stage.root / "recorded.json"
    before = snapshot(torch_stage, "-o", str(recorded))
    with training(torch_stage, when="late", ENVGUARD_LAUNCH=str(recorded)) as trainer:
        cu130(torch_stage)
        shutil.rmtree(torch_stage.cache)
        stamped = trainer.stamp()
    assert builds(stamped)["torch"] == builds(before)["torch"]
    assert stamped["id"] == before["id"]
    assert stamped["torch"] == before["torch"]


def test_a_launch_record_of_another_environment_is_passed_over(torch_stage: Stage) -> None:
    recorded = torch_stage.root / "recorded.json"
    snapshot(torch_stage, "-o", str(recorded))
    other = json.loads(recorded.read_text())
    other["python"]["prefix"] = "/elsewhere"
    other["packages"] = []
    recorded.write_text(json.dumps(other))
    with training(torch_stage, when="late", ENVGUARD_LAUNCH=str(recorded)) as trainer:
        assert trainer.stamp()["diverged"] == []


def test_the_trainer_needs_no_more_than_two_packages(torch_stage: Stage) -> None:
    """The stage lends envguard, msgspec and packaging; nothing of the command line may be imported."""
    script = torch_stage.project / "imports.py"
    script.write_text(
        "import pathlib, sys, envguard\npathlib.Path('ck').mkdir()\nenvguard.stamp('ck')\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & set(sys.argv[1:])))\n"
    )
    heavy = ["typer", "rich", "psutil", "pynvml", "platformdirs", "msgpack", "click", "torch", "pydantic"]
    torch_stage.lend_envguard()
    environ = torch_stage.environ()
    command = [str(torch_stage.python), str(script), *heavy]
    done = subprocess.run(command, cwd=torch_stage.project, env=environ, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_many_ranks_may_stamp_at_once(torch_stage: Stage) -> None:
    """Each rank saves its part and stamps; the stamp that is left names every part."""
    script = torch_stage.project / "rank.py"
    script.write_text(
        "import pathlib, sys, time, envguard\nfolder = pathlib.Path('checkpoints/step_9')\n"
        "folder.mkdir(exist_ok=True)\n"
        "for number in range(3):\n"
        "    time.sleep(0.01 * int(sys.argv[1]))\n"
        "    (folder / f'part-{sys.argv[1]}.{number}.pt').write_bytes(sys.argv[1].encode() * 9000)\n"
        "    envguard.stamp(folder)\n"
    )
    torch_stage.lend_envguard()
    environ = torch_stage.environ()
    ranks = [
        subprocess.Popen([str(torch_stage.python), str(script), str(rank)], cwd=torch_stage.project, env=environ)
        for rank in range(6)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0] * 6
    folder = torch_stage.checkpoints / "step_9"
    stamped = json.loads((folder / "envguard.json").read_text())
    assert sorted(stamped["checkpoint"]["files"]) == sorted(path.name for path in folder.glob("part-*"))
    assert len(stamped["checkpoint"]["files"]) == 18
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("part-")) == ["envguard.json"]
    found = read_stamp(LiveHost(), str(folder))
    assert found is not None
    assert found.counts


def test_no_checkpoint_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        stamp(tmp_path / "nowhere")
    assert caught.value.hint


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is the working directory, with a run of two checkpoints."""
    (tmp_path / "envguard.toml").write_text("")
    for step in (5, 10):
        save(tmp_path / f"runs/a/step_{step}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", ["", " ", ".", "runs", "runs/a", "venv", "gone/step_5"])
def test_what_is_no_checkpoint_is_not_stamped(project: Path, path: str) -> None:
    (project / "venv").mkdir()
    (project / "venv/pyvenv.cfg").write_text("")
    with pytest.raises(InputError) as caught:
        stamp(path)
    assert caught.value.hint
    assert not [*project.rglob("*envguard.json")]


@pytest.mark.parametrize(
    "path",
    ["runs/a/step_5", "runs/a/step_5/model.safetensors", "runs/a/step_5/inner/__0_0.distcp", "latest", "latest/"],
)
def test_every_spelling_of_a_checkpoint_puts_the_stamp_in_one_place(project: Path, path: str) -> None:
    (project / "latest").symlink_to("runs/a/step_5")
    assert stamp(path) is not None
    assert [*project.rglob("*envguard.json")] == [project / "runs/a/step_5/envguard.json"]


def test_a_link_to_a_file_is_stamped_beside_the_file(project: Path) -> None:
    save(project / "runs/b/epoch=0-step=5.ckpt")
    (project / "runs/b/last.ckpt").symlink_to("epoch=0-step=5.ckpt")
    assert stamp(project / "runs/b/last.ckpt") is not None
    assert [*project.rglob("*envguard.json")] == [project / "runs/b/epoch=0-step=5.ckpt.envguard.json"]


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), PermissionError(13, "no"), KeyError("x")]
)
def test_a_stamp_that_fails_is_a_warning_and_an_entry_in_the_journal(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr("envguard.stamping.write_stamp", fail)
    assert stamp("runs/a/step_5") is None
    assert "runs/a/step_5 is not stamped" in caplog.text
    (entry,) = read_journal(LiveHost(), str(project / ".envguard"), []) or ()
    assert (entry.kind, entry.fields["path"]) == ("stamp.failed", str(project / "runs/a/step_5"))
    with pytest.raises(type(failure)):
        stamp("runs/a/step_5", strict=True)


def counts(checkpoint: Path) -> str | None:
    """Why the stamp of a checkpoint does not count; None where it does."""
    found = read_stamp(LiveHost(), str(checkpoint))
    assert found is not None
    return found.why_not


def save(path: Path, content: bytes = b"w" * 20_000) -> Path:
    """A checkpoint as a directory, or as a file where it has an extension."""
    if path.suffix:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    else:
        path.mkdir(parents=True)
        (path / "model.safetensors").write_bytes(content)
        (path / "inner").mkdir()
        (path / "inner" / "__0_0.distcp").write_bytes(content[::-1])
    return path


@pytest.mark.parametrize("name", ["step_5", "step_5.pt", "step_5.safetensors", "epoch=1-step=5.ckpt"])
def test_into_files_and_directories(torch_stage: Stage, name: str) -> None:
    path = save(torch_stage.checkpoints / name)
    stamped = snapshot(torch_stage, "--into", name)
    where = path / "envguard.json" if path.is_dir() else path.with_name(path.name + ".envguard.json")
    assert json.loads(where.read_text()) == stamped
    assert (stamped["origin"], stamped["checkpoint"]["step"], stamped["diverged"]) == ("live", 5, [])
    assert counts(path) is None


def test_a_copied_stamp_is_noticed(torch_stage: Stage) -> None:
    """Two checkpoints of one run have the same file names and sizes; a step in the name, or a sample, tells them."""
    first = save(torch_stage.checkpoints / "step_5")
    snapshot(torch_stage, "--into", str(first))
    second = save(torch_stage.checkpoints / "step_6", b"v" * 20_000)
    shutil.copy2(first / "envguard.json", second / "envguard.json")
    assert "step 5" in (counts(second) or "")
    same_step = save(torch_stage.project / "other-run/step_5", b"v" * 20_000)
    shutil.copy2(first / "envguard.json", same_step / "envguard.json")
    assert "not its content" in (counts(same_step) or "")
    bigger = save(torch_stage.project / "third-run/step_5", b"w" * 20_001)
    shutil.copy2(first / "envguard.json", bigger / "envguard.json")
    assert "bytes" in (counts(bigger) or "")


def test_a_checkpoint_that_was_copied_with_its_stamp_keeps_it(torch_stage: Stage) -> None:
    first = save(torch_stage.checkpoints / "step_5")
    snapshot(torch_stage, "--into", str(first))
    shutil.copytree(first, torch_stage.project / "kept/step_5")
    assert counts(torch_stage.project / "kept/step_5") is None
    (first / "inner/__0_0.distcp").unlink()
    assert counts(first) is None
    (first / "README.md").write_text("notes\n")
    assert counts(first) is None


def test_an_older_checkpoint_is_refused_and_marked(torch_stage: Stage) -> None:
    path = save(torch_stage.checkpoints / "step_5")
    old = time.time() - 61
    for file in path.rglob("*"):
        os.utime(file, (old, old))
    refused = torch_stage.envguard("snapshot", "--json", "--into", "step_5")
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["code"] == 2
    assert "--retrospective" in json.loads(refused.stdout)["hint"]
    assert not (path / "envguard.json").exists()
    stamped = snapshot(torch_stage, "--into", "step_5", "--retrospective")
    assert stamped["origin"] == "retrospective"
    assert "afterwards" in (counts(path) or "")


def test_a_checkpoint_that_is_older_than_an_install_is_refused(torch_stage: Stage) -> None:
    save(torch_stage.checkpoints / "step_5")
    time.sleep(0.05)
    cu130(torch_stage)
    refused = torch_stage.envguard("snapshot", "--into", "step_5")
    assert refused.returncode == 2
    assert "torch was installed" in refused.stderr


def test_a_checkpoint_from_the_future_is_refused(torch_stage: Stage) -> None:
    path = save(torch_stage.checkpoints / "step_5.pt")
    ahead = time.time() + 3600
    os.utime(path, (ahead, ahead))
    assert torch_stage.envguard("snapshot", "--into", "step_5").returncode == 2


def test_retrospective_needs_a_checkpoint(torch_stage: Stage) -> None:
    assert torch_stage.envguard("snapshot", "--retrospective").returncode == 2


def test_a_name_that_is_no_checkpoint_lists_the_nearest(torch_stage: Stage) -> None:
    save(torch_stage.checkpoints / "step_690")
    refused = torch_stage.envguard("snapshot", "--into", "step_691")
    assert refused.returncode == 2
    assert "step_690" in refused.stderr


def test_the_huggingface_callback(torch_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through transformers' own dispatcher, which is all that `Trainer` does with a callback."""
    transformers = pytest.importorskip("transformers")
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    from envguard.integrations.huggingface import StampCallback

    assert issubclass(StampCallback, transformers.TrainerCallback)
    monkeypatch.chdir(torch_stage.project)
    folder = save(torch_stage.project / "out/checkpoint-30")
    handler = CallbackHandler([StampCallback()], None, None, None, None)
    arguments = type("Arguments", (), {"output_dir": str(torch_stage.project / "out")})()
    handler.on_save(arguments, TrainerState(global_step=30), TrainerControl())
    assert counts(folder) is None
    handler.on_save(arguments, TrainerState(global_step=40), TrainerControl())


class LightningTrainer:
    """What the callback needs of Lightning's trainer: the two calls through which a checkpoint comes and goes."""

    is_global_zero = True

    def __init__(self) -> None:
        self.strategy = self
        self.late: list[Path] = []
        self.asynchronous = False

    def save_checkpoint(self, filepath: Path, weights_only: bool = False) -> None:
        if self.asynchronous:
            self.late.append(filepath)
        else:
            save(filepath)

    def remove_checkpoint(self, filepath: Path) -> None:
        filepath.unlink()


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The callback's module over a stand-in of `lightning.pytorch`, which is heavy and need not be installed; with
    the real trainers of both packages the callback was run by hand."""
    package, module = types.ModuleType("lightning"), types.ModuleType("lightning.pytorch")
    module.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", package)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", module)
    monkeypatch.delitem(sys.modules, "envguard.integrations.lightning", raising=False)
    return importlib.import_module("envguard.integrations.lightning")


def test_the_lightning_callback(torch_stage: Stage, lightning: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(torch_stage.project)
    trainer, callback = LightningTrainer(), lightning.StampCallback()
    callback.setup(trainer, None, "fit")
    callback.setup(trainer, None, "validate")
    path = torch_stage.checkpoints / "epoch=0-step=10.ckpt"
    trainer.save_checkpoint(path)
    assert counts(path) is None
    trainer.remove_checkpoint(path)
    assert list(torch_stage.checkpoints.iterdir()) == []
    trainer.asynchronous = True
    trainer.save_checkpoint(path)
    callback.on_train_batch_end(trainer)
    assert list(torch_stage.checkpoints.iterdir()) == []
    save(trainer.late[0])
    callback.teardown(trainer, None, "fit")
    assert counts(path) is None


def test_other_ranks_leave_the_stamp_to_the_first(torch_stage: Stage, lightning: Any) -> None:
    trainer, callback = LightningTrainer(), lightning.StampCallback()
    trainer.is_global_zero = False
    callback.setup(trainer, None, "fit")
    path = torch_stage.checkpoints / "epoch=0-step=10.ckpt"
    trainer.save_checkpoint(path)
    assert [entry.name for entry in torch_stage.checkpoints.iterdir()] == [path.name]


def test_a_stamp_that_fails_ends_no_training(
    tmp_path: Path, lightning: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, callback = LightningTrainer(), lightning.StampCallback()
    callback.setup(trainer, None, "fit")
    (tmp_path / "step=5.ckpt.envguard.json").mkdir()
    trainer.save_checkpoint(tmp_path / "step=5.ckpt")
    assert "step=5.ckpt is not stamped" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="maps and map files are the Linux kernel's")
def test_the_library_of_this_very_process_is_read_from_memory() -> None:
    from envguard.acquire.processes.loading import mapped_libraries
    from envguard.acquire.processes.own_process import memory_build_id
    from envguard.acquire.torch.elf import read_build_id

    library = next(each for each in mapped_libraries() if "libc" in each.path)
    assert memory_build_id(library) == read_build_id(LiveHost(), library.path)
    assert memory_build_id(library) is not None

"""Which of two distributions counts, and what is said of files that are not as they were installed."""

from __future__ import annotations

import importlib.metadata
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.config import Config
from envguard.demo import wheels
from envguard.demo.stage import Stage
from envguard.fingerprint.diff import compare
from envguard.fingerprint.packages import with_sources
from envguard.fingerprint.snapshot import Request, take
from envguard.model.fingerprint import Code, Fingerprint, Package, Problem
from envguard.state.digests import Digests


def look(stage: Stage, **request: object) -> Fingerprint:
    asked = Request(start="/", python=str(stage.python), config=Config(), **request)  # type: ignore[arg-type]
    return take(LiveHost(), asked, Digests())


def problems(fingerprint: Fingerprint, kind: str) -> list[Problem]:
    return [problem for problem in fingerprint.problems if problem.kind == kind]


def install(stage: Stage, version: str, source: bytes) -> Path:
    wheels.build_wheel(stage.wheels, "demo", version, {"demo/__init__.py": source})
    stage.install(f"demo=={version}", arguments=["--link-mode", "copy"])
    return stage.site / f"demo-{version}.dist-info"


def test_of_two_dist_infos_the_one_whose_record_matches_the_files_counts(stage: Stage) -> None:
    """The old dist-info came back (a copied site-packages, an install that was killed) beside the new one."""
    old = install(stage, "1.0", b"__version__ = '1.0'\n")
    shutil.copytree(old, stage.root / "kept")
    new = install(stage, "2.0", b"__version__ = '2.0'\n")
    shutil.copytree(stage.root / "kept", old)
    found = look(stage)
    package = found.package("demo")
    assert package is not None
    assert (package.version, package.departs) == ("2.0", ())
    assert [(item.name, item.wins, item.loses) for item in found.shadowed] == [("demo", str(new), str(old))]
    named = importlib.metadata.Distribution.discover(name="demo", path=[str(stage.site)])
    says = problems(found, "duplicate-metadata")[0].says
    assert ("importlib.metadata names 1.0" in says) == (next(iter(named)).version == "1.0")
    assert "reinstall demo" in says


def test_where_no_record_matches_importlibs_choice_stands_and_it_is_said(stage: Stage) -> None:
    folder = install(stage, "1.0", b"x = 1\n")
    shutil.copytree(folder, stage.site / "demo-0.9.dist-info")
    (stage.site / "demo/__init__.py").write_bytes(b"x = 3\n")
    found = look(stage)
    assert "no RECORD of them matches" in problems(found, "duplicate-metadata")[0].says
    assert problems(found, "files-modified")


def test_missing_and_edited_files_are_told_with_their_number(stage: Stage) -> None:
    files = {f"demo/part{number}.py": b"x = 1\n" for number in range(8)}
    wheels.build_wheel(stage.wheels, "demo", "1.0", files)
    stage.install("demo", arguments=["--link-mode", "copy"])
    for number in range(5):
        (stage.site / f"demo/part{number}.py").unlink()
    (stage.site / "demo/part7.py").write_bytes(b"")
    found = look(stage)
    missing = problems(found, "files-missing")[0]
    assert missing.says.startswith("installed, but 5 of its 10 files are missing: demo/part0.py")
    assert missing.says.endswith("and 2 more")
    assert problems(found, "files-modified")[0].path == str(stage.site / "demo/part7.py")
    package = found.package("demo")
    assert package is not None
    assert len(package.departs) == 6
    assert package.record is not None
    assert package.build != package.record


def test_no_record_is_a_finding_unless_the_system_answers_for_it(stage: Stage) -> None:
    folder = install(stage, "1.0", b"x = 1\n")
    (folder / "RECORD").unlink()
    assert [problem.subject for problem in problems(look(stage), "record-missing")] == ["demo"]
    (folder / "INSTALLER").write_text("debian\n")
    assert problems(look(stage), "record-missing") == []


def test_start_up_code_of_nobody_is_named_and_a_packages_own_is_not(stage: Stage, tmp_path: Path) -> None:
    wheels.build_wheel(stage.wheels, "hook", "1.0", {"hook.pth": b"import sys\n", "hook.py": b""})
    stage.install("hook")
    (stage.site / "stranger.pth").write_text(f"import os; os.environ['X'] = '1'\n{tmp_path}\n")
    found = look(stage)
    code = problems(found, "pth-code")
    assert [(problem.subject, problem.path) for problem in code] == [
        ("stranger.pth", str(stage.site / "stranger.pth"))
    ]
    assert "line 1" in code[0].says
    assert [problem.subject for problem in problems(found, "pth-leaves")] == ["stranger.pth"]


def test_start_up_code_goes_to_the_screen_cut_and_without_secrets_or_control_characters(stage: Stage) -> None:
    secret = "hf_" + "A1b2C3d4" * 4
    line = f"import os;os.environ['HF_TOKEN']='{secret}'; password=hunter2\x1b[2J\u202e{'x' * 5000}"
    (stage.site / "long.pth").write_text(line)
    (stage.site / "short.pth").write_text("import os\n")
    (stage.site / "late.pth").write_text(f"import os;{'y' * 80}; '{secret}'")
    says = {problem.subject: problem.says for problem in problems(look(stage), "pth-code")}
    assert says["short.pth"].endswith(": import os")
    for text in says.values():
        assert len(text) < 180
        assert text.isprintable()
        assert not {"hf_A1", "hunter2"} & {text[at : at + length] for length in (5, 7) for at in range(len(text))}
    assert "[redacted]" in says["long.pth"]


def test_what_is_kept_of_a_pth_s_owner_counts_while_every_record_is_the_same(stage: Stage) -> None:
    folder = install(stage, "1.0", b"x = 1\n")
    (stage.site / "hook.pth").write_text("import os\n")
    digests, asked = Digests(), Request(start="/", python=str(stage.python), config=Config())

    def strangers() -> list[str]:
        return [problem.subject for problem in problems(take(LiveHost(), asked, digests), "pth-code")]

    time.sleep(0.1)  # so that the stats can vouch for what is read
    assert (strangers(), strangers()) == (["hook.pth"], ["hook.pth"])
    assert any("hook.pth" in question for question in digests.memo)
    before = (folder / "RECORD").read_text()
    (folder / "RECORD").write_text(f"{before}hook.pth,,\n")
    assert strangers() == []
    time.sleep(0.1)
    assert (strangers(), strangers()) == ([], [])
    (folder / "RECORD").write_text(before)
    assert strangers() == ["hook.pth"]


def test_a_stray_torch_in_the_folder_of_the_start_is_told(torch_stage: Stage) -> None:
    start = str(torch_stage.project)
    asked = Request(start=start, python=str(torch_stage.python), config=Config())
    assert problems(take(LiveHost(), asked, Digests()), "start-folder") == []
    (torch_stage.project / "numpy.py").write_text("")
    (torch_stage.project / "torch").mkdir()
    assert problems(take(LiveHost(), asked, Digests()), "start-folder") == []
    (torch_stage.project / "torch/__init__.py").write_text("")
    found = problems(take(LiveHost(), asked, Digests()), "start-folder")
    assert [problem.path for problem in found] == [f"{start}/torch"]


@pytest.mark.parametrize(
    ("files", "hidden"),
    [
        (["transformers.py"], ["transformers"]),
        (["torch.cpython-311-x86_64-linux-gnu.so"], ["torch"]),
        (["transformers/__init__.py", "torch.py"], ["torch", "transformers"]),
        (["transformers/notes.txt"], []),
        (["transformers.txt", "Transformers.py", "utils.py", "numpy.py"], []),
        (["deep/transformers.py"], []),
    ],
)
def test_the_folder_of_the_started_code_is_the_one_that_is_looked_at(
    torch_stage: Stage, files: list[str], hidden: list[str]
) -> None:
    code = torch_stage.project / "code"
    for name in files:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("")
    asked = Request(start=str(torch_stage.project), python=str(torch_stage.python), config=Config())
    assert problems(take(LiveHost(), asked, Digests()), "start-folder") == []
    for first, expected in (((str(code),), hidden), ((), []), ((str(code / "missing"),), [])):
        there = problems(take(LiveHost(), replace(asked, path0=first), Digests()), "start-folder")
        assert [problem.subject for problem in there] == expected


def test_an_editable_package_has_its_trees_commit() -> None:
    package = Package(name="a", version="1", build=None, installer="pip", location="/s", editable="/src/repo/pkg")
    outer = Code(path="/src", commit="1" * 40, branch=None, dirty=False, diff_digest=None)
    inner = Code(path="/src/repo", commit="2" * 40, branch="main", dirty=True, diff_digest="x")
    beside = Code(path="/src/rep", commit="3" * 40, branch="main", dirty=True, diff_digest="x")
    (found,) = with_sources((package,), (outer, inner, beside))
    assert (found.commit, found.dirty) == ("2" * 40, True)


@pytest.mark.parametrize(
    ("name", "files", "module"),
    [
        ("pine", {"pine/__init__.py": b""}, "pine"),
        ("opencv-python", {"cv2/__init__.py": b"", "cv2/cv2.abi3.so": b"ELF"}, "cv2"),
        ("six", {"six.py": b"x = 1\n"}, "six"),
        ("torch", {"torch/__init__.py": b"", "torchgen/__init__.py": b""}, "torch"),
        ("nvidia-cudnn-cu12", {"nvidia/cudnn/lib/libcudnn.so.9": b"ELF"}, "nvidia.cudnn"),
        ("google-cloud-storage", {"google/cloud/storage/__init__.py": b""}, "google.cloud"),
    ],
)
def test_a_dist_info_that_was_deleted_by_hand_leaves_code_behind(
    name: str, files: dict[str, bytes], module: str, stage: Stage
) -> None:
    wheels.build_wheel(stage.wheels, name, "1.0", files)
    # It shares a folder with each of them that is a part of a namespace.
    others = {
        "other/__init__.py": b"",
        "nvidia/cublas/lib/libcublas.so.12": b"ELF",
        "google/protobuf/__init__.py": b"",
    }
    wheels.build_wheel(stage.wheels, "other", "1.0", others)
    stage.install(f"{name}==1.0", "other", arguments=["--no-deps"])
    before = look(stage)
    assert problems(before, "unowned") == []
    shutil.rmtree(stage.site / f"{name.replace('-', '_')}-1.0.dist-info")
    after = look(stage)
    assert module in {problem.subject for problem in problems(after, "unowned")}
    told = {drift.kind: drift.why for drift in compare(before, after).drifts if drift.subject == name}
    assert "removed" not in told
    assert "its metadata is gone and its code is still there" in told["metadata-gone"]
    for path in {module.replace(".", "/") if "." in module else path.partition("/")[0] for path in files}:
        target = stage.site / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    kinds = {drift.kind for drift in compare(before, look(stage)).drifts if drift.subject == name}
    assert "removed" in kinds


def test_files_that_are_links_into_a_cleaned_cache_are_said_to_lead_nowhere(stage: Stage) -> None:
    wheels.build_wheel(stage.wheels, "pine", "1.0", {"pine/__init__.py": b"", "pine/a.py": b"x = 1\n"})
    stage.install("pine", arguments=["--link-mode", "symlink"])
    shutil.rmtree(stage.cache)
    says = problems(look(stage), "files-missing")[0].says
    assert "links that lead nowhere: pine" in says
    assert f" to {stage.cache}" in says
    done = stage.envguard("verify")
    assert done.returncode == 1
    assert "a link that leads nowhere" in " ".join(done.stdout.split())

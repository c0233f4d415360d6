"""The code that a run executes from, by the real git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from envguard.acquire.project.code import read_code
from envguard.acquire.seam.host import LiveHost
from envguard.model.fingerprint import Code
from tests.acquire.made_up import MadeUp

HOST = LiveHost()
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run([*GIT, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "train.py").write_text("x = 1\n")
    (root / "data.bin").write_bytes(b"\0\1")
    (root / ".gitignore").write_text("*.log\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def only(path: Path | str) -> Code:
    section = read_code(HOST, (str(path),))
    assert section.unknown == ()
    (code,) = section.value
    return code


def everything(root: Path) -> dict[str, tuple[bytes, int]]:
    """Content and mtime of every file, `.git` included."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(root.rglob("*")) if path.is_file()
    }


def test_a_clean_tree(tree: Path) -> None:
    code = only(tree)
    assert code.commit == git(tree, "rev-parse", "HEAD")
    assert (code.path, code.branch, code.dirty) == (str(tree), "main", False)
    assert (code.diff_digest, code.dirty_files, code.untracked_digest, code.submodules) == (None, (), None, {})


def test_nothing_in_the_tree_is_written(tree: Path) -> None:
    os.utime(tree / "train.py", (1, 1))  # git would refresh its index for this
    before = everything(tree)
    only(tree)
    assert everything(tree) == before


def test_the_digest_is_of_contents_however_they_came_to_be(tree: Path) -> None:
    (tree / "train.py").write_text("x = 2\n")
    dirty = only(tree)
    assert (dirty.dirty, dirty.dirty_files) == (True, ("train.py",))
    git(tree, "add", "train.py")
    git(tree, "config", "diff.noprefix", "true")
    git(tree, "config", "diff.external", "false")
    assert only(tree).diff_digest == dirty.diff_digest
    (tree / "train.py").write_text("x = 3\n")
    assert only(tree).diff_digest != dirty.diff_digest
    (tree / "train.py").write_text("x = 1\n")
    assert only(tree).dirty is True  # the index still holds the edit, and a commit would too
    git(tree, "reset", "-q", "--hard")
    assert only(tree).dirty is False


@pytest.mark.parametrize("change", ["delete", "mode", "link", "rename", "binary"])
def test_each_kind_of_change_has_a_digest_of_its_own(tree: Path, change: str) -> None:
    path = tree / "train.py"
    if change == "delete":
        path.unlink()
    elif change == "mode":
        path.chmod(0o755)
    elif change == "link":
        path.unlink()
        path.symlink_to("data.bin")
    elif change == "rename":
        git(tree, "mv", "train.py", "with space\tand ä.py")
    else:
        (tree / "data.bin").write_bytes(b"\0\2")
    code = only(tree)
    assert code.dirty is True
    assert code.diff_digest is not None
    if change == "rename":
        assert code.dirty_files == ("train.py", "with space\tand ä.py")


def test_untracked_code_counts_and_untracked_data_does_not(tree: Path) -> None:
    (tree / "checkpoint.bin").write_bytes(bytes(100))
    (tree / "out.log").write_text("ignored")
    assert only(tree).untracked_digest is None
    (tree / "pkg").mkdir()
    (tree / "pkg" / "patch.py").write_text("y = 1\n")
    first = only(tree)
    assert first.dirty is False
    assert first.untracked_digest is not None
    (tree / "pkg" / "patch.py").write_text("y = 2\n")
    assert only(tree).untracked_digest != first.untracked_digest


def test_a_folder_inside_a_tree_stands_for_the_tree_and_a_file_for_itself(tree: Path) -> None:
    (tree / "src").mkdir()
    assert only(tree / "src").path == str(tree)
    (tree / "train.py").write_text("x = 2\n")
    code = only(tree / "data.bin")
    assert (code.path, code.dirty) == (str(tree / "data.bin"), False)
    assert only(tree / "train.py").dirty is True


def test_a_detached_head_has_no_branch(tree: Path) -> None:
    git(tree, "checkout", "-q", "--detach")
    assert only(tree).branch is None


def test_submodules_are_named_with_what_is_checked_out(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    (other / "lib.py").write_text("z = 1\n")
    git(other, "add", ".")
    git(other, "commit", "-qm", "lib")
    git(tree, "submodule", "--quiet", "add", str(other), "ext/lib")
    git(tree, "commit", "-qam", "with a submodule")
    commit = git(other, "rev-parse", "HEAD")
    clean = only(tree)
    assert (clean.submodules, clean.dirty) == ({"ext/lib": commit}, False)
    (tree / "ext" / "lib" / "lib.py").write_text("z = 2\n")
    dirty = only(tree)
    assert (dirty.submodules, dirty.dirty) == ({"ext/lib": f"{commit}-dirty"}, True)
    shutil.rmtree(tree / "ext" / "lib")
    (tree / "ext" / "lib").mkdir()
    assert only(tree).submodules == {"ext/lib": "not checked out"}


def test_a_linked_work_tree(tree: Path, tmp_path: Path) -> None:
    git(tree, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    code = only(tmp_path / "side")
    assert (code.branch, code.dirty) == ("side", False)


def test_no_repository_says_nothing_and_a_plain_file_its_content(tmp_path: Path) -> None:
    assert read_code(HOST, (str(tmp_path),)).value == ()
    (tmp_path / "model.py").write_text("x\n")
    code = only(tmp_path / "model.py")
    assert (code.commit, code.dirty) == (None, None)
    assert code.diff_digest == HOST.digest(str(tmp_path / "model.py"))


def unknown(path: Path) -> str:
    section = read_code(HOST, (str(path),))
    (item,) = section.unknown
    assert item.what.startswith("code ")
    return item.why


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert "no commit yet" in unknown(tmp_path)


def test_a_bare_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare")
    assert "bare repository" in unknown(tmp_path)


def test_a_configured_path_that_is_gone(tmp_path: Path) -> None:
    assert unknown(tmp_path / "gone") == "it is not there"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_tree_of_another_user_still_tells_its_commit(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    for path in (tree, tree / ".git"):
        os.chown(path, 12345, 12345)
    for name in ("SUDO_UID", "GIT_CONFIG_GLOBAL"):
        monkeypatch.delenv(name, raising=False)
    section = read_code(HOST, (str(tree),))
    (code,) = section.value
    assert (code.commit, code.branch, code.dirty) == (commit, "main", None)
    assert "dubious ownership" in section.unknown[0].why


@pytest.mark.parametrize("packed", [False, True])
def test_without_git_the_commit_is_read_from_its_files(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    git(tree, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    if packed:
        git(tree, "pack-refs", "--all")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for folder, branch in ((tree, "main"), (tmp_path / "side", "side")):
        section = read_code(HOST, (str(folder),))
        (code,) = section.value
        assert (code.commit, code.branch, code.dirty) == (commit, branch, None)
        assert "git cannot be asked" in section.unknown[0].why


def test_a_damaged_repository_is_unknown(tree: Path) -> None:
    (tree / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert unknown(tree)


def test_git_that_gives_no_answer_is_unknown() -> None:
    host = MadeUp({"/p/train.py": b"", "/p/.git": b"gitdir: gone"}, query=OSError(110, "no answer within 60 s"))
    section = read_code(host, ("/p",))
    assert section.value[0].commit is None
    assert "no answer within 60 s" in section.unknown[0].why

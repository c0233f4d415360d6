"""git's own files replaced by what git would wait for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from envguard.acquire.project.code import read_code
from envguard.acquire.project.git_history import read_git_history
from envguard.acquire.seam.host import LiveHost


@pytest.mark.timeout(15)
@pytest.mark.parametrize("name", ["logs/HEAD", "index", "packed-refs"])
@pytest.mark.parametrize("odd", ["pipe", "device"])
def test_a_file_of_git_that_would_be_waited_for_is_named_at_once(tmp_path: Path, name: str, odd: str) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
    (tmp_path / "a.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "a.py"], ["commit", "-qm", "one"], ["pack-refs", "--all"]):
        subprocess.run([*git, *words], check=True)
    history, unknown = read_git_history(LiveHost(), str(tmp_path))
    assert history is not None
    assert not unknown
    head = history.commits[0].id
    path = tmp_path / ".git" / name
    path.unlink()
    os.mkfifo(path) if odd == "pipe" else path.symlink_to("/dev/zero")
    history, unknown = read_git_history(LiveHost(), str(tmp_path))
    assert history is None
    assert [(item.what, item.reason) for item in unknown] == [(str(path), "refused")]
    # The fingerprint's code asks git as well: each question would take its whole minute.
    section = read_code(LiveHost(), (str(tmp_path),))
    assert [(code.commit, code.dirty) for code in section.value] == [(None if name == "packed-refs" else head, None)]
    assert [str(path) in item.why for item in section.unknown] == [True]

"""The folder of the started code, as a process knows it of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
first = sys.path[0]
from envguard.acquire.processes.loading import first_folder
print(os.path.realpath(first), *first_folder(), sep="\\n")
"""


@pytest.mark.parametrize(
    ("words", "has"),
    [
        (["s/t.py"], True),
        (["link.py"], True),
        (["-u", "s/t.py"], True),
        (["-m", "t"], True),
        (["-c", "import t"], True),
        (["-I", "s/t.py"], False),
        (["-P", "s/t.py"], False),
        (["-P", "-m", "s.t"], False),
    ],
)
def test_it_is_the_first_of_the_path(tmp_path: Path, words: list[str], has: bool) -> None:
    (tmp_path / "s").mkdir()
    for place in (tmp_path / "s/t.py", tmp_path / "t.py"):
        place.write_text(PROGRAM)
    (tmp_path / "link.py").symlink_to("s/t.py")
    root = str(Path(__file__).resolve().parents[2])
    environ = {"PYTHONPATH": f"{root}:{tmp_path}"} if words[:2] == ["-P", "-m"] else {"PYTHONPATH": root}
    asked = [sys.executable, *words]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, env=environ, check=True)
    first, *own = done.stdout.split("\n")[:-1]
    assert own == ([first] if has else [])
    assert first.startswith(str(tmp_path)) is has or words[:2] == ["-P", "-m"]


def test_a_working_directory_that_is_gone_costs_no_import(tmp_path: Path) -> None:
    asks = "from envguard.acquire.processes.loading import first_folder; print(first_folder())"
    program = f"import os; os.rmdir(os.getcwd())\n{asks}"
    gone = tmp_path / "gone"
    gone.mkdir()
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run([sys.executable, "-c", program], cwd=gone, capture_output=True, text=True,
                          env={"PYTHONPATH": root}, check=True)  # fmt: skip
    assert done.stdout == "()\n"

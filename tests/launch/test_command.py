"""What a command line starts: one interpreter, none, or what cannot be determined, and never another one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from envguard.acquire.seam.host import LiveHost
from envguard.fingerprint.uv_choices import AskedOfUv
from envguard.launch.command import parse_start
from envguard.launch.shell_line import NotSimple, simple_commands
from envguard.launch.starting import Start, What

BASE = os.path.realpath(sys.executable)


class Two:
    """Two environments: `own`, whose bin is on PATH, and `other`; and a folder `work` with scripts in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own, self.other, self.work = root / "own", root / "other", root / "work"
        for prefix in (self.own, self.other):
            self.make(prefix)
        (self.work / "src").mkdir(parents=True)
        for name in ("train.py", "src/train.py"):
            (self.work / name).write_text("")
        self.environ = {"PATH": f"{self.own}/bin:/usr/bin:/bin", "HOME": str(root)}

    def make(self, prefix: Path) -> None:
        (prefix / "bin").mkdir(parents=True)
        (prefix / "lib/python3.11/site-packages").mkdir(parents=True)
        (prefix / "pyvenv.cfg").write_text(f"home = {os.path.dirname(BASE)}\n")
        for name in ("python", "python3"):
            (prefix / "bin" / name).symlink_to(BASE)
        for name in ("torchrun", "accelerate"):
            self.script(prefix / "bin" / name, f"#!{prefix}/bin/python\n")
        (prefix / "bin/activate").write_text("")

    def script(self, path: Path, text: str) -> Path:
        path.write_text(text)
        path.chmod(0o755)
        return path

    def parse(self, line: str, **environ: str) -> Start:
        words = shlex.split(line.format(own=self.own, other=self.other, work=self.work, root=self.root))
        return parse_start(LiveHost(), words, {**self.environ, **environ}, str(self.work))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Two:
    return Two(tmp_path_factory.mktemp("two"))


def prefix_of(start: Start) -> str | None:
    return start.runner.started.prefix if start.runner is not None else None


WRAPPED = [
    "env -u FOO A=1", "env -C /tmp", "env -S 'A=1'", "nice -n 5", "nice -5", "nice -n5", "ionice -c 3",
    "ionice -c2 -n7",
    "nohup", "nohup nice -n 5", "setsid -w", "stdbuf -oL -eL", "stdbuf -o L", "time -v", "time -f %e -o out.txt",
    "timeout 5", "timeout -k 10 -s INT 5h", "timeout --signal=INT 1d", "numactl --cpunodebind=0 --membind=0",
    "numactl -N 0 -m 0", "taskset -c 0-7", "taskset 0xff", "chrt -f 50", "flock /tmp/lock", "flock -n /tmp/lock",
    "prlimit --nofile=4096", "srun", "srun -n 8 --gpus-per-task=1 --label", "srun -N2 -n16 --ntasks-per-node 8 -u",
    "srun --export=ALL,A=1 --chdir /tmp", "mpirun -np 8", "mpirun -np 8 -x NCCL_DEBUG=INFO -x PATH --bind-to none",
    "mpirun -mca btl ^openib -H a:8,b:8", "mpiexec -n 4 -genv A 1", "mpiexec.hydra -ppn 8", "sudo -E",
    "sudo -EH -u me",
    "sudo -E A=1", "nsys profile", "nsys profile -t cuda,nvtx -o out --force-overwrite=true",
    "nsys profile --trace cuda --stats=true", "ncu --set full -o out -f", "compute-sanitizer --tool memcheck",
    "py-spy record -o out.svg -s --", "gdb -batch -ex run --args", "strace -f -e trace=openat -o log",
    "perf record -g -o perf.data", "perf stat --", "catchsegv", "tini --", "tini -s -g --",
    "dumb-init --", "dumb-init -c", "xvfb-run -a", "command", "exec", "nohup env A=1 timeout 5 srun -n 1",
]  # fmt: skip


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_an_interpreter_behind_a_wrapper_is_the_one_that_runs(two: Two, wrapper: str) -> None:
    for program in ("{other}/bin/python -u train.py", "{other}/bin/torchrun --nproc-per-node 2 train.py"):
        named = two.parse(f"{wrapper} {program}")
        assert (prefix_of(named), named.undetermined) == (str(two.other), ())
        assert named.runner is not None
        assert named.runner.interpreter == f"{two.other}/bin/python"
    bare = two.parse(f"{wrapper} python train.py")
    assert (prefix_of(bare), bare.undetermined) == (str(two.own), ())
    assert bare.runner is not None
    assert bare.runner.interpreter is None


SHELLS = [
    "bash -c '{other}/bin/python train.py'",
    "bash -c 'exec {other}/bin/python train.py'",
    "sh -ec 'cd src && {other}/bin/python train.py'",
    "bash -c 'source {other}/bin/activate && python train.py'",
    "bash -c '. {other}/bin/activate; torchrun train.py'",
    "bash -c 'export PATH={other}/bin:$PATH; python train.py'",
    "bash -c 'PATH={other}/bin:$PATH python train.py'",
    "bash -c 'A=1 B=2 {other}/bin/python train.py > log.txt 2>&1'",
    "bash -euo pipefail -c 'set -x; ulimit -n 4096; mkdir -p out; {other}/bin/python train.py'",
    "bash -c 'exec \"$@\"' -- {other}/bin/python train.py",
    "bash -c 'source {other}/bin/activate && exec \"$@\"' -- python train.py",
    "bash -c 'X={other}; $X/bin/python train.py'",
    "srun bash -c '{other}/bin/python train.py'",
    "bash -c '{other}/bin/python train.py 2>&1 | tee log'",
    "bash -c '{other}/bin/python train.py & sleep 1; wait'",
    "bash -c '{other}/bin/python train.py || exit 1'",
    "bash -c '{other}/bin/python a.py && {other}/bin/python b.py'",
    "bash -c 'srun -n 8 {other}/bin/python train.py'",
    "bash {root}/run.sh",
    "bash {root}/beside.sh",
    "env -C /tmp {root}/beside.sh",
    "{root}/run.sh --lr 1",
    "env PATH={other}/bin:/usr/bin python train.py",
    "env PATH={other}/bin:/usr/bin torchrun train.py",
    "conda run -p {other} python train.py",
    "conda run --no-capture-output -n other python train.py",
]


@pytest.mark.parametrize("line", SHELLS)
def test_words_of_a_shell_that_choose_an_environment(two: Two, line: str) -> None:
    text = (
        f'#!/bin/bash\nset -e  # stop\n# a comment\nexport A=1\n\nexec {two.other}/bin/python \\\n  train.py "$@"\n'
    )
    two.script(two.root / "run.sh", text)
    two.script(two.root / "beside.sh", '#!/bin/sh\ncd "$(dirname "$0")"\n. other/bin/activate\npython train.py\n')
    start = two.parse(line, CONDA_ENVS_PATH=str(two.root))
    assert (prefix_of(start), start.undetermined) == (str(two.other), ())
    assert start.runner is not None
    assert start.runner.chosen


UNDETERMINED = [
    "bash -c 'if true; then python train.py; fi'",
    "bash -c 'for i in 1 2; do python train.py; done'",
    "bash -c 'export PATH=/x | true; python train.py'",
    "bash -c 'source {other}/bin/activate || true; python train.py'",
    "bash -c '{own}/bin/python train.py || {other}/bin/python train.py'",
    "bash -c 'python train.py | ./unknown-program'",
    "bash -c '$(which python) train.py'",
    "bash -c '(python train.py)'",
    "bash -c '$PYTHON train.py'",
    "bash -c 'source setup.sh && python train.py'",
    "bash -c 'module load cuda && python train.py'",
    "bash -c 'conda activate x && python train.py'",
    "bash -c '{own}/bin/python a.py && {other}/bin/python b.py'",
    "bash -c 'cd ${{WHERE:-x}} && python train.py'",
    "bash -lc 'python train.py'",
    "bash --login -c 'python train.py'",
    "bash",
    "bash missing.sh",
    "make train",
    "./unknown-program",
    "docker run image python train.py",
    "apptainer exec image.sif python train.py",
    "ssh host python train.py",
    "poetry run python train.py",
    "pdm run python train.py",
    "hatch run train",
    "pixi run train",
    "conda run -n missing python train.py",
    "uvx tool",
    "uv tool run x",
    "uv sync",
    "srun --new-option 3 python train.py",
    "srun --multi-prog run.conf",
    "srun --container-image=image python train.py",
    "srun --export=NONE python train.py",
    "mpirun -np 1 python a.py : -np 1 python b.py",
    "sudo python train.py",
    "sudo -i python train.py",
    "gdb python",
    "taskset -p 123",
    "torchrun --no-python ./run.sh",
    "python -S train.py",
]


@pytest.mark.parametrize("line", UNDETERMINED)
def test_what_does_not_determine_the_interpreter_is_said_with_what_to_write(two: Two, line: str) -> None:
    found = two.parse(line).undetermined
    assert found
    assert all(doubt.why and doubt.write for doubt in found)


@pytest.mark.parametrize("line", ["true", "sleep 5", "sh -c 'exit 5'", "bash -c 'echo x; sleep 1'", "nohup true"])
def test_what_starts_no_python_is_known_to(two: Two, line: str) -> None:
    start = two.parse(line)
    assert (start.runner, start.undetermined) == (None, ())


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("env A=1 B=2 python t.py", {"A": "1", "B": "2"}),
        ("env -u GIVEN python t.py", {"GIVEN": None}),
        ("env --unset=GIVEN python t.py", {"GIVEN": None}),
        ("env -i A=1 {own}/bin/python t.py", {"GIVEN": None, "A": "1", "PATH": None}),
        ("env - A=1 {own}/bin/python t.py", {"GIVEN": None, "A": "1"}),
        ("env -iu X A=1 {own}/bin/python t.py", {"GIVEN": None, "A": "1"}),
        ("env -S 'A=1 python' t.py", {"A": "1"}),
        ("srun --export=ALL,A=1 python t.py", {"A": "1", "GIVEN": "x"}),
        ("mpirun -x A=1 -np 2 python t.py", {"A": "1"}),
        ("mpiexec -genv A 1 -n 2 python t.py", {"A": "1"}),
        ("sudo -E A=1 {own}/bin/python t.py", {"A": "1"}),
        ("bash -c 'export A=1; unset GIVEN; python t.py'", {"A": "1", "GIVEN": None}),
        ("bash -c 'A=1 python t.py'", {"A": "1"}),
        ("nohup env A=1 nice env -u A python t.py", {"A": None}),
        ("python -I t.py", {"PYTHONPATH": None, "PYTHONNOUSERSITE": "1"}),
        ("python -E t.py", {"PYTHONPATH": None}),
        ("python -s t.py", {"PYTHONPATH": "/x", "PYTHONNOUSERSITE": "1"}),
    ],
)
def test_variables_that_the_interpreter_gets(two: Two, line: str, variables: dict[str, str | None]) -> None:
    start = two.parse(line, GIVEN="x", PYTHONPATH="/x")
    assert start.undetermined == ()
    assert {name: start.environ.get(name) for name in variables} == variables


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("python train.py", ["work"]),
        ("python src/train.py", ["work/src"]),
        ("python link.py", ["work/src"]),
        ("python -u -X dev -W ignore src/train.py", ["work/src"]),
        ("python -m trainer", ["work"]),
        ("python -mtrainer", ["work"]),
        ("python -c 'import x'", ["work"]),
        ("python src", ["work/src"]),
        ("python -I src/train.py", []),
        ("python -P -m trainer", []),
        ("env PYTHONSAFEPATH=1 python -m trainer", []),
        ("env -C src python -m trainer", ["work/src"]),
        ("bash -c 'cd src; python train.py'", ["work/src"]),
        ("torchrun --nproc-per-node 2 src/train.py", ["work/src"]),
        ("torchrun -m trainer", ["work"]),
        ("accelerate launch --multi_gpu src/train.py", ["work/src"]),
        ("python -m torch.distributed.run --nnodes 1 src/train.py", ["work", "work/src"]),
        ("srun --chdir=src python train.py", ["work/src"]),
    ],
)
def test_the_folders_of_the_started_code(two: Two, line: str, first: list[str]) -> None:
    link = two.work / "link.py"
    if not link.is_symlink():
        link.symlink_to("src/train.py")
    assert two.parse(line).path0 == tuple(str(two.root / name) for name in first)


@pytest.mark.parametrize("words", [["s/t.py"], ["-m", "t"], ["-c", "import t"], ["-I", "s/t.py"], ["-P", "s/t.py"]])
def test_the_interpreter_agrees_about_its_first_folder(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "s").mkdir()
    text = "import sys, os\nprint(os.path.realpath(sys.path[0]))\n"
    for place in (tmp_path / "s/t.py", tmp_path / "t.py"):
        place.write_text(text)
    out = subprocess.run([BASE, *words], cwd=tmp_path, capture_output=True, text=True, env={}, check=False).stdout
    start = parse_start(LiveHost(), [BASE, *words], {}, str(tmp_path))
    said = out.strip()
    assert start.path0 == (() if said not in (str(tmp_path), str(tmp_path / "s")) else (said,))


def test_python_exec_names_the_interpreter_of_the_ranks(two: Two) -> None:
    start = two.parse("torchrun train.py", PYTHON_EXEC=f"{two.other}/bin/python")
    assert prefix_of(start) == str(two.other)


def test_a_tools_own_environment_trains_nothing(two: Two, tmp_path: Path) -> None:
    tool = Two(tmp_path)
    (tool.other / "uv-receipt.toml").touch()
    start = tool.parse("{other}/bin/accelerate launch train.py")
    assert start.runner is None
    assert start.undetermined


def test_a_lone_link_to_the_python_of_a_venv_starts_the_base(two: Two, tmp_path: Path) -> None:
    """CPython looks for pyvenv.cfg beside the name that it was started by, and not behind its links."""
    (tmp_path / "bin").mkdir()
    links = [tmp_path / "python", tmp_path / "bin/python3"]
    for link in links:
        link.symlink_to(two.other / "bin/python")
    (tmp_path / "linked").symlink_to(two.other / "bin")
    (tmp_path / "whole").symlink_to(two.other)
    (tmp_path / "other-name").symlink_to(two.other / "bin/python")
    links += [tmp_path / "other-name", tmp_path / "linked/python", tmp_path / "whole/bin/python"]
    for link in links:
        asked = [str(link), "-I", "-c", "import sys; print(sys.prefix)"]
        real = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        assert prefix_of(two.parse(f"{link} train.py")) == real


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ("", AskedOfUv()),
        ("--extra cu128 --group=Old_One", AskedOfUv((("extra", "cu128"), ("group", "old-one")))),
        ("--all-extras --no-extra cpu", AskedOfUv((("extra", None),), (("extra", "cpu"),))),
        ("--package Other --only-group dev", AskedOfUv((("group", "dev"),), package="other")),
    ],
)
def test_what_uv_run_asks_for(two: Two, tmp_path: Path, options: str, asked: AskedOfUv) -> None:
    project = uv_project(tmp_path, two)
    words = shlex.split(f"nohup uv run --no-sync {options} train.py")
    assert parse_start(LiveHost(), words, two.environ, str(project)).asked == asked


def uv_project(root: Path, two: Two) -> Path:
    project = root / "project"
    (project / "sub").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "1"\n')
    two.make(project / ".venv")
    two.make(root / "elsewhere")
    (project / "train.py").write_text("")
    (project / "sub/train.py").write_text("")
    return project


@pytest.mark.parametrize(
    ("line", "environ", "prefix"),
    [
        ("uv run --no-sync train.py", {}, "project/.venv"),
        ("uv run --no-sync python train.py", {}, "project/.venv"),
        ("uv run --no-sync -- torchrun train.py", {}, "project/.venv"),
        ("uv run --no-sync -m trainer", {}, "project/.venv"),
        ("uv --project .. run --no-sync --directory sub train.py", {}, "project/.venv"),
        ("uv run --no-sync --extra cpu --python 3.13 train.py", {}, "project/.venv"),
        ("uv run train.py", {"UV_NO_SYNC": "1"}, "project/.venv"),
        ("uv run --no-sync train.py", {"VIRTUAL_ENV": "{root}/elsewhere"}, "project/.venv"),
        ("uv run --no-sync --active train.py", {"VIRTUAL_ENV": "{root}/elsewhere"}, "elsewhere"),
        ("uv run --no-sync train.py", {"UV_PROJECT_ENVIRONMENT": "{root}/elsewhere"}, "elsewhere"),
        ("uv run --no-sync train.py", {"UV_PROJECT_ENVIRONMENT": "../elsewhere"}, "elsewhere"),
        ("uv run --no-project train.py", {"VIRTUAL_ENV": "{root}/elsewhere"}, "elsewhere"),
        ("uv run --no-project train.py", {}, "project/.venv"),
        ("uv run --no-project --python {root}/elsewhere/bin/python train.py", {}, "elsewhere"),
        ("nohup uv run --no-sync train.py", {}, "project/.venv"),
        ("bash -c 'uv run --no-sync train.py'", {}, "project/.venv"),
    ],
)
def test_uv_run_takes_the_environment_by_its_own_rules(
    two: Two, tmp_path: Path, line: str, environ: dict[str, str], prefix: str
) -> None:
    project = uv_project(tmp_path, two)
    words = shlex.split(line.format(root=tmp_path))
    variables = {**two.environ, **{name: value.format(root=tmp_path) for name, value in environ.items()}}
    start = parse_start(LiveHost(), words, variables, str(project))
    assert (prefix_of(start), start.undetermined) == (str(tmp_path / prefix), ())


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("uv run train.py", What.PACKAGES),
        ("uv run --frozen train.py", What.PACKAGES),
        ("uv run --locked python train.py", What.PACKAGES),
        ("uv run --extra cpu train.py", What.PACKAGES),
        ("uv run --no-sync --with rich train.py", What.INTERPRETER),
        ("uv run --isolated --no-sync train.py", What.INTERPRETER),
        ("uv run --no-project --python 3.13 train.py", What.INTERPRETER),
        ("uv run --no-sync --env-file .env train.py", What.VARIABLES),
        ("uv run --no-sync inline.py", What.INTERPRETER),
        ("uv run --no-sync --script train.py", What.INTERPRETER),
        ("uv run --new-option 3 train.py", What.INTERPRETER),
    ],
)
def test_uv_run_that_makes_another_environment_is_not_known(two: Two, tmp_path: Path, line: str, what: What) -> None:
    project = uv_project(tmp_path, two)
    (project / "inline.py").write_text("# /// script\n# dependencies = ['rich']\n# ///\n")
    found = parse_start(LiveHost(), shlex.split(line), two.environ, str(project)).undetermined
    assert what in [doubt.what for doubt in found]


def test_the_command_that_uv_run_is_told_to_be_is_exact(two: Two, tmp_path: Path) -> None:
    project = uv_project(tmp_path, two)
    words = ["uv", "-q", "run", "--extra", "cu", "--", "python", "a b.py"]
    (doubt,) = parse_start(LiveHost(), words, two.environ, str(project)).undetermined
    assert "uv -q run --no-sync --extra cu -- python 'a b.py'" in doubt.write


def test_a_member_of_a_workspace_has_the_environment_of_the_workspace(two: Two, tmp_path: Path) -> None:
    two.make(tmp_path / ".venv")
    (tmp_path / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["packages/*"]\n')
    for name, prefix in (("packages/a", tmp_path / ".venv"), ("alone", tmp_path / "alone/.venv")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "pyproject.toml").write_text('[project]\nname = "a"\nversion = "1"\n')
        if not prefix.exists():
            two.make(prefix)
        start = parse_start(LiveHost(), ["uv", "run", "--no-sync", "python"], two.environ, str(tmp_path / name))
        assert prefix_of(start) == str(prefix)


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a b 'c d'", [("a", "b", "c d")]),
        ("a && b; c\nd", [("a",), ("b",), ("c",), ("d",)]),
        ("a > out 2>&1 < in", [("a",)]),
        ("a 2>err b", [("a", "b")]),
        ("# one\na # two ; && |\nb", [("a",), ("b",)]),
        ("a # don't\nb '# no comment' c#d", [("a",), ("b", "# no comment", "c#d")]),
        ("a \\\n  b", [("a", "b")]),
        ("a 'x && y | z'", [("a", "x && y | z")]),
        ("", []),
        ("a | b || c & d", [("a",), ("b",), ("c",), ("d",)]),
    ],
)
def test_simple_commands_of_a_shell(text: str, commands: list[tuple[str, ...]]) -> None:
    assert [command.words for command in simple_commands(text)] == commands


@pytest.mark.parametrize("text", ["a; (b)", "(a)", "a `b`", "a $(b)", "f() { a; }", "a <<E\nE", "a 'b", "! a"])
def test_more_than_simple_commands_is_not_guessed_at(text: str) -> None:
    with pytest.raises(NotSimple):
        simple_commands(text)

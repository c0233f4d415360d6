"""Many nodes: real agents that meet in torch.distributed's own store, and what they conclude."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.errors import UsageError
from envguard.launch import meet_program
from envguard.launch.nodes import Council, Node, Told, disagreements, exchange, odd_ones, together
from envguard.launch.rendezvous import Rendezvous, explicit, find_rendezvous, first_host
from envguard.launch.session import Gate
from envguard.launch.waivers import Waiver
from envguard.model.drift import DiffReport, Side
from envguard.model.fingerprint import Package
from tests.launch.fingerprints import fingerprint

TORCH_NEEDS = (
    "torch", "torchgen", "functorch", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
    "filelock", "fsspec", "numpy",
)  # fmt: skip
with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the store is torch's own")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- what is concluded ---


def package(name: str, version: str, build: str) -> Package:
    return Package(name=name, version=version, build=build, installer="uv", location="/venv")


def node(rank: int, build: str, code: int = 0, **fields: Any) -> Node:
    live = fingerprint(packages=(package("numpy", "2.2.0", build),), id=build)
    base: dict[str, Any] = {"host": f"host{rank}", "because": (), "waivers": (), "reference": None}
    return Node(rank, Told(code=code, fingerprint=live, **{**base, **fields}))


def gated(code_of: Node) -> Gate:
    from envguard.launch.gate import decide

    side = Side(id=None, label="step_690")
    diff = DiffReport(a=side, b=side, match=True, drifts=(), unknown=())
    verdict = decide((), (), (), (), "warn", "2026-05-18T20:52:00+00:00")
    return Gate(code_of.told.fingerprint, "step_690", diff, (), (), (), verdict, ())


def test_nodes_that_agree_go() -> None:
    nodes = tuple(node(rank, "a") for rank in range(3))
    assert together(gated(nodes[0]), Council(0, nodes), (), "warn").verdict.code == 0


def test_every_node_names_the_same_odd_one_and_refuses() -> None:
    nodes = (node(0, "a"), node(1, "b"), node(2, "a"))
    answers = [together(gated(each), Council(each.rank, nodes), (), "warn") for each in nodes]
    assert {answer.verdict.code for answer in answers} == {78}
    (why,) = {drift.why for answer in answers for drift in answer.verdict.drifts}
    assert why.startswith("node 1 (host1) differs from node 0 (host0): ")
    assert answers[0].verdict.drifts[0].subject == "numpy"


def test_of_two_the_one_that_differs_from_the_reference_is_the_odd_one() -> None:
    nodes = (node(0, "b", reference="a"), node(1, "a", reference="a"))
    first, others = odd_ones(nodes)
    assert (first.rank, [each.rank for each in others]) == (1, [0])
    assert "node 0 (host0) differs from node 1" in disagreements(nodes, ())[0][0].why


def test_a_node_that_refuses_keeps_every_node_and_says_why() -> None:
    for code, decision in ((78, "refuse"), (3, "refuse"), (75, "retry")):
        nodes = (node(0, "a"), node(1, "a", code, because=("torch 1 → 2",)))
        answer = together(gated(nodes[0]), Council(0, nodes), (), "warn")
        assert (answer.verdict.code, answer.verdict.decision) == (code, decision)
        (check,) = answer.verdict.checks
        assert check.check == "node 1 (host1)"
        assert "torch 1 → 2" in check.detail


def test_what_one_node_answers_for_passes_on_all() -> None:
    waiver = Waiver(facet="packages", subject="numpy", because="x", author="ada", given="", until=None)
    nodes = (node(0, "a"), node(1, "b", waivers=(waiver,)))
    for each in nodes:
        assert together(gated(each), Council(each.rank, nodes), (), "warn").verdict.code == 0


def test_nodes_that_do_not_come_leave_it_undetermined() -> None:
    answer = together(gated(node(0, "a")), Council(0, (), "not every node came"), (), "warn")
    assert answer.verdict.code == 3
    assert answer.checks[-1].ok is None


# --- where they meet ---


@pytest.mark.parametrize(
    ("command", "environ", "expected"),
    [
        ("python train.py", {}, None),
        ("torchrun --nproc-per-node 8 train.py", {}, None),
        ("torchrun --standalone --nnodes=2 train.py", {}, None),
        ("torchrun --nnodes=2 --node-rank=1 --master-addr=gpu1 --master-port=29400 train.py", {},
         (2, 1, "gpu1", 29401, "envguard/none")),
        ("python -m torch.distributed.run --nnodes 4 --rdzv-endpoint gpu1:29400 --rdzv_id j7 train.py", {},
         (4, None, "gpu1", 29401, "envguard/j7")),
        ("torchrun --nnodes=2:2 --rdzv-endpoint=gpu1 train.py", {}, (2, None, "gpu1", 29501, "envguard/none")),
        ("torchrun train.py", {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "pod-0"},
         (2, 0, "pod-0", 29501, "envguard/none")),
        ("python train.py", {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_STEP_NODELIST": "gpu[03-06]",
                             "SLURM_JOB_ID": "1234567", "SLURM_STEP_ID": "0"},
         (4, 3, "gpu03", 24567, "envguard/1234567.0")),
        ("srun python train.py", {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),
        ("python train.py", {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "pod-0", "MASTER_PORT": "23456"},
         (2, 1, "pod-0", 23457, "envguard/variables")),
    ],
)  # fmt: skip
def test_where_nodes_meet(command: str, environ: dict[str, str], expected: tuple[Any, ...] | None) -> None:
    found = find_rendezvous(command.split(), environ)
    assert found == (None if expected is None else Rendezvous(*expected))


def test_nodes_that_come_and_go_are_refused() -> None:
    with pytest.raises(UsageError, match="come and go"):
        find_rendezvous(["torchrun", "--nnodes=1:4", "train.py"], {})


@pytest.mark.parametrize(
    ("nodes", "rank", "meet"), [(2, None, None), (2, 2, "h:1"), (2, 0, "h"), (None, 0, "h:1"), (2, 0, "h:0")]
)
def test_options_that_make_no_sense(nodes: int | None, rank: int | None, meet: str | None) -> None:
    with pytest.raises(UsageError):
        explicit(nodes, rank, meet)


def test_one_node_meets_nobody() -> None:
    assert explicit(1, 0, "h:1") is None
    assert explicit(2, 1, "[::1]:29500") == Rendezvous(2, 1, "::1", 29500, "envguard")


@pytest.mark.parametrize(
    ("listed", "first"), [("gpu1", "gpu1"), ("gpu[03-06,9],x", "gpu03"), ("a-1,a-2", "a-1"), ("n[1,3]", "n1")]
)
def test_the_first_host_of_slurms_list(listed: str, first: str) -> None:
    assert first_host(listed) == first


# --- real agents ---


@with_torch
def test_a_node_that_never_comes_is_named() -> None:
    at = Rendezvous(2, 0, "127.0.0.1", free_port(), "envguard")
    council = exchange(sys.executable, at, node(0, "a").told, timeout=1.0)
    assert council.nodes == ()
    assert council.why is not None
    assert "not every node came" in council.why
    assert "node 1 missing" in council.why


def test_a_pipe_that_takes_parts_gets_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []

    def part(descriptor: int, data: bytes) -> int:
        taken.append(data[:65536])
        return len(taken[-1])

    monkeypatch.setattr(os, "write", part)
    meet_program.send("x" * 200_000 + "\n")
    assert b"".join(taken) == b"x" * 200_000 + b"\n"
    assert len(taken) == 4


def test_an_interpreter_without_torch_is_undetermined(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.make_venv()
    at = Rendezvous(2, 0, "127.0.0.1", free_port(), "envguard")
    council = exchange(str(stage.python), at, node(0, "a").told, timeout=1.0)
    assert council.why is not None
    assert "No module named 'torch'" in council.why
    assert exchange(None, at, node(0, "a").told).why == "the environment has no interpreter that could be run"


@pytest.fixture(scope="module")
def torch_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH through which a stage's interpreter finds the real torch."""
    import torch

    site = Path(torch.__file__).parent.parent
    folder = tmp_path_factory.mktemp("library")
    for name in TORCH_NEEDS:
        for entry in (site / name, site / f"{name}.py"):
            if entry.exists():
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Stage]:
    """Two nodes: the second has a copied venv."""
    made = []
    for rank in range(2):
        stage = Stage(tmp_path_factory.mktemp(f"node{rank}"))
        stage.make_venv()
        build_wheel(stage.wheels, "attention-kernels", "1.0", files={"attention_kernels/ops.py": b"scale = 1.0\n"})
        stage.install("attention-kernels")
        (stage.project / "envguard.toml").write_text('watch = ["attention-kernels"]\n')
        made.append(stage)
    return made


def start_all(
    stages: Sequence[Stage], library: Path, port: int, prefix: Sequence[Sequence[str]] = ((), ())
) -> list[tuple[int, dict[str, Any], str]]:
    """Launches one agent a node at once; (code, answer, stderr) of each."""
    meet = f"{'127.0.0.1' if not prefix[0] else '10.97.0.1'}:{port}"
    running = []
    for rank, stage in enumerate(stages):
        shutil.rmtree(stage.project / ".envguard", ignore_errors=True)
        words = ["launch", "--baseline", "--json", "--nodes", "2", "--node-rank", str(rank), "--meet", meet]
        running.append(
            subprocess.Popen(
                [*prefix[rank], *stage.envguard_command(*words, "--", "touch", "started")],
                cwd=stage.project,
                env=stage.environ(
                    {"PYTHONPATH": str(library), "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
                ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    answers = []
    for process in running:
        out, err = process.communicate(timeout=120)
        answers.append((process.returncode, json.loads(out), err))
    return answers


def started(stages: Sequence[Stage]) -> list[bool]:
    found = [(stage.project / "started").exists() for stage in stages]
    for stage in stages:
        (stage.project / "started").unlink(missing_ok=True)
    return found


@contextlib.contextmanager
def altered(stage: Stage) -> Iterator[None]:
    """One library of the node's copied venv is not what the other's is."""
    path = stage.site / "attention_kernels" / "ops.py"
    before = path.read_bytes()
    path.unlink()  # a hard link into the uv cache
    path.write_bytes(b"scale = 1.1\n")
    try:
        yield
    finally:
        path.write_bytes(before)


@with_torch
def test_two_nodes_that_agree_start_and_two_that_differ_refuse_together(
    pair: list[Stage], torch_library: Path
) -> None:
    for code, _, err in start_all(pair, torch_library, free_port()):
        assert code == 0, err
    assert started(pair) == [True, True]
    with altered(pair[1]):
        answers = start_all(pair, torch_library, free_port())
    assert [code for code, _, _ in answers] == [78, 78]
    assert started(pair) == [False, False]
    for _, answer, _ in answers:
        (drift,) = [drift for drift in answer["drifts"] if drift["severity"] != "info"]
        assert (drift["facet"], drift["subject"]) == ("packages", "attention-kernels")
        assert drift["why"].startswith("node 1 (")
        assert "attention_kernels/ops.py" in drift["why"]


@contextlib.contextmanager
def namespaces() -> Iterator[list[list[str]]]:
    """Two network namespaces joined by a cable: two machines, as far as the network can tell."""
    mine = os.getpid()  # other runs of these tests on this machine have their own
    names, cable = [f"eg{mine}-node{rank}" for rank in range(2)], [f"eg{mine}-v{rank}" for rank in range(2)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", cable[0], "netns", names[0], "type", "veth", "peer", "name", cable[1], "netns", names[1])
        for rank, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.97.0.{rank + 1}/24", "dev", cable[rank])
            ip("-n", name, "link", "set", cable[rank], "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def can_make_namespaces() -> bool:
    if shutil.which("ip") is None:
        return False
    probe = f"eg{os.getpid()}-probe"
    done = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True)
    subprocess.run(["ip", "netns", "del", probe], check=False, capture_output=True)
    return done.returncode == 0


@with_torch
@pytest.mark.slow
def test_over_a_network_the_odd_node_is_named_on_both(pair: list[Stage], torch_library: Path) -> None:
    if not can_make_namespaces():
        pytest.skip("making network namespaces needs root and iproute2")
    with namespaces() as prefix, altered(pair[0]):
        answers = start_all(pair, torch_library, 29777, prefix)
    assert [code for code, _, _ in answers] == [78, 78]
    assert started(pair) == [False, False]
    for _, answer, _ in answers:
        assert any("ops.py" in drift["why"] for drift in answer["drifts"])

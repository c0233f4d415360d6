"""Several ranks: the same losses as one process, exact resume, and no rank outlives another's death."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.trainer.runs import (
    curve,
    environment,
    free_port,
    kill,
    kill_one,
    log_of,
    small_config,
    start_ranks,
    train_here,
    train_ranks,
    uneven_rows,
    wait_for_step,
)
from trainer.agent import first_cause, virtual_rank
from trainer.checkpoint import list_checkpoints
from trainer.clock import recommended_split
from trainer.config import Config
from trainer.distributed import gpu_each
from trainer.errors import ConfigError, RankFailed, ResumeRefused

pytestmark = pytest.mark.timeout(240)
LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2)]


def layout(folder: Path, targets: int, drafters: int, run: str, **sections: dict[str, Any]) -> Config:
    """Two uneven rows a step whatever the layout, so that losses can be compared."""
    sections["topology"] = {"targets": targets, "drafters": drafters, "queue_depth": 2, "prefetch": 4}
    sections["train"] = {"rows_per_step": 2, "epochs": 3, **sections.get("train", {})}
    uneven = uneven_rows(folder)
    sections["data"] = {**uneven["data"], **sections.get("data", {})}
    return small_config(folder, run, model=uneven["model"], **sections)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("alone")
    config = layout(folder, 1, 1, "alone")
    train_here(config)
    return folder, curve(config)


def same(found: dict[int, dict[str, Any]], expected: dict[int, dict[str, Any]]) -> None:
    """Equal to the bit, but for the list of losses, which has one entry a drafter."""
    assert [{**step, "loss": 0} for step in found.values()] == [{**step, "loss": 0} for step in expected.values()]


@pytest.mark.parametrize(("targets", "drafters"), LAYOUTS)
def test_losses_equal_those_of_one_process(
    alone: tuple[Path, dict[int, dict[str, Any]]], targets: int, drafters: int
) -> None:
    """To the bit: sums of two gradients do not depend on their order."""
    folder, expected = alone
    config = layout(folder, targets, drafters, f"{targets}+{drafters}")
    assert train_ranks(config) == [0] * (targets + drafters)
    same(curve(config), expected)
    lines = log_of(config)
    for line in lines:
        assert (len(line["q_pre"]), len(line["q_hs"]), len(line["loss"])) == (targets, drafters, drafters)
        assert max(line["q_hs"]) <= 2
        assert max(line["q_pre"]) <= 4
    assert max(max(line["q_pre"]) for line in lines) > 0
    said = (folder / config.checkpoint.dir / "run.log").read_text()
    assert "keep a drafter busy; best split" in said
    assert "data: 40 documents" in said


def test_three_drafters_differ_by_rounding_alone(alone: tuple[Path, dict[int, dict[str, Any]]]) -> None:
    """A sum of three depends on its order; 1.5e-8 was seen."""
    folder, _ = alone
    rows = {"rows_per_step": 6}
    single, three = layout(folder, 1, 1, "six", train=rows), layout(folder, 1, 3, "1+3", train=rows)
    train_here(single)
    assert train_ranks(three) == [0] * 4
    for mine, other in zip(log_of(three), log_of(single), strict=True):
        assert mine["loss_mean"] == pytest.approx(other["loss_mean"], rel=1e-6)


@pytest.mark.parametrize("victim", [0, 1, 2], ids=["the drafter", "a target", "the other target"])
def test_a_killed_rank_takes_the_job_down_and_the_resumed_run_is_exact(
    alone: tuple[Path, dict[int, dict[str, Any]]], victim: int
) -> None:
    folder, expected = alone
    config = layout(folder, 2, 1, f"victim-{victim}", checkpoint={"every": 3})
    processes = start_ranks(config)
    wait_for_step(config, 7, processes)
    took, codes = kill_one(processes, victim)
    assert took < 10
    assert codes.pop(victim) == -signal.SIGKILL
    assert all(code == RankFailed.exit_code for code in codes)
    if victim:
        assert f"rank {victim}" in (folder / f"victim-{victim}" / "run.log").read_text()
    assert len(log_of(config)) < len(expected)
    assert train_ranks(config) == [0, 0, 0]
    same(curve(config), expected)


def test_all_ranks_killed_and_resumed_on_another_layout(alone: tuple[Path, dict[int, dict[str, Any]]]) -> None:
    folder, expected = alone
    config = layout(folder, 2, 1, "all", checkpoint={"every": 2})
    processes = start_ranks(config)
    wait_for_step(config, 9, processes)
    for process in processes:
        kill(process)
    for process in processes:
        process.join()
    assert len(list_checkpoints(Path(config.checkpoint.dir))) > 0
    moved = layout(folder, 1, 2, "all", checkpoint={"every": 2})
    assert train_ranks(moved) == [0, 0, 0]
    steps = {line["step"]: line for line in log_of(moved)}  # the list of losses is longer now: the last line counts
    for number, step in expected.items():
        assert {name: steps[number][name] for name in step if name != "loss"} == {
            name: value for name, value in step.items() if name != "loss"
        }
    assert "topology.drafters: 1 -> 2" in (folder / "all" / "run.log").read_text()


def test_fewer_rows_a_step_end_with_the_rows(tmp_path: Path) -> None:
    """As by default: one a drafter. Counted by steps alone, the drafter would wait for rows that are not there."""
    rows = {"max_steps": 2, "rows_per_step": 4}
    assert train_here(layout(tmp_path, 1, 1, "run", train=rows)) == 0
    assert train_ranks(layout(tmp_path, 2, 1, "run", train={"rows_per_step": 1})) == [0, 0, 0]
    lines = log_of(layout(tmp_path, 2, 1, "run"))
    assert lines[-1]["step"] == lines[-3]["step"] + 2 == len(lines)
    assert (lines[-1]["epoch"], lines[-1]["batch"]) == (3, 0)


def test_a_target_that_is_done_does_not_die_of_a_signal_while_the_drafter_trains(tmp_path: Path) -> None:
    """It has sent its last row long before the drafter has trained on it; its death would end the drafter too."""
    config = layout(tmp_path, 1, 1, "run", train={"epochs": 6})
    ahead = msgspec.structs.replace(config.topology, queue_depth=500)
    config = msgspec.structs.replace(config, topology=ahead)
    processes = start_ranks(config)
    wait_for_step(config, 15, processes)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    steps = [line["step"] for line in log_of(config)]
    assert [step for step, _ in list_checkpoints(tmp_path / "run")] == [steps[-1]]


def test_a_rank_that_fails_ends_the_job_with_its_reason(tmp_path: Path) -> None:
    config = layout(tmp_path, 1, 1, "run", data={"paths": [str(tmp_path / "none.jsonl")]})
    began = time.monotonic()
    codes = train_ranks(config)
    assert time.monotonic() - began < 15
    assert codes == [RankFailed.exit_code, 2]  # the drafter, then the target with its own code
    log = (tmp_path / "run" / "run.log").read_text()
    assert "rank 1: ConfigError" in log
    assert "none.jsonl" in log


def test_more_ranks_than_the_topology_says_are_refused(tmp_path: Path) -> None:
    from trainer.errors import ConfigError
    from trainer.topology import find_place

    with pytest.raises(ConfigError, match="2 targets and 1 drafters need 3 ranks and there are 1"):
        find_place(layout(tmp_path, 2, 1, "run"))


def toml_of(folder: Path) -> Path:
    small_config(folder)  # writes the text
    path = folder / "a.toml"
    path.write_text(
        "[model]\nblock_size = 4\nnum_layers = 1\nnum_taps = 2\nanchors = 64\n"
        '[target]\nkind = "random"\nshape = "tiny"\n'
        '[data]\npaths = ["text.jsonl"]\ntoken_budget = 512\nmax_batch_size = 8\n'
        '[train]\nepochs = 400\ngamma = 2.0\ndevice = "cpu"\n[checkpoint]\nevery = 0\ndir = "run"\nstamp = false\n'
    )
    return path


def wait_for_log(folder: Path, process: subprocess.Popen[str]) -> None:
    log = folder / "run" / "train_log.jsonl"
    while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < 5):
        time.sleep(0.05)


def test_the_command_line_starts_ranks_and_sigterm_ends_them_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer", "train", str(toml_of(tmp_path)), "--targets", "1", "--drafters", "1"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_for_log(tmp_path, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "asked to stop" in errors
    steps = (tmp_path / "run" / "train_log.jsonl").read_bytes().count(b"\n")
    assert [step for step, _ in list_checkpoints(tmp_path / "run")] == [steps]


@pytest.mark.parametrize(("gpus", "option"), [(0, []), (1, []), (2, ["--virtual-local-rank"])])
def test_ranks_see_their_gpu_as_the_first_where_each_has_one(
    gpus: int, option: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun would show the second of two ranks a GPU that a machine of one has not."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert virtual_rank(2) == option


def test_ranks_on_gpus_and_on_none_are_refused() -> None:
    """One that falls back to its CPU would hold up the others without a word."""
    assert gpu_each([b"a", b"b"])
    assert not gpu_each([b"a", b"a"])
    assert not gpu_each([b"", b""])
    with pytest.raises(ConfigError, match="rank 1 sees no GPU"):
        gpu_each([b"a", b""])


def test_the_command_ends_with_the_failed_ranks_own_code_and_words(tmp_path: Path) -> None:
    """Not with torchrun's, which reports any failure as 1 and below a traceback."""
    command = [sys.executable, "-m", "trainer", "train", str(toml_of(tmp_path)), "--targets", "1", "--drafters", "2"]
    done = subprocess.run(
        [*command, 'data.paths=["none.jsonl"]'], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == ConfigError.exit_code
    assert "rank 2: ConfigError: data.paths: cannot read none.jsonl" in done.stderr
    assert "Traceback" not in done.stderr
    assert "torch" not in done.stderr


@pytest.mark.parametrize(
    ("failures", "code", "said"),
    [
        ([(1, 6), (0, 3), (2, -15)], 3, ""),
        ([(0, 6), (1, -9), (2, -15)], 6, "error: rank 1 was killed by SIGKILL\n"),
        ([(0, -15), (1, -15)], 143, ""),
        ([(0, 130), (1, 130)], 130, ""),
        ([(1, 6), (0, 6)], 6, ""),
    ],
)
def test_the_first_cause_is_what_no_other_failure_led_to(
    failures: list[tuple[int, int]], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert first_cause(failures) == code
    assert capsys.readouterr().err == said


def test_a_rank_that_follows_another_down_says_so_without_a_traceback(tmp_path: Path) -> None:
    config = layout(tmp_path, 1, 2, "run", train={"rows_per_step": 2, "max_steps": 1})
    assert train_ranks(config) == [0, 0, 0]
    changed = layout(tmp_path, 1, 2, "run", train={"rows_per_step": 2, "max_steps": 1, "seed": 1})
    assert train_ranks(changed) == [ResumeRefused.exit_code, RankFailed.exit_code, RankFailed.exit_code]


def test_a_killed_launcher_takes_its_ranks_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer", "train", str(toml_of(tmp_path)), "--targets", "1", "--drafters", "1"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL, text=True)
    wait_for_log(tmp_path, process)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3  # torchrun and two ranks
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


@pytest.mark.slow
def test_two_machines_train_together_and_resume(tmp_path: Path) -> None:
    """Two torchrun agents that meet at a rendezvous, as on two machines."""
    config = toml_of(tmp_path)

    def start(port: int) -> list[subprocess.Popen[str]]:
        agents = []
        for _ in range(2):
            command = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test"),
                *("-m", "trainer", "train", str(config), "train.epochs=6", "checkpoint.every=5"),
                *("topology.targets=1", "topology.drafters=1", "train.rows_per_step=1"),
            ]
            agents.append(
                subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
            )
        return agents

    first = start(free_port())
    wait_for_log(tmp_path, first[0])
    time.sleep(0.5)
    for agent in first:  # the agents' death takes their ranks with them, or the ranks notice that the store is gone
        agent.kill()
        agent.communicate()
    for agent in start(free_port()):
        _, errors = agent.communicate(timeout=120)
        assert agent.returncode == 0, errors
    lines = log_of(small_config(tmp_path))
    assert lines[-1]["step"] == max(line["step"] for line in lines)
    losses: dict[int, float] = {}
    for line in lines:
        assert losses.setdefault(line["step"], line["loss_mean"]) == line["loss_mean"]
    assert list(losses) == list(range(1, lines[-1]["step"] + 1))


def test_the_recommended_split_balances_the_sides() -> None:
    assert recommended_split(target=1.0, drafter=1.0, ranks=2) == 1
    assert recommended_split(target=5.0, drafter=3.0, ranks=8) == 5
    assert recommended_split(target=0.1, drafter=3.0, ranks=8) == 1

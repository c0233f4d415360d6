"""Responses written by the target: whole or resumed, the file ends with the same bytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest
import torch

from trainer.config import Config, RegenerateConfig, TargetConfig, TrainConfig
from trainer.data import documents
from trainer.errors import ConfigError, ResumeRefused
from trainer.regenerate import regenerate, run
from trainer.targets import open_target
from trainer.targets.generation import generate
from trainer.targets.interface import DecodableTarget


@pytest.fixture(scope="module")
def target() -> DecodableTarget:
    return open_target(TargetConfig(kind="random", shape="tiny", seed=1), torch.device("cpu"), torch.float32, 5)


def settings(folder: Path, count: int = 11, **values: object) -> RegenerateConfig:
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": f"question {n} " * (n % 3 + 1)}) + "\n" for n in range(count)))
    given: dict[str, object] = {"max_new_tokens": 12, "batch_size": 4, "out": str(folder / "out.jsonl")} | values
    return msgspec.convert({"prompts": (str(prompts),), **given}, RegenerateConfig)


def test_lines_are_chats_that_training_reads(target: DecodableTarget, tmp_path: Path) -> None:
    config = settings(tmp_path)
    summary = regenerate(target, config)
    lines = Path(config.out).read_bytes().splitlines()
    assert len(lines) == summary.responses == summary.written == 11
    for number, line in enumerate(lines):
        value = json.loads(line)
        assert value["id"] == f"prompts.jsonl:{number + 1}"
        assert value["finish"] in ("stop", "length")
        assert [message["role"] for message in value["messages"]] == ["user", "assistant"]


def test_training_reads_the_very_tokens_that_the_target_wrote(target: DecodableTarget, tmp_path: Path) -> None:
    """Random bytes are seldom UTF-8: their text reads back as other tokens, so the tokens are kept beside it."""
    config = settings(tmp_path)
    regenerate(target, config)
    lines = Path(config.out).read_bytes().splitlines()
    assert any("written" in json.loads(line) for line in lines)
    for line, found in zip(lines, documents.read_documents([Path(config.out)], target.tokenizer), strict=True):
        assert isinstance(found, documents.Document)
        prompt = target.tokenizer.encode_prompt(json.loads(line)["messages"][:-1])
        response = generate(target, [prompt], 12)[0]
        assert found.tokens[: len(prompt) + len(response)] == prompt + response
        assert found.supervised[: len(prompt) + len(response)] == [False] * len(prompt) + [True] * len(response)


def test_tokens_of_another_tokenizer_are_a_bad_line(target: DecodableTarget, tmp_path: Path) -> None:
    line = {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        "written": {"tokenizer": "other", "prompt": 1, "tokens": [1, 2]},
    }
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps({**line, "written": {"tokens": "?"}}) + "\n")
    first, second = documents.read_documents([path], target.tokenizer)
    assert "another tokenizer" in str(first)
    assert "written: " in str(second)


@pytest.mark.parametrize(
    ("tokens", "prompt"),
    [
        ([1, -1, 2], 1),
        ([1, 10**6, 2], 1),
        ([1, 2**40, 2], 1),
        ([1, 2, 3], 0),
        ([1, 2, 3], -1),
        ([1, 2, 3], 3),
        ([], 0),
    ],
)
def test_tokens_that_cannot_be_are_a_bad_line(
    target: DecodableTarget, tmp_path: Path, tokens: list[int], prompt: int
) -> None:
    line = {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        "written": {"tokenizer": target.tokenizer.digest, "prompt": prompt, "tokens": tokens},
    }
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(line) + "\n")
    (found,) = documents.read_documents([path], target.tokenizer)
    assert "not a prompt and a response" in str(found)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_run_broken_at_any_byte_ends_with_the_bytes_of_an_unbroken_one(
    target: DecodableTarget, tmp_path: Path, temperature: float
) -> None:
    config = settings(tmp_path, temperature=temperature)
    regenerate(target, config)
    out = Path(config.out)
    whole = out.read_bytes()
    for keep in (0, 1, len(whole) // 3, whole.index(b"\n") + 1, len(whole) // 2, len(whole) - 1, len(whole)):
        out.write_bytes(whole[:keep])
        summary = regenerate(target, config)
        assert out.read_bytes() == whole
        assert summary.written == 11 - whole[:keep].count(b"\n")


def _run(config: Config) -> None:
    torch.set_num_threads(1)
    run(config)


def test_a_killed_process_is_resumed(tmp_path: Path, target: DecodableTarget) -> None:
    config = settings(tmp_path, count=24, batch_size=2, max_new_tokens=40)
    whole = Config(
        target=TargetConfig(kind="random", shape="tiny", seed=1), train=TrainConfig(device="cpu"), regenerate=config
    )
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(whole,))
    process.start()
    out = Path(config.out)
    deadline = time.monotonic() + 120
    while not (out.exists() and out.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    before = out.read_bytes()
    assert 0 < before.count(b"\n") < 24
    regenerate(target, config)
    resumed = out.read_bytes()
    unbroken = msgspec.structs.replace(config, out=str(tmp_path / "unbroken.jsonl"))
    regenerate(target, unbroken)
    assert resumed == Path(unbroken.out).read_bytes()
    assert resumed.startswith(before[: before.rfind(b"\n") + 1])


def test_a_file_made_otherwise_is_refused_and_left_alone(target: DecodableTarget, tmp_path: Path) -> None:
    config = settings(tmp_path)
    regenerate(target, config)
    before = Path(config.out).read_bytes()
    for change, name in (
        ({"max_new_tokens": 5}, "max_new_tokens"),
        ({"batch_size": 3}, "batch_size"),
        ({"temperature": 1.0}, "temperature"),
        ({"limit": 4}, "prompts"),
    ):
        with pytest.raises(ResumeRefused, match=name):
            regenerate(target, msgspec.structs.replace(config, **change))
    other = open_target(TargetConfig(kind="random", shape="tiny", seed=2), torch.device("cpu"), torch.float32, 5)
    with pytest.raises(ResumeRefused, match="another target"):
        regenerate(other, config)
    (tmp_path / "out.jsonl.meta.json").unlink()
    with pytest.raises(ResumeRefused, match="does not say how it was made"):
        regenerate(target, config)
    assert Path(config.out).read_bytes() == before


def test_lines_of_another_order_are_refused(target: DecodableTarget, tmp_path: Path) -> None:
    config = settings(tmp_path)
    regenerate(target, config)
    lines = Path(config.out).read_bytes().splitlines(keepends=True)
    Path(config.out).write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(ResumeRefused, match=r"out\.jsonl:1 is not what this run writes"):
        regenerate(target, config)


def test_seeds_draw_other_responses(target: DecodableTarget, tmp_path: Path) -> None:
    texts = set()
    for seed in (0, 1):
        config = settings(tmp_path, temperature=1.5, seed=seed, out=str(tmp_path / f"{seed}.jsonl"))
        regenerate(target, config)
        texts.add(Path(config.out).read_bytes())
    assert len(texts) == 2


def test_prompts_that_cannot_be_asked_are_named(target: DecodableTarget, tmp_path: Path) -> None:
    config = settings(tmp_path, max_prompt_tokens=30)
    with Path(config.prompts[0]).open("a") as file:
        file.write(json.dumps({"text": "a <|end|> b"}) + "\n")
    summary = regenerate(target, config)
    assert summary.responses == 8
    assert summary.left_out[-1] == "prompts.jsonl:12: a message holds the control token <|end|>"
    assert "more than 30" in summary.left_out[0]
    with pytest.raises(ConfigError, match="no prompt can be asked"):
        regenerate(target, msgspec.structs.replace(config, max_prompt_tokens=1, out=str(tmp_path / "none.jsonl")))


def test_a_limit_takes_prompts_from_all_over(target: DecodableTarget, tmp_path: Path) -> None:
    config = settings(tmp_path, limit=3)
    regenerate(target, config)
    names = [json.loads(line)["id"] for line in Path(config.out).read_bytes().splitlines()]
    assert names == ["prompts.jsonl:1", "prompts.jsonl:4", "prompts.jsonl:8"]

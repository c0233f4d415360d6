"""How good a drafter is: real acceptance length on held-out prompts, and what training would say of the same.

Three numbers, each a mean of acceptance lengths (1 + leading matches, 1.0 is the least):

- real: greedy speculative decoding on caches, as served;
- simulated: the training forward over the finished texts, read off at the anchors that decoding would visit;
- simulated over all anchors: the same at every token, which is what ``train_log.jsonl`` estimates.

The first two describe the same blocks by two paths and must agree. Where they do not, one path sees what the
other does not: a leak in the training mask, labels shifted by a token, a window forgotten when decoding.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Literal

import msgspec
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from trainer.acceptance import Measured, measure
from trainer.checkpoint import load_state
from trainer.config import Config
from trainer.errors import TrainerError
from trainer.files import write_text
from trainer.model import Drafter
from trainer.prompts import Prompt, load_prompts
from trainer.targets.interface import DecodableTarget
from trainer.topology import choose_device, choose_dtype
from trainer.trained import find_checkpoint, load_drafter, open_trained_target

GAP = 0.05
"""Share of the real length by which the simulated one may differ before something is suspected."""
_GROUP = 16  # prompts whose plain greedy texts are written in step

Verdict = Literal["agree", "simulated-longer", "real-longer", "text-differs", "no-steps"]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome; its JSON is what ``--json`` prints."""

    checkpoint: str
    step: int
    target: str
    prompts: int
    prompt_source: str
    max_new_tokens: int
    tokens: int
    """Of all responses."""
    steps: int
    """Verification steps of all responses."""
    real: float | None
    """Mean acceptance length of real decoding; None where no response had a step."""
    simulated: float | None
    """Of the training forward at the anchors that decoding would visit."""
    simulated_all_anchors: float | None
    gap: float | None
    """(simulated - real) / real."""
    histogram: list[int]
    """Steps whose acceptance length was 1, 2, … B."""
    identical: int
    """Responses equal to plain greedy decoding, token by token."""
    ties: int
    """Responses that part where two logits are equal but for rounding."""
    different: list[str]
    """Prompts whose responses part elsewhere: a fault."""
    verdict: Verdict


def run(
    config: Config,
    *,
    checkpoint: Path | None = None,
    as_json: bool = False,
    out: Path | None = None,
    console: Console | None = None,
) -> Report:
    """Evaluates a checkpoint, by default the run's last; prints the result, and writes its JSON to ``out``."""
    path = find_checkpoint(config, checkpoint)
    state = load_state(path)
    prompts = load_prompts([config.evaluate.prompts])[: config.evaluate.limit]
    measured: list[Measured] = []
    with Progress(disable=as_json, transient=True) as bar:
        task = bar.add_task("evaluate", total=len(prompts))
        for part in _measure_all(config, path, prompts):
            measured += part
            bar.update(task, completed=len(measured))
    report = summarise(
        measured,
        block_size=state.block_size,
        checkpoint=str(path),
        step=state.step,
        target=str(state.identity["name"]),
        prompt_source=config.evaluate.prompts,
        max_new_tokens=config.evaluate.max_new_tokens,
    )
    text = msgspec.json.format(msgspec.json.encode(report)).decode()
    if out is not None:
        write_text(out, text + "\n")
    if as_json:
        print(text)
    else:
        (console or Console()).print(describe(report))
    return report


def _measure_all(config: Config, path: Path, prompts: Sequence[Prompt]) -> Iterator[list[Measured]]:
    """Groups of prompts, in order, here or in ``evaluate.workers`` processes that share the device."""
    workers = min(config.evaluate.workers, len(prompts))
    size = min(_GROUP, -(-len(prompts) // (2 * workers)))
    groups = [prompts[first : first + size] for first in range(0, len(prompts), size)]
    if workers == 1:
        pair = open_pair(config, path)
        yield from (measure(*pair, group, config.evaluate.max_new_tokens) for group in groups)
        return
    # Not forked: a forked process has no CUDA.
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // workers)
    with ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        try:
            yield from pool.map(functools.partial(_measure_group, config, path), groups)
        except BrokenProcessPool as error:
            raise TrainerError(f"one of {workers} processes was killed (memory?): lower evaluate.workers") from error


def _measure_group(config: Config, path: Path, group: Sequence[Prompt]) -> list[Measured]:
    return measure(*_pair_of_worker(config, path), group, config.evaluate.max_new_tokens)


def open_pair(config: Config, path: Path) -> tuple[DecodableTarget, Drafter]:
    """The configured target and a checkpoint's drafter; ResumeRefused where they do not belong together."""
    state = load_state(path)
    device = choose_device(config)
    dtype = choose_dtype(config.target.dtype, device)
    return open_trained_target(config, state, device, dtype), load_drafter(path, state, device, dtype)


_pair_of_worker = functools.lru_cache(maxsize=1)(open_pair)
"""Opened once a process: a worker measures several groups."""


def summarise(
    measured: Sequence[Measured],
    *,
    block_size: int,
    checkpoint: str = "",
    step: int = 0,
    target: str = "",
    prompt_source: str = "",
    max_new_tokens: int = 0,
) -> Report:
    """One report of all prompts."""
    real = [length for one in measured for length in one.real]
    walked = [length for one in measured for length in one.simulated]
    every = [length for one in measured for length in one.every]
    gap = _mean(walked) / _mean(real) - 1 if real and walked else None
    different = [one.prompt for one in measured if one.text == "different"]
    return Report(
        checkpoint=checkpoint,
        step=step,
        target=target,
        prompts=len(measured),
        prompt_source=prompt_source,
        max_new_tokens=max_new_tokens,
        tokens=sum(one.tokens for one in measured),
        steps=len(real),
        real=_mean(real) if real else None,
        simulated=_mean(walked) if walked else None,
        simulated_all_anchors=_mean(every) if every else None,
        gap=gap,
        histogram=[real.count(length) for length in range(1, block_size + 1)],
        identical=sum(one.text == "identical" for one in measured),
        ties=sum(one.text == "tie" for one in measured),
        different=different,
        verdict=_verdict(gap, different),
    )


def describe(report: Report) -> Table:
    """A table with a verdict in words."""
    table = Table(
        title=f"Acceptance of {report.checkpoint or 'the drafter'} on {report.prompt_source}", show_header=False
    )
    for name, value in (
        ("prompts", f"{report.prompts}, {report.tokens} tokens in {report.steps} target steps"),
        ("real acceptance length", _number(report.real)),
        ("simulated, same anchors", _number(report.simulated)),
        ("simulated, all anchors", _number(report.simulated_all_anchors)),
        ("gap", "-" if report.gap is None else f"{report.gap:+.1%}"),
        ("steps by length 1, 2, …", " ".join(map(str, report.histogram))),
        ("texts equal to plain greedy", f"{report.identical} of {report.prompts}, {report.ties} part at a tie"),
        ("verdict", _in_words(report)),
    ):
        table.add_row(name, value)
    return table


def _in_words(report: Report) -> str:
    match report.verdict:
        case "agree":
            return "training and decoding agree"
        case "simulated-longer":
            return (
                "training sees what decoding does not: suspect a leak in the training mask, "
                "labels shifted by one, or a sliding window that decoding forgets"
            )
        case "real-longer":
            return "decoding does better than training measures: suspect shifted labels or positions"
        case "text-differs":
            return f"speculative text is not the target's own: {', '.join(report.different[:3])}"
        case "no-steps":
            return "no response was long enough to draft for"


def _verdict(gap: float | None, different: Sequence[str]) -> Verdict:
    if different:
        return "text-differs"
    if gap is None:
        return "no-steps"
    if abs(gap) <= GAP:
        return "agree"
    return "simulated-longer" if gap > 0 else "real-longer"


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

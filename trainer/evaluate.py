"""How good a drafter is: real acceptance length on held-out prompts, and what training would say of the same.

Three numbers, each a mean of acceptance lengths (1 + leading matches, 1.0 is the least):

- real: greedy speculative decoding on caches, as served;
- simulated: the training forward over the finished texts, read off at the anchors that decoding would visit;
- simulated over all anchors: the same at every token, which is what ``train_log.jsonl`` estimates.

The first two describe the same blocks by two paths and must agree. Where they do not, one path sees what the
other does not: a leak in the training mask, labels shifted by a token, a window forgotten when decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch.nn import functional

from trainer.anchors import draw_anchors
from trainer.attention import make_mask
from trainer.batch import PackedBatch
from trainer.checkpoint import load_state
from trainer.config import Config
from trainer.decode import Decoded, leading_matches, propose, speculate
from trainer.errors import ConfigError
from trainer.files import write_text
from trainer.model import Drafter
from trainer.prompts import Prompt, load_prompts
from trainer.targets.generation import generate
from trainer.targets.interface import DecodableTarget
from trainer.tokenizer import TextError
from trainer.topology import choose_device, choose_dtype
from trainer.trained import find_checkpoint, load_drafter, open_trained_target

GAP = 0.05
"""Share of the real length by which the simulated one may differ before something is suspected."""
_TIE = {torch.float32: 1e-3, torch.bfloat16: 0.25}  # logits this near are equal but for rounding
_GROUP = 16  # prompts whose plain greedy texts are written in step
_BLOCKS = 64  # blocks whose logits exist at a time

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
    device = choose_device(config)
    dtype = choose_dtype(config.target.dtype, device)
    target = open_trained_target(config, state, device, dtype)
    drafter = load_drafter(path, state, device, dtype)
    prompts = load_prompts([config.evaluate.prompts])[: config.evaluate.limit]
    report = evaluate(
        target, drafter, prompts, config.evaluate.max_new_tokens, checkpoint=str(path), step=state.step,
        prompt_source=config.evaluate.prompts, progress=not as_json,
    )  # fmt: skip
    text = msgspec.json.format(msgspec.json.encode(report)).decode()
    if out is not None:
        write_text(out, text + "\n")
    if as_json:
        print(text)
    else:
        (console or Console()).print(describe(report))
    return report


def evaluate(
    target: DecodableTarget,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    *,
    checkpoint: str = "",
    step: int = 0,
    prompt_source: str = "",
    progress: bool = False,
) -> Report:
    """Measures ``drafter`` on ``prompts``; ConfigError where a prompt cannot be encoded."""
    encoded = [_encode(target, prompt) for prompt in prompts]
    plain: list[list[int]] = []
    decoded: list[Decoded] = []
    every: list[int] = []
    walked: list[int] = []
    with Progress(disable=not progress, transient=True) as bar:
        task = bar.add_task("evaluate", total=len(prompts))
        for first in range(0, len(prompts), _GROUP):
            group = encoded[first : first + _GROUP]
            plain += generate(target, group, max_new_tokens)
            for ids in group:
                decoded.append(speculate(target, drafter, ids, max_new_tokens))
                lengths = simulate(target, drafter, ids, decoded[-1].tokens)
                every += lengths
                walked += walk(lengths)
                bar.advance(task)
    identical = ties = 0
    different = []
    for prompt, ids, ours, theirs in zip(prompts, encoded, decoded, plain, strict=True):
        if ours.tokens == theirs:
            identical += 1
        elif is_tie(target, ids, ours.tokens, theirs):
            ties += 1
        else:
            different.append(prompt.name)
    real = [length for one in decoded for length in one.lengths]
    gap = _mean(walked) / _mean(real) - 1 if real and walked else None
    return Report(
        checkpoint=checkpoint,
        step=step,
        target=target.name,
        prompts=len(prompts),
        prompt_source=prompt_source,
        max_new_tokens=max_new_tokens,
        tokens=sum(len(one.tokens) for one in decoded),
        steps=len(real),
        real=_mean(real) if real else None,
        simulated=_mean(walked) if walked else None,
        simulated_all_anchors=_mean(every) if every else None,
        gap=gap,
        histogram=[real.count(length) for length in range(1, drafter.shape.block_size + 1)],
        identical=identical,
        ties=ties,
        different=different,
        verdict=_verdict(gap, different),
    )


@torch.no_grad()
def simulate(target: DecodableTarget, drafter: Drafter, prompt: Sequence[int], response: Sequence[int]) -> list[int]:
    """The acceptance length at each response token but the last, by the forward that training runs.

    The target reads the finished text at once, and every token is an anchor; the drafter must not see what
    comes after it.
    """
    if len(response) < 2:
        return []
    batch = one_document([*prompt, *response], supervised_from=len(prompt))
    shape = drafter.shape
    taps = target.features(batch).taps.to(drafter.fc.weight.dtype)
    row = draw_anchors(
        batch, anchors=len(response) - 1, block_size=shape.block_size, mask_token_id=target.mask_token_id, seed=0
    )
    row = row.to(target.device)
    masks = {kind: make_mask(row.layout, shape.window(kind), "sdpa") for kind in set(shape.layer_types)}
    block = functional.embedding(row.tokens.reshape(-1), target.embedding()).to(taps.dtype)
    hidden = drafter(taps, batch.position.to(target.device), block, row.position.reshape(-1), masks)
    hidden = hidden.view(row.live, shape.block_size, -1)[:, 1:]
    # A few blocks at a time: the logits of all of them would be the largest thing in memory.
    guesses = [guess for part in hidden.split(_BLOCKS) for guess in propose(target, part)]
    # Labels stop where the text does, so those of a block are its first ones.
    wanted = [labels[valid] for labels, valid in zip(row.labels, row.valid, strict=True)]
    return [1 + leading_matches(guess, want.tolist()) for guess, want in zip(guesses, wanted, strict=True)]


def walk(lengths: Sequence[int]) -> list[int]:
    """The lengths at the anchors that decoding visits, given the length at every anchor.

    >>> walk([2, 1, 1, 3, 1, 1, 1])
    [2, 1, 3, 1]
    """
    visited, anchor = [], 0
    while anchor < len(lengths):
        visited.append(lengths[anchor])
        anchor += lengths[anchor]
    return visited


def is_tie(target: DecodableTarget, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether two texts part at a token whose two candidates the target rates equal but for rounding."""
    parted = leading_matches(ours, theirs)
    if parted == min(len(ours), len(theirs)):
        return False
    hidden = target.session(len(prompt) + parted).extend([*prompt, *ours[:parted]]).hidden[-1]
    logits = target.logits(hidden)
    return abs(float(logits[ours[parted]] - logits[theirs[parted]])) <= _TIE[target.dtype]


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


def _encode(target: DecodableTarget, prompt: Prompt) -> list[int]:
    try:
        return target.tokenizer.encode_prompt(prompt.messages)
    except TextError as error:
        raise ConfigError(f"{prompt.name}: {error}") from error


def one_document(tokens: list[int], supervised_from: int) -> PackedBatch:
    length = len(tokens)
    return PackedBatch(
        epoch=0,
        index=0,
        tokens=torch.tensor(tokens),
        position=torch.arange(length),
        document=torch.zeros(length, dtype=torch.int32),
        supervised=torch.arange(length) >= supervised_from,
        sample_ids=(0,),
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

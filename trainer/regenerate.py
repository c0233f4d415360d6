"""The target writes its own training responses: a drafter learns to foretell the target, not a data set.

One line a prompt, in the order of the prompts, appended batch by batch. A killed run goes on where it was and
ends with the same bytes as an unbroken one: batches are cut from the list of prompts, and one that was written
in part is run again whole and its missing lines are added. Beside the file, ``<out>.meta.json`` says what the
lines depend on; a file made otherwise is refused, not mixed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from trainer.config import Config, RegenerateConfig
from trainer.errors import ConfigError, ResumeRefused
from trainer.files import cut_torn_line, locked, naming, write_text
from trainer.prompts import HELD_OUT, SOURCES, Prompt, load_prompts
from trainer.targets import open_target
from trainer.targets.generation import generate
from trainer.targets.interface import DecodableTarget
from trainer.tokenizer import TextError, Tokenizer
from trainer.topology import choose_device, choose_dtype

FORMAT = 1


@dataclass(frozen=True)
class Encoded:
    """A prompt and its ids."""

    prompt: Prompt
    ids: list[int]


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    out: Path
    responses: int  # in the file
    written: int  # by this run
    tokens: int  # of the responses that this run wrote
    seconds: float
    left_out: tuple[str, ...]  # prompts that were not asked, and why


def run(config: Config, *, console: Console | None = None) -> Summary:
    """Answers all configured prompts; resumes what an earlier run began."""
    device = choose_device(config)
    target = open_target(config.target, device, choose_dtype(config.target.dtype, device), config.model.num_taps)
    summary = regenerate(target, config.regenerate, progress=True)
    console = console or Console()
    rate = summary.tokens / summary.seconds if summary.seconds else 0.0
    console.print(
        f"{summary.out}: {summary.responses} responses, {summary.written} of them now "
        f"({summary.tokens} tokens, {rate:.0f} a second)"
    )
    for reason in summary.left_out[:5]:
        console.print(f"left out: {reason}", markup=False)
    if len(summary.left_out) > 5:
        console.print(f"and {len(summary.left_out) - 5} more prompts left out")
    return summary


def regenerate(target: DecodableTarget, config: RegenerateConfig, *, progress: bool = False) -> Summary:
    """The same with an opened target."""
    encoded, left_out = _encoded(target.tokenizer, config)
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    tokens = 0
    # Two runs that append to one file would interleave their lines.
    with locked(out.with_name(f"{out.name}.lock"), ResumeRefused(f"another run is writing {out}")):
        done = _prepare(out, _meta(target, config, encoded), encoded)
        with naming(out), out.open("ab") as file, Progress(disable=not progress, transient=True) as bar:
            task = bar.add_task("regenerate", total=len(encoded), completed=done)
            for first in range(done - done % config.batch_size, len(encoded), config.batch_size):
                group = encoded[first : first + config.batch_size]
                responses = _answer(target, group, first, config)
                missing = max(0, done - first)
                file.writelines(_lines(target, group[missing:], responses[missing:]))
                file.flush()
                os.fsync(file.fileno())
                tokens += sum(map(len, responses[missing:]))
                bar.update(task, completed=first + len(group))
    seconds = time.perf_counter() - began
    return Summary(out, len(encoded), len(encoded) - done, tokens, seconds, tuple(left_out))


def _encoded(tokenizer: Tokenizer, config: RegenerateConfig) -> tuple[list[Encoded], list[str]]:
    if not config.prompts:
        training = ", ".join(name for name in SOURCES if name not in HELD_OUT)
        raise ConfigError(f"regenerate.prompts is empty: name jsonl files, or some of {training}")
    held_out = [source for source in config.prompts if source in HELD_OUT]
    if held_out:
        raise ConfigError(f"{held_out[0]} is held out for evaluation: no training responses are written for it")
    prompts = load_prompts(config.prompts)
    if config.limit is not None and config.limit < len(prompts):
        prompts = [prompts[number * len(prompts) // config.limit] for number in range(config.limit)]
    encoded, left_out = [], []
    for prompt in prompts:
        try:
            ids = tokenizer.encode_prompt(prompt.messages)
        except TextError as error:
            left_out.append(f"{prompt.name}: {error}")
            continue
        if len(ids) > config.max_prompt_tokens:
            left_out.append(f"{prompt.name}: {len(ids)} tokens, more than {config.max_prompt_tokens}")
            continue
        encoded.append(Encoded(prompt, ids))
    if not encoded:
        raise ConfigError(f"no prompt can be asked: {'; '.join(left_out[:3])}")
    return encoded, left_out


def _answer(
    target: DecodableTarget, group: Sequence[Encoded], first: int, config: RegenerateConfig
) -> list[list[int]]:
    seeds = [_seed(config.seed, first + offset) for offset in range(len(group))]
    prompts = [one.ids for one in group]
    return generate(target, prompts, config.max_new_tokens, temperature=config.temperature, seeds=seeds)


def _seed(seed: int, number: int) -> int:
    """63 bits from the run's seed and the prompt's number: neighbouring seeds share no streams."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:8], "big") >> 1


def _lines(target: DecodableTarget, group: Sequence[Encoded], responses: Sequence[list[int]]) -> Iterator[bytes]:
    """``finish`` is ``stop``, or ``length`` where the target was cut off and its end token is not known.

    ``written`` holds the tokens where the text would read back as others: training on those would teach
    what the target never wrote.
    """
    tokenizer = target.tokenizer
    ended = [bool(response) and response[-1] in tokenizer.end_ids for response in responses]
    texts = [tokenizer.decode(ids[:-1] if end else ids) for ids, end in zip(responses, ended, strict=True)]
    chats = [
        [*map(dict, one.prompt.messages), {"role": "assistant", "content": text}]
        for one, text in zip(group, texts, strict=True)
    ]
    read = tokenizer.encode_chats((messages, not end) for messages, end in zip(chats, ended, strict=True))
    for one, response, end, messages, back in zip(group, responses, ended, chats, read, strict=True):
        value: dict[str, Any] = {"id": one.prompt.name, "messages": messages, "finish": "stop" if end else "length"}
        tokens = [*one.ids, *response]
        # An error where the response holds the text of a control token, for one.
        if isinstance(back, TextError) or back[0][: len(tokens)] != tokens:
            value["written"] = {"tokenizer": tokenizer.digest, "prompt": len(one.ids), "tokens": tokens}
        yield json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _meta(target: DecodableTarget, config: RegenerateConfig, encoded: Sequence[Encoded]) -> dict[str, Any]:
    asked = json.dumps([[one.prompt.name, one.ids] for one in encoded])
    return {
        "format": FORMAT,
        "target": target.identity(),
        "prompts": hashlib.sha256(asked.encode()).hexdigest(),
        "max_new_tokens": config.max_new_tokens,
        "temperature": config.temperature,
        "seed": config.seed if config.temperature > 0 else None,
        "batch_size": config.batch_size,
    }


def _prepare(out: Path, meta: dict[str, Any], encoded: Sequence[Encoded]) -> int:
    """Lines already there; ResumeRefused where they were made otherwise."""
    beside = out.with_name(f"{out.name}.meta.json")
    if not out.exists() or out.stat().st_size == 0:
        write_text(beside, json.dumps(meta, indent=2) + "\n")
        return 0
    try:
        before = json.loads(beside.read_bytes())
    except (OSError, ValueError) as error:
        raise ResumeRefused(f"{out} exists and {beside.name} does not say how it was made: {error}") from error
    wrong = [key for key in meta if before.get(key) != meta[key]]
    if wrong:
        raise ResumeRefused(f"{out} was made with another {', '.join(wrong)}: choose another regenerate.out")
    cut_torn_line(out)
    done = 0
    with out.open("rb") as file:
        for done, line in enumerate(file, start=1):
            if done > len(encoded) or _name_of(line) != encoded[done - 1].prompt.name:
                raise ResumeRefused(f"{out}:{done} is not what this run writes there")
    return done


def _name_of(line: bytes) -> Any:
    try:
        return json.loads(line)["id"]
    except (ValueError, KeyError, TypeError):
        return None

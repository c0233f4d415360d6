"""Questions about the documentation of Python that the standard library carries."""

from __future__ import annotations

import hashlib
import pydoc_data.topics
import re

from trainer.prompts.prompt import Prompt, ask

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


def pydoc_prompts() -> list[Prompt]:
    """Tasks over passages of ``pydoc_data.topics``, the documentation in the standard library.

    The passages are those of the running Python version; tasks take turns.
    """
    prompts: list[Prompt] = []
    for topic, text in sorted(pydoc_data.topics.topics.items()):
        for number, passage in enumerate(_passages(text)):
            task = _TASKS[len(prompts) % len(_TASKS)]
            prompts.append(ask(f"pydoc/{topic}/{number}", f"{task}\n\n{passage}"))
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
    return ask(f"pydoc-terms/{term}", f'What does "{term}" mean in Python? Answer in one sentence.')


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

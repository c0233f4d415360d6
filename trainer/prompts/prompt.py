"""A prompt, and the words in which functions are asked for."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.tokenizer import Message

COMPLETE = "Complete this Python function:"
"""What precedes a signature and its docstring: training asks in the very words in which acceptance is measured."""


@dataclass(frozen=True)
class Prompt:
    """A chat that ends where the assistant is to respond."""

    name: str
    messages: tuple[Message, ...]


def ask(name: str, content: str) -> Prompt:
    """A chat of one question."""
    return Prompt(name, ({"role": "user", "content": content},))

"""Prompts: what the target is asked when it writes training responses, and when acceptance is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.config import suggest
from trainer.data.documents import Chat, numbered_lines, parse
from trainer.errors import ConfigError
from trainer.prompts.documentation import held_out_term_prompts, pydoc_prompts, pydoc_term_prompts
from trainer.prompts.functions import stdlib_function_prompts
from trainer.prompts.human_eval import human_eval_prompts
from trainer.prompts.prompt import COMPLETE, Prompt, ask
from trainer.prompts.tasks import python_task_prompts
from trainer.tokenizer import Message, TextError

__all__ = ["COMPLETE", "HELD_OUT", "SOURCES", "Prompt", "file_prompts", "human_eval_prompts", "load_prompts"]


def load_prompts(sources: Sequence[str]) -> list[Prompt]:
    """The prompts of all sources, each a name in ``SOURCES`` or a jsonl file; ConfigError names a bad line."""
    return [
        prompt
        for source in sources
        for prompt in (SOURCES[source]() if source in SOURCES else file_prompts(Path(source)))
    ]


def file_prompts(path: Path) -> list[Prompt]:
    """One prompt a line: a chat, whose last response is left out if it ends in one, or a text to ask with."""
    if not path.exists():
        raise ConfigError(
            f"no prompts {str(path)!r}: neither a file nor one of {', '.join(SOURCES)}{suggest(str(path), SOURCES)}"
        )
    prompts: list[Prompt] = []
    for number, line in numbered_lines(path):
        name = f"{path.name}:{number}"
        try:
            content = parse(line)
            prompts.append(ask(name, content) if isinstance(content, str) else Prompt(name, _question(content)))
        except TextError as error:
            raise ConfigError(f"{path}:{number}: {error}") from error
    if not prompts:
        raise ConfigError(f"{path} holds no prompts")
    return prompts


def _question(chat: Chat) -> tuple[Message, ...]:
    messages = chat.messages[:-1] if chat.messages[-1]["role"] == "assistant" else chat.messages
    if not messages:
        raise TextError("a response without a question")
    return tuple(messages)


SOURCES: dict[str, Callable[[], list[Prompt]]] = {
    "human-eval": human_eval_prompts,
    "pydoc": pydoc_prompts,
    "pydoc-terms": pydoc_term_prompts,
    "pydoc-terms-held-out": held_out_term_prompts,
    "python-tasks": python_task_prompts,
    "stdlib-functions": stdlib_function_prompts,
}
HELD_OUT = ("human-eval", "pydoc-terms-held-out")
"""Sources to measure on, for which no training responses are written."""

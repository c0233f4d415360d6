"""Small programming tasks of our own: signatures with docstrings whose examples are computed, never guessed.

A grammar composes each task and its reference from the tables of ``parts``: of all combinations a hash picks some,
alike in every Python version.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trainer.prompts import parts, sources
from trainer.prompts.parts import Change, Finish, Function, Keep
from trainer.prompts.prompt import COMPLETE, Prompt, ask
from trainer.prompts.sources import Draw, Source

_PIPELINES = 190  # drawn for each source
_SEARCHES = 24  # of each source, too
_VALIDATIONS = 110  # of each subject
_RESULT = 80  # characters of an example's call and of its result, at most


@dataclass(frozen=True)
class Task:
    """A function to be written; ``told`` says what it returns, ``run`` is the reference."""

    name: str
    words: tuple[str, ...]
    arguments: str
    returns: str
    given: str
    told: str
    run: Function
    examples: tuple[tuple[Any, ...], ...]

    def call(self, example: tuple[Any, ...]) -> str:
        """The call as it stands in the docstring."""
        return f"{self.name}({', '.join(map(repr, example))})"


def python_task_prompts() -> list[Prompt]:
    """Some 10,000 tasks in an order that mixes all kinds; most are a signature and docstring to complete."""
    return [ask(f"python-tasks/{task.name}", content(task)) for task in tasks()]


def tasks() -> list[Task]:
    """All tasks, each name once."""
    drawn: dict[str, Task] = {}
    for task in itertools.chain(_pipelines(), _searches(), _sortings(), _validations(), _dates()):
        drawn.setdefault(task.name, task)
    found: dict[str, Task] = {}
    for full, task in drawn.items():
        name = next((name for name in _names(task) if name not in found and name not in drawn), full)
        found[name] = replace(task, name=name)
    return sorted(found.values(), key=lambda task: hashlib.sha256(task.name.encode()).digest())


def _names(task: Task) -> Iterator[str]:
    """Shorter names, as people choose them: some words of the whole name, and often a verb."""
    draw = Draw(f"name/{task.name}")
    told, *between, source = task.words
    verb = "" if told == "is_valid" else draw.pick(("", "", "", "get_", "compute_", "find_"))
    short = [[told, source], *([told, one, source] for one in between)]
    first = draw.below(len(short))
    yield from (verb + "_".join(words) for words in [*short[first:], *short[:first]])


def content(task: Task) -> str:
    """How the task is asked; one in six as a plain sentence."""
    draw = Draw(f"asked/{task.name}")
    if draw.below(6):
        return f"{COMPLETE}\n\n{_stub(task, draw)}"
    first = task.examples[0]
    head = f"{task.name}({_bare(task.arguments)})"
    return (
        f"Write a Python function `{head}` that, given {task.given}, returns {task.told}. "
        f"For example, `{task.call(first)}` should return `{task.run(*first)!r}`."
    )


def _stub(task: Task, draw: Draw) -> str:
    """Signature and docstring in one of the styles in use: with new, old or no annotations."""
    sentence = draw.pick(
        (
            f"Return {task.told}, given {task.given}.",
            f"Given {task.given}, return {task.told}.",
            f"You are given {task.given}. Return {task.told}.",
            f"The input is {task.given}. Write a function that returns {task.told}.",
        )
    )
    arguments, returns, imported = task.arguments, f" -> {task.returns}", ""
    style = draw.below(5)
    if style == 0:
        arguments, returns = _bare(arguments), ""
    elif style < 3:
        arguments, returns, imported = _with_typing(arguments, returns)
    examples = [
        f">>> {task.call(one)}\n{task.run(*one)!r}" if style != 4 else f"{task.call(one)} == {task.run(*one)!r}"
        for one in task.examples
    ]
    opening, gap = draw.pick((('"""', "\n\n"), ('""" ', "\n"), ('"""\n', "\n"), ('"""\n', "\n\n")))
    text = textwrap.fill(sentence, 84, break_long_words=False, break_on_hyphens=False)
    lines = textwrap.indent(f"{opening}{text}{gap}" + "\n".join(examples) + '\n"""', "    ")
    return f"{imported}def {task.name}({arguments}){returns}:\n{lines}"


def _bare(arguments: str) -> str:
    """The arguments' names alone."""
    return ", ".join(argument.split(":")[0] for argument in re.split(r", (?=\w+:)", arguments))


def _with_typing(arguments: str, returns: str) -> tuple[str, str, str]:
    """The annotations of before Python 3.9, and the import that they need."""
    both = re.sub(r"(\w+) \| None", r"Optional[\1]", f"{arguments}|{returns}")
    both = re.sub(r"\b(list|dict|tuple)\[", lambda match: f"{match[1].title()}[", both)
    used = sorted(name for name in ("Dict", "List", "Optional", "Tuple") if f"{name}[" in both)
    new_arguments, new_returns = both.split("|")
    return new_arguments, new_returns, f"from typing import {', '.join(used)}\n\n\n" if used else ""


def _task(
    words: list[str], source: Source, returns: str, told: str, run: Function, keep: Keep | None = None
) -> Iterator[Task]:
    """A task with one to three examples; nothing where none of those drawn shows more than an empty result."""
    words = [word for word in words if word]
    name = "_".join(words)
    draw = Draw(name)
    arguments = ", ".join(filter(None, (source.arguments, keep.argument if keep else "")))
    found: dict[str, tuple[Any, ...]] = {}
    for _ in range(8):
        example = source.draw(draw) + ((draw.pick(keep.values),) if keep and keep.values else ())
        result = repr(run(*example))
        if len(result) <= _RESULT and len(repr(example)) <= _RESULT:
            found.setdefault(result, example)
    empty = {"None", "[]", "''", "{}", "0", "-1", "0.0", "([], [])"}
    examples = sorted(found.items(), key=lambda item: item[0] in empty)[: 1 + draw.below(3)]
    if examples and examples[0][0] not in empty:
        yield Task(name, tuple(words), arguments, returns, source.given, told, run, tuple(dict(examples).values()))


def _pipelines() -> Iterator[Task]:
    """Of the items of a source some are kept, changed, and told of."""
    for kind, source in _sources():
        draw = Draw(f"pipeline/{source.word}")
        for _ in range(_PIPELINES):
            keep, change = draw.pick(parts.KEEPS[kind]), draw.pick(parts.CHANGES[kind])
            finish = draw.pick(parts.FINISHES[change.kind])
            if (finish.word, change.word, keep.word) in parts.LEFT_OUT:
                continue
            words = [finish.word, change.word, keep.word, source.word]
            told = finish.phrase.format(change.phrase.format(_clause(source, keep)))
            returns = finish.returns.replace("{}", change.kind)
            yield from _task(words, source, returns, told, partial(_pipe, source, keep, change, finish), keep)


def _searches() -> Iterator[Task]:
    """Where in a source those items are that a test holds for."""
    for kind, source in _sources():
        draw = Draw(f"search/{source.word}")
        for _ in range(_SEARCHES):
            keep, tell = draw.pick(parts.KEEPS[kind][2:]), draw.pick(parts.TELLS)
            words = [tell.word, keep.word, source.word]
            told = tell.phrase.format(keep=keep.phrase, items=source.phrase.rstrip(","))
            yield from _task(words, source, tell.returns, told, partial(_search, source, keep, tell), keep)


def _sortings() -> Iterator[Task]:
    """Lists sorted by one order, and by a second where the first says nothing."""
    for kind, source in _sources():
        for first, second in itertools.permutations(parts.ORDERS[kind], 2):
            if source.arguments == f"{source.word}: list[{kind}]":
                words = ["sorted", f"by_{first.word}", f"then_{second.word}", source.word]
                told = (
                    f"a new list of {source.phrase}, sorted by {first.phrase}; those equal in that are sorted by "
                    f"{second.phrase}, and those equal in both keep their order"
                )
                yield from _task(words, source, f"list[{kind}]", told, partial(_sort, first, second))


def _validations() -> Iterator[Task]:
    """Whether a string obeys two or three rules."""
    for subject in parts.SUBJECTS:
        source = Source(subject, f"{subject}: str", f"a non-empty string {subject}", "", sources.credential, list)
        draw = Draw(f"validation/{subject}")
        for _ in range(_VALIDATIONS):
            rules = list(dict.fromkeys(draw.many(lambda d: d.pick(parts.RULES), 2, 3)))
            if len(rules) < 2:
                continue
            phrases = [rule.phrase for rule in rules]
            told = f"True if it {', '.join(phrases[:-1])} and {phrases[-1]}, and False otherwise"
            words = ["is_valid", *(rule.word for rule in rules), subject]
            yield from _task(words, source, "bool", told, partial(_obeys, rules))


def _dates() -> Iterator[Task]:
    """What is told of a date, or of one that follows from it."""
    source = Source("date", "date: str", "a date in the form YYYY-MM-DD", "", sources.date, list)
    for move, tell in itertools.product(parts.MOVES, parts.DATE_TELLS):
        if (move.word, tell.word) != ("", "iso"):
            told = tell.phrase.format(move.phrase.format("the date"))
            yield from _task([tell.word, move.word, "date"], source, tell.returns, told, partial(_dated, move, tell))


def _sources() -> Iterator[tuple[str, Source]]:
    yield from (("int", source) for source in sources.INTEGERS)
    yield from (("str", source) for source in sources.STRINGS)


def _clause(source: Source, keep: Keep) -> str:
    return f"{source.phrase} {keep.phrase}" if keep.phrase else source.phrase.rstrip(",")


def _tested(source: Source, keep: Keep, given: tuple[Any, ...]) -> list[tuple[Any, bool]]:
    """Each item, and whether the test holds for it."""
    own, more = (given[:-1], given[-1:]) if keep.argument else (given, ())
    return [(item, bool(keep.test(item, *more))) for item in source.items(*own)]


def _pipe(source: Source, keep: Keep, change: Change, finish: Finish, *given: Any) -> Any:
    return finish.tell([change.make(item) for item, kept in _tested(source, keep, given) if kept])


def _search(source: Source, keep: Keep, tell: Finish, *given: Any) -> Any:
    return tell.tell([kept for _, kept in _tested(source, keep, given)])


def _sort(first: Change, second: Change, items: list[Any]) -> list[Any]:
    return sorted(items, key=lambda item: (first.make(item), second.make(item)))


def _obeys(rules: list[Keep], text: str) -> bool:
    return all(rule.test(text) for rule in rules)


def _dated(move: Change, tell: Finish, text: str) -> Any:
    return tell.tell(move.make(datetime.date.fromisoformat(text)))

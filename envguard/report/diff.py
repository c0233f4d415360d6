"""Drift as a tired person reads it: the verdict, what blocks, what warns, what is undetermined, then a count."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from envguard import clock
from envguard.fingerprint.units import some_of
from envguard.model.drift import DiffReport, Drift, Minority, Side
from envguard.model.evidence import Unknown
from envguard.report.errors import printable
from envguard.report.paragraph import paragraph

if TYPE_CHECKING:
    from rich.console import Console

STYLE = {"block": "bold red", "warn": "yellow", "info": "dim"}
_DIGEST = re.compile(r"\b[0-9a-f]{40,64}\b")
# So many rows of one kind are told one by one; a torch swap brings fifteen nvidia-* packages with it.
_MOST_ALIKE = 4


def render(report: DiffReport, *, verbose: bool, quiet: bool) -> Callable[[Console], None]:
    """A renderer for `Screen.answer`; `quiet` leaves the verdict alone."""

    def show(console: Console) -> None:
        from rich.text import Text

        style = "bold green" if report.match else "bold red" if report.exit_code() == 1 else "bold yellow"
        console.print(Text(printable(verdict(report)), style=style), soft_wrap=not console.is_terminal)
        if quiet:
            return
        console.print(Text(printable(sides(report)), style="dim"), soft_wrap=True)
        show_minority(console, report.minority or ())
        show_drifts(console, report.drifts, verbose)
        show_unknown(console, report.unknown)

    return show


def sides(report: DiffReport) -> str:
    """What was held against what, a line each; of many that are alike there are no two sides to name."""
    if report.minority == ():
        return f"{report.a.label} {'match' if report.match else 'are alike as far as they could be compared'}"
    a, b = report.a, report.b
    if a.prefix == b.prefix:
        return f"A  {side(a)}\nB  {side(b)}" + (f"\n   both of {a.prefix}" if a.prefix is not None else "")
    # Two environments may be what somebody compares; more often the right one was not active.
    return "\n".join(f"{name}  {side(each)}" + _of(each) for name, each in (("A", a), ("B", b)))


def _of(each: Side) -> str:
    return f"\n   of {each.prefix}" if each.prefix is not None else ""


def side(each: Side) -> str:
    """`step_690 (eg1-…)`: a label and, where there is one, the fingerprint's id."""
    return f"{each.label} ({each.id})" if each.id else each.label


def verdict(report: DiffReport) -> str:
    """The one line that says whether to go on, and the worst reason why not."""
    blocks = [drift for drift in report.drifts if drift.severity == "block"]
    warns = [drift for drift in report.drifts if drift.severity == "warn"]
    if report.minority:
        odd = list(dict.fromkeys(row.ref for row in report.minority))
        return (
            f"{', '.join(odd)} differ{'s' if len(odd) == 1 else ''} from {report.a.label}: {_first(report.minority)}"
        )
    if blocks or warns:
        worst = (blocks or warns)[0]
        counts = [f"{len(blocks)} block"] * bool(blocks) + [f"{len(warns)} warn"] * bool(warns)
        return f"DRIFT ({', '.join(counts)}): {_told(worst)}"
    if report.unknown:
        first = report.unknown[0]
        rest = f" and {len(report.unknown) - 1} more" if len(report.unknown) > 1 else ""
        return f"NOT DETERMINED: no drift is known, but {first.what} could not be compared ({first.why}){rest}"
    return "MATCH: nothing differs that matters"


def _told(worst: Drift) -> str:
    """What differs, in the words that tell a person most."""
    if worst.is_requirement:
        return short(worst.why)
    swap = change(worst)
    told = f" {swap}" if swap and not _of_digests(worst) else f": {short(worst.why)}" if worst.why else ""
    # A cache's subject is its kind, which is no name that a reader would know it by.
    named = f"compile cache {worst.subject}" if worst.facet == "compile_cache" else worst.subject
    return f"{named}{told}"


def _first(rows: tuple[Minority, ...]) -> str:
    """The odd torch before what merely goes with it."""
    row = min(rows, key=lambda row: row.facet != "torch")
    return _named(row) + (f" is {short(row.value)}" if row.value else "")


def _named(row: Minority) -> str:
    return row.subject if row.subject == row.facet else f"{row.facet} {row.subject}"


def change(drift: Drift) -> str:
    """`2.11.0+cu128 → 2.11.0+cu130`; digests are shortened, an absent side is named."""
    if drift.is_requirement or (drift.a is None and drift.b is None):
        return ""  # who requires what is said by the reason; the values are another package's
    if None in (drift.a, drift.b) and _DIGEST.fullmatch(drift.a or drift.b or ""):
        return ""  # edits that were not there, or are gone: their digest is no word on them
    return f"{short(drift.a) or 'none'} → {short(drift.b) or 'none'}"


def _of_digests(drift: Drift) -> bool:
    """Whether both values are digests, which name a build to programs and tell a person nothing."""
    return all(value is not None and _DIGEST.fullmatch(value) for value in (drift.a, drift.b))


def short(value: str | None) -> str:
    return _DIGEST.sub(lambda match: match[0][:12], value) if value else ""


def show_drifts(console: Console, drifts: Iterable[Drift], verbose: bool) -> None:
    """Rows above info, alike ones gathered; info only as a count unless `verbose`."""
    from rich.text import Text

    told = [drift for drift in drifts if verbose or drift.severity != "info"]
    for severity, group in groupby(told, key=lambda drift: drift.severity):
        console.print()
        for rows in _alike(list(group), verbose):
            for drift in rows[:_MOST_ALIKE] if len(rows) > _MOST_ALIKE else rows:
                head = Text.assemble((f"{severity:<5} ", STYLE[severity]))
                if drift.subject != drift.facet:
                    head.append(f"{drift.facet} ", "dim")
                head.append(printable(drift.subject), "bold")
                head.append(printable(f"  {change(drift)}".rstrip()))
                paragraph(console, head, indent=0)
            if len(rows) > _MOST_ALIKE:
                more = f"and {len(rows) - _MOST_ALIKE} more of {rows[0].facet} alike (-v shows each)"
                paragraph(console, more, indent=6, style="dim")
            last = rows[min(len(rows), _MOST_ALIKE) - 1]
            paragraph(console, f"{last.effect}: {short(last.why)}", indent=6, style="dim")
    hidden = sum(drift.severity == "info" for drift in drifts) if not verbose else 0
    if hidden:
        console.print()
        does = "changes nothing by itself" if hidden == 1 else "change nothing by themselves"
        shows = "it" if hidden == 1 else "them"
        paragraph(console, f"{hidden} more that {does} (-v shows {shows})", head="info  ", indent=6, style="dim")


def _alike(drifts: list[Drift], verbose: bool) -> list[list[Drift]]:
    """Runs of rows with one facet and one effect are told together where there are many of them."""
    if verbose:
        return [[drift] for drift in drifts]
    groups: list[list[Drift]] = []
    for _, run in groupby(drifts, key=lambda drift: (drift.facet, drift.effect)):
        rows = list(run)
        groups += [rows] if len(rows) > _MOST_ALIKE else [[drift] for drift in rows]
    return groups


def show_minority(console: Console, rows: Iterable[Minority]) -> None:
    from rich.text import Text

    for row in rows:
        text = Text.assemble(("odd   ", "bold red"), (printable(row.ref), "bold"))
        text.append(printable(f"  {_named(row)}: {short(row.value) or 'none'}"))
        console.print(text)


def show_unknown(console: Console, unknown: Iterable[Unknown]) -> None:
    """What could not be compared, and why."""
    from rich.text import Text

    by_why: dict[tuple[str, str], list[str]] = {}
    for item in unknown:
        facet, _, subject = item.what.partition(": ")
        by_why.setdefault((facet if subject else item.what, item.why), []).append(subject)
    if by_why:
        console.print()
    for (what, why), subjects in by_why.items():
        # What one reason keeps from being compared is one paragraph: an install brings forty packages.
        named = f"{what}: {some_of(subjects, 12)}" if subjects[0] else what
        paragraph(console, clock.told(f"{named}: {why}"), head=Text("undetermined ", "yellow"), indent=6)

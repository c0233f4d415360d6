"""`launch` on the screen: a short refusal with what helps, one line when it starts, a few when something changed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from envguard.clock import local
from envguard.launch.gate import Verdict
from envguard.launch.session import FIRST_START, Gate
from envguard.launch.waivers import Waiver
from envguard.model.action import Check, LaunchReport, Run
from envguard.model.drift import Drift
from envguard.report.diff import change, short
from envguard.report.errors import printable
from envguard.report.paragraph import paragraph

if TYPE_CHECKING:
    from rich.console import Console

    from envguard.model.fingerprint import Fingerprint

_MOST_LINES = 8
# What `restore` can bring back; for the rest somebody has to answer.
_RESTORABLE = frozenset({"packages", "torch", "cuda", "compile_cache"})
# Files beside what is installed, which no install takes away.
_BESIDE = frozenset({"problem:extra-import", "problem:foreign-bytecode", "problem:start-folder"})
_EFFECT = {
    "breaks": "breaks the run",
    "numerics": "changes what it computes",
    "performance": "changes how fast it runs",
    "none": "",
}


def render(
    console: Console, report: LaunchReport, gated: Gate, verbose: int, asked: str = "", back: str | None = ""
) -> None:
    """The decision, why, and what helps; `asked` are words of this command line that the next one needs again, `back`
    options of the restore that helps, None where none does."""
    verdict = gated.verdict
    head = {
        "go": "go: a first start, with nothing to be held against"
        if report.reference == FIRST_START
        else f"go: nothing stands between this environment and {report.reference}" + not_compared(gated.live),
        "retry": "not now: the machine is in a passing state",
        "refuse": f"refused: this is not the environment of {report.reference}"
        if verdict.drifts
        else "refused: the pre-flight checks do not pass"
        if any(check.ok is False for check in verdict.checks)
        else "refused: it could not be determined whether this run would be the same",
    }[report.decision]
    console.print(head, style={"go": "green", "retry": "yellow", "refuse": "bold red"}[report.decision])
    _lines(console, verdict, report, verbose)
    for waived in report.waived:
        until = f" until {local(waived.until)}" if waived.until else ""
        console.print(
            f"  waived  {', '.join(waived.covers)} by {waived.author}{until}: {waived.because}", style="dim"
        )
    for note in report.notes:
        paragraph(console, note, head="  note    ", indent=10, style="dim")
    if report.decision != "go":
        for advice in advise(verdict, gated.reference, gated.given, asked, back):
            console.print(f"  {advice}", soft_wrap=True)


def _lines(console: Console, verdict: Verdict, report: LaunchReport, verbose: int) -> None:
    ranked = sorted(verdict.drifts, key=lambda drift: drift.severity != "block")
    shown = ranked if verbose else ranked[:_MOST_LINES]
    for drift in shown:
        style = "red" if drift.severity == "block" else "yellow"
        paragraph(console, _drift(drift), head=f"  {drift.severity:<6}  ", indent=10, style=style)
    if len(ranked) > len(shown):
        console.print(f"  … and {len(ranked) - len(shown)} more; `-v` shows them")
    for unknown in verdict.unknown:
        paragraph(console, f"{unknown.what}: {unknown.why}", head="  unknown ", indent=10, style="yellow")
    for check in verdict.checks:
        paragraph(console, f"{check.check}: {check.detail}", head=f"  {_word(check)} ", indent=10, style="yellow")
    if verbose:
        for check in report.preflight:
            if check not in verdict.checks:
                paragraph(console, f"{check.check}: {check.detail}", head="  ok      ", indent=10, style="dim")


def _word(check: Check) -> str:
    if check.ok is None:
        return "unknown"
    return "passing" if check.passing else "check  "


def _drift(drift: Drift) -> str:
    swap = f" {_value(drift.a)} → {_value(drift.b)}" if change(drift) else ""
    name = drift.facet if drift.subject in ("", drift.facet) else f"{drift.facet} {drift.subject}"
    effect = _EFFECT[drift.effect]
    return printable(f"{name}{swap}" + (f" ({effect})" if effect else "") + (f": {drift.why}" if drift.why else ""))


def _value(value: str | None) -> str:
    if value is None:
        return "absent"
    told = short(value)
    return told if len(told) <= 48 else f"{told[:20]}…"


def advise(
    verdict: Verdict, reference: str | None, given: Sequence[Waiver] = (), asked: str = "", back: str | None = ""
) -> tuple[str, ...]:
    """The exact commands that help, most useful first.

    `reference` is the REF as a command line takes it, None where there is none; `given` the waivers of this command
    line and `asked` its words (`--against REF`), which the next one needs again. `back` are options of the restore
    that helps, None where none does.
    """
    out: list[str] = []
    restorable = back is not None and is_restorable(verdict)
    other = _other_python(verdict)
    if (restorable or other is not None) and reference is not None:
        first = f"uv venv --clear --python {other} && " if other is not None else ""
        out.append(f"bring it back:    {first}envguard restore {shlex.quote(reference)}{back or ''}")
    if verdict.code == 75:
        out.append("try again when it has passed (exit code 75)")
    elif waivers := _waivers(verdict, given):
        lead = "or answer for it:" if out else "answer for it: "
        words = " ".join(filter(None, (asked, waivers)))
        out.append(f"{lead} envguard launch {words} --because '…' -- …")
    return tuple(out)


def is_restorable(verdict: Verdict) -> bool:
    """Whether something differs that a restore is for."""
    return any(drift.facet in _RESTORABLE and drift.kind not in _BESIDE for drift in verdict.drifts)


def _other_python(verdict: Verdict) -> str | None:
    """The version of Python that the reference had where no restore can go back to it: wheels are for one Python."""
    minor = (drift.a for drift in verdict.drifts if (drift.facet, drift.subject) == ("python", "minor"))
    return next(minor, None)


def _waivers(verdict: Verdict, given: Sequence[Waiver]) -> str:
    wanted = [_waiver(drift.facet, drift.subject) for drift in verdict.drifts]
    wanted += [_waiver("unknown", unknown.what) for unknown in verdict.unknown]
    wanted += [_waiver("unknown" if check.ok is None else check.facet, check.check) for check in verdict.checks]
    facets = list(dict.fromkeys(text.partition(":")[0] for text in wanted))
    # Every subject by itself where that stays readable: a waiver that is wider than its reason hides the next drift.
    chosen = list(dict.fromkeys(wanted)) if len(wanted) <= 3 else facets
    idle = {*verdict.unused, *verdict.expired}
    again = [str(waiver) for waiver in given if waiver not in idle] if chosen else []
    return " ".join(f"--waive {shlex.quote(text)}" for text in dict.fromkeys((*again, *chosen)))


def _waiver(facet: str, subject: str) -> str:
    return facet if subject in ("", facet) else f"{facet}:{subject}"


def not_compared(live: Fingerprint) -> str:
    """What a match does not rest on, in parentheses: `--deep` leaves nothing."""
    parts = [] if live.deep else ["unwatched packages by size and time"]
    if live.bytecode is not None and live.bytecode.left:
        parts.append(f"{live.bytecode.left:,} compiled files of watched packages not compared with the source")
    return f" ({'; '.join(parts)})" if parts else ""


def started_line(report: LaunchReport, live: Fingerprint) -> str:
    """One line for the person who starts it."""
    waived = f", {sum(len(w.covers) for w in report.waived)} waived" if report.waived else ""
    if report.reference == FIRST_START:
        return f"envguard: a first start, {report.fingerprint} is held against nothing{waived}: starting"
    if report.unknown or any(drift.severity != "info" for drift in report.drifts):
        how = f"is let pass against {report.reference}"  # waived, or below `refuse`: no match, and not called one
    else:
        how = f"matches {report.reference}{not_compared(live)}"
    return f"envguard: {report.fingerprint} {how}{waived}: starting"


def could_not_start(message: str, code: int) -> LaunchReport:
    """The answer where there is no such command, or it cannot be executed: nothing was compared."""
    run = Run(id="", pid=None, started=None, ended=None, code=code, changed=())
    return LaunchReport(
        reference="", fingerprint=None, decision="refuse", drifts=(), unknown=(), waived=(), preflight=(), run=run,
        notes=(message,),
    )  # fmt: skip


def ended_lines(report: LaunchReport) -> Sequence[str]:
    """What changed under the run, said again at its end, when somebody is looking."""
    changed = report.run.changed if report.run else ()
    if not changed:
        return ()
    return (
        f"envguard: {len(changed)} change{'s' if len(changed) > 1 else ''} under this run:",
        *(f"  {local(change.time)}  {change.says}" for change in changed),
    )

"""How runs end, by the line that says so: one table, the most specific first.

A line is judged without its prefixes (`prefixes.strip`). Patterns hold no unbounded repetition before a word, so that
each costs time in proportion to the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

EndingKind = Literal[
    "fx-tracing", "oom", "oom-kill", "host-memory", "disk-full", "hardware", "preempted", "time-limit", "node-failed",
    "cancelled", "watchdog", "core-dumped", "killed", "traceback", "terminated", "launcher",
]  # fmt: skip
ORDER: tuple[EndingKind, ...] = get_args(EndingKind)
"""The most telling first: of several lines of one failure, that kind is its cause and the rest its consequences."""


@dataclass(frozen=True)
class Ending:
    """A kind of end; `begins` has to match at the beginning of the line, `holds` anywhere in it."""

    kind: EndingKind
    title: str
    holds: str = ""
    begins: str = ""


_SHELL = r"(?:[^\s:]{1,200}: )?line \d{1,7}:\s{1,8}\d{1,10} "
_TASK = r"srun: error: [^\n]{1,120}: tasks? [\d,\[\]-]{1,80}: "
_SIGNALS = r"(?:Signals?\.?|signal:?|Signal:?) ?(?:\d{1,2} \()?(?:Signals\.)?"

ENDINGS: tuple[Ending, ...] = (
    Ending("fx-tracing", "the FX-tracing error (one thread compiles while another traces)",
           r"is_fx_symbolic_tracing|(?:RuntimeError: )?(?:Detected that you are )?"
           r"using FX to symbolically trace a dynamo-optimized function"),
    Ending("oom", "out of memory",
           r"(?:CUDA|HIP|XPU|NPU|MPS backend|GPU)(?: error:)? out of memory"
           r"|(?<!ray\.exceptions\.)OutOfMemoryError(?:: |$)"
           r"|CUBLAS_STATUS_ALLOC_FAILED|(?:cuda|hip)Error(?:MemoryAllocation|OutOfMemory)"
           r"|RESOURCE_EXHAUSTED: Out of memory|CUDA_ERROR_OUT_OF_MEMORY"),
    Ending("oom-kill", "killed for lack of memory",
           r"oom[-_ ]kill(?:ed)?(?:[ _]event|:|\(s\))|OOM[ -]?Killed|OUT_OF_MEMORY\b|Memory cgroup out of memory"
           r"|Out of [Mm]emory: Killed process|cgroup out-of-memory|Exceeded (?:job|step) memory limit|TERM_MEMLIMIT"
           r"|oom_reaper:|exceeded memory limit|(?:low on|out of) memory[^\n]{0,80}worker[^\n]{0,40}killed"
           r"|killed due to the node running low on memory"),
    Ending("host-memory", "out of the machine's memory",
           r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Cannot allocate memory|std::bad_alloc",
           r"(?:[A-Za-z_]\w{0,60}\.){0,8}_?(?:Array)?MemoryError(?:$|:)"),
    Ending("disk-full", "no space left on the disk",
           r"No space left on device|Disk quota exceeded|inline_container\.cc:\d{1,5}\] ?\.? ?unexpected pos"),
    Ending("hardware", "a fault of the GPU or its link",
           r"[Uu]ncorrectable (?:NVLink|ECC) error|GPU has fallen off the bus|NVRM: Xid \(|NVLink error was detected"
           r"|(?:cuda|hip)ErrorECCUncorrectable|unspecified launch failure"),
    Ending("preempted", "pre-empted",
           r"DUE TO (?:JOB )?PREEMPTION|slurmstepd[^\n]{0,120}PREEMPTED|TERM_PREEMPT"
           r"|(?:[Jj]ob|[Pp]od|[Nn]ode|[Ii]nstance|[Tt]ask|[Ww]orker|VM) (?:was|has been|is being|got) pre-?empted"
           r"|[Pp]reempted in order to admit|[Ss]pot (?:instance )?interruption"),
    Ending("time-limit", "ended by its time limit",
           r"DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime [^\n]{0,60}exceeded|exceeded (?:its )?(?:walltime|time) limit"
           r"|DeadlineExceeded|active longer than specified deadline|job killed: walltime"),
    Ending("node-failed", "ended by a failure of its node", r"DUE TO NODE[_ ]FAIL"),
    Ending("cancelled", "cancelled",
           r"\*\*\* (?:JOB|STEP) \S{1,40} (?:ON \S{1,120} )?CANCELLED AT|CANCELLED DUE TO|TERM_OWNER"),
    Ending("watchdog", "a collective operation timed out",
           r"Watchdog caught collective operation timeout|[Ww]atchdog thread terminated"
           r"|ProcessGroup\w{1,12}'s watchdog got stuck"
           r"|Timed out waiting \d{1,12}\s?ms for (?:recv|send|accept|connect)"
           r"|collective operation timeout: Work|taking the (?:entire )?process down[^\n]{0,60}(?:timeout|watchdog)"
           r"|NCCL (?:watchdog|communicator)[^\n]{0,60}(?:time-?out|timed out|abort)|heartbeat monitor timed out"),
    Ending("core-dumped", "a crash in native code",
           r"\(core dumped\)|double free or corruption|Caught signal 11|" + _SIGNALS
           + r"(?:SIG)?(?:SEGV|ABRT|BUS|ILL|FPE)\b|Signal: Segmentation fault"
           r"|killed by signal: (?:Segmentation|Abort|Bus)",
           r"(?:" + _SHELL + "|" + _TASK + r")?(?:Segmentation fault|Bus error|Illegal instruction|Aborted"
           r"|Floating point exception)\b|Fatal Python error: |terminate called (?:after|without)|free\(\): invalid"
           r"|malloc(?:_\w{1,30})?\(\): |munmap_chunk\(\)|exitcode\s{0,8}: -(?:11|6|7|4|8)\b"),
    Ending("killed", "killed",
           _SIGNALS + r"(?:SIG)?KILL\b|killed by signal: Killed"
           r"|[Ee]xit(?:ed|s)?[ _-]?(?:with )?(?:exit )?(?:[Cc]ode|[Ss]tatus):?=?\s{0,8}137\b"
           r"|returned 137\b|\] Error 137\b"
           r"|killed by the system|exited on signal 9",
           r"(?:" + _SHELL + "|" + _TASK + r"|(?:ba)?sh: )?Killed(?:$|\s{2}|: 9$|\s\()|exitcode\s{0,8}: -9\b"),
    Ending("traceback", "an exception",
           begins=r"(?!(?:[A-Za-z_]\w{0,60}\.){0,8}(?:ChildFailedError|CalledProcessError|ProcessExitedException)\b)"
           r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit)(?![\w(])"),
    Ending("terminated", "ended by a signal",
           r"Received (?:Signals\.)?(?:SIG[A-Z]{2,8}|\d{1,2}) death signal|got signal: \d{1,2}"
           r"|[Rr]eceived signal:? ?(?:SIG)?(?:TERM|INT|HUP|USR[12])\b|"
           + _SIGNALS + r"(?:SIG)?(?:TERM|HUP)\b(?=[^\n]{0,20}received)"
           r"|killed by signal: (?:Terminated|Hangup)",
           r"(?:" + _SHELL + "|" + _TASK + r")?Terminated(?:$|\s{2})"),
    Ending("launcher", "a worker of the launcher failed",
           begins=r"(?:[A-Za-z_]\w{0,60}\.){0,8}(?:ChildFailedError|CalledProcessError|ProcessExitedException)\b"),
)  # fmt: skip
TITLES: dict[EndingKind, str] = {ending.kind: ending.title for ending in ENDINGS}

WORDS = (
    b"Error", b"Exception", b"Interrupt", b"Exit", b"illed", b"KILL", b"ignal", b"of memory", b"of-memory",
    b"emory cgroup", b"memory limit", b"MEM", b"fx_symbolic", b"symbolically", b"fault", b"rror: ", b"CANCELLED",
    b"TERM", b"reempt", b"re-empt", b"PREEMPT", b"LIMIT", b"eadline", b"walltime", b"atchdog", b"imed out",
    b"timeout",
    b"core dumped", b"Aborted", b"Illegal", b"double free", b"exitcode", b"interruption", b"137", b"oom", b"OOM",
    b"terminate ", b"Terminated", b"malloc", b"free()", b"munmap", b"ALLOC", b"NODE", b"space left",
    b"quota", b"emory: ", b"allocate", b"bad_alloc", b"unexpected pos", b"ncorrectable", b"Xid", b"fallen off",
    b"launch failure",
)  # fmt: skip
"""A telling line holds one of these; looked for as plain bytes in whole blocks, which is many times faster than the
table."""
HINT = re.compile(b"|".join(map(re.escape, WORDS)))


def _compiled(pattern: str) -> re.Pattern[str] | None:
    return re.compile(pattern) if pattern else None


_OWN_WORDS = re.compile(
    r"(?:: (?:(?:CUDA|HIP|NCCL|XPU|cuDNN|CUBLAS|cuBLAS) error: [a-z -]{1,80}"
    r"|\[Errno \d{1,4}\] [A-Z][A-Za-z ,-]{1,60}(?=$|:)"
    r"|(?:Process \d{1,8} )?got signal: \d{1,2}"
    r"|DataLoader worker \(pid[^)\n]{0,40}\) (?:is killed by signal: \w{1,20}|exited unexpectedly)))?"
)
"""What the system itself says in an exception: no words of the program that ran."""
_OWN_LINES = frozenset({"fx-tracing", "oom", "oom-kill", "hardware", "watchdog", "preempted",
                        "time-limit", "node-failed", "cancelled"})  # fmt: skip
"""Ends of which torch, the kernel or the scheduler wrote the line from its telling words on."""
# `\A` keeps what may only begin a line from being tried at each of its places, by whatever method.
_COMPILED = tuple(
    (ending.kind, _compiled(ending.holds), _compiled(ending.begins and rf"\A(?:{ending.begins})"))
    for ending in ENDINGS
)
_SOURCE = re.compile(r"(?:except|raise|if|elif|return|import|from|assert|with|def|class|#|//|>>>) ?\b")


@dataclass(frozen=True)
class Telling:
    """A line that says how a run ended, and what of it may be quoted: `text[begin:end]`.

    The rest may be words of people: the message of an exception, the arguments of a command.
    """

    kind: EndingKind
    begin: int
    end: int


def telling(text: str) -> Telling | None:
    """How a run ended by one line without its prefixes; None where the line does not tell. A line of source text, as
    tracebacks and diffs quote it, tells nothing."""
    if _SOURCE.match(text):
        return None
    for kind, holds, begins in _COMPILED:
        found = begins.match(text) if begins is not None else None
        if found is None and holds is not None:
            found = holds.search(text)
        if found is None:
            continue
        begin, end = found.span()
        while begin and not text[begin - 1].isspace():
            begin -= 1
        if kind in _OWN_LINES:
            return Telling(kind, begin, len(text))
        own = _OWN_WORDS.match(text, end)
        return Telling(kind, begin, own.end() if own is not None and kind == "traceback" else end)
    return None


def ending_of(text: str) -> EndingKind | None:
    """How a run ended by one line without its prefixes; None where the line does not tell."""
    found = telling(text)
    return found.kind if found is not None else None

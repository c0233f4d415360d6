"""`snapshot` on the screen: the id, what matters of the environment, then what is wrong with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from envguard.fingerprint.units import counted
from envguard.model.fingerprint import CompileCache, Fingerprint, Gpu, LiveProcess, Problem, Runtime, Torch
from envguard.report.errors import printable
from envguard.report.paragraph import paragraph

if TYPE_CHECKING:
    from rich.console import Console

_MOST = 8


def render(console: Console, fingerprint: Fingerprint, target: str | None, verbose: int) -> None:
    """The summary; with -v every package, problem and unknown."""
    console.print(fingerprint.id, style="bold", soft_wrap=True)
    for label, text in _facts(fingerprint):
        _row(console, label, text)
    if target is not None:
        note = " (retrospective: no evidence of the past)" if fingerprint.origin == "retrospective" else ""
        _row(console, "stamped", f"{target}{note}")
    _list(console, "problem", [_problem(p) for p in fingerprint.problems], "red", verbose)
    _list(
        console, "shadowed", [f"{s.name}: {s.wins} before {s.loses}" for s in fingerprint.shadowed], "yellow", verbose
    )
    _list(console, "unknown", [f"{u.what}: {u.why}" for u in fingerprint.unknown], "yellow", verbose)
    if verbose:
        for package in fingerprint.packages:
            build = (package.build or "no RECORD")[:12]
            line = printable(f"{package.name} {package.version or '?'}  {build}")
            console.print(f"  {line}", style="dim", soft_wrap=True)


def _problem(problem: Problem) -> str:
    """What the sentence names itself (`process 4711 …`) is not put before it once more."""
    named = re.search(rf"(?<![\w./-]){re.escape(problem.subject)}(?![\w/-])", problem.says)
    return problem.says if named else f"{problem.subject}: {problem.says}"


def _row(console: Console, label: str, text: str, style: str = "") -> None:
    paragraph(console, text, head=f"  {label:<13}", indent=15, style=style)


def _facts(fingerprint: Fingerprint) -> Iterator[tuple[str, str]]:
    python = fingerprint.python
    yield "environment", f"{python.prefix} ({python.kind}, {python.implementation} {python.version})"
    hashed = Counter(package.depth for package in fingerprint.packages)
    looked = "all files hashed" if fingerprint.deep else f"{hashed['watched']} hashed, the rest by size and time"
    files = sum(package.files or 0 for package in fingerprint.packages)
    yield "packages", f"{len(fingerprint.packages)} in {files:,} files ({looked})"
    yield "torch", _torch(fingerprint.torch) if fingerprint.torch is not None else "none installed"
    if fingerprint.driver is not None:
        yield "driver", fingerprint.driver.version or "unknown"
    if fingerprint.gpus is not None:
        yield "GPUs", _gpus(fingerprint.gpus)
    if fingerprint.runtime is not None and fingerprint.runtime.error is None:
        yield "probe", _runtime(fingerprint.runtime, fingerprint.gpus or ())
    for cache in fingerprint.compile_cache or ():
        yield (
            "cache",
            f"{cache.kind} {cache.path}: {_cache(cache)}, {_size(cache.bytes)}",
        )
    for code in fingerprint.code or ():
        yield "code", f"{code.path} {(code.commit or 'no commit')[:12]}{', edited' if code.dirty else ''}"
    for process in fingerprint.processes or ():
        if process.stale:
            yield "stale", _stale(process)


def _cache(cache: CompileCache) -> str:
    if cache.verdict == "OTHER":
        return f"{counted(cache.files, 'file')}, not judged ({cache.why})"
    return f"{cache.verdict}, {cache.entries or 0} entries"


def _stale(process: LiveProcess) -> str:
    command = process.command if len(process.command) <= 80 else f"{process.command[:79]}…"
    return f"PID {process.pid} still runs {counted(len(process.stale), 'replaced file')}: {command}"


def _torch(torch: Torch) -> str:
    parts = [torch.version or f"{torch.metadata_version} (version.py unreadable)"]
    if torch.accelerator is not None:
        parts.append("CPU build" if torch.accelerator == "cpu" else torch.built_for)
    if torch.triton:
        parts.append(f"triton {torch.triton}")
    if torch.git_version:
        parts.append(f"git {torch.git_version[:10]}")
    return ", ".join(parts)


def _gpus(gpus: tuple[Gpu, ...]) -> str:
    if not gpus:
        return "none"
    return ", ".join(f"{count} × {name}" for name, count in Counter(gpu.name or "unknown" for gpu in gpus).items())


def _runtime(runtime: Runtime, gpus: tuple[Gpu, ...]) -> str:
    parts = [f"torch {runtime.torch}", "CUDA available" if runtime.cuda_available else "no CUDA"]
    parts += [f"{name} {version}" for name, version in (("cuDNN", runtime.cudnn), ("NCCL", runtime.nccl)) if version]
    contexts = [gpu.context_bytes for gpu in gpus if gpu.context_bytes is not None]
    if contexts:
        least, most = _size(min(contexts)), _size(max(contexts))
        parts.append(f"an idle context takes {least if least == most else f'{least} to {most}'}")
    if runtime.import_s is not None:
        parts.append(f"imported in {runtime.import_s:.1f} s")
    return ", ".join(parts)


def _size(size: int | None) -> str:
    if size is None:
        return "size unknown"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _list(console: Console, label: str, lines: list[str], style: str, verbose: int) -> None:
    shown = lines if verbose else lines[:_MOST]
    for line in shown:
        _row(console, label, line, style)
    if len(lines) > len(shown):
        _row(console, "", f"and {len(lines) - len(shown)} more (-v shows them)", "dim")

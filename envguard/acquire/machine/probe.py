"""`--probe`: run-time facts from the environment's own interpreter, whose crash is a finding and never ours."""

from __future__ import annotations

import importlib.resources
import json
import signal
from dataclasses import dataclass
from typing import Any

from envguard.acquire.machine import probe_program
from envguard.acquire.seam.host import Answer, Host
from envguard.acquire.section import Notes, Section, reason
from envguard.model.fingerprint import Runtime


@dataclass(frozen=True)
class Probe:
    """Run-time facts, and the bytes of an idle context by GPU index (with the reason where one was not measured)."""

    runtime: Runtime
    contexts: dict[int, int]
    refused: dict[int, str]


def run_probe(host: Host, executable: str) -> Section[Probe]:
    """Imports torch once in `executable`."""
    notes = Notes()
    program = importlib.resources.files(probe_program.__package__).joinpath("probe_program.py").read_text("utf-8")
    try:
        answer = host.probe(executable, program)
    except OSError as error:
        notes.unseen("torch: run-time facts", error)
        return notes.section(Probe(_nothing(reason(error)), {}, {}))
    said = _answer(answer)
    if "error" in said:
        notes.problem("torch-import", "torch", f"the environment's interpreter cannot import torch: {said['error']}")
        return notes.section(Probe(_nothing(str(said["error"])), {}, {}))
    return notes.section(_probe(said))


def _answer(answer: Answer) -> dict[str, Any]:
    for line in reversed(answer.out.splitlines()):
        if line.startswith(probe_program.MARKER):
            try:
                found = json.loads(line.removeprefix(probe_program.MARKER))
            except ValueError:
                break
            return found if isinstance(found, dict) else {"error": "its answer is no object"}
    if answer.code < 0:
        try:
            name = signal.Signals(-answer.code).name
        except ValueError:
            name = f"signal {-answer.code}"
        return {"error": f"it was ended by {name}"}
    last = next((line.strip() for line in reversed(answer.err.splitlines()) if line.strip()), "it printed nothing")
    return {"error": f"it ended with code {answer.code}: {last}"}


def _nothing(error: str) -> Runtime:
    return Runtime(
        torch=None, cuda=None, cuda_available=None, devices=(), cudnn=None, nccl=None, config=None, import_s=None,
        error=error,
    )  # fmt: skip


def _probe(said: dict[str, Any]) -> Probe:
    devices = [each if isinstance(each, dict) else {} for each in said.get("devices") or []]
    contexts = {index: int(each["context"]) for index, each in enumerate(devices) if "context" in each}
    refused = {
        index: str(each.get("context_refused") or each.get("error") or "it gave no answer")
        for index, each in enumerate(devices)
        if "context" not in each
    }
    available = said.get("cuda_available")
    runtime = Runtime(
        torch=_text(said.get("torch")),
        cuda=_text(said.get("cuda")),
        cuda_available=available if isinstance(available, bool) else None,
        devices=tuple(str(each.get("name") or each.get("error") or "unknown") for each in devices),
        cudnn=_text(said.get("cudnn")),
        nccl=_text(said.get("nccl")),
        config=_text(said.get("config")),
        import_s=said.get("import_s"),
        error=None,
    )
    return Probe(runtime, contexts, refused)


def _text(value: object) -> str | None:
    """A field that this build could not answer is an object with its error: null in the fingerprint."""
    return str(value) if isinstance(value, (str, int)) else None

"""What `--probe` runs in the environment's own interpreter: standard library and that environment's torch alone.

This file is sent as text and never imported by envguard. It prints one line, the marker and a JSON object, after
whatever the import of torch itself prints. Python 3.8 syntax.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

MARKER = "envguard-probe: "
# An idle context takes some hundred MB: on a GPU that is nearly full, measuring it could end the run that fills it.
LEAST_FREE = 2 << 30


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def memory_of(index: int) -> tuple[int, int] | None:
    """(free, used) bytes of a GPU by PCI order, from NVML; None where it cannot be asked."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle, memory = ctypes.c_void_p(), _Memory()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            return None
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        return memory.free, memory.used
    except (OSError, AttributeError):
        return None


def device(torch: Any, index: int) -> dict[str, Any]:
    said = torch.cuda.get_device_properties(index)
    facts: dict[str, Any] = {
        "name": said.name,
        "memory": said.total_memory,
        "capability": f"{said.major}.{said.minor}",
    }
    before = memory_of(index)
    if before is None:
        facts["context_refused"] = "NVML does not tell this GPU's memory"
    elif before[0] < LEAST_FREE:
        facts["context_refused"] = "less than 2 GiB are free: measuring could end the run that fills it"
    else:
        torch.empty(1, device=f"cuda:{index}")
        torch.cuda.synchronize(index)
        after = memory_of(index)
        if after is not None:
            # The one tensor's block (2 MiB) belongs to the allocator and not to the context.
            facts["context"] = after[1] - before[1] - torch.cuda.memory_reserved(index)
    return facts


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # whatever this build's call raises is that field's answer
        return {"error": f"{type(error).__name__}: {error}"}


def facts() -> dict[str, Any]:
    began = time.time()
    import torch as module

    torch: Any = module  # a stand-in or a broken build may lack any of its names
    found: dict[str, Any] = {
        "import_s": round(time.time() - began, 3),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }
    found["cuda_available"] = attempt(lambda: torch.cuda.is_available())
    found["config"] = attempt(lambda: torch.__config__.show())
    found["cudnn"] = attempt(lambda: torch.backends.cudnn.version())
    found["nccl"] = attempt(lambda: ".".join(map(str, torch.cuda.nccl.version())))
    count = attempt(lambda: torch.cuda.device_count()) if found["cuda_available"] is True else 0
    found["devices"] = [attempt(lambda: device(torch, index)) for index in range(count)]  # noqa: B023
    return found


def main() -> None:
    sys.path[:] = [path for path in sys.path if path]
    # NVML counts GPUs in PCI order; CUDA would put the fastest first, and a mask would hide some.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        answer = facts()
    except BaseException as error:  # a SystemExit in somebody's __init__ is an answer too
        answer = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.flush()
    # Under PYTHONUNBUFFERED sys.stdout passes a text on once, and a pipe may take a part of it.
    data = ("\n" + MARKER + json.dumps(answer) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()

"""The story's own machine, on the story's own dates: 18 May, checkpoint at 20:41, sglang at 20:52, and what followed.

The year is not told and taken to be 2026; the machine's clock is at +02:00. Nothing here was written by envguard: it
was not in use.
"""

from __future__ import annotations

import hashlib
import json
import random
from datetime import datetime, timedelta

from envguard.acquire.survey import Request
from envguard.config import Config
from envguard.demo.wheels import torch_version_py
from tests.incidents.paper_machine import PaperMachine, ns

VENV = "/workspace/venv"
SITE = f"{VENV}/lib/python3.12/site-packages"
CACHE = "/root/.cache/uv"
ARCHIVES = f"{CACHE}/archive-v0"
CHECKPOINTS = "/workspace/checkpoints"
LOG = f"{CHECKPOINTS}/train_log.jsonl"
INDUCTOR = "/tmp/torchinductor_root"
GOOD_ARCHIVE = f"{ARCHIVES}/-8HEnaXDWRlHoQ7d"
OTHER_ARCHIVE = f"{ARCHIVES}/Kq3vT0uXoYbLr2Ns"
NEW_ARCHIVE = f"{ARCHIVES}/p0mWc7dYtZ4Ag1Jx"
LIBRARY = "torch/lib/libtorch_cuda.so"

SAVED = "2026-05-18T20:41:07.400000+02:00"
REMOVED = "2026-05-18T20:52:10.940000+02:00"
SWAP_BEGAN = "2026-05-18T20:52:11.020000+02:00"
SWAP_ENDED = "2026-05-18T20:52:11.310000+02:00"
UNPACKED_OLD = "2026-05-10T09:14:02.000000+02:00"
UNPACKED_NEW = "2026-05-18T20:51:52.000000+02:00"
BACK_TO_560 = "2026-05-19T11:52:40.100000+02:00"


def torch_payload(version: str, seed: str = "") -> dict[str, bytes]:
    return {
        "torch/__init__.py": f"# torch {version}{seed}\n".encode(),
        "torch/version.py": torch_version_py(version),
        LIBRARY: f"{version}{seed}".encode() * 9,
    }


def module(name: str, version: str) -> dict[str, bytes]:
    return {f"{name}/__init__.py": f"__version__ = '{version}'\n".encode()}


def build(shell_history: bool = False, forced: bool = True) -> bytes:
    """The bundle, as gathered on 20 May in the morning. `forced` is what sglang requires of torch."""
    machine = PaperMachine(
        host="ct200",
        now="2026-05-20T09:30:00+02:00",
        boot="2026-05-02T06:11:40+02:00",
        offset_s=7200,
        cwd="/workspace",
    )
    _packages(machine, forced)
    _checkpoints(machine)
    _log(machine)
    _text_log(machine)
    _wandb(machine)
    _git(machine)
    _compile_cache(machine)
    if shell_history:
        _history(machine)
    config = Config(checkpoints=("checkpoints",), shell_history=shell_history)
    request = Request(
        start="/workspace", python=VENV, root="/workspace", state=None, checkpoint_roots=(CHECKPOINTS,), config=config
    )
    return machine.save(request)


def _packages(machine: PaperMachine, forced: bool) -> None:
    machine.folder(VENV, "2026-05-10T09:13:20+02:00")
    settings = "home = /usr/bin\nimplementation = CPython\nuv = 0.9.30\nversion_info = 3.12.3\n"
    machine.file(f"{VENV}/pyvenv.cfg", settings, "2026-05-10T09:13:20+02:00")
    machine.file("/usr/include/python3.12/patchlevel.h", '#define PY_VERSION "3.12.3"\n')
    for path in ("/usr/bin/python3.12", "/usr/lib/python3.12/os.py"):
        machine.file(path)
    machine.link(f"{VENV}/bin/python", "/usr/bin/python3.12")
    triton = "triton==3.6.0"
    good = machine.wheel(
        GOOD_ARCHIVE,
        "torch",
        "2.11.0+cu128",
        torch_payload("2.11.0+cu128"),
        UNPACKED_OLD,
        requires=[triton],
        changed=REMOVED,
    )
    # What a later install from the cu128 index brought into another venv: the same version, another build.
    machine.wheel(
        OTHER_ARCHIVE, "torch", "2.11.0+cu128", torch_payload("2.11.0+cu128", "rebuilt"), "2026-05-19T01:12:30+02:00",
        requires=[triton], changed="2026-05-19T01:12:41+02:00", nlink=2,
    )  # fmt: skip
    new = machine.wheel(
        NEW_ARCHIVE, "torch", "2.11.0+cu130", torch_payload("2.11.0+cu130"), UNPACKED_NEW, requires=[triton],
        changed=SWAP_ENDED, nlink=2,
    )  # fmt: skip
    machine.install(
        SITE, "torch", "2.11.0+cu130", torch_payload("2.11.0+cu130"), SWAP_BEGAN, until=SWAP_ENDED,
        unpacked=UNPACKED_NEW, requires=[triton], inodes=new,
    )  # fmt: skip
    first = "2026-05-10T09:14:31.500000+02:00"
    machine.install(SITE, "triton", "3.6.0", module("triton", "3.6.0"), first, unpacked=UNPACKED_OLD)
    machine.install(SITE, "accelerate", "1.12.0", module("accelerate", "1.12.0"), first, unpacked=UNPACKED_OLD,
                    requires=["torch>=2.0"])  # fmt: skip
    wants = "torch==2.11.0+cu130" if forced else "torch==2.11.0"
    machine.install(
        SITE, "sglang", "0.5.6", module("sglang", "0.5.6"), SWAP_BEGAN, until=SWAP_ENDED, unpacked=UNPACKED_NEW,
        requires=[wants, "flashinfer-python>=0.6", "transformers>=5.6"],
    )  # fmt: skip
    machine.install(SITE, "flashinfer-python", "0.6.1", module("flashinfer", "0.6.1"), SWAP_BEGAN, until=SWAP_ENDED,
                    unpacked=UNPACKED_NEW)  # fmt: skip
    # 5.8.1 came with sglang, 5.6.0 was put back by hand the next day.
    machine.wheel(f"{ARCHIVES}/tf581", "transformers", "5.8.1", module("transformers", "5.8.1"), UNPACKED_NEW,
                  changed="2026-05-19T11:52:40.040000+02:00")  # fmt: skip
    machine.install(
        SITE, "transformers", "5.6.0", module("transformers", "5.6.0"), BACK_TO_560, unpacked=UNPACKED_OLD
    )
    # A notebook kernel that imported torch on the 17th and was never closed.
    machine.process(
        2213, "2026-05-17T10:02:11+02:00", [f"{VENV}/bin/python", "-m", "ipykernel_launcher"],
        [(f"{SITE}/{LIBRARY}", good[LIBRARY], True)], "/usr/bin/python3.12",
    )  # fmt: skip


def _checkpoints(machine: PaperMachine) -> None:
    for step, at in ((600, "2026-05-18T19:33:35.100000+02:00"), (690, SAVED)):
        folder = f"{CHECKPOINTS}/step_{step}"
        machine.folder(folder, at)
        header = b'{"__metadata__":{"format":"pt"}}'
        machine.file(
            f"{folder}/model.safetensors", len(header).to_bytes(8, "little") + header, at, size=1_740_000_000
        )
        machine.file(f"{folder}/trainer_state.json", json.dumps({"global_step": step}), at)


def _rows(
    first: int, steps: int, begin: str, step_s: float, rate: float, fields: dict[str, object], seed: int
) -> str:
    noise = random.Random(seed)
    start = datetime.fromisoformat(begin)
    lines = []
    for index in range(steps):
        at = start + timedelta(seconds=step_s * index)
        row = {
            "step": first + index, "time": at.isoformat(),
            "loss": [round(3 + noise.gauss(0, 0.05), 4) for _ in range(3)],
            "tok_s": round(rate * (1 + noise.gauss(0, 0.01)), 1), **fields,
        }  # fmt: skip
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def _log(machine: PaperMachine) -> None:
    full = {"q_pre": [50, 50, 50, 50, 50], "q_hs": [0], "samples": 902_087, "target_bps": 0.54, "drafter_bps": 0.54,
            "token_budget": 49152, "max_batch_size": 64, "compile_cache_mb": 353}  # fmt: skip
    small = {**full, "q_pre": [50, 50, 50, 50, 50], "q_hs": [20], "samples": 1_104_318, "target_bps": 0.24,
             "drafter_bps": 0.24, "token_budget": 32768, "max_batch_size": 40, "compile_cache_mb": 353}  # fmt: skip
    slow = {
        **full,
        "q_hs": [20],
        "samples": 1_104_318,
        "target_bps": 0.11,
        "drafter_bps": 0.11,
        "compile_cache_mb": 41,
    }
    text = _rows(0, 716, "2026-05-18T12:03:37+02:00", 45.0, 21_500, full, 1)
    text += _rows(0, 110, "2026-05-18T23:20:00+02:00", 60.0, 9_700, small, 2)
    text += _rows(0, 70, "2026-05-19T14:10:00+02:00", 60.0, 4_300, slow, 3)
    machine.file(LOG, text, "2026-05-19T15:19:00+02:00")


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 6 has a total capacity of 94.97 GiB\n"
)
FX = (
    "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function. Not supported.\n"
)


def _text_log(machine: PaperMachine) -> None:
    machine.file(
        "/workspace/train.log",
        "2026-05-18 22:47:29 INFO starting: token_budget=49152 max_batch_size=64\n"
        "2026-05-18 22:49:02 ERROR drafter 1 failed\n"
        "Traceback (most recent call last):\n"
        '  File "/workspace/dflash_model.py", line 411, in forward\n'
        + OOM.format("1.50")
        + "2026-05-18 23:20:00 INFO step\n" * 300
        + "2026-05-19 11:20:14 INFO compiling\n"
        "Traceback (most recent call last):\n"
        '  File "/workspace/dflash_model.py", line 398, in drafter_loop\n'
        + FX
        + "2026-05-19 14:10:00 INFO step\n" * 300
        + "2026-05-19 15:19:41 ERROR drafter 1 failed\n"
        + OOM.format("2.10"),
        "2026-05-19T15:19:41+02:00",
    )  # fmt: skip


def _wandb(machine: PaperMachine) -> None:
    for name, started, torch, transformers in (
        ("run-20260518_120210-s600a1b2", "2026-05-18T10:02:10.118Z", "2.11.0+cu128", "5.6.0"),
        ("run-20260518_231801-exp1m1c3", "2026-05-18T21:18:01.902Z", "2.11.0+cu130", "5.8.1"),
    ):
        folder = f"/workspace/wandb/{name}/files"
        pins = f"accelerate==1.12.0\n==\ntorch=={torch}\ntransformers=={transformers}\ntriton==3.6.0\n"
        machine.file(f"{folder}/requirements.txt", pins, started.replace("Z", "+00:00"))
        about = {"startedAt": started, "executable": f"{VENV}/bin/python", "cudaVersion": "13.0", "gpu_count": 8}
        machine.file(f"{folder}/wandb-metadata.json", json.dumps(about), started.replace("Z", "+00:00"))


def _git(machine: PaperMachine) -> None:
    head = hashlib.sha1(b"head", usedforsecurity=False).hexdigest()
    committed = ns("2026-05-12T16:40:00+02:00") // 10**9
    at = ("-C", "/workspace")
    machine.folder("/workspace/.git")
    machine.file("/workspace/dflash_model.py", "…", "2026-05-19T12:31:08.250000+02:00")
    machine.git(("-C", "/workspace", "rev-parse", "--show-toplevel"), "/workspace\n")
    machine.git((*at, "log", "-200", "--format=%H\x1f%ct\x1f%at\x1f%s"),
                f"{head}\x1f{committed}\x1f{committed}\x1fAnchors by block\n")  # fmt: skip
    machine.git((*at, "reflog", "show", "-200", "--format=%H\x1f%gd\x1f%gs", "--date=unix", "HEAD"),
                f"{head}\x1fHEAD@{{{committed}}}\x1fcommit: Anchors by block\n")  # fmt: skip
    machine.git((*at, "status", "--porcelain=v1", "-z", "--untracked-files=normal", "--ignore-submodules=none"),
                " M dflash_model.py\0")  # fmt: skip
    machine.git(
        (*at, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "-U0", "HEAD", "--", "dflash_model.py"),
        "--- a/dflash_model.py\n+++ b/dflash_model.py\n@@ -12,0 +13 @@\n"
        "+torch.fx._symbolic_trace.is_fx_symbolic_tracing = lambda: False\n",
    )


def _compile_cache(machine: PaperMachine) -> None:
    """Deleted more than once; what is there now was made for the last start."""
    machine.folder(INDUCTOR, "2026-05-19T14:09:30+02:00", born="2026-05-19T14:05:12+02:00")
    machine.file(f"{INDUCTOR}/ab/cab.py", at="2026-05-19T14:06:00+02:00", size=1_200_000)
    machine.file(f"{INDUCTOR}/cd/ccd.so", at="2026-05-19T14:09:30+02:00", size=39_800_000)


def _history(machine: PaperMachine) -> None:
    lines = []
    for at, command in (
        ("2026-05-18T20:51:20+02:00", "uv pip install sglang --token=hf_abcdefghijklmnopqrstuvwx"),
        ("2026-05-19T10:58:33+02:00", f"rm -rf {INDUCTOR}"),
        ("2026-05-19T14:04:50+02:00", f"rm -rf {INDUCTOR}"),
    ):
        lines.append(f"#{ns(at) // 10**9}\n{command}\n")
    machine.file("/root/.bash_history", "".join(lines))

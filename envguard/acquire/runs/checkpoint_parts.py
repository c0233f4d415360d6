"""What the files of a checkpoint are, when they were saved, and whether the save ended: by names, sizes and times.

    weights       what training resumes from: shards, model and adapter files, files of no known name
    state         optimizer, scheduler, random states, indexes, the trainer's own record
    consolidated  a copy of weights that are there in another form (`zero_to_fp32`, an export): often made days later
    side          what a person or a tool may write at any time: README, results, configuration, tokenizer
    temporary     what a writer renames when it is done
    stamp         envguard's own

Weights and state are the *core*: their times are the time of saving, and nothing else moves it.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

STAMP_NAME = "envguard.json"
STAMP_SUFFIX = ".envguard.json"

Role = Literal["weights", "state", "consolidated", "side", "temporary", "stamp"]

# What archives, images, registries and object stores write where they know no time: 0, 1, 1980-01-01 in any zone (the
# first day of a zip), 1985-10-26 (npm).
_NO_TIME_S = ((-(1 << 62), 1), (315_532_800 - 86_400, 315_532_800 + 86_400), (499_162_500, 499_162_500))

WEIGHTS = (".ckpt", ".pt", ".pth", ".safetensors", ".bin", ".tar", ".distcp", ".nemo", ".msgpack", ".h5", ".npz")
"""Extensions of files that hold tensors."""

# A trainer writes under such a name first and renames: what is still called so was never finished.
_UNFINISHED = re.compile(
    r"^(?:tmp|temp)[_.-]|\.orbax-checkpoint-tmp.*|[_.-](?:tmp|temp|partial|incomplete)(?:[_.-]|$)|"
    r"\.(?:part|filepart)$|-unfinished$",
    re.IGNORECASE,
)
_RSYNC = re.compile(r"^\..+\.[A-Za-z0-9]{6}$")
_STATE_NAMES = frozenset({
    ".metadata", ".snapshot_metadata", "metadata.json", "trainer_state.json", "train_state.json", "training_args.bin",
    "checkpoint_metadata.json", "_CHECKPOINT_METADATA", "_METADATA", "_sharding", "manifest.ocdbt", "latest",
    "meta.json",
})  # fmt: skip
_STATE = re.compile(
    r"^(?:optimizer|optim|scheduler|lr_scheduler|rng|rng_state|random_states?|scaler|sampler|dataloader|dl_state|"
    r"training_state|training_args|train_state|trainer_state|extra_state)(?:[_.-]|$)"
)
_SIDE = re.compile(
    r"^(?:readme|license|tokenizer|spiece|sentencepiece|vocab|merges|chat_template|events\.out\.tfevents|predictions?\.)",
    re.IGNORECASE,
)
_SIDE_EXTENSIONS = (
    ".json", ".jsonl", ".md", ".txt", ".yaml", ".yml", ".toml", ".csv", ".tsv", ".log", ".py", ".sh", ".html", ".png",
    ".jpg", ".svg", ".pdf", ".jinja", ".model", ".out", ".err", ".ipynb", ".lock",
)  # fmt: skip
_SIDE_FOLDERS = frozenset({"logs", "wandb", "tensorboard", "eval", "evals", "eval_results", "__pycache__"})
_WHOLE = re.compile(
    r"^(?:(?:pytorch_model(?!_fsdp)|model).*\.(?:bin|safetensors)|(?:consolidated|merged).*)(?:\.index\.json)?$"
)
_DERIVED = (".gguf", ".onnx", ".engine", ".tflite", ".mlmodel")
_DERIVED_FOLDERS = re.compile(r"^(?:consolidated|merged|exported?|hf|hf_.*|huggingface|fp32|.*_universal|gguf)$")
_SHARDED = re.compile(r"\.distcp$|_(?:model|optim)_states\.pt$")
_OF = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<extension>\.\w+)$")
_ZERO = re.compile(r"^(?P<before>(?:\w+_)?zero_pp_rank_)(?P<rank>\d{1,5})(?P<after>_mp_rank_\d+_optim_states\.pt)$")
_TRAINERS = re.compile(r"^(?:optimizer\.pt|scheduler\.pt|rng_state.*\.pth)$")


@dataclass(frozen=True)
class File:
    """One file of a checkpoint: its path from there, bytes (None: a link that leads nowhere), mtime in ns."""

    name: str
    size: int | None
    mtime_ns: int


@dataclass(frozen=True)
class Judged:
    """When a checkpoint was saved, [first, last] of its core files in ns, None where no file bears a time that can be
    one; and why it is not complete, None where nothing says so."""

    first_ns: int | None
    last_ns: int | None
    incomplete: str | None


def tells_time(mtime_ns: int) -> bool:
    """Whether an mtime (ns) is one, and not what is written in place of one that is not known."""
    return not any(first <= mtime_ns // 1_000_000_000 <= last for first, last in _NO_TIME_S)


def is_unfinished(name: str) -> bool:
    """Whether a trainer calls so what it still writes."""
    return name.startswith(".") or bool(_UNFINISHED.search(name))


def finished_name(name: str) -> str:
    """What an unfinished save is to be called when it is done; empty for a name that is none of one.

    >>> [finished_name(name) for name in ("500.orbax-checkpoint-tmp-17", "tmp-step_5", "step_5.tmp", "step_5")]
    ['500', 'step_5', 'step_5', '']
    """
    found = _UNFINISHED.sub("", name, count=1)
    return found if found != name else ""


def is_stamp_file(path: str) -> bool:
    """A stamp, or one that is being written: never a part of the checkpoint."""
    name = posixpath.basename(path)
    return name == STAMP_NAME or name.startswith(f".{STAMP_NAME}.") or STAMP_SUFFIX in name


def roles(names: Iterable[str]) -> dict[str, Role]:
    """The role of each file of a checkpoint, by its path from there.

    >>> roles(["model.safetensors", "optimizer.pt", "pytorch_model.bin", "README.md", "__0_0.distcp.tmp"]).values()
    dict_values(['weights', 'state', 'consolidated', 'side', 'temporary'])
    """
    found = {name: _role(name) for name in names}
    sharded = any(role == "weights" and _SHARDED.search(name) for name, role in found.items())
    tensors = any(role == "weights" and name.endswith(".safetensors") for name, role in found.items())
    for name in found:
        base = posixpath.basename(name)
        bin_beside = tensors and not base.startswith("model")
        if found[name] in ("weights", "state") and (sharded or bin_beside) and _WHOLE.match(base):
            found[name] = "consolidated"
    return found


def _role(path: str) -> Role:
    if is_stamp_file(path):
        return "stamp"
    *folders, name = path.split("/")
    if any(_UNFINISHED.search(part) for part in (*folders, name)) or _RSYNC.match(name):
        return "temporary"
    if _SIDE_FOLDERS.intersection(folders) or any(part.startswith(".") for part in folders):
        return "side"
    if name.endswith(_DERIVED) or any(_DERIVED_FOLDERS.match(part) for part in folders):
        return "consolidated"
    if name in _STATE_NAMES or _STATE.match(name) or name.endswith(".index.json"):
        return "state"
    return "side" if name.startswith(".") or _SIDE.match(name) or name.endswith(_SIDE_EXTENSIONS) else "weights"


def judge(name: str, files: Sequence[File]) -> Judged:
    """The time of saving and the completeness of a checkpoint folder of that name."""
    by_role: dict[Role, list[File]] = defaultdict(list)
    found = roles(file.name for file in files)
    for file in files:
        by_role[found[file.name]].append(file)
    core = by_role["weights"] + by_role["state"] or by_role["consolidated"] or by_role["side"]
    times = [file.mtime_ns for file in core if file.size is not None and tells_time(file.mtime_ns)]
    return Judged(min(times, default=None), max(times, default=None), _incomplete(name, by_role))


def judge_file(name: str, size: int, mtime_ns: int) -> Judged:
    """The same of a checkpoint that is one file."""
    time = mtime_ns if tells_time(mtime_ns) else None
    why = "its name is that of an unfinished save" if is_unfinished(name) else None
    return Judged(time, time, "it has 0 bytes" if size == 0 else why)


def _incomplete(name: str, by_role: Mapping[Role, Sequence[File]]) -> str | None:
    tensors = by_role["weights"] or by_role["consolidated"]
    core = [*tensors, *by_role["state"]]
    if is_unfinished(name):
        return "its name is that of an unfinished save"
    if by_role["temporary"]:
        return f"{by_role['temporary'][0].name} was never finished"
    if not core and not by_role["side"]:
        return "it is empty"
    if not tensors:
        return "it holds no weights"
    for file in core:
        if file.size is None:
            return f"{file.name} is a link that leads nowhere"
        if file.size == 0 and file.name.endswith(WEIGHTS):
            return f"{file.name} has 0 bytes"
    names = {file.name for file in core}
    return (
        _without_metadata(names)
        or _without_shards(names)
        or _without_model_states(names)
        or _without_state(name, names)
    )


def _without_metadata(names: set[str]) -> str | None:
    """torch.distributed.checkpoint writes `.metadata` when every rank has written its part."""
    for folder in sorted({posixpath.dirname(name) for name in names if name.endswith(".distcp")}):
        path = posixpath.join(folder, ".metadata")
        if path not in names:
            return f"{path} is missing, which is written last"
    return None


def _without_shards(names: set[str]) -> str | None:
    """`model-00002-of-00004.safetensors` of a set, and the index, which is written after them."""
    there: dict[tuple[str, str, str, int], set[int]] = defaultdict(set)
    for name in names:
        folder, base = posixpath.split(name)
        if match := _OF.match(base):
            there[folder, match["stem"], match["extension"], int(match["count"])].add(int(match["number"]))
    for (folder, stem, extension, count), numbers in sorted(there.items()):
        first = 0 if 0 in numbers else 1
        gone = [number for number in range(first, first + min(count, 100_000)) if number not in numbers]
        if gone:
            return f"{posixpath.join(folder, f'{stem}-{gone[0]:05}-of-{count:05}{extension}')} is missing"
        index = posixpath.join(folder, f"{stem}{extension}.index.json")
        if extension in (".safetensors", ".bin") and index not in names:
            return f"{index} is missing, which is written last"
    return None


def _without_model_states(names: set[str]) -> str | None:
    """DeepSpeed writes `mp_rank_00_model_states.pt` beside the optimizer's parts, one of each rank."""
    parts: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for name in names:
        folder, base = posixpath.split(name)
        if match := _ZERO.match(base):
            parts[folder, match["before"], match["after"]].add(int(match["rank"]))
    for (folder, before, after), ranks in sorted(parts.items()):
        if not any(posixpath.dirname(each) == folder and each.endswith("_model_states.pt") for each in names):
            return f"{posixpath.join(folder, 'mp_rank_00_model_states.pt')} is missing"
        gone = next((rank for rank in range(max(ranks)) if rank not in ranks), None)
        if gone is not None:
            return f"{posixpath.join(folder, f'{before}{gone}{after}')} is missing"
    return None


def _without_state(name: str, names: set[str]) -> str | None:
    """Hugging Face's Trainer writes `trainer_state.json` last."""
    its_own = re.match(r"checkpoint-\d+$", name) or "training_args.bin" in names
    if its_own and "trainer_state.json" not in names and any(_TRAINERS.match(each) for each in names):
        return "trainer_state.json is missing, which the Trainer writes last"
    return None

"""Which field of a log is the step, the time, the rate or the loss: decided by its name, its unit and its values.

Every format of log hands over the rows of a sample. Candidates get a score; the first known name does not win where
its values cannot be what the name promises. A role may have several fields: a row's first with a value counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any

from envguard.acquire.machine.zone import Zone, epoch_ns, parse_moment
from envguard.config import LogFields

Path = tuple[str, ...]
Row = Mapping[Path, Any]

NAMES: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "train/global_step", "trainer/global_step", "iteration", "iter", "update",
             "num_updates", "train_step", "_step", "steps", "global_steps", "optimizer_step", "training_step",
             "training_iteration", "current_step", "it"),
    "time": ("time", "timestamp", "ts", "wall_time", "walltime", "datetime", "date", "_timestamp", "asctime"),
    "tok_s": ("tok_s", "tokens_per_sec", "tokens_per_second", "tok/s", "tokens/s", "tokens/sec", "toks_per_sec",
              "tok_per_sec", "tps", "wps", "throughput", "throughput(tps)", "train/tokens_per_second",
              "train_tokens_per_second", "perf/tokens_per_second", "ktok_s", "ktok/s", "Ktok/s"),
    "loss": ("loss", "train_loss", "train/loss", "lm_loss", "lm loss", "loss/train"),
    "q_pre": ("q_pre", "queue_pre", "prefetch_queue"),
    "q_hs": ("q_hs", "queue_hs", "hs_queue"),
    "samples": ("samples", "num_samples", "dataset_size", "n_samples", "dataset_samples", "total_samples"),
    "target_rate": ("target_batches_s", "targets_b_s", "target_bps", "t_bps", "target_rate"),
    "drafter_rate": ("drafter_batches_s", "drafters_b_s", "drafter_bps", "d_bps", "drafter_rate"),
    "token_budget": ("token_budget", "max_tokens", "tokens_per_batch"),
    "max_batch_size": ("max_batch_size", "batch_size", "global_batch_size", "micro_batch_size"),
    "compile_cache": ("compile_cache_mb", "inductor_cache_mb"),
    "torch": ("torch", "torch_version"),
    "rank": ("rank", "global_rank", "process_index", "dp_rank", "local_rank"),
    "epoch": ("epoch", "epochs", "current_epoch", "train/epoch"),
}  # fmt: skip
HELD = ("q_pre", "q_hs", "samples", "target_rate", "drafter_rate", "token_budget", "max_batch_size", "compile_cache",
        "torch")  # fmt: skip
"""Fields kept as values where they change."""

_COUNTED = {
    **dict.fromkeys(("tok", "toks", "token", "tokens", "ktok", "ktoks", "ktokens", "mtok", "mtokens"),
                    ("tok/s", 50.0)),
    **dict.fromkeys(("word", "words"), ("words/s", 48.0)),
    **dict.fromkeys(("sample", "samples", "example", "examples", "seq", "seqs", "sequence", "sequences"),
                    ("samples/s", 40.0)),
    **dict.fromkeys(("image", "images", "img", "imgs"), ("images/s", 40.0)),
    **dict.fromkeys(("frame", "frames", "pairs", "rows", "episodes"), ("samples/s", 38.0)),
    **dict.fromkeys(("it", "its", "iter", "iters", "iteration", "iterations", "step", "steps", "batch", "batches",
                     "update", "updates"), ("steps/s", 30.0)),
}  # fmt: skip
_SHORT = {"tps": ("tok/s", 50.0), "wps": ("tok/s", 49.0), "tgs": ("tok/s", 49.0), "ups": ("steps/s", 29.0),
          "sps": ("samples/s", 37.0), "fps": ("samples/s", 37.0)}  # fmt: skip
_SECONDS = {"s", "sec", "secs", "second", "seconds"}
_STEPS = {name for name, (unit, _) in _COUNTED.items() if unit == "steps/s"}
_DURATION = {"time", "elapsed", "duration", "latency", "ms", "sec", "secs", "seconds", "s"}
_ONE = {"gpu", "gpus", "device", "devices", "chip", "tgs"}
_SMOOTHED = {"avg", "average", "mean", "cum", "cumulative", "smoothed", "ema", "median"}
_ELSEWHERE = {"eval", "val", "valid", "validation", "test", "dev", "peak", "max", "min", "expected", "inference",
              "prompt", "generation", "data", "dataloader", "eta", "remaining", "left", "forward", "backward", "fwd",
              "bwd", "total", "seen", "consumed"}  # fmt: skip
"""Words of a rate or a time of something else than a step of training."""
_LOSSES = {"loss", "losses", "nll", "ppl", "perplexity"}
_NO_RATE = {"lr", "learning", "loss", "losses", "nll", "ppl", "perplexity", "grad", "gnorm", "norm", "norms",
            "acc", "accuracy", "mem", "memory", "reserved", "allocated", "eta", "remaining", "elapsed", "runtime",
            "scale", "scaler",
            "epoch", "momentum", "decay", "wd", "beta", "temperature", "reward", "rewards", "kl", "entropy", "f1",
            "eval", "val", "valid", "validation", "test", "precision", "recall", "auc", "bleu", "rouge", "wer", "map",
            "margin", "margins", "logps", "logits", "clip", "clipped", "std", "var", "variance", "weight", "weights",
            "flos", "mae", "mse", "rmse", "error", "err", "error_rate", "length", "seed", "rank", "percent", "ratio",
            "len", "seqlen", "size", "bsz", "bs", "ctx", "context", "resolution", "num", "count", "accumulation",
            "score", "psnr", "ssim", "fid", "top", "dropout", "alpha", "gamma", "eps", "sigma", "power",
            "temp"}  # fmt: skip
"""Words of fields that fall in the course of any training and are no speed."""
_TIMELY = {
    "time",
    "timestamp",
    "timestamps",
    "ts",
    "date",
    "datetime",
    "walltime",
    "asctime",
    "when",
    "utc",
    "created",
}
_NAN_COUNT = {"nan", "nans"}
VOCABULARY = frozenset(
    {"nan", "inf", "infinity", "ind", "qnan", "info", "warning", "error", "debug", "train", "training", "per", "in",
     "of", "number", "skipped", "time", "timing", "lm", "k", "m", "g", "gib", "mib", "gb", "mb", "mfu", "hfu",
     "tflop", "tflops", "global", "consumed", "loading", "speed", "tensor", "np", "float", "throughput", "device",
     "cuda", "none", "true", "false", "avg", "epoch", "lr"}
    | _STEPS | _SHORT.keys() | _SECONDS | _DURATION | _ONE | _SMOOTHED | _ELSEWHERE | _LOSSES | _NO_RATE
    | _TIMELY
)  # fmt: skip
"""Words of metrics, which are nobody's text."""
UNIT_WORDS = VOCABULARY | _COUNTED.keys()
"""Those of a unit too: `examples/s`."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMBER = re.compile(
    r"\s{0,8}(?P<number>[-+]?(?:\d{1,3}(?:,\d{3}){1,6}(?:\.\d{0,20})?|\d{1,25}(?:\.\d{0,25})?|\.\d{1,25})(?:[eE][-+]?\d{1,4})?)"
    r"\s{0,4}(?P<scale>[kKMG]?)(?P<unit>(?:i?[A-Za-z%][\w/ %.-]{0,24})?)\s{0,8}"
)
NO_NUMBER = r"(?:nan(?:\(\w{0,12}\))?|inf(?:inity)?|1\.#(?:IND|QNAN|SNAN|INF)0{0,6})"
"""What stands for no number, in any case: C's and JavaScript's names, and those of Microsoft's C library."""
_NOT_FINITE = re.compile(
    rf"\s{{0,8}}(?:[a-z]\w{{0,15}}\.?\w{{0,15}}\()?\s?[-+]?{NO_NUMBER}(?:,[^)]{{0,40}})?\)?\s{{0,8}}", re.IGNORECASE
)
_CLOCK = re.compile(r"\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:Z|[+-]\d{2}:?\d{2})?")
_DAY = re.compile(r"\d{4}[-/]\d{2}[-/]\d{2}")
_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
LEAST_SAMPLE = 12
FELL = 0.7
"""A field of unknown meaning is named where its level fell below this part of what it was."""


@dataclass(frozen=True)
class Field:
    """One field in a role: a number there, times `scale`, is the role's; `inverse` holds seconds a step."""

    path: Path
    scale: float = 1.0
    inverse: bool = False

    @property
    def name(self) -> str:
        """As people write it: `metrics.tok_s`."""
        return ".".join(self.path)


@dataclass
class Roles:
    """The fields of a log by role, and what of it is not understood."""

    fields: dict[str, tuple[Field, ...]] = field(default_factory=dict)
    unit: str = "tok/s"
    day: Field | None = None
    """The date, where `time` holds the time of the day alone."""
    utc: bool = False
    """Times without an offset are UTC: the field's name has that word."""
    health: tuple[Field, ...] = ()
    """Losses and gradient norms: no number there is a failure, whatever the loss reads."""
    speeds: set[Path] = field(default_factory=set)
    """Every field that is a rate; the one with the best score is `tok_s`."""
    doubts: list[str] = field(default_factory=list)

    def names(self) -> dict[str, str]:
        """Role → the log's own name of its first field."""
        return {role: fields[0].name for role, fields in self.fields.items()}

    def of_training(self) -> bool:
        """Whether these are rows of a training at all."""
        return bool({"step", "tok_s", "loss"} & self.fields.keys())


@lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """A name's words in lower case: `SamplesPerSec` and `samples/sec` hold the same ones."""
    parted = name[:120].replace("ktok", " ktok ").replace("Ktok", " ktok ")
    return tuple(word.lower() for word in _WORD.findall(parted))


def number(value: Any) -> float | None:
    """A number that stands as one or as text (`21.5K`, `21,500 tok/s`); None for anything else, NaN included."""
    if isinstance(value, int | float):
        return float(value) if -(2**62) < value < 2**62 else None
    if isinstance(value, str) and len(value) <= 80:
        match = _NUMBER.fullmatch(value)
        if match is not None:
            return float(match["number"].replace(",", "")) * _SCALES[match["scale"]]
    return None


def is_finite(value: Any) -> bool:
    """Whether a loss is a number; text of another kind is not judged."""
    if isinstance(value, list):
        return all(is_finite(item) for item in value[:1000])
    if isinstance(value, str):  # some loggers write "NaN", since JSON has none
        return len(value) > 32 or _NOT_FINITE.fullmatch(value) is None
    return not isinstance(value, float) or math.isfinite(value)


def has_offset(text: str) -> bool:
    """Whether a time's text has its offset from UTC."""
    return text.endswith("Z") or re.search(r"[+-]\d{2}:?\d{2}$", text[-6:]) is not None


def is_moment(value: Any, zone: Zone) -> bool:
    """Whether a value names a moment with its time of day."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return -(2**100) < value < 2**100 and epoch_ns(value) is not None
    return isinstance(value, str) and 10 < len(value) <= 40 and parse_moment(value, zone) is not None


def assign_roles(rows: Sequence[Row], configured: LogFields, zone: Zone) -> Roles:
    """The roles of the fields in a sample of a log's rows; a configured name counts wherever it is."""
    columns: dict[Path, list[Any]] = {}
    for row in rows:
        for path, value in row.items():
            if value is not None:
                columns.setdefault(path, []).append(value)
    roles = Roles()
    for role in NAMES:
        chosen = getattr(configured, role, None)
        if chosen is not None:
            found = next((path for path in columns if ".".join(path) == chosen), (chosen,))
            roles.fields[role] = (Field(found),)
    _steps(columns, roles)
    _times(columns, roles, zone)
    _rates(columns, roles, max(len(rows), 1), zone)
    _losses(columns, roles)
    for role in (*HELD, "rank", "epoch"):
        if role not in roles.fields and (kept := _exact(columns, role)):
            roles.fields[role] = (Field(kept[0]),)
    ranks = columns.get(roles.fields["rank"][0].path, []) if "rank" in roles.fields else []
    if len({rank for rank in ranks if isinstance(rank, int | str)}) < 2:
        roles.fields.pop("rank", None)  # one rank's own log
    if roles.of_training():
        _unknown_fields(columns, roles)
    return roles


def _exact(columns: Mapping[Path, Sequence[Any]], role: str) -> list[Path]:
    """Fields that bear one of the role's names, in the order of the names; a nested one by its last part too."""
    whole = {".".join(path).lower(): path for path in reversed(list(columns))}
    last = {path[-1].lower(): path for path in reversed(list(columns)) if len(path) > 1}
    names = (name.lower() for name in NAMES[role])
    found = [path for name in names for path in (whole.get(name), last.get(name)) if path is not None]
    return list(dict.fromkeys(found))


def _numbers(values: Sequence[Any]) -> list[float]:
    return [found for value in values if (found := number(value)) is not None]


def _forward(values: Sequence[float]) -> float:
    """The part of the steps from one value to the next that do not go back."""
    return sum(after >= before for before, after in pairwise(values)) / max(1, len(values) - 1)


def _grows(values: Sequence[float]) -> bool:
    """Whether values only go up, as a counter's do."""
    return sum(after > before for before, after in pairwise(values)) > 0.9 * (len(values) - 1)


def _steps(columns: Mapping[Path, Sequence[Any]], roles: Roles) -> None:
    if "step" in roles.fields:
        return
    scored = []
    for place, path in enumerate(_exact(columns, "step")):
        values = _numbers(columns[path])
        if not values or any(value % 1 for value in values[:50]):
            continue
        stands = len(values) > 3 and min(values) == max(values)
        scored.append((round(-_forward(values) * 4) / 4 + stands, place, path))
    if not scored:  # a row an epoch, as Keras and YOLO write them
        scored = [(0.0, 0, path) for path in _exact(columns, "epoch")
                  if (values := _numbers(columns[path])) and not any(value % 1 for value in values)]  # fmt: skip
    if scored:
        roles.fields["step"] = tuple(Field(path) for _, _, path in sorted(scored))


def _times(columns: Mapping[Path, Sequence[Any]], roles: Roles, zone: Zone) -> None:
    if "time" in roles.fields:
        return
    usual = {path: place for place, path in enumerate(_exact(columns, "time"))}
    scored = []
    for path, values in columns.items():
        timely = path in usual or bool(_TIMELY & set(words_of(path[-1])))
        if not timely and not isinstance(values[0], str):
            continue  # a number of that size may be a counter
        sample = values[:: max(1, len(values) // 50)]
        share = sum(is_moment(value, zone) for value in sample) / len(sample)
        if share >= 0.8 or (share and path in usual):
            scored.append((share < 0.8, not timely, usual.get(path, 99), path))
    if scored:
        roles.fields["time"] = tuple(Field(path) for *_, path in sorted(scored))
        roles.utc = "utc" in words_of(roles.fields["time"][0].path[-1])
        return
    days = [path for path, values in columns.items() if isinstance(values[0], str) and _DAY.fullmatch(values[0][:20])]
    clocks = [path for path, values in columns.items()
              if isinstance(values[0], str) and _CLOCK.fullmatch(values[0][:40])]  # fmt: skip
    if days and clocks:
        roles.fields["time"], roles.day = (Field(clocks[0]),), Field(days[0])
        roles.utc = "utc" in words_of(clocks[0][-1])


@lru_cache(maxsize=4096)
def rate_of(name: str) -> tuple[float, str, Field] | None:
    """(score, unit, field) of a name that is a rate's; None for any other.

    Seconds a step are a rate too, of which the inverse counts. `eval_…`, `max_…` and the like are no step's.
    """
    words = words_of(name)
    had = set(words)
    if had & (_ELSEWHERE - {"data", "total"}) or not words:
        return None
    scale = 1e3 if had & {"ktok", "ktoks", "ktokens", "k"} else 1e6 if had & {"mtok", "mtokens"} else 1.0
    counted = next((_COUNTED[word] for word in words if word in _COUNTED), None)
    short = next((_SHORT[word] for word in words if word in _SHORT), None)
    lower = name.lower()
    per_second = ("per" in had and bool(had & _SECONDS)) or re.search(
        r"(?:/|_)s(?:ecs?|econds?)?\b|/(?:gpu|device)/s", lower
    )
    steps_by_time = re.search(r"\bs(?:ec(?:onds?)?)?(?:/|_per_)(?:it|iter|iteration|step|batch)s?\b", lower)
    flops = had & {"tflop", "tflops", "flops", "pflops", "gflops"}
    found: tuple[float, str] | None = None
    inverse = False
    if steps_by_time or (
        had & _STEPS and had & _DURATION and not (per_second and "time" not in had and "ms" not in had)
    ):
        if had & (_ELSEWHERE | {"current"}):
            return None
        found, inverse = (15.0, "steps/s"), True
        scale = 1000.0 if had & {"ms", "milliseconds", "msec"} else 1.0
    elif flops:
        found = (20.0, "TFLOP/s")
    elif counted is not None and (per_second or had & {"throughput", "speed"}):
        found = (counted[1], counted[0])
    elif short is not None:
        found = (short[1], short[0])
    elif had & {"throughput", "tput"}:
        found = (35.0, "tok/s" if lower.rpartition("/")[2] == "throughput" else "/s")
    elif words[-1] == "speed":
        found = (34.0, "/s")
    elif had & {"mfu", "hfu"}:
        found = (3.0, "MFU")
    if found is None:
        return None
    one = bool(had & _ONE)
    unit = f"{found[1]}/GPU" if one else found[1]
    return found[0] - 5 * bool(had & (_SMOOTHED | {"runningavg"})) - one, unit, Field((name,), scale, inverse)


def _rates(columns: Mapping[Path, Sequence[Any]], roles: Roles, rows: int, zone: Zone) -> None:
    chosen = roles.fields.get("tok_s")
    if chosen is not None:
        read = rate_of(chosen[0].path[-1])
        if read is not None:
            roles.fields["tok_s"], roles.unit = (Field(chosen[0].path, read[2].scale, read[2].inverse),), read[1]
        return
    usual = {path: place for place, path in enumerate(_exact(columns, "tok_s"))}
    taken = {item.path for role in ("step", "time") for item in roles.fields.get(role, ())}
    scored: list[tuple[float, str, Field]] = []
    for path, values in columns.items():
        read = rate_of(path[-1]) or rate_of("/".join(path[-2:])) if path not in taken else None
        if (read is None or read[1] == "/s") and path not in taken:
            read = _of_values(path, values) or read
        if read is None:
            continue
        score, unit, known = read
        roles.speeds.add(path)
        numbers = _numbers(values)
        if not numbers:
            if not all(isinstance(value, str) and _NOT_FINITE.fullmatch(value[:40]) for value in values[:20]):
                roles.doubts.append(f"the values of {'.'.join(path)[:60]} are no numbers")
            continue
        if len(numbers) == 1 and rows > 5:
            continue  # the summary at the end
        score += 100 - usual[path] / 100 if path in usual and unit == "tok/s" else 0
        scored.append((score, unit, Field(path, known.scale, known.inverse)))
    if not scored:
        return
    scored.sort(key=lambda item: -item[0])
    roles.unit = scored[0][1]
    kind = scored[0][2].inverse
    roles.fields["tok_s"] = tuple(item for _, unit, item in scored if unit == roles.unit and item.inverse == kind)


def _of_values(path: Path, values: Sequence[Any]) -> tuple[float, str, Field] | None:
    """What values say where the name says nothing: their unit as text, or seconds a step under a bare `time`."""
    first = next((value for value in values if isinstance(value, str)), None)
    match = _NUMBER.fullmatch(first) if first is not None and len(first) <= 80 else None
    if match is not None and match["unit"] and (read := rate_of(match["unit"])) is not None:
        return read[0], read[1], Field(path, read[2].scale, read[2].inverse)
    words = set(words_of(path[-1]))
    if words & {"time", "dt", "ms"} and words <= {"time", "dt", "ms", "s"} and _durations(values):
        return 5.0, "steps/s", Field(path, 1000.0 if "ms" in words else 1.0, True)
    return None


def _durations(values: Sequence[Any]) -> bool:
    """Whether a field called `time` holds the seconds of a step, which neither name a moment nor only grow."""
    numbers = _numbers(values)
    return len(numbers) >= LEAST_SAMPLE and min(numbers) > 0 and max(numbers) < 1e5 and not _grows(numbers)


def is_loss(words: Sequence[str]) -> bool:
    """Whether words name a loss, and not its scale."""
    had = set(words)
    return bool(had & _LOSSES) and not had & {"scale", "scaler", "weight", "coef", "coeff"}


def is_gradient(words: Sequence[str]) -> bool:
    """Whether words name a norm of gradients."""
    had = set(words)
    return bool(({"grad", "gradient", "gradients"} & had and {"norm", "norms"} & had) or {"gnorm", "gradnorm"} & had)


def counts_nan(words: Sequence[str]) -> bool:
    """Megatron's `number of nan iterations`."""
    had = set(words)
    return bool(had & _NAN_COUNT) and bool(had & (_STEPS | {"count", "number", "num"}))


def _losses(columns: Mapping[Path, Sequence[Any]], roles: Roles) -> None:
    usual = _exact(columns, "loss")
    split = {path: words_of(path[-1]) for path in columns}
    losses = [path for path, words in split.items() if is_loss(words) and not isinstance(columns[path][0], dict)]
    ordered = [
        *usual,
        *sorted(set(losses) - set(usual), key=lambda path: (bool(_ELSEWHERE & set(split[path])), path)),
    ]
    if "loss" not in roles.fields and ordered and not _ELSEWHERE & set(split[ordered[0]]):
        roles.fields["loss"] = (Field(ordered[0]),)
    others = [path for path, words in split.items() if is_gradient(words) or counts_nan(words)]
    first = [roles.fields["loss"][0].path] if "loss" in roles.fields else []
    roles.health = tuple(Field(path) for path in dict.fromkeys([*first, *ordered, *others]))


def _unknown_fields(columns: Mapping[Path, Sequence[Any]], roles: Roles) -> None:
    """Names numbers of unknown meaning whose level fell: one of them may be the speed, and then it was not seen."""
    known = {item.path for fields in roles.fields.values() for item in fields} | {item.path for item in roles.health}
    speed = re.compile(r"speed|/s\b|per_s|per_gpu|/gpu|/sec|throughput|tput|rate$", re.IGNORECASE)
    found = []
    for path, values in columns.items():
        words = set(words_of("/".join(path)))
        if path in known or words & (_NO_RATE | _ELSEWHERE) or ("rate" in words and "learning" in words):
            continue
        if path in roles.speeds and "tok_s" in roles.fields:
            continue  # the same speed in another unit
        numbers = _numbers(values)
        if not numbers and isinstance(values[0], str) and speed.search(path[-1]) and re.search(r"\d", values[0][:80]):
            found.append(f"{'.'.join(path)[:60]} is no number that is understood")
            continue
        third = len(numbers) // 3
        if len(numbers) < LEAST_SAMPLE or min(numbers) < 0 or _grows(numbers):
            continue
        before, after = median(numbers[:third]), median(numbers[-third:])
        if before > 0 and min(before, after) / max(before, after) < FELL:
            found.append(f"{'.'.join(path)[:60]} went from {before:g} to {after:g}")
    if found:
        roles.doubts.append("of fields whose meaning is not known, " + ", ".join(found[:6]))


def flatten(value: Any, path: Path = ()) -> dict[Path, Any]:
    """A row's fields by their paths, nested objects to a depth of three; at most 300 fields."""
    found: dict[Path, Any] = {}
    stack: list[tuple[Path, Any]] = [(path, value)]
    while stack and len(found) < 300:
        at, item = stack.pop()
        if isinstance(item, dict) and len(at) < 3:
            stack.extend(((*at, str(name)), inner) for name, inner in reversed(list(item.items())[:300]))
        elif at and not isinstance(item, dict):
            found[at] = item
    return found


def getter(path: Path) -> Callable[[Mapping[str, Any]], Any]:
    """What a row as a plain dict has at a path; None where it has nothing."""
    if len(path) == 1:
        name = path[0]
        return lambda row: row.get(name)

    def nested(row: Mapping[str, Any]) -> Any:
        item: Any = row
        for name in path:
            item = item.get(name) if isinstance(item, dict) else None
        return item

    return nested

"""The trainer's configuration: one TOML file with ``section.key=value`` overrides.

Every key has a type, a default and a line that says what it means. An unknown key is an error that names
the nearest known one: a misspelt ``anchors`` that silently trains with the default is the fault to prevent.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from trainer.errors import ConfigError

LayerType = Literal["full_attention", "sliding_attention"]
Whole = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=False):
    """Base of all sections: immutable, no unknown keys."""


class ModelConfig(Section, frozen=True):
    """The drafter. Sizes left out are those of the target."""

    block_size: Annotated[int, msgspec.Meta(ge=2)] = 16
    """B: one real anchor token and B - 1 masked slots."""
    num_layers: Count = 5
    num_taps: Count = 5
    """K target layers whose hidden states feed the drafter."""
    anchors: Count = 512
    """Anchors a packed row, divided among its documents by supervised tokens."""
    layer_types: tuple[LayerType, ...] = ()
    """One a drafter layer; empty: full attention in all."""
    sliding_window: Count | None = None
    """W of the sliding layers, in tokens, the query's own included; at least ``block_size``."""
    num_heads: Count | None = None
    num_kv_heads: Count | None = None
    head_dim: Annotated[int, msgspec.Meta(ge=2, multiple_of=2)] | None = None
    intermediate_size: Count | None = None
    rope_theta: Positive | None = None

    def types(self) -> tuple[LayerType, ...]:
        """The attention type of each layer."""
        full: LayerType = "full_attention"
        return self.layer_types or (full,) * self.num_layers


class TargetConfig(Section, frozen=True):
    """The frozen target model."""

    kind: Literal["smollm2-gguf", "hf", "random"] = "smollm2-gguf"
    path: str | None = None
    """``hf``: the model directory; ``smollm2-gguf``: the GGUF file, by default the installed wheel's."""
    shape: str | None = None
    """A name in ``trainer.shapes.SHAPES``: of a ``random`` target; of an ``hf`` one for a dry run without it."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """``auto``: bfloat16 on a GPU, float32 on CPU."""
    mask_token_id: Whole | None = None
    """MASK; by default an id that the target never reads or writes is chosen (``choose_mask_id``)."""
    seed: Whole = 0
    """``random``: of the weights."""


class DataConfig(Section, frozen=True):
    """The training text and how it is packed."""

    paths: tuple[str, ...] = ()
    """jsonl files of chats or texts."""
    cache_dir: str = ".cache/trainer/data"
    token_budget: Count = 49152
    """Most tokens of a packed row."""
    max_batch_size: Count = 64
    """Most documents of a packed row."""
    length_buckets: tuple[Count, ...] = ()
    """The few static row lengths, ascending; empty: ``token_budget`` alone."""
    max_length: Count = 8192
    """Most tokens of a document; longer ones are cut and counted."""
    seed: Whole = 0
    """Of the order; the order of an epoch is a pure function of (seed, epoch)."""


class TrainConfig(Section, frozen=True):
    """Optimisation."""

    lr: Positive = 6e-4
    epochs: Count = 6
    max_steps: Count | None = None
    """Stop here even if epochs remain; the schedule ends here too."""
    warmup: Share = 0.04
    """Share of all steps."""
    clip: Positive = 1.0
    """Global gradient norm."""
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    betas: tuple[Share, Share] = (0.9, 0.999)
    rows_per_step: Whole = 0
    """Packed rows a step over all drafters; 0: one a drafter. A multiple of the drafters."""
    seed: Whole = 0
    """Of the weights and of the anchors."""
    gamma: Positive | None = None
    """Decay of the slot weights exp(-(k-1)/gamma); by default 7, 5, 4 for blocks of 16, 10, 8."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the drafter's weights and activations; master weights are always float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    attention: Literal["auto", "sdpa", "flex"] = "auto"
    """``auto``: flex on CUDA, SDPA with the dense mask on CPU (flex has no CPU backward)."""
    compile: bool | None = None
    """Compile the drafter's step; by default on CUDA alone."""
    compile_cache: str = ".cache/trainer/inductor"
    """Compiled code is kept here, one private directory a torch build; TORCHINDUCTOR_CACHE_DIR wins."""
    log_every: Count = 1
    """Steps a line of the log."""


class CheckpointConfig(Section, frozen=True):
    """Where and how often state is saved."""

    dir: str = "runs/default"
    every: Whole = 500
    """Steps; 0: only at the end and on SIGTERM."""
    keep_last: Count = 3
    keep_every: Count | None = None
    """Steps whose multiples are kept for good."""
    stamp: bool = True
    """Stamp each checkpoint with the machine's fingerprint (``envguard.stamp``)."""


class TopologyConfig(Section, frozen=True):
    """How many ranks do what; one process does both when the world is 1."""

    targets: Count = 1
    drafters: Count = 1
    queue_depth: Count = 2
    """Rows of hidden states that wait for a drafter."""
    prefetch: Count = 8
    """Packed rows that wait for a target."""


class LogConfig(Section, frozen=True):
    """What is written beside ``train_log.jsonl``."""

    jsonl: str = "train_log.jsonl"
    """Relative to ``checkpoint.dir``."""
    display: bool | None = None
    """Live screen; by default on a terminal."""
    tensorboard: bool = False
    wandb: bool = False
    wandb_project: str = "dflash"


class EvaluateConfig(Section, frozen=True):
    """Real and simulated acceptance on held-out prompts."""

    prompts: str = "human-eval"
    """``human-eval``, ``pydoc-terms-held-out`` or a jsonl file."""
    limit: Count | None = None
    max_new_tokens: Count = 128
    workers: Count = 1
    """Processes that share the device, each with a target and a drafter of its own: decoding one text by itself
    leaves a GPU idle."""


class RegenerateConfig(Section, frozen=True):
    """The target writes the training responses."""

    prompts: tuple[str, ...] = ()
    """jsonl files of prompts or chats, and names of sources: ``python-tasks``, ``stdlib-functions``, ``pydoc``,
    ``pydoc-terms``."""
    limit: Count | None = None
    """Prompts at most, spread evenly over all."""
    batch_size: Count = 32
    """Prompts answered in step; another size may round differently, so a file keeps its own."""
    max_prompt_tokens: Count = 2048
    """Longer prompts are left out and counted."""
    out: str = "data/regenerated.jsonl"
    max_new_tokens: Count = 256
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    seed: Whole = 0


class Config(Section, frozen=True):
    """All of it."""

    model: ModelConfig = ModelConfig()
    target: TargetConfig = TargetConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    topology: TopologyConfig = TopologyConfig()
    log: LogConfig = LogConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    regenerate: RegenerateConfig = RegenerateConfig()

    def digest(self) -> str:
        """sha256 of the canonical JSON of all values."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    def gamma(self) -> float:
        """The slot decay; ConfigError where the block size has no published value."""
        if self.train.gamma is not None:
            return self.train.gamma
        published = {16: 7.0, 10: 5.0, 8: 4.0}
        if self.model.block_size not in published:
            raise ConfigError(
                f"no published train.gamma for model.block_size = {self.model.block_size}: "
                "give one (16: 7, 10: 5, 8: 4)"
            )
        return published[self.model.block_size]

    def rows_per_step(self) -> int:
        """Packed rows of one optimizer step, over all drafters."""
        return self.train.rows_per_step or self.topology.drafters


def load_config(path: str | Path | None, overrides: Iterable[str] = ()) -> Config:
    """Reads a TOML file and applies ``section.key=value`` overrides; ConfigError names what is wrong."""
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:  # not TOML, or not UTF-8
            raise ConfigError(f"{path}: {error}") from error
    for override in overrides:
        _apply(table, override)
    return build_config(table, str(path) if path is not None else "configuration")


def build_config(table: Mapping[str, Any], source: str = "configuration") -> Config:
    """Validates a nested mapping; ConfigError lists unknown keys with suggestions, or the first bad value."""
    _refuse_unknown(table, source)
    try:
        config = msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_in_words(str(error), table)}") from error
    _check(config, source)
    return config


def _in_words(problem: str, table: Mapping[str, Any]) -> str:
    """A complaint of msgspec, led by the key as the user writes it; with the list, or the words, that are meant."""
    said, _, where = problem.partition(" - at ")
    key = where.strip("`").removeprefix("$.")
    section, _, rest = key.partition(".")
    name = re.match(r"\w+", rest)
    if name is None:
        return f"{key}: {said}"
    value = table[section][name[0]]
    if said == "Expected `array`, got `str`":
        return f"{key}: {said}: a list is written '[\"{value}\"]'"
    if not said.startswith("Invalid enum value"):
        return f"{key}: {said}"
    words = _words(get_type_hints(get_type_hints(Config)[section])[name[0]])
    return f"{key}: {said}, none of {', '.join(words)}{suggest(str(value), words)}"


def _words(kind: Any) -> list[Any]:
    """The literals in a type."""
    return list(get_args(kind)) if get_origin(kind) is Literal else [w for k in get_args(kind) for w in _words(k)]


def _apply(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (section and dot and name and equals):
        raise ConfigError(f"override {override!r} is not of the form section.key=value")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word: checkpoint.dir=runs/a
    inner = table.setdefault(section, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"{section} is a table, not a value")
    inner[name] = value


def _refuse_unknown(table: Mapping[str, Any], source: str) -> None:
    sections = {field.name: field.type for field in msgspec.structs.fields(Config)}
    problems = []
    for section, inner in table.items():
        if section not in sections:
            problems.append(f"unknown section [{section}]{suggest(section, sections)}")
            continue
        if not isinstance(inner, Mapping):
            raise ConfigError(f"{source}: {section} is a table, not a value")
        known = [field.name for field in msgspec.structs.fields(sections[section])]
        for name in inner:
            if name not in known:
                elsewhere = [s for s, kind in sections.items() if name in kind.__struct_fields__]
                hint = f"; it belongs to [{elsewhere[0]}]" if elsewhere else suggest(name, known)
                problems.append(f"unknown key {section}.{name}{hint}")
    if problems:
        raise ConfigError(f"{source}: " + "; ".join(problems))


def suggest(word: str, known: Iterable[str]) -> str:
    """The nearest known word, as the end of a message; empty where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f": did you mean {near[0]!r}?" if near else ""


def _check(config: Config, source: str) -> None:
    """The relations between values that types cannot say; all broken ones at once."""
    model, data, train, topology = config.model, config.data, config.train, config.topology
    problems = []
    # The ranges in the types let infinity through.
    for section in msgspec.structs.fields(Config):
        for name, value in msgspec.structs.asdict(getattr(config, section.name)).items():
            if isinstance(value, float) and not math.isfinite(value):
                problems.append(f"{section.name}.{name} = {value} is not finite")
    if len(model.types()) != model.num_layers:
        problems.append(f"model.layer_types has {len(model.layer_types)} entries for {model.num_layers} layers")
    if "sliding_attention" in model.types():
        if model.sliding_window is None:
            problems.append("model.sliding_window is missing: a layer slides")
        elif model.sliding_window < model.block_size:
            problems.append("model.sliding_window must be at least model.block_size")
    if data.max_batch_size > model.anchors:
        problems.append("data.max_batch_size must not exceed model.anchors: each document gets an anchor")
    if list(data.length_buckets) != sorted(set(data.length_buckets)):
        problems.append("data.length_buckets must ascend")
    if data.length_buckets and data.length_buckets[-1] > data.token_budget:
        problems.append("data.length_buckets go past data.token_budget")
    if train.rows_per_step % topology.drafters:
        problems.append("train.rows_per_step must be a multiple of topology.drafters")
    if config.target.kind == "hf" and config.target.path is None:
        problems.append("target.path is missing: the model directory")
    if config.target.kind == "random" and config.target.shape is None:
        problems.append("target.shape is missing: the name of a shape")
    if problems:
        raise ConfigError(f"{source}: " + "; ".join(problems))

"""The trainer's configuration: one TOML file with ``section.key=value`` overrides.

Every key has a type, a default and a line that says what it means. An unknown key is an error that names
the nearest known one: a misspelt ``anchors`` that silently trains with the default is the fault to prevent.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from trainer.errors import ConfigError

LayerType = Literal["full_attention", "sliding_attention"]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=False):
    """Base of all sections: immutable, no unknown keys."""


class ModelConfig(Section, frozen=True):
    """The drafter. Sizes left out are those of the target."""

    block_size: int = 16
    """B: one real anchor token and B - 1 masked slots."""
    num_layers: int = 5
    num_taps: int = 5
    """K target layers whose hidden states feed the drafter."""
    anchors: int = 512
    """Anchors a packed row, divided among its documents by supervised tokens."""
    layer_types: tuple[LayerType, ...] = ()
    """One a drafter layer; empty: full attention in all."""
    sliding_window: int | None = None
    """W of the sliding layers, in tokens, the query's own included; at least ``block_size``."""
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    rope_theta: float | None = None

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
    mask_token_id: int | None = None
    """MASK; by default an id that the target never reads or writes is chosen (``choose_mask_id``)."""
    seed: int = 0
    """``random``: of the weights."""


class DataConfig(Section, frozen=True):
    """The training text and how it is packed."""

    paths: tuple[str, ...] = ()
    """jsonl files of chats or texts."""
    cache_dir: str = ".cache/trainer/data"
    token_budget: int = 49152
    """Most tokens of a packed row."""
    max_batch_size: int = 64
    """Most documents of a packed row."""
    length_buckets: tuple[int, ...] = ()
    """The few static row lengths, ascending; empty: ``token_budget`` alone."""
    max_length: int = 8192
    """Most tokens of a document; longer ones are cut and counted."""
    seed: int = 0
    """Of the order; the order of an epoch is a pure function of (seed, epoch)."""


class TrainConfig(Section, frozen=True):
    """Optimisation."""

    lr: float = 6e-4
    epochs: int = 6
    max_steps: int | None = None
    """Stop here even if epochs remain; the schedule ends here too."""
    warmup: float = 0.04
    """Share of all steps."""
    clip: float = 1.0
    """Global gradient norm."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    rows_per_step: int = 0
    """Packed rows a step over all drafters; 0: one a drafter. A multiple of the drafters."""
    seed: int = 0
    """Of the weights and of the anchors."""
    gamma: float | None = None
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
    log_every: int = 1
    """Steps a line of the log."""


class CheckpointConfig(Section, frozen=True):
    """Where and how often state is saved."""

    dir: str = "runs/default"
    every: int = 500
    """Steps; 0: only at the end and on SIGTERM."""
    keep_last: int = 3
    keep_every: int | None = None
    """Steps whose multiples are kept for good."""
    stamp: bool = True
    """Stamp each checkpoint with the machine's fingerprint (``envguard.stamp``)."""


class TopologyConfig(Section, frozen=True):
    """How many ranks do what; one process does both when the world is 1."""

    targets: int = 1
    drafters: int = 1
    queue_depth: int = 2
    """Rows of hidden states that wait for a drafter."""
    prefetch: int = 8
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

    prompts: Literal["human-eval"] | str = "human-eval"
    """``human-eval``, ``pydoc-terms-held-out`` or a jsonl file."""
    limit: int | None = None
    max_new_tokens: int = 128


class ExportConfig(Section, frozen=True):
    """The serving format."""

    dtype: Literal["bfloat16", "float32"] = "bfloat16"


class RegenerateConfig(Section, frozen=True):
    """The target writes the training responses."""

    prompts: tuple[str, ...] = ()
    """jsonl files of prompts or chats; ``pydoc`` and ``pydoc-terms`` draw on the standard library's documentation."""
    limit: int | None = None
    """Prompts at most, spread evenly over all."""
    batch_size: int = 32
    """Prompts answered in step; another size may round differently, so a file keeps its own."""
    max_prompt_tokens: int = 2048
    """Longer prompts are left out and counted."""
    out: str = "data/regenerated.jsonl"
    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0


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
    export: ExportConfig = ExportConfig()
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
        except tomllib.TOMLDecodeError as error:
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
        raise ConfigError(f"{source}: {error}") from error
    _check(config, source)
    return config


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
            problems.append(f"unknown section [{section}]{_suggest(section, sections)}")
            continue
        if not isinstance(inner, Mapping):
            raise ConfigError(f"{source}: {section} is a table, not a value")
        known = [field.name for field in msgspec.structs.fields(sections[section])]
        for name in inner:
            if name not in known:
                elsewhere = [s for s, kind in sections.items() if name in kind.__struct_fields__]
                hint = f"; it belongs to [{elsewhere[0]}]" if elsewhere else _suggest(name, known)
                problems.append(f"unknown key {section}.{name}{hint}")
    if problems:
        raise ConfigError(f"{source}: " + "; ".join(problems))


def _suggest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f": did you mean {near[0]!r}?" if near else ""


def _check(config: Config, source: str) -> None:
    """The relations between values that types cannot say; all broken ones at once."""
    model, data, train, topology = config.model, config.data, config.train, config.topology
    problems = []
    for name, number in (
        ("model.num_layers", model.num_layers),
        ("model.num_taps", model.num_taps),
        ("model.anchors", model.anchors),
        ("data.token_budget", data.token_budget),
        ("data.max_batch_size", data.max_batch_size),
        ("data.max_length", data.max_length),
        ("train.epochs", train.epochs),
        ("train.log_every", train.log_every),
        ("topology.targets", topology.targets),
        ("topology.drafters", topology.drafters),
        ("topology.queue_depth", topology.queue_depth),
        ("topology.prefetch", topology.prefetch),
        ("checkpoint.keep_last", config.checkpoint.keep_last),
    ):
        if number < 1:
            problems.append(f"{name} = {number} must be at least 1")
    if model.block_size < 2:
        problems.append("model.block_size must be at least 2: slot 0 is the anchor, which has no loss")
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
    if not (math.isfinite(train.lr) and train.lr > 0 and train.clip > 0 and 0 <= train.warmup < 1):
        problems.append("train.lr and train.clip must be positive, train.warmup in [0, 1)")
    if train.rows_per_step < 0 or train.rows_per_step % topology.drafters:
        problems.append("train.rows_per_step must be a multiple of topology.drafters")
    if config.target.kind in ("hf",) and config.target.path is None:
        problems.append("target.path is missing: the model directory")
    if config.target.kind == "random" and config.target.shape is None:
        problems.append("target.shape is missing: the name of a shape")
    if problems:
        raise ConfigError(f"{source}: " + "; ".join(problems))

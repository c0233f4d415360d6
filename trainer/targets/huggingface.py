"""Any Hugging Face causal LM directory, through ``transformers`` (extra ``hf``).

Hidden states are taken by hooks on the tapped layers, so that "after layer i" means the same for every
architecture. Packed documents are never run in one sequence: masks that keep documents apart are not
honoured by all architectures (linear attention carries its state across). Each document is a batch row of
its own, padded on the right, where a causal model cannot see the padding.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from trainer.batch import PackedBatch, TargetFeatures
from trainer.config import TargetConfig
from trainer.errors import ConfigError
from trainer.shapes import shape_of_hf
from trainer.targets.interface import BatchSession, DecodableTarget, Extension, Session
from trainer.targets.own import document_bounds
from trainer.tokenizer import Tokenizer

# What transformers lets through where files are damaged, cut short or of other shapes.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError)
_WASTE = 1.25  # documents share a batch while padding keeps within this factor of their tokens


def open_huggingface(
    config: TargetConfig, device: torch.device, dtype: torch.dtype, num_taps: int
) -> HuggingFaceTarget:
    """Loads the directory ``target.path``; nothing is fetched, no remote code is run, no pickle is read.

    ConfigError also where a weight is missing: it would be left random, with a warning at most.
    """
    tokenizer = open_huggingface_tokenizer(config)
    path = Path(config.path or "")
    try:
        model, loading = _transformers().AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except _UNREADABLE as error:
        raise ConfigError(f"cannot load {path}: {error}") from error
    if missing := sorted(loading["missing_keys"]):
        raise ConfigError(f"{path} holds no weights for {', '.join(missing[:3])} ({len(missing)} missing)")
    return HuggingFaceTarget(
        path,
        model.to(device),
        tokenizer,
        digest=content_digest(path),
        num_taps=num_taps,
        mask_token_id=config.mask_token_id,
    )


def content_digest(path: Path) -> str:
    """sha256 over the names and contents of all weight files and the configuration."""
    files = sorted(file for file in path.iterdir() if file.suffix == ".safetensors" or file.name == "config.json")

    def digest(file: Path) -> str:
        with file.open("rb") as stream:
            return f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}"

    with ThreadPoolExecutor(max_workers=8) as pool:
        return hashlib.sha256("\n".join(pool.map(digest, files)).encode()).hexdigest()


def open_huggingface_tokenizer(config: TargetConfig) -> Tokenizer:
    """The tokenizer alone; the tokens that end a response are the generation settings' where there are any."""
    transformers = _transformers()
    path = Path(config.path or "")
    if not (path / "config.json").is_file():
        raise ConfigError(f"target.path: {path} holds no config.json")
    try:
        fast = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        generation = transformers.GenerationConfig()
        if (path / "generation_config.json").is_file():
            generation = transformers.GenerationConfig.from_pretrained(path, local_files_only=True)
    except _UNREADABLE as error:
        raise ConfigError(f"cannot load the tokenizer of {path}: {error}") from error
    if not getattr(fast, "is_fast", False):
        raise ConfigError(f"{path} has no fast tokenizer (tokenizer.json)")
    listed = generation.eos_token_id
    ends: set[int] = set() if fast.eos_token_id is None else {fast.eos_token_id}
    ends |= set(listed if isinstance(listed, list) else [] if listed is None else [listed])
    if not ends:
        raise ConfigError(f"{path} names no end-of-sequence token")
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    named = {name: str(getattr(fast, name)) for name in names if getattr(fast, name) is not None}
    return Tokenizer(fast.backend_tokenizer, chat_template=fast.chat_template, end_ids=ends, named=named)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ConfigError("target.kind = 'hf' needs transformers: install the extra 'hf'") from error
    return transformers


class HuggingFaceTarget(DecodableTarget):
    """On a model of ``transformers``."""

    def __init__(self, path: Path, model: Any, tokenizer: Tokenizer, **further: Any) -> None:
        shape = shape_of_hf(json.loads((path / "config.json").read_text(encoding="utf-8")), path.name)
        self.model = model.requires_grad_(False).eval()
        ends = (end.weight for end in (model.get_input_embeddings(), model.get_output_embeddings()))
        super().__init__(path.name, shape, tokenizer, *ends, **further)
        self.decoder, self.layers = _decoder(model, shape.num_layers)
        self._trunk = _truncated(self.decoder, max(self.tap_layers) + 1)

    @torch.no_grad()
    def features(self, batch: PackedBatch) -> TargetFeatures:
        """Runs the layers up to the deepest tap, each document for itself; padding gets zeros."""
        bounds = document_bounds(batch.document)
        spans = [(first, end) for first, end in itertools.pairwise(bounds) if int(batch.document[first]) >= 0]
        width = len(self.tap_layers) * self.shape.hidden_size
        taps = torch.zeros(batch.length, width, dtype=self.dtype, device=self.device)
        for group in _groups(spans):
            longest = max(end - first for first, end in group)
            rows = torch.zeros(len(group), longest, dtype=torch.int64)
            for row, (first, end) in enumerate(group):
                rows[row, : end - first] = batch.tokens[first:end]
            with self.tapped() as seen:
                self._trunk(input_ids=rows.to(self.device), use_cache=False)
            found = torch.cat(seen, dim=-1)
            for row, (first, end) in enumerate(group):
                taps[first:end] = found[row, : end - first]
        return TargetFeatures(batch, taps)

    @contextmanager
    def tapped(self) -> Iterator[list[Tensor]]:
        """Collects the hidden state after each tapped layer, in order, while the block runs."""
        seen: list[Tensor] = []

        def hook(_: nn.Module, __: Any, output: Any) -> None:
            seen.append(output[0] if isinstance(output, tuple) else output)

        handles = [self.layers[number].register_forward_hook(hook) for number in self.tap_layers]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    def run_cached(self, cache: Any, **inputs: Tensor) -> Any:
        """The decoder's output for ``inputs`` appended to ``cache``."""
        # transformers 5.24 renamed the argument and warns of the old name.
        parameters = inspect.signature(self.decoder.forward).parameters
        name = "cache" if "cache" in parameters else "past_key_values"
        return self.decoder(**inputs, **{name: cache}, use_cache=True)

    @cached_property
    @torch.no_grad()
    def continues_blocks(self) -> bool:
        """Whether a cache is continued by several tokens at once as by one at a time: older versions of transformers
        began linear attention anew."""
        from transformers import DynamicCache

        tokens = torch.arange(1, 13, device=self.device)[None] % self.vocab_size
        outputs = []
        for parts in ([6, 6], [6, 1, 1, 1, 1, 1, 1]):
            cache = DynamicCache(config=self.decoder.config)
            pieces = [self.run_cached(cache, input_ids=piece) for piece in torch.split(tokens, parts, dim=1)]
            outputs.append(torch.cat([piece.last_hidden_state for piece in pieces[1:]], dim=1).float())
        distance = torch.linalg.vector_norm(outputs[0] - outputs[1]) / torch.linalg.vector_norm(outputs[1])
        return float(distance) < 0.1  # bf16 differs by hundredths, a lost state by more than half

    def session(self, capacity: int) -> Session:
        return HuggingFaceSession(self)

    def batch_session(self, capacity: int) -> BatchSession:
        return HuggingFaceBatchSession(self)


class HuggingFaceSession:
    """One sequence. Layers that slide keep a whole cache, so that it can be cut.

    Linear attention's state cannot be cut: the cache of before the last extension is kept then, and what
    remains of that extension is read again.
    """

    def __init__(self, target: HuggingFaceTarget) -> None:
        from transformers import DynamicCache

        kinds = set(getattr(target.decoder.config, "layer_types", None) or ())
        self._cuts = kinds <= {"full_attention", "sliding_attention"}
        if not self._cuts and not target.continues_blocks:
            raise ConfigError(
                f"{target.name}: this version of transformers does not continue linear attention by several tokens "
                "at once; upgrade it (5.24 does)"
            )
        self._target = target
        self._cache = DynamicCache() if self._cuts else DynamicCache(config=target.decoder.config)
        self._before: tuple[int, Any, list[int]] = (0, None, [])
        self.length = 0

    @torch.no_grad()
    def extend(self, tokens: Sequence[int]) -> Extension:
        if not self._cuts:
            self._before = (self.length, copy.deepcopy(self._cache), list(tokens))
        row = torch.tensor([list(tokens)], device=self._target.device)
        with self._target.tapped() as seen:
            output = self._target.run_cached(self._cache, input_ids=row)
        self.length += len(tokens)
        return Extension(output.last_hidden_state[0], torch.cat(seen, dim=-1)[0])

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        if length == self.length:
            return
        if self._cuts:
            self._cache.crop(length - self.length)  # a negative count: tokens to remove
            self.length = length
            return
        begun, cache, tokens = self._before
        if length < begun:
            raise ValueError(
                f"cannot truncate {self.length} tokens to {length}: linear attention goes back to {begun}"
            )
        self.length, self._cache = begun, cache
        if length > begun:
            self.extend(tokens[: length - begun])


class HuggingFaceBatchSession:
    """Sequences in step, padded on the left with the mask and positions that ``transformers`` expects."""

    def __init__(self, target: HuggingFaceTarget) -> None:
        from transformers import DynamicCache

        self._target = target
        self._cache = DynamicCache(config=target.decoder.config)
        self._mask = torch.empty(0)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        longest = max(len(prompt) for prompt in prompts)
        padding = [longest - len(prompt) for prompt in prompts]
        rows = torch.tensor([[0] * n + list(p) for n, p in zip(padding, prompts, strict=True)])
        mask = torch.tensor([[0] * n + [1] * (longest - n) for n in padding])
        self._mask = mask.to(self._target.device)
        return self._run(rows.to(self._target.device), (self._mask.cumsum(-1) - 1).clamp(min=0))

    def step(self, tokens: Tensor) -> Tensor:
        self._mask = functional.pad(self._mask, (0, 1), value=1)
        return self._run(tokens[:, None], self._mask.sum(-1, keepdim=True) - 1)

    @torch.no_grad()
    def _run(self, rows: Tensor, position: Tensor) -> Tensor:
        output = self._target.run_cached(
            self._cache, input_ids=rows, attention_mask=self._mask, position_ids=position
        )
        hidden = output.last_hidden_state[:, -1]
        assert isinstance(hidden, Tensor)
        return hidden


def _decoder(model: Any, num_layers: int) -> tuple[Any, nn.ModuleList]:
    """The language model under the head, and its layers."""
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList) or len(layers) != num_layers:
        raise ConfigError(f"{type(model).__name__}: its {num_layers} decoder layers were not found")
    return decoder, layers


def _truncated(decoder: Any, count: int) -> nn.Module:
    """A view of ``decoder`` with its first ``count`` layers alone; the weights are shared."""
    trunk = copy.copy(decoder)
    trunk._modules = dict(decoder._modules)
    trunk._modules["layers"] = nn.ModuleList(list(decoder.layers)[:count])
    assert isinstance(trunk, nn.Module)
    return trunk


def _groups(spans: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Documents of like length together, so that little of a batch is padding."""
    group: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda span: span[0] - span[1]):
        real = sum(end - first for first, end in [*group, span])
        longest = max(end - first for first, end in [*group, span])
        if group and longest * (len(group) + 1) > _WASTE * real:
            yield group
            group = []
        group.append(span)
    if group:
        yield group

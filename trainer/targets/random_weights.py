"""Random weights at a named shape: for benchmarks and tests, never for a drafter that is to be used."""

from __future__ import annotations

import tokenizers
import torch

from trainer.config import TargetConfig
from trainer.shapes import TargetShape, shape_of
from trainer.targets.own import OwnTarget
from trainer.targets.transformer import Transformer
from trainer.tokenizer import Tokenizer

_SPECIAL = ("<|unknown|>", "<|user|>", "<|assistant|>", "<|end|>", "<|spare|>")
_TEMPLATE = (
    "{% for m in messages %}<|{{ 'assistant' if m.role == 'assistant' else 'user' }}|>{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def open_random(config: TargetConfig, device: torch.device, dtype: torch.dtype, num_taps: int) -> OwnTarget:
    """A target of the named shape whose weights a seed determines on each kind of device.

    Layers are full attention with q/k norms, also where the real model mixes in linear attention
    (Qwen3.6): times compare, texts mean nothing.
    """
    shape = shape_of(config)
    with torch.device("meta"):
        model = Transformer(shape, qk_norm=True)
    model = model.to(dtype).to_empty(device=device)
    model.tie()
    generator = torch.Generator(device).manual_seed(config.seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                # Outputs of size 1 whatever the width: at 0.02 a narrow model would hardly read its context.
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
            else:
                parameter.fill_(1.0)
    return OwnTarget(
        f"random:{shape.name}",
        model,
        byte_tokenizer(shape),
        digest=f"random:{config.seed}:{device.type}",
        num_taps=num_taps,
        mask_token_id=config.mask_token_id,
    )


def byte_tokenizer(shape: TargetShape) -> Tokenizer:
    """One token a byte, as many bytes as the vocabulary has room for, printable ASCII first."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    alphabet = alphabet[: shape.vocab_size - len(_SPECIAL)]
    vocabulary = {text: number for number, text in enumerate([*alphabet, *_SPECIAL])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[], unk_token=_SPECIAL[0]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in _SPECIAL])
    return Tokenizer(
        backend,
        chat_template=_TEMPLATE,
        end_ids=[vocabulary["<|end|>"]],
        named={"eos_token": "<|end|>", "unk_token": _SPECIAL[0]},
    )

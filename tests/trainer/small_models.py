"""Small models that tests make: a Hugging Face directory, and a GGUF file of the same weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<spare_a>", "<spare_b>"]


def byte_level_backend() -> tuple[tokenizers.Tokenizer, list[str]]:
    """A byte-level tokenizer with two merges and the control tokens, and its tokens in order."""
    tokens = [*CONTROL, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), "he", "Ġt"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[("h", "e"), ("Ġ", "t")]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in CONTROL])
    return backend, tokens


def save_model(folder: Path, kind: str, *, layers: int = 8, tied: bool = False) -> transformers.PreTrainedModel:
    """A random ``llama``, ``qwen3`` or ``qwen3_5`` of 8 layers with its tokenizer, saved in ``folder``."""
    backend, tokens = byte_level_backend()
    common = {
        "vocab_size": len(tokens),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        # Wide enough that the layers matter: at 0.02 every hidden state is nearly its embedding.
        "initializer_range": 0.3,
    }
    configs = {
        "llama": transformers.LlamaConfig,
        "qwen3": transformers.Qwen3Config,
        "qwen3_5": transformers.Qwen3_5TextConfig,
    }
    if kind == "qwen3_5":  # three of four layers are linear attention
        common |= {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        }
    config = configs[kind](**common)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML,
    )
    fast.save_pretrained(folder)
    return model.eval()


def save_gguf(path: Path, model: transformers.PreTrainedModel) -> None:
    """The ``llama`` as llama.cpp stores it: rows of the query and key projections in pairs."""
    config = model.config
    _, tokens = byte_level_backend()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROL else 1 for token in tokens])
    writer.add_token_merges(["h e", "Ġ t"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
    for name, array in _llama_cpp_tensors(model).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _llama_cpp_tensors(model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    names = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    state = {name: value.detach().float().numpy() for name, value in model.state_dict().items()}
    out = {"token_embd.weight": state["model.embed_tokens.weight"], "output_norm.weight": state["model.norm.weight"]}
    if not model.config.tie_word_embeddings:
        out["output.weight"] = state["lm_head.weight"]
    for layer in range(model.config.num_hidden_layers):
        for theirs, ours in names.items():
            array = state[f"model.layers.{layer}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):
                heads = array.shape[0] // model.config.head_dim
                halves = array.reshape(heads, 2, model.config.head_dim // 2, array.shape[1])
                array = halves.swapaxes(1, 2).reshape(array.shape)
            out[f"blk.{layer}.{ours}.weight"] = np.ascontiguousarray(array)
    return out

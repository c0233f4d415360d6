"""Targets: the right hidden states for packed documents, and real weights that write English."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.trainer.small_models import CONTROL, save_gguf, save_model
from trainer.batch import PackedBatch
from trainer.config import TargetConfig
from trainer.errors import ConfigError
from trainer.targets import open_target
from trainer.targets.generation import generate
from trainer.targets.gguf_file import unpermute_heads
from trainer.targets.interface import DecodableTarget, choose_mask_id

CPU = torch.device("cpu")
DOCUMENTS = [[7, 30, 31, 9], [8, 40], [100, 101, 102, 103, 104, 105, 106], [55, 56, 57]]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for rounding; a leak or a shift changes hidden states of this size by more than 1."""
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def pack(documents: list[list[int]], padding: int = 0) -> PackedBatch:
    tokens = [token for document in documents for token in document]
    return PackedBatch(
        epoch=0,
        index=0,
        tokens=torch.tensor(tokens + [0] * padding),
        position=torch.tensor([i for document in documents for i in range(len(document))] + [0] * padding),
        document=torch.tensor(
            [n for n, document in enumerate(documents) for _ in document] + [-1] * padding, dtype=torch.int32
        ),
        supervised=torch.tensor([True] * len(tokens) + [False] * padding),
        sample_ids=tuple(range(len(documents))),
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for kind in ("llama", "qwen3", "qwen3_5"):
        save_model(root / kind, kind)
    model = transformers.AutoModelForCausalLM.from_pretrained(root / "llama")
    save_gguf(root / "small.gguf", model)
    kinds = {kind: root / kind for kind in ("llama", "qwen3", "qwen3_5")}
    return {"root": root, **kinds, "gguf": root / "small.gguf"}


@pytest.fixture(params=["llama", "qwen3", "qwen3_5", "gguf", "random"])
def target(request: pytest.FixtureRequest, folders: dict[str, Path]) -> DecodableTarget:
    match request.param:
        case "gguf":
            config = TargetConfig(kind="smollm2-gguf", path=str(folders["gguf"]))
        case "random":
            config = TargetConfig(kind="random", shape="tiny")
        case kind:
            config = TargetConfig(kind="hf", path=str(folders[kind]))
    return open_target(config, CPU, torch.float32, 5)


def test_packed_documents_get_the_hidden_states_of_single_documents(target: DecodableTarget) -> None:
    packed = target.features(pack(DOCUMENTS, padding=5)).taps
    start = 0
    for document in DOCUMENTS:
        alone = target.features(pack([document])).taps
        close(packed[start : start + len(document)], alone)
        start += len(document)


def test_a_neighbour_changes_nothing_and_positions_restart(target: DecodableTarget) -> None:
    twice = target.features(pack([DOCUMENTS[2], DOCUMENTS[2]])).taps
    n = len(DOCUMENTS[2])
    close(twice[:n], twice[n:])
    other = target.features(pack([DOCUMENTS[2], DOCUMENTS[0]])).taps
    close(twice[:n], other[:n])


@pytest.mark.parametrize("kind", ["llama", "qwen3", "qwen3_5"])
def test_taps_are_the_states_after_the_named_layers(folders: dict[str, Path], kind: str) -> None:
    target = open_target(TargetConfig(kind="hf", path=str(folders[kind])), CPU, torch.float32, 5)
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[kind])
    with torch.no_grad():
        states = model(torch.tensor([DOCUMENTS[2]]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[number + 1][0] for number in target.tap_layers], dim=-1)  # [0] is the embedding
    torch.testing.assert_close(target.features(pack([DOCUMENTS[2]])).taps, expected)


@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_file_gives_the_model_that_it_was_written_from(tmp_path: Path, tied: bool) -> None:
    model = save_model(tmp_path / "model", "llama", tied=tied)
    save_gguf(tmp_path / "model.gguf", model)
    target = open_target(TargetConfig(path=str(tmp_path / "model.gguf")), CPU, torch.float32, 5)
    with torch.no_grad():
        expected = model(torch.tensor([DOCUMENTS[2]])).logits[0]
    found = target.logits(target.session(16).extend(DOCUMENTS[2]).hidden)
    keep = torch.arange(target.vocab_size) != target.mask_token_id
    close(found[:, keep], expected[:, keep])
    assert (target.lm_head().data_ptr() == target.embedding().data_ptr()) is tied


def test_unpermuting_restores_rows_head_by_head() -> None:
    rows = np.arange(8, dtype=np.float32)[:, None]  # two heads of four: 0..3 and 4..7
    pairs_side_by_side = rows[[0, 2, 1, 3, 4, 6, 5, 7]]
    assert unpermute_heads(pairs_side_by_side, 4)[:, 0].tolist() == list(range(8))


def test_a_gguf_file_with_tensors_not_understood_is_refused(tmp_path: Path, folders: dict[str, Path]) -> None:
    damaged = folders["gguf"].read_bytes().replace(b"blk.0.attn_q.weight", b"blk.0.attn_q.wibble")
    (tmp_path / "odd.gguf").write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"not understood.*attn_q\.wibble"):
        open_target(TargetConfig(path=str(tmp_path / "odd.gguf")), CPU, torch.float32, 5)


def test_a_cached_sequence_equals_a_whole_one_after_truncation(target: DecodableTarget) -> None:
    whole = target.session(16).extend(DOCUMENTS[2])
    session = target.session(16)
    session.extend(DOCUMENTS[2][:3])
    session.extend([1, 2, 3])
    session.truncate(3)
    tail = session.extend(DOCUMENTS[2][3:])
    assert session.length == len(DOCUMENTS[2])
    close(tail.hidden, whole.hidden[3:])
    close(tail.taps, whole.taps[3:])
    close(whole.taps, target.features(pack([DOCUMENTS[2]])).taps)


def test_a_cached_sequence_equals_a_whole_one_after_a_part_of_a_block(target: DecodableTarget) -> None:
    """As verification leaves it: the first tokens of the last block stay."""
    whole = target.session(16).extend(DOCUMENTS[2])
    session = target.session(16)
    session.extend(DOCUMENTS[2][:2])
    session.extend([*DOCUMENTS[2][2:4], 1, 2])
    session.truncate(4)
    session.extend([*DOCUMENTS[2][4:5], 3])
    session.truncate(5)
    tail = session.extend(DOCUMENTS[2][5:])
    close(tail.hidden, whole.hidden[5:])
    close(tail.taps, whole.taps[5:])


def test_a_transformers_that_forgets_linear_states_is_refused(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions did that began linear attention anew wherever several tokens came at once."""
    target = open_target(TargetConfig(kind="hf", path=str(folders["qwen3_5"])), CPU, torch.float32, 5)
    run = target.run_cached  # type: ignore[attr-defined]

    def forgets(cache: Any, **inputs: torch.Tensor) -> Any:
        fresh = transformers.DynamicCache(config=target.decoder.config)  # type: ignore[attr-defined]
        anew = cache.get_seq_length() > 0 and inputs["input_ids"].shape[1] > 1
        return run(fresh if anew else cache, **inputs)

    monkeypatch.setattr(target, "run_cached", forgets)
    with pytest.raises(ConfigError, match="does not continue linear attention"):
        target.session(16)


def test_texts_written_in_step_equal_texts_written_alone(target: DecodableTarget) -> None:
    together = generate(target, DOCUMENTS, 12)
    assert together == [generate(target, [document], 12)[0] for document in DOCUMENTS]
    for document, text in zip(DOCUMENTS, together, strict=True):
        session = target.session(64)
        hidden = session.extend(document).hidden[-1]
        expected: list[int] = []
        while len(expected) < 12 and not (expected and expected[-1] in target.tokenizer.end_ids):
            expected.append(int(target.logits(hidden).argmax()))
            hidden = session.extend(expected[-1:]).hidden[-1]
        assert text == expected


def test_drawn_texts_depend_on_their_own_seed_alone(target: DecodableTarget) -> None:
    def draw(seeds: list[int]) -> list[list[int]]:
        return generate(target, [DOCUMENTS[0]] * len(seeds), 8, temperature=2.0, seeds=seeds)

    first = draw([1, 2, 3])
    assert draw([3, 1]) == [first[2], first[0]]
    assert len({tuple(text) for text in first}) > 1


def test_the_mask_is_never_read_and_never_written(target: DecodableTarget) -> None:
    mask = target.mask_token_id
    assert mask < target.vocab_size
    assert mask not in target.tokenizer.used_ids
    text = "a text that names <spare_b>, <|spare|> and <|im_end|>"
    ids = target.tokenizer.encode_text(text)
    assert mask not in ids
    assert not target.tokenizer.end_ids & set(ids)
    assert target.tokenizer.decode(ids) == text
    hidden = target.embedding()[mask] * 1e6  # as strong a wish for MASK as can be
    assert int(target.logits(hidden).argmax()) != mask


def test_a_mask_that_is_in_use_is_refused(folders: dict[str, Path]) -> None:
    target = open_target(TargetConfig(kind="hf", path=str(folders["llama"])), CPU, torch.float32, 5)
    assert target.mask_token_id == CONTROL.index("<spare_b>")
    assert choose_mask_id(target.tokenizer, target.vocab_size, CONTROL.index("<spare_a>")) == 3
    for used in (CONTROL.index("<|im_end|>"), 50, target.vocab_size):
        with pytest.raises(ConfigError, match="mask_token_id"):
            choose_mask_id(target.tokenizer, target.vocab_size, used)
    assert choose_mask_id(target.tokenizer, target.vocab_size + 64) == target.vocab_size  # a spare row first


def test_identity_names_the_content(folders: dict[str, Path], tmp_path: Path) -> None:
    config = TargetConfig(kind="hf", path=str(folders["llama"]))
    first = open_target(config, CPU, torch.float32, 5)
    assert first.identity() == open_target(config, CPU, torch.float32, 5).identity()
    other = save_model(tmp_path / "llama", "llama")
    assert other.config.hidden_size == first.shape.hidden_size
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    other.save_pretrained(tmp_path / "llama")
    changed = open_target(msgspec.structs.replace(config, path=str(tmp_path / "llama")), CPU, torch.float32, 5)
    assert changed.name == first.name
    assert changed.identity()["weights"] != first.identity()["weights"]
    assert changed.identity()["tokenizer"] == first.identity()["tokenizer"]


def test_random_weights_say_so_and_follow_their_seed() -> None:
    config = TargetConfig(kind="random", shape="tiny")
    first, again = (open_target(config, CPU, torch.float32, 5) for _ in range(2))
    assert first.name == "random:tiny"
    torch.testing.assert_close(first.lm_head(), again.lm_head(), rtol=0, atol=0)
    other = open_target(TargetConfig(kind="random", shape="tiny", seed=1), CPU, torch.float32, 5)
    assert other.identity() != first.identity()


def _without_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _of_another_shape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    weights[name] = weights[name][:-8].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _as_a_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def until_end(name: str, size: int) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        os.truncate(folder / name, size if size >= 0 else (folder / name).stat().st_size + size)

    return cut


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_a_weight, r"holds no weights for model\.layers\.0\.self_attn\.q_proj\.weight \(1 missing\)"),
        (_of_another_shape, "cannot load"),
        (_as_a_pickle, "cannot load.*safetensors"),
        (until_end("model.safetensors", -1000), "cannot load.*incomplete"),
        (until_end("model.safetensors", 0), "cannot load"),
        (until_end("config.json", 50), "cannot load"),
        (until_end("generation_config.json", 5), "cannot load"),
        (until_end("tokenizer.json", 50), "cannot load"),
    ],
)
def test_a_damaged_model_is_refused(
    folders: dict[str, Path], tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    """Missing weights above all: transformers leaves them random, and the drafter would learn noise."""
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    damage(folder)
    with pytest.raises(ConfigError, match=message):
        open_target(TargetConfig(kind="hf", path=str(folder)), CPU, torch.float32, 5)


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_a_truncated_gguf_file_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "small.gguf"
    save_gguf(path, save_model(tmp_path / "llama", "llama"))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(ConfigError, match=r"cannot read small\.gguf as GGUF"):
        open_target(TargetConfig(path=str(path)), CPU, torch.float32, 5)


def test_a_wheel_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=r"cannot read a\.whl as a wheel"):
        open_target(TargetConfig(path=str(tmp_path / "a.whl")), CPU, torch.float32, 5)


def test_a_missing_model_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        open_target(TargetConfig(path=str(tmp_path / "none.gguf")), CPU, torch.float32, 5)
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_target(TargetConfig(kind="hf", path=str(tmp_path)), CPU, torch.float32, 5)

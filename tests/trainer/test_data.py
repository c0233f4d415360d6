"""The data set: labels where they belong, an order that (seed, epoch) decide, and no line lost in silence."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.trainer.small_models import CHATML, byte_level_backend
from trainer.config import Config, DataConfig, TargetConfig
from trainer.data import Dataset, documents, inspect, open_dataset
from trainer.data.packing import pack_epoch
from trainer.errors import ConfigError
from trainer.tokenizer import TextError, Tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say the word."},
    {"role": "assistant", "content": "The word."},
    {"role": "user", "content": "Again?"},
    {"role": "assistant", "content": "he he"},
]


def make_tokenizer(template: str | None = CHATML) -> Tokenizer:
    backend, _ = byte_level_backend()
    return Tokenizer(backend, chat_template=template, end_ids=[2], named={"bos_token": "<|im_start|>"})


def write(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def config_for(tmp_path: Path, *paths: Path, **values: Any) -> DataConfig:
    values = {"token_budget": 64, "max_batch_size": 8} | values
    return DataConfig(paths=tuple(map(str, paths)), cache_dir=str(tmp_path / "cache"), **values)


def texts(count: int, seed: int = 0) -> list[dict[str, str]]:
    generator = np.random.default_rng(seed)
    return [{"text": chr(97 + n % 26) * int(generator.integers(2, 40))} for n in range(count)]


# Labels


def test_responses_and_their_end_are_labels_and_nothing_else() -> None:
    tokenizer = make_tokenizer()
    ids, supervised = tokenizer.encode_chat(CHAT)
    labelled = [token for token, label in zip(ids, supervised, strict=True) if label]
    assert tokenizer.decode(labelled, keep_special=True) == "The word.<|im_end|>he he<|im_end|>"
    assert tokenizer.decode(ids, keep_special=True).endswith("<|im_start|>assistant\nhe he<|im_end|>\n")


def test_a_response_begins_where_a_prompt_ends() -> None:
    tokenizer = make_tokenizer()
    ids, supervised = tokenizer.encode_chat(CHAT)
    for number in (2, 4):
        prompt = tokenizer.encode_prompt(CHAT[:number])
        assert ids[: len(prompt)] == prompt
        assert supervised[len(prompt)]
        assert not supervised[len(prompt) - 1]


def test_a_token_across_the_boundary_belongs_to_the_prompt() -> None:
    template = CHATML.replace("<|im_start|>assistant\\n", "<|im_start|>assistant h")
    template = template.replace("m.role + '\\n' + m.content", "m.role + ' h' + m.content")
    tokenizer = make_tokenizer(template)
    ids, supervised = tokenizer.encode_chat(
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "ex"}]
    )
    labelled = [token for token, label in zip(ids, supervised, strict=True) if label]
    assert tokenizer.decode(labelled, keep_special=True) == "x<|im_end|>"  # "he" is one token


def labels_by_definition(chat: Sequence[dict[str, str]], cut: bool) -> tuple[list[int], list[bool]]:
    """A token is a label if it begins in a response or is the end token after it."""
    backend, _ = byte_level_backend()
    text, spans = "", []
    for message in chat:
        text += f"<|im_start|>{message['role']}\n"
        begin = len(text)
        text += message["content"] + "<|im_end|>"
        if message["role"] == "assistant":
            spans.append((begin, len(text)))
        text += "\n"
    encoding = backend.encode(text, add_special_tokens=False)
    labels = [any(begin <= first < end for begin, end in spans) for first, _ in encoding.offsets]
    kept = max(index for index, label in enumerate(labels) if label) if cut else len(labels)
    return encoding.ids[:kept], labels[:kept]


CONTENTS = st.text(st.sampled_from("he Ttx\nöé☃🦊"), min_size=1, max_size=12)
CHATS = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), CONTENTS), min_size=1, max_size=5).map(
    lambda chat: [{"role": role, "content": content} for role, content in [*chat, ("assistant", "the end")]]
)


@settings(max_examples=80, deadline=None)
@given(chats=st.lists(st.tuples(CHATS, st.booleans()), max_size=5))
def test_labels_are_those_of_their_definition_one_by_one_and_many_at_once(
    chats: list[tuple[list[dict[str, str]], bool]],
) -> None:
    tokenizer = make_tokenizer()
    wanted = [labels_by_definition(chat, cut) for chat, cut in chats]
    assert tokenizer.encode_chats(chats) == wanted
    assert [tokenizer.encode_chat(chat, cut=cut) for chat, cut in chats] == wanted


def test_a_chat_that_cannot_be_encoded_leaves_the_others_in_place(tmp_path: Path) -> None:
    question = CHAT[1]
    lines: list[dict[str, object]] = [
        {"messages": [question, {"role": "assistant", "content": f"a{n}"}]} for n in range(600)
    ]
    for number in (0, 255, 256, 599):
        lines[number] = {"messages": [question]}
    lines[300] = {"text": "text"}
    path = write(tmp_path / "a.jsonl", lines)
    tokenizer = make_tokenizer()
    found = list(documents.read_documents([path], tokenizer))
    assert [one.line for one in found if isinstance(one, documents.BadLine)] == [1, 256, 257, 600]
    for number, one in enumerate(found):
        if isinstance(one, documents.Document):
            labelled = [token for token, label in zip(one.tokens, one.supervised, strict=True) if label]
            wanted = "text" if number == 300 else f"a{number}<|im_end|>"
            assert tokenizer.decode(labelled, keep_special=True) == wanted


def test_size_and_digest_are_found_once() -> None:
    """Each costs tens of milliseconds with a real vocabulary, and lines that carry their tokens ask for both."""
    tokenizer = make_tokenizer()
    assert tokenizer.digest is tokenizer.digest
    assert tokenizer.digest == make_tokenizer().digest
    with pytest.MonkeyPatch.context() as patch:
        assert tokenizer.size == len(byte_level_backend()[1])
        patch.setattr(tokenizer, "_backend", None)
        assert tokenizer.size == len(byte_level_backend()[1])


def test_a_response_that_was_broken_off_has_no_end_token(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    ids, supervised = tokenizer.encode_chat(CHAT, cut=True)
    assert tokenizer.decode(ids, keep_special=True).endswith("<|im_start|>assistant\nhe he")
    labelled = [token for token, label in zip(ids, supervised, strict=True) if label]
    assert tokenizer.decode(labelled, keep_special=True) == "The word.<|im_end|>he he"
    lines = [{"messages": CHAT, "finish": finish} for finish in ("stop", "length")]
    config = config_for(tmp_path, write(tmp_path / "a.jsonl", lines), token_budget=256)
    whole, cut = open_dataset(config, tokenizer).cache.lengths.tolist()
    assert (whole, cut) == (len(ids) + 2, len(ids))  # the end token and the line break after it


def test_all_of_a_text_is_labels(tmp_path: Path) -> None:
    dataset = open_dataset(config_for(tmp_path, write(tmp_path / "a.jsonl", [{"text": "the end"}])), make_tokenizer())
    batch = dataset.batch(0, 0)
    assert batch.supervised.tolist() == (batch.document >= 0).tolist()


@pytest.mark.parametrize(
    ("template", "messages", "reason"),
    [
        (CHATML, CHAT[:2], "no message of the assistant"),
        (CHATML, [{"role": "user", "content": "a <|im_end|> b"}, CHAT[2]], r"control token <\|im_end\|>"),
        (None, CHAT, "no chat template"),
        (CHATML.replace("<|im_end|>", ""), CHAT, "no end token"),
        ("{{ raise_exception('roles must alternate') }}", CHAT, "roles must alternate"),
        ("{{ messages | length }}" + CHATML, CHAT, "rewrites what precedes message 2"),
    ],
)
def test_chats_that_cannot_be_encoded_faithfully_say_why(
    template: str | None, messages: list[dict[str, str]], reason: str
) -> None:
    with pytest.raises(TextError, match=reason):
        make_tokenizer(template).encode_chat(messages)


def test_truncation_in_a_tokenizer_file_is_not_obeyed() -> None:
    backend, _ = byte_level_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(backend.to_str()), chat_template=None, end_ids=[2])
    assert tokenizer.decode(tokenizer.encode_text("longer than three tokens")) == "longer than three tokens"


# Lines


LONG_NUMBER = (
    "not JSON that can be read: Exceeds the limit (4300 digits) for integer string conversion: "
    "value has 5000 digits; use sys.set_int_max_str_digits() to increase the limit"
)


def test_every_bad_line_is_named_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    lines: list[tuple[bytes, str | None]] = [
        (b'{"text": "good text"}', None),
        (b"{broken", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        (b'"a string"', "a str, not an object"),
        (b"", "an empty line"),
        (b"[" * 100_000, "JSON nested too deep"),
        (b'{"txt": "x"}', "none of the keys messages, conversations, text"),
        (b'{"text": "  "}', "text is empty"),
        (b'{"text": 5}', "text is not a string"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b"\0\0\0\0", "not JSON: Expecting value at column 1"),
        (b'{"text": "a\0b"}', "not JSON: Invalid control character at at column 12"),
        (b'{"text": "x", "n": ' + b"9" * 5000 + b"}", LONG_NUMBER),
        (b'{"text": "\\ud800"}', "text holds half a surrogate pair"),
        (b'{"messages": []}', "messages is not a list of messages"),
        (b'{"messages": ["x"]}', "messages[0] is not an object"),
        (b'{"messages": [{"content": "x"}]}', "messages[0] has no role"),
        (b'{"messages": [{"role": "user", "content": null}]}', "messages[0].content is not a string"),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}',
            "messages[0] holds something other than text",
        ),
        (b'{"messages": [{"role": "user", "content": "x"}]}', "no message of the assistant: nothing to learn from"),
        (b'{"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "yes"}]}', None),
        (b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}, '
         b'{"role": "assistant", "content": "yes"}]}', None),
    ]  # fmt: skip
    path.write_bytes(b"".join(line + b"\n" for line, _ in lines))
    report = open_dataset(config_for(tmp_path, path), make_tokenizer()).report
    expected = [f"{path}:{number}: {why}" for number, (_, why) in enumerate(lines, start=1) if why]
    assert [str(bad) for bad in report.bad_lines] == expected
    assert report.counts.documents == 3
    assert report.counts.lines == len(lines) == report.counts.documents + len(expected)
    assert any(str(report.bad_lines[0]) in line for line in report.lines())


def test_long_documents_are_cut_and_counted_and_untrainable_ones_dropped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "a" * 100}, {"text": "bcd"}, {"text": "x"}, {"text": "de"}])
    dataset = open_dataset(config_for(tmp_path, path, max_length=10), make_tokenizer())
    counts = dataset.report.counts
    assert (counts.lines, counts.documents, counts.truncated, counts.untrainable) == (4, 3, 1, 1)
    assert sorted(dataset.cache.lengths.tolist()) == [2, 3, 10]
    assert counts.tokens == counts.supervised == 15


def test_a_single_document_of_a_megabyte_is_one_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "word " * 200_000}])
    dataset = open_dataset(config_for(tmp_path, path), make_tokenizer())
    assert (dataset.report.counts.documents, dataset.report.counts.truncated) == (1, 1)
    assert dataset.num_batches(0) == 1
    assert bool((dataset.batch(0, 0).document == 0).all())


def test_a_response_past_the_cut_leaves_an_untrainable_document(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": CHAT}, {"text": "abc"}])
    counts = open_dataset(config_for(tmp_path, path, max_length=12), make_tokenizer()).report.counts
    assert (counts.documents, counts.truncated, counts.untrainable) == (1, 1, 1)


def test_nothing_to_train_on_is_an_error_that_names_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl:1: not JSON"):
        open_dataset(config_for(tmp_path, path), make_tokenizer())
    with pytest.raises(ConfigError, match=r"data\.paths is empty"):
        open_dataset(config_for(tmp_path), make_tokenizer())
    with pytest.raises(ConfigError, match="cannot read"):
        open_dataset(config_for(tmp_path, tmp_path / "missing.jsonl"), make_tokenizer())


# The cache


def stamp(dataset: Dataset) -> tuple[Path, int]:
    return dataset.cache.folder, (dataset.cache.folder / "meta.json").stat().st_mtime_ns


def test_a_cache_is_used_again_and_a_changed_source_or_tokenizer_makes_another(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", texts(20))
    config = config_for(tmp_path, path)
    first = open_dataset(config, make_tokenizer())
    again = open_dataset(config, make_tokenizer())
    assert stamp(again) == stamp(first)
    assert again.digest == first.digest
    other_template = open_dataset(config, make_tokenizer(CHATML + " "))
    shorter = open_dataset(msgspec.structs.replace(config, max_length=9), make_tokenizer())
    write(path, [*texts(20), {"text": "more"}])
    changed = open_dataset(config, make_tokenizer())
    assert len({dataset.cache.folder for dataset in (first, other_template, shorter, changed)}) == 4
    assert changed.report.counts.lines == 21


@pytest.mark.parametrize("damage", ["tokens.bin", "supervised.bin", "offsets.bin", "meta.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_a_damaged_cache_is_built_again(
    tmp_path: Path, damage: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_for(tmp_path, write(tmp_path / "a.jsonl", texts(20)))
    first = open_dataset(config, make_tokenizer())
    expected = [first.batch(0, index).tokens.clone() for index in range(first.num_batches(0))]
    file = first.cache.folder / damage
    content = bytearray(file.read_bytes())
    file.unlink()
    if how != "gone":
        content[len(content) // 2] ^= 1
        file.write_bytes(content if how == "flip" else content[: len(content) // 2])
    again = open_dataset(config, make_tokenizer())
    assert "damaged" in caplog.text
    assert all(torch.equal(again.batch(0, index).tokens, row) for index, row in enumerate(expected))
    assert not list((tmp_path / "cache").glob(".*.tmp"))


def _open_in_process(config: DataConfig) -> tuple[str, int]:
    folder, built = stamp(open_dataset(config, make_tokenizer()))
    return str(folder), built


def test_ranks_that_start_together_build_one_cache(tmp_path: Path) -> None:
    config = config_for(tmp_path, write(tmp_path / "a.jsonl", texts(200)))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(_open_in_process, [config] * 4, chunksize=1)
    assert len(set(found)) == 1


# Packing and order


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=80),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 10),
    most=st.integers(1, 9),
    allowed=st.sampled_from([(64,), (16, 64), (8, 24, 64)]),
)
def test_every_document_is_packed_once_within_all_limits(
    lengths: list[int], seed: int, epoch: int, most: int, allowed: tuple[int, ...]
) -> None:
    array = np.array(lengths)
    rows = pack_epoch(array, seed=seed, epoch=epoch, allowed=allowed, max_documents=most)
    assert sorted(number for row in rows for number in row.documents) == list(range(len(lengths)))
    for row in rows:
        used = int(array[list(row.documents)].sum())
        assert row.length == min(length for length in allowed if length >= used)
        assert 1 <= len(row.documents) <= most
    assert rows == pack_epoch(array, seed=seed, epoch=epoch, allowed=allowed, max_documents=most)


def test_packing_leaves_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(50, 2000, 4000)
    rows = pack_epoch(lengths, seed=0, epoch=0, allowed=(8192,), max_documents=64)
    assert lengths.sum() / sum(row.length for row in rows) > 0.97


def test_the_order_is_a_pure_function_of_seed_and_epoch(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", texts(60))
    config = config_for(tmp_path, path, seed=3)

    def ids(dataset: Dataset, epoch: int) -> list[tuple[int, ...]]:
        return [dataset.batch(epoch, index).sample_ids for index in range(dataset.num_batches(epoch))]

    first = open_dataset(config, make_tokenizer())
    fresh = open_dataset(config, make_tokenizer())
    assert ids(fresh, 5) == ids(first, 5)  # with no epoch before it, as after a resume
    assert ids(first, 0) != ids(first, 1)
    other = open_dataset(msgspec.structs.replace(config, seed=4), make_tokenizer())
    assert ids(other, 0) != ids(first, 0)
    assert other.digest != first.digest
    assert fresh.digest == first.digest
    wider = open_dataset(msgspec.structs.replace(config, token_budget=128), make_tokenizer())
    assert wider.digest != first.digest


def test_a_packed_row_holds_its_documents_with_positions_that_restart(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    sources = texts(30)
    config = config_for(tmp_path, write(tmp_path / "a.jsonl", sources), length_buckets=(32, 64))
    dataset = open_dataset(config, tokenizer)
    seen = []
    for index in range(dataset.num_batches(0)):
        batch = dataset.batch(0, index)
        assert batch.length in (32, 64)
        assert (batch.tokens.dtype, batch.document.dtype) == (torch.int64, torch.int32)
        for order, number in enumerate(batch.sample_ids):
            where = batch.document == order
            assert batch.position[where].tolist() == list(range(int(where.sum())))
            assert tokenizer.decode(batch.tokens[where].tolist()) == sources[number]["text"]
            seen.append(number)
        padding = batch.document == -1
        assert not batch.supervised[padding].any()
        assert not batch.tokens[padding].any()
    assert sorted(seen) == list(range(30))
    with pytest.raises(IndexError):
        dataset.batch(0, dataset.num_batches(0))


def test_inspect_shows_counts_lengths_and_bad_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*texts(40), {"text": ""}])
    config = Config(target=TargetConfig(kind="random", shape="tiny"), data=config_for(tmp_path, path))
    console = Console(record=True, width=160)
    inspect.run(config, console)
    text = console.export_text()
    assert "a.jsonl:41" in text
    assert "text is empty" in text
    assert "packing efficiency" in text
    assert "█" in text

"""Lightning's hparams.yaml: plain values come out, and nothing that a tag names is built."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from envguard.acquire.runs.checkpoint_search import find_checkpoints
from envguard.acquire.runs.hparams import find_hparams, parse_hparams
from envguard.acquire.seam.host import LiveHost

REAL = b"""\
batch_size: 64
lr: 0.0006
name: 'it''s a run'
quoted: "a \\"b\\""
empty:
note: plain # with a comment
optimizer: !!python/name:torch.optim.adamw.AdamW ''
boom: !!python/object/apply:os.system ['touch /tmp/envguard-was-here']
config: !!python/object:argparse.Namespace
  hidden: 1
  lr: 99
paths: &id001
- a
- lr: 98
again: *id001
text: |
  lr: 97
inline: {lr: 96}
bf16: true
"""


def test_plain_values_are_read_and_no_tag_is_constructed() -> None:
    found = parse_hparams("hparams.yaml", REAL)
    assert found.values == {
        "batch_size": "64",
        "lr": "0.0006",
        "name": "it's a run",
        "quoted": 'a "b"',
        "note": "plain",
        "bf16": "true",
    }
    assert found.skipped == 8
    assert not Path("/tmp/envguard-was-here").exists()


def test_what_is_no_yaml() -> None:
    assert parse_hparams("x", b"\xff\xfe\x00\x01").values == {}
    assert parse_hparams("x", b"").values == {}


def test_it_is_found_beside_the_checkpoints_folder(tmp_path: Path) -> None:
    folder = tmp_path / "lightning_logs" / "version_0"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "epoch=1-step=10.ckpt").write_bytes(b"")
    (checkpoint,) = find_checkpoints(LiveHost(), [str(tmp_path)]).found
    assert find_hparams(LiveHost(), checkpoint) is None
    (folder / "hparams.yaml").write_bytes(REAL)
    found = find_hparams(LiveHost(), checkpoint)
    assert found is not None
    assert found.path == str(folder / "hparams.yaml")


MANY = 1 << 19


@pytest.mark.parametrize(
    "line",
    ["a: " + "  " * MANY + "b", "a: b" + "  " * MANY, "a: b" + " \t" * MANY + "#", "aa" * MANY,
     "a: '" + "''" * MANY, 'a: "' + '\\"' * MANY],
)  # fmt: skip
def test_a_line_of_a_megabyte(line: str) -> None:
    began = time.process_time()
    parse_hparams("hparams.yaml", line.encode())
    assert time.process_time() - began < 5

"""Files of a checkpoint that are not whole by what they name themselves; other formats are not judged."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard.acquire.runs.checkpoint_content import examined
from envguard.acquire.runs.checkpoints import read_checkpoint
from envguard.acquire.seam.host import LiveHost
from tests.counting import CountingHost


def tensors(size: int = 5000) -> bytes:
    """A safetensors file of two tensors."""
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "b": {"dtype": "U8", "shape": [size], "data_offsets": [size, 2 * size]},
            "a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(2 * size)


def zipped(comment: bytes = b"") -> bytes:
    """A file as torch.save writes it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/data/0", bytes(9000))
        archive.comment = comment
    return stream.getvalue()


def index(*shards: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": {f"layer.{n}": name for n, name in enumerate(shards)}}).encode()


def why(path: Path) -> str | None:
    found = read_checkpoint(LiveHost(), str(path))
    assert found is not None
    return examined(LiveHost(), found).incomplete


def put(path: Path, **files: bytes) -> Path:
    path.mkdir(parents=True)
    for name, data in files.items():
        (path / name.replace("__", ".")).write_bytes(data)
    return path


CUT: dict[str, tuple[str, bytes]] = {
    "tensors": ("model.safetensors", tensors()[:-1]),
    "header": ("model.safetensors", tensors()[:60]),
    "no tensor at all": ("adapter_model.safetensors", tensors()[: -2 * 5000]),
    "pt": ("model.pt", zipped()[:-30]),
    "ckpt": ("w.ckpt", zipped()[:4000]),
    "pth": ("w.pth", zipped()[:200]),
    "bin": ("pytorch_model.bin", zipped()[:-1000]),
    "optimizer": ("optimizer.pt", zipped()[:5000]),
    "zeros after a crash": ("model.pt", zipped()[:4000] + bytes(5000)),
}
WHOLE: dict[str, tuple[str, bytes]] = {
    "tensors": ("model.safetensors", tensors()),
    "an index is appended": ("model.safetensors", tensors() + b"padding"),
    "pt": ("model.pt", zipped()),
    "a comment after the end": ("model.pt", zipped(b"c" * 3000)),
    "a pickle of an old torch": ("model.pt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(400)),
    "no safetensors": ("model.safetensors", b"w" * 200),
    "less than a header": ("model.safetensors", b"w"),
    "a header that is no JSON": ("model.safetensors", struct.pack("<Q", 9) + b"{nothing}" + bytes(50)),
    "odd offsets": ("model.safetensors", struct.pack("<Q", 30) + b'{"a": {"data_offsets": [null]}}'[:30] + bytes(9)),
    "a tar": ("w.tar", b"tar" * 300),
    "shards of DCP": ("__0_0.distcp", zipped()[:2000]),
}


@pytest.mark.parametrize("case", CUT)
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, case: str) -> None:
    name, data = CUT[case]
    folder = put(tmp_path / "run/step_5", **{"weights__ckpt": zipped(), ".metadata": b"m"})
    (folder / name).write_bytes(data)
    assert (why(folder) or "").startswith(name)
    alone = tmp_path / f"step_5_{name}"
    alone.write_bytes(data)
    assert alone.name in (why(alone) or "")


@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_file_and_one_of_another_format_are_no_fault(tmp_path: Path, case: str) -> None:
    name, data = WHOLE[case]
    folder = put(tmp_path / "run/step_5", **{"weights__ckpt": zipped(), ".metadata": b"m"})
    (folder / name).write_bytes(data)
    assert why(folder) is None
    alone = tmp_path / f"step_5_{name}"
    alone.write_bytes(data)
    assert why(alone) is None


@pytest.mark.parametrize(
    ("name", "shards", "there", "missing"),
    [
        ("model.safetensors.index.json", ("a.safetensors", "b.safetensors"), ("a.safetensors",), "b.safetensors"),
        (
            "model.safetensors.index.json",
            ("a.safetensors", "b.safetensors"),
            ("a.safetensors", "b.safetensors"),
            None,
        ),
        ("pytorch_model.bin.index.json", ("x.bin", "y.bin"), ("y.bin",), "x.bin"),
        ("diffusion_pytorch_model.safetensors.index.json", ("p.safetensors",), ("q.safetensors",), "p.safetensors"),
    ],
)
def test_a_shard_that_an_index_names_and_that_is_gone(
    tmp_path: Path, name: str, shards: tuple[str, ...], there: tuple[str, ...], missing: str | None
) -> None:
    folder = put(tmp_path / "checkpoint-5")
    (folder / name).write_bytes(index(*shards))
    for each in there:
        (folder / each).write_bytes(b"w" * 50)
    assert why(folder) == (f"{missing} is missing, which {name} names" if missing else None)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"weight_map": 3}', b'{"weight_map": {"a": null}}'])
def test_an_index_of_any_content_is_read(tmp_path: Path, data: bytes) -> None:
    folder = put(tmp_path / "checkpoint-5", model__safetensors=tensors(), model__safetensors__index__json=data)
    assert why(folder) == ("model.safetensors.index.json is no JSON" if data == b"{" else None)


def test_a_copy_in_another_form_does_not_make_the_weights_incomplete(tmp_path: Path) -> None:
    folder = put(tmp_path / "checkpoint-5", model__safetensors=tensors(), pytorch_model__bin=zipped()[:900])
    assert why(folder) is None


@pytest.mark.parametrize("make", [tensors, zipped], ids=["safetensors", "zip"])
def test_some_bytes_of_a_file_are_read(tmp_path: Path, make: Callable[[], bytes]) -> None:
    host = CountingHost()
    path = tmp_path / ("step_5.safetensors" if make is tensors else "step_5.pt")
    path.write_bytes(make() if make is zipped else tensors(1 << 20))
    found = read_checkpoint(host, str(path))
    assert found is not None
    before = host.asked["read"]
    assert examined(host, found).incomplete is None
    assert host.asked["read"] - before <= 3

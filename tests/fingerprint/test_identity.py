"""What a fingerprint says about itself: its id, and that it is as it was written."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from envguard.acquire.runs.stamps import Altered, parse_fingerprint
from envguard.model import plain
from envguard.model.fingerprint import Driver, Gpu, Package, Python, Torch
from envguard.model.identity import fingerprint_id, sealed
from tests.fingerprint.made import fingerprint, gpu, package

PYTHON = Python(
    implementation="CPython",
    version="3.11.7",
    abi="cpython-311-x86_64-linux-gnu",
    platform="linux-x86_64",
    prefix="/a/.venv",
    executable="/a/.venv/bin/python",
    base="/usr",
    kind="venv",
)
PACKAGES = (
    Package(name="numpy", version="2.4.6", build="a" * 64, installer="uv", location="/a/site"),
    Package(name="torch", version="2.11.0", build="b" * 64, installer="uv", location="/a/site"),
)
TORCH = Torch(
    version="2.11.0+cu128",
    metadata_version="2.11.0",
    git_version="abc",
    cuda="12.8",
    hip=None,
    debug=False,
    libraries={"libtorch.so": "11"},
    triton="3.6.0",
    ptxas={},
    torch_key=None,
    cache_tag=None,
)
DRIVER = Driver(version="595.71.05", kernel_module="595.71.05", cuda="13.2", agrees=True)
GPU = Gpu(
    index=0,
    name="NVIDIA H200",
    uuid_digest="1",
    memory_bytes=150,
    compute_capability="9.0",
    mig=None,
    ecc=True,
    power_limit_w=700.0,
    p2p={},
    context_bytes=None,
    refused={},
)


def made(
    python: Python = PYTHON,
    packages: tuple[Package, ...] = PACKAGES,
    torch: Torch | None = TORCH,
    driver: Driver | None = DRIVER,
    gpus: tuple[Gpu, ...] | None = (GPU, GPU),
) -> str:
    return fingerprint_id(python, packages, torch, driver, gpus)


def with_package(index: int, **changes: object) -> tuple[Package, ...]:
    packages = list(PACKAGES)
    packages[index] = msgspec.structs.replace(packages[index], **changes)
    return tuple(packages)


def test_it_is_one_word() -> None:
    assert made().startswith("eg1-")
    assert len(made()) == 24
    int(made().removeprefix("eg1-"), 16)


@pytest.mark.parametrize(
    "other",
    [
        lambda: made(python=msgspec.structs.replace(PYTHON, version="3.11.8")),
        lambda: made(python=msgspec.structs.replace(PYTHON, abi="cpython-313t-x86_64-linux-gnu")),
        lambda: made(python=msgspec.structs.replace(PYTHON, implementation="PyPy")),
        lambda: made(python=msgspec.structs.replace(PYTHON, platform="linux-aarch64")),
        lambda: made(packages=with_package(1, build="c" * 64)),
        lambda: made(packages=with_package(1, version="2.11.1")),
        lambda: made(packages=PACKAGES[:1]),
        lambda: made(packages=with_package(0, editable="/src")),
        lambda: made(torch=msgspec.structs.replace(TORCH, version="2.11.0+cu130")),
        lambda: made(torch=msgspec.structs.replace(TORCH, git_version="def")),
        lambda: made(torch=msgspec.structs.replace(TORCH, cuda="13.0")),
        lambda: made(torch=msgspec.structs.replace(TORCH, triton="3.6.1")),
        lambda: made(torch=None),
        lambda: made(driver=msgspec.structs.replace(DRIVER, version="595.84")),
        lambda: made(driver=None),
        lambda: made(gpus=(GPU,)),
        lambda: made(gpus=(GPU, msgspec.structs.replace(GPU, name="NVIDIA L4"))),
        lambda: made(gpus=()),
        lambda: made(gpus=None),
    ],
)
def test_what_it_covers(other: Callable[[], str]) -> None:
    assert other() != made()


@pytest.mark.parametrize(
    "same",
    [
        lambda: made(python=msgspec.structs.replace(PYTHON, prefix="/b", executable=None, base="/opt", kind="conda")),
        lambda: made(packages=PACKAGES[::-1]),
        lambda: made(
            packages=with_package(0, installer="pip", location="/b", installed_at="2026-05-18T00:00:00+00:00")
        ),
        lambda: made(packages=with_package(0, depth="deep", files=3, bytes=9, requires=("x",))),
        lambda: made(gpus=(msgspec.structs.replace(GPU, index=1, uuid_digest="2", power_limit_w=600.0), GPU)),
        lambda: made(driver=msgspec.structs.replace(DRIVER, kernel_module=None, agrees=None)),
    ],
)
def test_what_it_leaves_out(same: Callable[[], str]) -> None:
    assert same() == made()


def test_an_editable_install_counts_without_its_record() -> None:
    """Its RECORD lists a .pth that holds the path of the source."""
    here = made(packages=with_package(0, editable="/home/a/src", build="1" * 64))
    assert here == made(packages=with_package(0, editable="/home/b/src", build="2" * 64))


def test_a_version_that_is_no_text_has_an_id() -> None:
    assert made(packages=with_package(0, version="1.0\udce9")) == made(packages=with_package(0, version="1.0\udce9"))
    assert made(packages=with_package(0, version="1.0\udce9")) != made(packages=with_package(0, version="1.0\udcea"))


def test_the_id_is_promised() -> None:
    """Version 1: this very value must stay, or every stamp in the world is of another environment."""
    assert made() == "eg1-113ed5f30256d5b66a74"


def test_a_fingerprint_that_was_written_and_read_is_believed() -> None:
    """Strings that are no text are spelled out in files; the id must be that of what is read back."""
    versions = ("1.0", "1.0\udce9", "1.0\ue000", "é")
    packages = tuple(package("name", version, build="b") for version in versions)
    taken = fingerprint(*packages, gpus=(gpu(0, name="A\udcff"), gpu(1, name="A\uff00"), gpu(2, name=None)))
    read = parse_fingerprint(plain.encode(sealed(taken)))
    assert (read.id, read.checksum) == (taken.id, sealed(taken).checksum)


def test_how_it_is_laid_out_does_not_matter() -> None:
    """A program that prints it anew has not edited it; a word of a newer version counts as one that was written."""
    stored = msgspec.json.decode(plain.encode(sealed(fingerprint())))
    turned = dict(reversed(stored.items()))
    assert parse_fingerprint(msgspec.json.format(msgspec.json.encode(turned), indent=4)).checksum is not None
    more = {**stored, "weather": "fine"}
    with pytest.raises(Altered):
        parse_fingerprint(msgspec.json.encode(more))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"taken_at":"20', b'"taken_at":"19'),
        (b'"host":"', b'"host":"x'),
        (b'"CUDA_VISIBLE_DEVICES":"0', b'"CUDA_VISIBLE_DEVICES":"1'),
        (b'"commit":"', b'"commit":"0'),
        (b'"rows":902087', b'"rows":902088'),
    ],
)
def test_an_edit_of_what_the_id_leaves_out_is_found_by_the_checksum(old: bytes, new: bytes) -> None:
    written = plain.encode(sealed(fingerprint()))
    edited = written.replace(old, new)
    assert edited != written
    assert parse_fingerprint(written).checksum
    with pytest.raises(Altered, match="its checksum is not that of its content: it was edited or damaged"):
        parse_fingerprint(edited)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"transformers"', b'"transformer"'),
        (b"3.11.9", b"3.11.8"),
        (b"RTX PRO", b"RTX AMA"),
        (b"580.65.06", b"580.65.07"),
    ],
)
def test_an_edited_fingerprint_is_not_believed(old: bytes, new: bytes) -> None:
    taken = fingerprint()
    edited = plain.encode(taken).replace(old, new)
    with pytest.raises(
        Altered, match=f"its id is {taken.id} and its content gives eg1-[0-9a-f]{{20}}: it was edited"
    ):
        parse_fingerprint(edited)

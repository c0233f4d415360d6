"""A bundle answers as the machine did, and tells "not there" from "not recorded"."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import msgspec
import pytest

from envguard.acquire.seam import bundle
from envguard.acquire.seam.host import LiveHost, NotRecorded
from envguard.acquire.seam.record import Node, Record
from envguard.acquire.seam.recorded import BundleHost, RecordingHost


def replayed(recording: RecordingHost) -> BundleHost:
    """The record written to a bundle file and read back."""
    stream = io.BytesIO()
    bundle.save(recording.record, {"cwd": "/"}, stream)
    stream.seek(0)
    record, _ = bundle.load("x.bundle", stream)
    return BundleHost(record, "x.bundle")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_bytes(b"content")
    (tmp_path / "d" / "link").symlink_to("e/f")
    return tmp_path


def test_every_question_that_was_asked_is_answered_alike(tree: Path) -> None:
    live = RecordingHost(LiveHost())
    path = str(tree / "d" / "e" / "f")

    def ask(host: LiveHost | RecordingHost | BundleHost) -> list[object]:
        return [
            host.stat(path),
            host.walk(str(tree), births=True),
            host.listing(str(tree / "d")),
            host.read(path),
            host.read(path, 3, 2),
            host.digest(path),
            host.readlink(str(tree / "d" / "link")),
            host.realpath(str(tree / "d" / "link")),
            host.stat_target(str(tree / "d" / "link")),
            host.environ(),
            host.machine(),
        ]

    assert ask(live) == ask(replayed(live))


def test_absence_is_recorded_and_the_unasked_is_not_absence(tree: Path) -> None:
    live = RecordingHost(LiveHost())
    with pytest.raises(FileNotFoundError):
        live.stat(str(tree / "gone"))
    live.listing(str(tree / "d"))
    host = replayed(live)
    assert host.find(str(tree / "gone")) is None
    assert host.find(str(tree / "gone" / "below")) is None
    assert host.find(str(tree / "d" / "not-in-the-listing")) is None
    with pytest.raises(NotRecorded):
        host.stat(str(tree / "d" / "e"))
    with pytest.raises(NotRecorded):
        host.read(str(tree / "never" / "asked"))


def test_a_walk_answers_later_stats_and_listings(tree: Path) -> None:
    live = RecordingHost(LiveHost())
    live.walk(str(tree))
    host = replayed(live)
    assert host.stat(str(tree / "d" / "e" / "f")).size == 7
    assert host.listing(str(tree / "d")) == (("e", "directory"), ("link", "link"))


def test_a_refusal_stays_a_refusal(tree: Path) -> None:
    record = Record()
    record.learn_error("listing", (str(tree),), PermissionError(13, "Permission denied"))
    with pytest.raises(PermissionError):
        BundleHost(record, "x").listing(str(tree))


def test_the_same_record_gives_the_same_bytes(tree: Path) -> None:
    live = RecordingHost(LiveHost())
    live.walk(str(tree))
    first, second = io.BytesIO(), io.BytesIO()
    bundle.save(live.record, {}, first)
    bundle.save(live.record, {}, second)
    assert first.getvalue() == second.getvalue()


def tar_of(members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> io.BytesIO:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.type = len(data), kind
            tar.addfile(member, io.BytesIO(data))
    return io.BytesIO(gzip.compress(raw.getvalue()))


MANIFEST = b'{"schema":"envguard.bundle","version":1,"about":{},"evidence":0}'


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"../../etc/passwd": b""}, "a member that no bundle has"),
        ({"/etc/passwd": b""}, "a member that no bundle has"),
        ({"manifest.json": MANIFEST}, "no manifest or no evidence"),
        ({"manifest.json": b"[]", "evidence.jsonl": b""}, "manifest.json"),
        ({"manifest.json": MANIFEST.replace(b"1", b"9"), "evidence.jsonl": b""}, "version 9 is not known"),
        ({"manifest.json": MANIFEST, "evidence.jsonl": b'{"node":{"path":1}}\n'}, "evidence line 1"),
        ({"manifest.json": MANIFEST, "evidence.jsonl": b'{"surprise":1}\n'}, "evidence line 1"),
        ({"manifest.json": MANIFEST, "evidence.jsonl": b"[" * 5000 + b"\n"}, "evidence line 1"),
        ({"manifest.json": MANIFEST, "evidence.jsonl": b"", "files/" + "0" * 64: b"x"}, "not what its name says"),
    ],
)
def test_hostile_bundles_are_refused(members: dict[str, bytes], says: str) -> None:
    with pytest.raises(bundle.BundleError, match=says):
        bundle.load("x.bundle", tar_of(members))


def test_a_link_in_a_bundle_is_refused() -> None:
    with pytest.raises(bundle.BundleError, match="a member that no bundle has"):
        bundle.load("x.bundle", tar_of({"manifest.json": b""}, kind=tarfile.SYMTYPE))


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_MEMBER", 1 << 20)
    packed = tar_of({"manifest.json": b"\0" * (8 << 20)})
    assert len(packed.getvalue()) < 20_000
    with pytest.raises(bundle.BundleError, match="more than a bundle may hold"):
        bundle.load("x.bundle", packed)


@pytest.mark.parametrize("data", [b"", b"no gzip", gzip.compress(b"no tar")[:-3]], ids=["empty", "other", "cut"])
def test_what_is_no_bundle_is_an_input_error(data: bytes) -> None:
    with pytest.raises(bundle.BundleError):
        bundle.load("x.bundle", io.BytesIO(data))


def test_content_that_a_node_names_must_be_there() -> None:
    line = msgspec.json.encode({"node": Node("/f", content="0" * 64)})
    with pytest.raises(bundle.BundleError, match="missing"):
        bundle.load("x", tar_of({"manifest.json": MANIFEST, "evidence.jsonl": line + b"\n"}))


def test_paths_of_undecodable_bytes_survive_the_bundle(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    (tmp_path / name).write_bytes(b"x")
    live = RecordingHost(LiveHost())
    live.walk(str(tmp_path))
    live.read(str(tmp_path / name))
    host = replayed(live)
    assert host.listing(str(tmp_path)) == ((name, "file"),)
    assert host.read(str(tmp_path / name)) == b"x"

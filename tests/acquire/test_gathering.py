"""Bundles: the same answer live and from one, no secret in it, and none believed that cannot be."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envguard.acquire.gathering import open_bundle
from envguard.acquire.seam import bundle
from envguard.acquire.seam.host import LiveHost
from envguard.acquire.seam.record import Record
from envguard.acquire.seam.recorded import BundleHost, RecordingHost
from envguard.acquire.seam.sanitise import sanitised_file
from envguard.acquire.survey import survey
from envguard.cli.collect import collect
from envguard.demo.stage import Stage
from envguard.errors import InputError

SECRETS = ("hf_abcdefghijklmnop1234", "hunter2hunter2", "sk-abcdefghijklmnopqrst", "ghp_abcdefghijklmnopqrstuv")


@pytest.fixture
def collected(torch_stage: Stage, tmp_path: Path) -> Path:
    """A bundle of a stage that is full of secrets."""
    project = torch_stage.project
    (torch_stage.checkpoints / "step_690").mkdir()
    (torch_stage.checkpoints / "step_690" / "model.bin").write_bytes(b"w" * 5_000_000)
    (torch_stage.checkpoints / "train_log.jsonl").write_text(
        json.dumps({"step": 1, "time": 1.78e9, "tok_s": 21500.0, "token_budget": 49152000, "hf_token": SECRETS[0]})
        + "\n"
    )
    (project / "train.log").write_text(f"2026-05-18 20:00:00 RuntimeError: https://me:{SECRETS[1]}@host/x said no\n")
    (project / "requirements.txt").write_text(
        f"--index-url https://user:{SECRETS[1]}@index.example/simple\ntorch==2.11.0\n"
    )
    files = project / "wandb" / "run-20260518_120210-abc" / "files"
    files.mkdir(parents=True)
    (files / "requirements.txt").write_text("torch==2.11.0+cu128\n")
    (files / "wandb-metadata.json").write_text(
        json.dumps({"startedAt": "2026-05-18T10:02:10Z", "args": [f"--api_key={SECRETS[2]}"], "api_key": SECRETS[3]})
    )
    (torch_stage.home / ".bash_history").write_text(
        f"#1779120000\nexport PASSWORD={SECRETS[1]}\n#1779120001\nuv pip install x --token {SECRETS[0]}\n"
    )
    (project / "envguard.toml").write_text("shell_history = true\n")
    path = tmp_path / "stage.bundle"
    done = torch_stage.envguard("collect", "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert path.stat().st_mode & 0o077 == 0
    return path


def unpacked(path: Path) -> bytes:
    with tarfile.open(path) as tar:
        return b"\n".join(tar.extractfile(member).read() for member in tar)  # type: ignore[union-attr]


def test_no_secret_and_no_payload_is_in_a_bundle(collected: Path) -> None:
    everything = unpacked(collected)
    for secret in SECRETS:
        assert secret.encode() not in everything
    assert b"export PASSWORD" not in everything  # of a history only what can have changed an environment
    assert b"uv pip install x" in everything
    assert b"w" * 10_000 not in everything
    assert b"49152000" in everything  # a number is a setting
    assert len(everything) < 3_000_000


def test_the_bundle_answers_like_the_machine(collected: Path, torch_stage: Stage, tmp_path: Path) -> None:
    live = json.loads(torch_stage.envguard("timeline", "--json", "--all").stdout)
    packed = json.loads(torch_stage.envguard("timeline", "--json", "--bundle", str(collected), cwd=tmp_path).stdout)
    assert [event["id"] for event in packed["events"]] == [event["id"] for event in live["events"]]
    assert packed["unknown"] == live["unknown"]
    assert packed["transactions"] == live["transactions"]


def test_python_with_a_bundle_is_an_error(collected: Path, torch_stage: Stage) -> None:
    done = torch_stage.envguard("timeline", "--bundle", str(collected), "--python", "/usr/bin/python3", "--json")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (2, 2)


def test_secrets_are_overwritten_character_for_character() -> None:
    text = b'{"api_key": "abcdefgh12345", "max_tokens": 1310720000, "url": "https://u:pw@h/x", "x": "hf_%s"}' % (
        b"a" * 18
    )
    hidden = sanitised_file("/a.json", text)
    assert len(hidden) == len(text)
    assert json.loads(hidden)["max_tokens"] == 1310720000
    assert json.loads(hidden) == {
        "api_key": "*" * 13, "max_tokens": 1310720000, "url": "https://****@h/x", "x": "*" * 21
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "url = https://ada:hun@ter2hunter2@host/x",
        "Authorization: Bearer ter2hunter2",
        "https://host/blob?X-Amz-Signature=ter2hunter2",
        "//registry/:_authToken=ter2hunter2",
        "AccountKey=ter2hunter2",
    ],
)
def test_no_part_of_a_secret_stays(line: str) -> None:
    assert b"ter2hunter2" not in sanitised_file("/x.cfg", line.encode())


@pytest.mark.parametrize("reach", [(16, 0), (64, 0), (1000, 0), (64, -180), (None, -170)])
def test_no_edge_of_a_piece_leaves_half_a_secret(reach: tuple[int | None, int], tmp_path: Path) -> None:
    """A long log is read in pieces: what one ends with and the next begins with are no secrets by their looks."""
    limit, first = reach
    secret = b"hf_" + bytes(range(ord("a"), ord("z") + 1)) + b"0123456789"
    for shift in range(0, 80, 3):
        path = tmp_path / f"{shift}.log"
        path.write_bytes(b"." * shift + b" token=" + secret + b" end\n" + b"." * 150)
        size, live = path.stat().st_size, RecordingHost(LiveHost())
        whole = path.read_bytes()
        for offset in range(0, size, limit) if limit is not None and first >= 0 else [first]:
            start = offset if offset >= 0 else size + offset
            piece = live.read(str(path), limit, offset)
            assert piece == whole[start : size if limit is None else start + limit]
            assert len(BundleHost(live.record, "").read(str(path), limit, offset)) == len(piece)
        kept = b"|".join(live.record.contents[name] for name in live.record.contents)
        assert not any(secret[at : at + 4] in kept for at in range(len(secret) - 3))


def test_hashes_that_look_like_tokens_are_left_alone() -> None:
    record = b"torch/a.py,sha256=sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF,12\n"
    assert sanitised_file("/site/torch-2.dist-info/RECORD", record) is record
    inside = b"sha256=Qsk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF"
    assert sanitised_file("/x.lock", inside) is inside


def test_verify_and_diff_of_a_bundle_say_what_they_say_on_the_machine(torch_stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "stage.bundle"
    assert torch_stage.envguard("collect", "-o", str(path)).returncode == 0
    assert torch_stage.envguard("diff", str(path), "live").returncode == 0
    assert torch_stage.envguard("verify", "--bundle", str(path), cwd=tmp_path).returncode == 0
    with (torch_stage.site / "torch" / "nn" / "__init__.py").open("a") as stream:
        stream.write("# edited\n")
    assert torch_stage.envguard("diff", str(path), "live").returncode == 1
    assert torch_stage.envguard("collect", "-o", str(path)).returncode == 0
    packed = torch_stage.envguard("verify", "--bundle", str(path), "--json", cwd=tmp_path)
    live = torch_stage.envguard("verify", "--json")
    assert packed.returncode == live.returncode == 1
    assert json.loads(packed.stdout)["problems"] == json.loads(live.stdout)["problems"]


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def made(members: dict[str, bytes], about: dict[str, str] | None = None) -> bytes:
    manifest = {"schema": "envguard.bundle", "version": 1, "about": about or {}, "evidence": 0}
    everything = {"manifest.json": json.dumps(manifest).encode(), "evidence.jsonl": b"", **members}
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in everything.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


MACHINE = {
    "uid": 0, "user": "root", "home": "/root", "host": "h", "kernel": "k", "system": "Linux", "arch": "x86_64",
    "boot_time": 1, "now": 2.0, "utc_offset": 0, "cwd": "/", "cpus": 1, "tmpdir": "/tmp",
}  # fmt: skip


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"../../etc/cron.d/x": b"x"}, "a member that no bundle has"),
        ({"files/" + "0" * 64: b"not that"}, "is not what its name says"),
        ({"evidence.jsonl": b"{torn\n"}, "evidence line 1"),
        ({"evidence.jsonl": line(node={"path": "/a", "stat": "no"})}, "evidence line 1"),
        ({"evidence.jsonl": line(node={"path": "/a", "content": "f" * 64})}, "is missing"),
        (
            {
                "evidence.jsonl": line(
                    asked={"operation": "machine", "arguments": [], "value": {**MACHINE, "now": "x"}}
                )
            },
            "machine",
        ),
        (
            {"evidence.jsonl": line(asked={"operation": "processes", "arguments": [], "value": [{"pid": 1}]})},
            "processes",
        ),
        ({"evidence.jsonl": line(asked={"operation": "system", "arguments": ["rm"], "value": 1})}, "is no question"),
        ({"evidence.jsonl": b"[" * 200_000 + b"\n"}, "evidence line 1"),
        ({}, "does not say what it was gathered for"),
    ],
)
def test_hostile_bundles_are_refused(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    path = tmp_path / "hostile.bundle"
    path.write_bytes(made(members))
    with pytest.raises(InputError) as caught:
        open_bundle(str(path))
    assert message in str(caught.value)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_MEMBER", 1 << 20)
    path = tmp_path / "bomb.bundle"
    path.write_bytes(made({"files/" + "1" * 64: b"\0" * (8 << 20)}))
    assert path.stat().st_size < 100_000
    with pytest.raises(InputError, match="unpacks to more"):
        open_bundle(str(path))


def test_paths_that_are_no_text_survive(tmp_path: Path) -> None:
    record = Record()
    record.learn("stat", ("/odd-\udcff",), ("file", 420, 1, 1, 0, 0, 1, 1, 0, 0, None))
    stream = io.BytesIO()
    bundle.save(record, {}, stream)
    stream.seek(0)
    loaded, _ = bundle.load("x", stream)
    assert "/odd-\udcff" in loaded.nodes


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        (line(node={"path": "/a", "link": "b"}) + line(node={"path": "/a", "link": "c"}), "is told twice"),
        (line(node={"path": "/a", "content": ""}), "is missing"),
        (line(node={"path": "/a", "stat": ["pipe", *[0] * 10]}), "evidence line 1"),
        (line(node={"path": "/a", "stat": ["file", 0, 1 << 70, *[0] * 8]}), "evidence line 1"),
        (line(asked={"operation": "withheld", "arguments": [], "value": {"\ud800": 1}}), "evidence line 1"),
        (line(asked={"operation": "machine", "arguments": ["\udcff"], "value": {**MACHINE, "now": math.nan}}),
         "NaN is no number"),
    ],
)  # fmt: skip
def test_evidence_that_no_machine_gives_is_refused(tmp_path: Path, evidence: bytes, message: str) -> None:
    path = tmp_path / "hostile.bundle"
    path.write_bytes(made({"evidence.jsonl": evidence}))
    with pytest.raises(InputError) as caught:
        open_bundle(str(path))
    assert message in str(caught.value)


def test_a_long_log_is_kept_packed_and_read_in_any_pieces(tmp_path: Path) -> None:
    """Of a log of a million lines neither collecting nor reading may hold the text: 300 MB is the limit."""
    log = tmp_path / "train.log"
    log.write_bytes(b"".join(b"2026-05-18 20:00:00 step %d loss 3.1\n" % number for number in range(400_000)))
    live = RecordingHost(LiveHost())
    size = live.stat(str(log)).size
    whole = b"".join(live.read(str(log), 1 << 20, offset) for offset in range(0, size, 1 << 20))
    assert live.record.contents.total >= size
    assert live.record.contents.held < size / 3
    stream = io.BytesIO()
    bundle.save(live.record, {}, stream)
    stream.seek(0)
    loaded, _ = bundle.load("x", stream)
    assert loaded.contents.held < size / 3
    host = BundleHost(loaded, "x")
    for limit in (1 << 20, 777_777, 5 << 20):
        read = [host.read(str(log), min(limit, size - offset), offset) for offset in range(0, size, limit)]
        assert b"".join(read) == whole
    assert host.read(str(log), 1 << 20, size - 10) == whole[-10:]


def small_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What opening takes, a hundred times smaller; noise, so that packing does not help."""
    monkeypatch.setattr(bundle, "MAX_MEMBER", 3 << 20)
    monkeypatch.setattr(bundle, "MAX_TOTAL", 16 << 20)
    monkeypatch.setattr(bundle, "MAX_FILE", 6 << 20)


def log_of(path: Path, size: int) -> None:
    path.write_bytes(b"".join(b"2026-05-18 20:00:00 step %d loss 3.1\n" % number for number in range(size // 35)))


def test_a_log_that_opening_would_refuse_is_left_out_and_said(
    torch_stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endless, copy, short = (torch_stage.project / name for name in ("endless.log", "copy.log", "short.log"))
    log_of(endless, 9 << 20)
    log_of(short, 1 << 20)
    copy.write_bytes(short.read_bytes())
    path = tmp_path / "stage.bundle"
    small_bundles(monkeypatch)
    monkeypatch.chdir(torch_stage.project)
    collect(path, json=True)
    told = capsys.readouterr()
    (item,) = (item for item in json.loads(told.out)["unavailable"] if item["witness"].startswith("/"))
    assert item["witness"] == str(endless)
    assert "larger than opening takes" in item["why"]
    assert f"warning: {endless}: left out of the bundle" in told.err
    opened = open_bundle(str(path))
    text = short.read_bytes()
    assert [opened.host.read(str(each), len(text)) for each in (short, copy)] == [text, text]
    with pytest.raises(OSError, match="larger than opening takes"):
        opened.host.read(str(endless), 1 << 20)
    seen = survey(opened.host, opened.request)
    assert any(str(endless) in item.what and "left out" in item.why for item in seen.unknown), seen.unknown


def test_many_logs_are_taken_until_the_bundle_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_bundles(monkeypatch)
    live = RecordingHost(LiveHost())
    paths = [tmp_path / f"{number}.log" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(random.Random(number).randbytes(4 << 20))
        for offset in range(0, 4 << 20, 1 << 20):
            live.read(str(path), 1 << 20, offset)
    assert list(live.left_out) == [str(path) for path in paths[2:]]
    live.seal()
    stream = io.BytesIO()
    bundle.save(live.record, {}, stream)
    stream.seek(0)
    loaded, _ = bundle.load("x", stream)
    assert BundleHost(loaded, "x").read(str(paths[1]), 1 << 20, 3 << 20) == paths[1].read_bytes()[3 << 20 :]


def test_evidence_that_opening_would_refuse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_MEMBER", 1 << 20)
    record = Record()
    for number in range(20_000):
        record.learn("stat", (f"/data/{number}",), ("file", 420, 1, 1, 0, 0, 1, 1, 0, 0, None))
    with pytest.raises(InputError, match="more than a bundle may hold"):
        bundle.save(record, {}, io.BytesIO())


def test_a_checkpoint_that_only_a_path_names_is_known_to_the_bundle(torch_stage: Stage) -> None:
    project = torch_stage.project
    for path in ("lightning_logs/version_0/checkpoints/last.ckpt", "out/ckpt.pt", "runs/a/step-5/__0_0.distcp",
                 "runs/a/step-5/.metadata", "checkpoints/nemo/best/weights/model.pt"):  # fmt: skip
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_bytes(b"w")
    (project / "runs/a/latest").symlink_to("step-5")
    assert torch_stage.envguard("collect", "-o", "b.tgz").returncode == 0
    names = ("step-5", "lightning_logs/version_0/checkpoints/last.ckpt", "out/ckpt.pt", "runs/a/latest", "latest",
             "runs/a/step-5/__0_0.distcp", "last", str(project / "out/ckpt.pt"))  # fmt: skip
    for name in names:
        live = torch_stage.envguard("timeline", "--json", "--since-checkpoint", name)
        far = torch_stage.envguard("timeline", "--json", "--since-checkpoint", name, "--bundle", "b.tgz")
        assert (far.returncode, json.loads(far.stdout)["checkpoint"]) == (
            live.returncode, json.loads(live.stdout)["checkpoint"]
        ), name  # fmt: skip

"""Raw facts: what the collector says must be what the machine says, and it must be safe to ask."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envguard.acquire.seam.collector.operations import serve
from envguard.acquire.seam.collector.redaction import redact, redact_argv
from envguard.acquire.seam.host import LiveHost
from tests.permissions import held_host, unreadable

HOST = LiveHost()


def test_stat_agrees_with_the_kernel_and_has_a_birth_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = time.time_ns()
    path.write_bytes(b"abc")
    os.utime(path, ns=(10**18, 10**18))
    found = HOST.stat(str(path))
    real = path.lstat()
    assert (found.kind, found.size, found.inode, found.nlink) == ("file", 3, real.st_ino, real.st_nlink)
    assert found.mtime_ns == 10**18
    assert found.ctime_ns == real.st_ctime_ns
    if found.btime_ns is None:
        pytest.skip("this file system keeps no birth time")
    assert abs(found.btime_ns - before) < 5 * 10**9


def test_a_link_is_not_followed_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("target")
    assert HOST.stat(str(tmp_path / "link")).is_link
    assert HOST.stat_target(str(tmp_path / "link")).size == 5
    assert HOST.readlink(str(tmp_path / "link")) == "target"


def test_walk_sees_everything_once_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_bytes(b"x")
    (tmp_path / "a" / "loop").symlink_to("..")
    (tmp_path / "skipped").mkdir()
    (tmp_path / "skipped" / "inside").write_bytes(b"")
    walk = HOST.walk(str(tmp_path), skip=("skipped",))
    assert [path for path, _ in walk.entries] == ["a", "skipped", "a/b", "a/loop", "a/b/f"]
    assert walk.failed == ()


def test_a_folder_that_may_not_be_read_is_named_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    with unreadable(tmp_path / "closed"), held_host() as host:
        walk = host.walk(str(tmp_path))
    assert [path for path, _ in walk.failed] == ["closed"]


def test_reading_a_fifo_fails_instead_of_hanging(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        HOST.read(str(tmp_path / "pipe"))
    with pytest.raises(OSError, match="not a regular file"):
        HOST.digest(str(tmp_path / "pipe"))


def test_reads_take_a_limit_and_an_offset_from_either_end(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    assert HOST.read(str(path), 3) == b"012"
    assert HOST.read(str(path), 3, 5) == b"567"
    assert HOST.read(str(path), None, -2) == b"89"
    assert HOST.read(str(path), None, -99) == b"0123456789"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["train", "--token", "abc"], ["train", "--token", "[redacted]"]),
        (["train", "--api-key=abc"], ["train", "--api-key=[redacted]"]),
        (["git", "clone", "https://me:pw@host/x.git"], ["git", "clone", "https://host/x.git"]),
        (["run", "hf_abcdefghijklmnopqrst"], ["run", "[redacted]"]),
        (["train", "--tokens", "4096", "--lr", "1e-4"], ["train", "--tokens", "4096", "--lr", "1e-4"]),
        (["train", "--token_budget=49152"], ["train", "--token_budget=49152"]),
        (["train", "--tokenizer", "x", "--token-budget", "49152"],) * 2,
    ],
)
def test_command_lines_lose_their_secrets_and_nothing_else(argv: list[str], shown: list[str]) -> None:
    assert redact_argv(argv) == shown


SECRET = "Pl4nted,S3cret;XYZ99"
PLAIN = "Pl4ntedS3cretXYZ99"


@pytest.mark.parametrize(
    "argv",
    [
        ["curl", f"https://host/simple?user=x&token={SECRET}"],
        ["curl", f"https://host/blob?X-Amz-Signature={SECRET}&sig={SECRET}"],
        ["pip", f"https://user:p@{PLAIN}@host/simple"],
        ["sh", "-c", f"python train.py --hf-token {SECRET} --lr 1"],
        ["sh", "-c", f"export HF_TOKEN='{SECRET} {SECRET}'"],
        ["train", f"--password={SECRET} {SECRET}"],
        ["train", f"--cfg=wandb.api_key={SECRET}"],
        ["train", "--json", f'{{"wandb": {{"api_key": "{SECRET}"}}}}'],
        ["train", "--yaml", f"api_key: {SECRET}"],
        ["train", "--store", f"DefaultEndpointsProtocol=https;AccountKey={SECRET}"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}"],
        ["curl", "-H", f"X-API-Key:{SECRET}"],
        ["curl", "-u", f"ada:{SECRET}"],
        ["train", "--pass", SECRET],
        ["train", "--passphrase", SECRET],
        ["wandb", "login", SECRET],
        ["twine", f"pypi-AgEIcHlwaS5vcmcCJ{PLAIN}"],
        ["ssh", f"-----BEGIN OPENSSH PRIVATE KEY-----\n{PLAIN}\n"],
    ],
)
def test_a_secret_is_seen_in_every_place_that_people_put_one(argv: list[str]) -> None:
    assert not [word for word in redact_argv(argv) if SECRET in word or PLAIN in word]


@pytest.mark.parametrize(
    "text",
    [
        "/opt/auth:/opt/api-key:/usr/lib",
        "https://host:8080/a@b?x=1",
        "python -u train.py --max_tokens 4096 --forward_pass 2",
        "docker run --user 1000:1000",
        "KeyError: 'model.key'",
        "missing key: model.layers.0",
        "expandable_segments:True,max_split_size_mb:128",
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert redact(text) == text
    assert redact_argv(text.split()) == text.split()


def test_a_long_word_costs_no_more_than_its_length() -> None:
    for piece in ("a", "a-", "://a", "key=", "x-", "api", '"', "\\"):
        began = time.process_time()
        redact_argv([f"-{piece * 50_000}", piece * 50_000])
        assert time.process_time() - began < 2


def test_environment_is_allow_listed_and_secret_names_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrst")
    monkeypatch.setenv("UV_INDEX_URL", "https://me:pw@example.org/simple")
    monkeypatch.setenv("UV_INDEX_X_PASSWORD", "pw")
    monkeypatch.setenv("MY_OWN", "1")
    seen = HOST.environ()
    assert seen["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert seen["UV_INDEX_URL"] == "https://example.org/simple"
    assert not {"HF_TOKEN", "UV_INDEX_X_PASSWORD", "MY_OWN"} & seen.keys()


def test_a_living_process_is_seen_with_its_start_and_its_maps(tmp_path: Path) -> None:
    library = tmp_path / "mapped.bin"
    library.write_bytes(b"x" * 8192)
    program = (
        "import mmap,sys,time; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(),0,access=mmap.ACCESS_READ);"
        "print('ready',flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(library)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        library.unlink()
        seen = {process.pid: process for process in HOST.processes((str(tmp_path),))}
        mine = seen[child.pid]
        assert abs(mine.started - time.time()) < 30
        assert [mapping.deleted for mapping in mine.maps if mapping.path == str(library)] == [True]
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def test_only_programs_that_answer_may_be_asked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a query program"):
        HOST.query(("rm", "-rf", str(tmp_path)))


def test_a_program_that_is_not_installed_is_absent_even_behind_a_closed_folder_of_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    monkeypatch.setenv("PATH", str(tmp_path / "closed"))
    with pytest.raises(FileNotFoundError):
        HOST.query(("nvidia-smi",))


def test_git_answers_without_rewriting_its_index(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "f").write_text("a")
    git("add", "f")
    index = tmp_path / ".git" / "index"
    os.utime(tmp_path / "f")  # a stat mismatch is what makes git refresh its index
    before = (index.read_bytes(), index.stat().st_mtime_ns)
    assert HOST.query(("git", "status", "--porcelain"), str(tmp_path)).code == 0
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before


def test_serving_ends_with_its_input() -> None:
    replies = io.StringIO()
    serve(io.StringIO(""), replies)
    assert replies.getvalue() == ""

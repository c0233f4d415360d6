"""Installed files that are gone or empty: told with time, effect and way back. What is missing by design is not."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import uv

from envguard import clock
from envguard.demo import wheels
from envguard.demo.stage import Stage
from envguard.model.schema import schema

CERTIFI = {
    "certifi/__init__.py": b"from .core import where\n",
    "certifi/core.py": b"def where(): ...\n",
    "certifi/cacert.pem": b"certificates\n",
    "certifi/tests/__init__.py": b"",
    "certifi/tests/data.txt": b"data\n",
}


@pytest.fixture
def lossy(stage: Stage) -> Stage:
    """certifi, idna and six installed a moment ago, and step_200 saved since."""
    wheels.build_wheel(stage.wheels, "certifi", "2024.1.1", files=CERTIFI)
    wheels.build_wheel(stage.wheels, "idna", "3.7")
    wheels.build_wheel(stage.wheels, "six", "1.16.0", files={"six.py": b"PY3 = True\n"})
    stage.install("certifi", "idna", "six")
    time.sleep(0.3)
    save(stage, "step_200")
    time.sleep(0.3)
    return stage


def save(stage: Stage, name: str, stamped: bool = False) -> Path:
    folder = stage.checkpoints / name
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    if stamped:
        done = stage.envguard("snapshot", "--into", str(folder))
        assert done.returncode == 0, done.stderr
    return folder


def since(stage: Stage, name: str = "step_200", *more: str) -> tuple[int, dict[str, Any]]:
    done = stage.envguard("timeline", "--json", "--since-checkpoint", name, *more)
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(answer, schema("timeline"))
    return done.returncode, answer


def only(answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The one finding, and the event that it rests on beside the checkpoint."""
    (finding,) = answer["findings"]
    saved, event = (answer["events"][index] for index in finding["because"])
    assert saved["kind"] == "checkpoint.saved"
    return finding, event


def test_a_package_folder_that_is_gone_is_dated_by_site_packages(lossy: Stage) -> None:
    shutil.rmtree(lossy.site / "certifi")
    went = lossy.site.stat().st_mtime
    code, answer = since(lossy)
    finding, event = only(answer)
    assert (code, event["kind"], event["subject"], event["confidence"]) == (1, "file.deleted", "certifi", "strong")
    assert abs(clock.seconds(event["time"]) - went) < 0.001
    assert event["time"] == event["end"]
    assert finding["title"].startswith("all 5 files of certifi deleted ")
    assert finding["title"].endswith(" after step_200")
    assert "lists certifi/, which is not there." in finding["says"]
    assert "`import certifi` fails now." in finding["says"]
    python = f"--python {lossy.venv} --reinstall --no-deps certifi==2024.1.1`"
    assert f"`uv pip install {python}" in finding["says"]
    assert {proof["witness"] for proof in event["evidence"]} == {"dist-info", "file"}


def test_single_files_are_dated_by_their_folders(lossy: Stage) -> None:
    (lossy.site / "certifi/cacert.pem").unlink()
    time.sleep(0.1)
    (lossy.site / "certifi/tests/data.txt").unlink()
    finding, event = only(since(lossy)[1])
    assert event["summary"] == "2 of the 7 files of certifi deleted: certifi/cacert.pem, certifi/tests/data.txt"
    ends = [(lossy.site / name).stat().st_mtime for name in ("certifi", "certifi/tests")]
    assert [clock.seconds(event["time"]), clock.seconds(event["end"])] == pytest.approx(ends, abs=0.001)
    assert (
        "`import certifi` still works; what reads certifi/cacert.pem, certifi/tests/data.txt fails."
        in finding["says"]
    )


def test_files_that_went_on_both_sides_of_the_checkpoint(lossy: Stage) -> None:
    (lossy.site / "certifi/cacert.pem").unlink()
    time.sleep(0.1)
    save(lossy, "step_300")
    time.sleep(0.1)
    (lossy.site / "certifi/tests/data.txt").unlink()
    assert only(since(lossy, "step_300")[1])[0]["title"].endswith(" deleted, some before and some after step_300")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("certifi/core.py", "`import certifi` still finds its beginning, and fails where it needs certifi/core.py."),
        (
            "certifi/__init__.py",
            "`import certifi` finds an empty namespace: `__init__.py` is gone.",
        ),
        ("six.py", "`import six` fails now."),
        ("idna-3.7.dist-info/METADATA", "`import` still works; what asks for the version or the metadata"),
    ],
)
def test_what_breaks_is_said(lossy: Stage, path: str, says: str) -> None:
    (lossy.site / path).unlink()
    assert says in only(since(lossy)[1])[0]["says"]


def test_an_emptied_file_is_no_edit(lossy: Stage) -> None:
    (lossy.site / "six.py").write_bytes(b"")
    finding, event = only(since(lossy)[1])
    assert (event["kind"], event["subject"]) == ("file.patched", "six")
    assert finding["title"].startswith("the file of six emptied ")
    assert "`import six` succeeds and finds nothing in it." in finding["says"]
    assert any("`uv cache clean six` first" in caveat for caveat in finding["caveats"])


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("fast.libs/libblas.so", "What reads fast.libs/libblas.so fails."),
        ("fast/_kernels.so", "`import fast` still finds its beginning, and fails where it needs fast/_kernels.so."),
        ("_fast.abi3.so", "`import _fast` fails now."),
    ],
)
@pytest.mark.parametrize("emptied", [False, True])
def test_libraries_are_no_modules(stage: Stage, path: str, says: str, emptied: bool) -> None:
    files = ("fast/__init__.py", "fast/_kernels.so", "fast.libs/libblas.so", "_fast.abi3.so")
    wheels.build_wheel(stage.wheels, "fast", "1.0", files=dict.fromkeys(files, b"content"))
    stage.install("fast", arguments=("--link-mode", "copy"))
    time.sleep(2.1 if emptied else 0.3)  # what was written within two seconds of the install is the install's
    save(stage, "step_200")
    if emptied:
        (stage.site / path).write_bytes(b"")
    else:
        (stage.site / path).unlink()
        if path.startswith("fast.libs"):
            (stage.site / "fast.libs").rmdir()
    assert says in only(since(stage)[1])[0]["says"]


def test_what_pip_installed_is_brought_back_by_pip(stage: Stage) -> None:
    wheels.build_wheel(stage.wheels, "certifi", "2024.1.1", files=CERTIFI)
    shutil.rmtree(stage.venv)
    subprocess.run([sys.executable, "-m", "venv", str(stage.venv)], check=True)
    pip = [str(stage.python), "-m", "pip", "--isolated", "--disable-pip-version-check", "--quiet"]
    where = ["--no-index", "--find-links", str(stage.wheels)]
    subprocess.run([*pip, "install", *where, "certifi"], check=True, env=stage.environ())
    save(stage, "step_200")
    time.sleep(0.3)
    assert since(stage)[0] == 0
    (stage.site / "certifi/core.py").unlink()
    finding, event = only(since(stage)[1])
    assert event["confidence"] == "strong"
    assert f"`{stage.python} -m pip install --force-reinstall --no-deps certifi==2024.1.1`" in finding["says"]


def test_links_into_a_cache_that_was_cleaned(stage: Stage) -> None:
    wheels.build_wheel(stage.wheels, "idna", "3.7")
    stage.install("idna", arguments=("--link-mode", "symlink"))
    save(stage, "step_200")
    shutil.rmtree(stage.cache)
    finding, event = only(since(stage)[1])
    assert finding["title"] == "the file of idna is a link to what is gone, before or after step_200"
    assert "`import idna` finds an empty namespace" in finding["says"]
    assert event["confidence"] == "weak"


def test_a_stamp_that_holds_the_build_gives_the_way_back(lossy: Stage) -> None:
    save(lossy, "step_300", stamped=True)
    time.sleep(0.1)
    shutil.rmtree(lossy.site / "certifi")
    finding, _ = only(since(lossy, "step_300")[1])
    assert "`envguard restore step_300 --only certifi`" in finding["says"]
    assert lossy.envguard("restore", "step_300", "--only", "certifi", "-y").returncode == 0
    assert [found["title"] for found in since(lossy, "step_300")[1]["findings"] if "deleted" in found["title"]] == []


def test_a_later_install_leaves_only_bounds(lossy: Stage) -> None:
    shutil.rmtree(lossy.site / "certifi")
    time.sleep(0.2)
    wheels.build_wheel(lossy.wheels, "attrs", "24.1.0")
    lossy.install("attrs")
    finding, event = only(since(lossy)[1])
    assert event["confidence"] == "weak"
    assert event["time"] < answer_time(lossy) < event["end"]
    assert finding["title"].endswith(", before or after step_200")
    assert f"That was between {event['time']} and {event['end']}." in finding["says"]
    assert "they went then or before" in finding["caveats"][0]


def answer_time(stage: Stage) -> str:
    return str(since(stage)[1]["checkpoint"]["time"])


def test_what_a_stamp_found_gone_went_before_it(lossy: Stage) -> None:
    shutil.rmtree(lossy.site / "certifi")
    time.sleep(0.2)
    save(lossy, "step_300", stamped=True)
    wheels.build_wheel(lossy.wheels, "attrs", "24.1.0")
    lossy.install("attrs")
    code, answer = since(lossy, "step_300")
    assert (code, answer["findings"]) == (0, [])
    finding, event = only(since(lossy, "step_200")[1])
    assert "found them gone already" in finding["caveats"][0]
    stamp = json.loads((lossy.checkpoints / "step_300" / "envguard.json").read_text())
    assert event["end"] < stamp["taken_at"]  # a stamp speaks of its own moment


def test_what_a_stamp_found_whole_went_after_it(lossy: Stage) -> None:
    save(lossy, "step_300", stamped=True)
    shutil.rmtree(lossy.site / "certifi")
    time.sleep(0.2)
    wheels.build_wheel(lossy.wheels, "attrs", "24.1.0")
    lossy.install("attrs")
    finding, event = only(since(lossy, "step_300")[1])
    assert finding["title"] == "all 5 files of certifi deleted after step_300"
    assert since(lossy, "step_300")[1]["checkpoint"]["time"] <= event["time"] < event["end"]


def before_the_checkpoint(stage: Stage) -> None:
    shutil.rmtree(stage.site / "certifi")
    time.sleep(0.1)
    shutil.rmtree(stage.checkpoints / "step_200")
    save(stage, "step_200")


def compiled_files(stage: Stage) -> None:
    subprocess.run([stage.python, "-c", "import certifi, six"], check=True)
    record = stage.site / "certifi-2024.1.1.dist-info/RECORD"
    record.write_text(record.read_text() + "certifi/__pycache__/__init__.cpython-311.pyc,,\n")
    for folder in [*stage.site.glob("__pycache__"), *stage.site.glob("certifi/__pycache__")]:
        shutil.rmtree(folder)


def marks_of_an_installer(stage: Stage) -> None:
    info = stage.site / "certifi-2024.1.1.dist-info"
    text = (info / "RECORD").read_text()
    (info / "RECORD").write_text(text + f"{info.name}/direct_url.json,sha256=AAAA,20\n{info.name}/RECORD.jws,,\n")
    (info / "REQUESTED").unlink()


def no_record(stage: Stage) -> None:
    (stage.site / "certifi-2024.1.1.dist-info/RECORD").unlink()
    shutil.rmtree(stage.site / "certifi")


def another_manager(stage: Stage) -> None:
    (stage.site / "certifi-2024.1.1.dist-info/INSTALLER").write_text("conda\n")
    shutil.rmtree(stage.site / "certifi/tests")


def never_came(stage: Stage) -> None:
    record = stage.site / "certifi-2024.1.1.dist-info/RECORD"
    record.write_text(record.read_text() + "certifi/docs.txt,sha256=AAAA,20\ncertifi/tests/more.txt,sha256=AAAA,20\n")


def never_ended(stage: Stage) -> None:
    """As a wheel's own RECORD lies there before its files do: nothing of an installer in it."""
    info = stage.site / "certifi-2024.1.1.dist-info"
    rows = (info / "RECORD").read_text().splitlines()
    (info / "RECORD").write_text("\n".join(row for row in rows if "INSTALLER" not in row and "REQUESTED" not in row))
    (info / "INSTALLER").unlink()
    shutil.rmtree(stage.site / "certifi")


def two_dist_infos(stage: Stage) -> None:
    old = shutil.copytree(stage.site / "certifi-2024.1.1.dist-info", stage.site / "certifi-2023.1.1.dist-info")
    text = (old / "RECORD").read_text().replace("2024", "2023")
    (old / "RECORD").write_text(text + "certifi/gone.py,sha256=AAAA,20\n")


def uninstalled(stage: Stage) -> None:
    for name in ("certifi", "idna", "six"):
        stage.uv("pip", "uninstall", "--python", str(stage.python), name)


def an_unfinished_restore(stage: Stage) -> None:
    folder = stage.project / ".envguard/restore/2026-01-01T000000-abcdef"
    folder.mkdir(parents=True)
    (stage.project / "envguard.toml").write_text("")
    (folder / "journal.jsonl").write_text('{"step": "begun"}\n{"step": "installing"}\n{"step": "do')
    shutil.rmtree(stage.site / "certifi")


@pytest.mark.parametrize(
    "happens",
    [
        before_the_checkpoint,
        compiled_files,
        marks_of_an_installer,
        no_record,
        another_manager,
        never_came,
        never_ended,
        two_dist_infos,
        uninstalled,
        an_unfinished_restore,
    ],
)
def test_what_is_missing_by_design_or_was_before_is_not_told(lossy: Stage, happens: Callable[[Stage], None]) -> None:
    happens(lossy)
    done = lossy.envguard("timeline", "--json", "--since-checkpoint", "step_200")
    answer = json.loads(done.stdout)
    assert [event for event in answer["events"] if event["kind"].startswith("file.")] == []
    titles = [finding["title"] for finding in answer["findings"] if "removed" not in finding["title"]]
    assert [title for title in titles if "cut short" not in title] == []
    assert (happens is never_ended) == any(
        "an install of certifi 2024.1.1 was cut short" in title for title in titles
    )
    if happens is an_unfinished_restore:
        assert done.returncode == 3
        assert any(item["what"] == "deleted files of certifi" and "has not ended" in item["why"]
                   for item in answer["unknown"])  # fmt: skip


def test_while_an_installer_is_at_work_nothing_is_told(lossy: Stage) -> None:
    """A real uv that waits for an index which never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        command = [uv.find_uv_bin(), "pip", "install", "--python", str(lossy.python), "--index-url", index, "attrs"]
        process = subprocess.Popen(command, cwd=lossy.project, env=lossy.environ(), stderr=subprocess.DEVNULL)
        try:
            shutil.rmtree(lossy.site / "certifi")
            code, answer = since(lossy)
        finally:
            process.kill()
            process.wait()
    assert (code, answer["findings"]) == (3, [])
    (unknown,) = [item for item in answer["unknown"] if item["what"] == "deleted files of certifi"]
    assert unknown["why"].startswith(f"process {process.pid} (")


def test_many_sound_packages_give_no_finding_and_many_lost_ones_few(stage: Stage) -> None:
    names = [f"package-{number}" for number in range(40)]
    for name in names:
        wheels.build_wheel(stage.wheels, name, "1.0")
    stage.install(*names)
    subprocess.run([stage.python, "-c", "import package_1, package_2"], check=True)
    time.sleep(0.3)
    save(stage, "step_200")
    code, answer = since(stage)
    assert (code, answer["findings"]) == (0, [])
    assert json.loads(stage.envguard("timeline", "--json").stdout)["findings"] == []
    for folder in stage.site.glob("package_*[0-9]"):
        if not folder.name.endswith(".dist-info"):
            shutil.rmtree(folder)
    findings = since(stage)[1]["findings"]
    assert len(findings) == 9
    assert findings[-1]["title"] == "32 more packages lost files"


def test_a_bundle_carries_it(lossy: Stage, tmp_path: Path) -> None:
    shutil.rmtree(lossy.site / "certifi")
    (lossy.site / "six.py").write_bytes(b"")
    bundle = tmp_path / "machine.bundle"
    assert lossy.envguard("collect", "-o", str(bundle)).returncode == 0
    live, there = since(lossy)[1], since(lossy, "step_200", "--bundle", str(bundle))[1]
    assert there["findings"] == live["findings"]
    assert {event["id"] for event in there["events"]} == {event["id"] for event in live["events"]}


def test_the_first_line_says_that_the_checkpoint_s_own_stamp_cannot_be_read(lossy: Stage) -> None:
    stamp = save(lossy, "step_300", stamped=True) / "envguard.json"
    stamp.write_bytes(stamp.read_bytes()[:200])
    done = lossy.envguard("timeline", "--since-checkpoint", "step_300")
    first_line = done.stdout.splitlines()[0]
    assert done.returncode == 3
    assert first_line.startswith("No finding since step_300, saved ")
    assert "with a stamp that cannot be read, but not everything could be read (below)" in first_line
    assert since(lossy, "step_200")[0] == 0, "another checkpoint's stamp is no reason to doubt this one"

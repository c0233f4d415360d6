"""Lock files read as references: real ones made by uv, and the odd lines that people's files have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import uv

from envguard.demo.wheels import build_wheel
from envguard.errors import InputError
from envguard.fingerprint.comparison import Knowledge, compare_references
from envguard.fingerprint.lock import Lock, Locked, lock_kind, parse_lock
from envguard.fingerprint.partial import Recalled
from envguard.fingerprint.places import Reference
from envguard.fingerprint.requirements import marker_environment
from envguard.fingerprint.uv_choices import AskedOfUv
from envguard.model.drift import DiffReport
from envguard.model.fingerprint import Fingerprint
from tests.fingerprint.made import fingerprint, package, torch

HERE = marker_environment(fingerprint())
ALONE = fingerprint(package("pine", "1.0"), package("oak", "2.0"))


def select(lock: Lock) -> dict[str, Locked]:
    """With all that it names installed, in no version."""
    everything = {item.name: () for item in lock.packages}
    return {item.name: item for item in lock.select(HERE, everything).packages}


def against(lock: Lock, b: Fingerprint, builds: dict[str, str] | None = None) -> DiffReport:
    """The lock as A, a fingerprint as B."""
    a = Reference("the lock", "lock", lock.path, lock=lock)
    knowledge = Knowledge(lambda: builds or {}, lambda _: Recalled(()), lambda: b)
    return compare_references((a, Reference("live", "live", fingerprint=b)), knowledge)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("pylock.toml", "pylock"), ("pylock.cuda.toml", "pylock"), ("uv.lock", "uv.lock"),
     ("x/requirements.txt", "requirements"),
     ("constraints-3.11.txt", "requirements"), ("envguard.json", None), ("pyproject.toml", None)],
)  # fmt: skip
def test_kind_by_name(name: str, kind: str | None) -> None:
    assert lock_kind(name) == kind


REQUIREMENTS = rb"""
# a comment
--index-url https://user:secret@example.org/simple
-r other.txt
Torch==2.11.0+cu128 \
    --hash=sha256:aaaa1111 \
    --hash=sha256:BBBB2222
numpy[extra] == 2.1.0  # pinned
pyodbc==4.0.0-unsupported
conda-content-trust==0+unknown
colorama==0.4.6 ; sys_platform == "win32"
unpinned>=1.0
==
triton @ https://example.org/w/triton-3.6.0%2Bgit1-cp311-cp311-linux_x86_64.whl#sha256=cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc
kernels @ git+https://example.org/kernels@0123456789012345678901234567890123456789
-e git+https://example.org/mine#egg=My_Project
"""


def test_requirements() -> None:
    lock = parse_lock("requirements.txt", REQUIREMENTS)
    found = select(lock)
    assert {name: item.version for name, item in found.items()} == {
        "torch": "2.11.0+cu128",
        "numpy": "2.1.0",
        "pyodbc": "4.0.0-unsupported",
        "conda-content-trust": "0+unknown",
        "triton": "3.6.0+git1",
        "kernels": None,
        "my-project": None,
    }
    assert found["torch"].sha256 == ("aaaa1111", "bbbb2222")
    assert found["triton"].sha256 == ("c" * 64,)
    assert found["kernels"].commit == "0123456789" * 4
    assert lock.notes == ("`-r other.txt` was not followed", "2 lines without a pin left out")


@pytest.mark.parametrize("data", [b"", b"numpy>=1\n", b"\xff\xfe\x00"])
def test_requirements_that_pin_nothing(data: bytes) -> None:
    with pytest.raises(InputError):
        parse_lock("requirements.txt", data)


UV_LOCK = b"""
version = 1
revision = 3
requires-python = ">=3.11"

[[package]]
name = "project"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
  { name = "torch", version = "2.11.0", marker = "sys_platform == 'darwin'" },
  { name = "torch", version = "2.11.0+cu128", marker = "sys_platform == 'linux'" },
  { name = "kernels" },
  { name = "colorama", marker = "sys_platform == 'win32'" },
  { name = "ray", extra = ["default"] },
]

[package.dev-dependencies]
dev = [{ name = "pytest" }]

[[package]]
name = "torch"
version = "2.11.0"
source = { registry = "https://a.example" }
resolution-markers = ["sys_platform == 'darwin'"]

[[package]]
name = "torch"
version = "2.11.0+cu128"
source = { registry = "https://b.example" }
resolution-markers = ["sys_platform == 'linux'", "sys_platform == 'win32'"]
wheels = [
  { url = "https://b.example/torch-2.11.0%2Bcu128.whl", hash = "sha256:aaaa", upload-time = "0001-01-01T00:00:00Z" },
]

[[package]]
name = "kernels"
version = "0.1"
source = { git = "https://example.org/kernels?rev=3f9c1a2#3f9c1a2aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" }

[[package]]
name = "colorama"
version = "0.4.6"
source = { registry = "https://a.example" }

[[package]]
name = "pytest"
version = "8.0"
source = { registry = "https://a.example" }

[[package]]
name = "ray"
version = "2.0"
source = { registry = "https://a.example" }

[package.optional-dependencies]
default = [{ name = "aiohttp" }]

[[package]]
name = "aiohttp"
version = "3.9"
source = { registry = "https://a.example" }
"""


def test_uv_lock_gives_the_entry_for_this_platform() -> None:
    lock = parse_lock("uv.lock", UV_LOCK)
    found = select(lock)
    assert found["torch"].version == "2.11.0+cu128"
    assert found["torch"].sha256 == ("aaaa",)
    assert found["kernels"].commit == "3f9c1a2" + "a" * 33
    assert "project" not in found
    required = {name for name, item in found.items() if item.required}
    assert required == {"torch", "kernels", "ray", "aiohttp"}, "what only Windows, an extra or a group needs is not"


@pytest.mark.parametrize(
    ("name", "data"),
    [("uv.lock", b"[project]\nname = 'x'\n"), ("pylock.toml", b"lock-version = '1.0'\n"), ("pylock.toml", b"\xff"),
     ("uv.lock", b"version = ")],
)  # fmt: skip
def test_no_lock(name: str, data: bytes) -> None:
    with pytest.raises(InputError, match=name.split(".")[0]):
        parse_lock(name, data)


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A project locked by the real uv, from a folder of wheels."""
    build_wheel(tmp_path / "wheels", "pine", "1.0", requires=["oak>=2"])
    build_wheel(tmp_path / "wheels", "oak", "2.0")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "project"\nversion = "0.1"\nrequires-python = ">=3.11"\ndependencies = ["pine"]\n'
    )
    environ = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_PYTHON_DOWNLOADS": "never"}
    for command in (
        ["lock"],
        ["export", "--format", "pylock.toml", "-o", "pylock.toml"],
        ["export", "-o", "requirements.txt"],
    ):
        subprocess.run(
            [uv.find_uv_bin(), *command, "--offline", "--no-index", "--find-links", "wheels", "--quiet"],
            cwd=tmp_path, env=environ, check=True, capture_output=True,
        )  # fmt: skip
    return tmp_path


@pytest.mark.parametrize("name", ["uv.lock", "pylock.toml", "requirements.txt"])
def test_locks_that_uv_writes(locked: Path, name: str) -> None:
    lock = parse_lock(name, (locked / name).read_bytes())
    found = select(lock)
    assert {name: item.version for name, item in found.items()} == {"pine": "1.0", "oak": "2.0"}
    assert all(len(digest) == 64 for item in found.values() for digest in item.sha256)
    assert against(lock, ALONE).exit_code() == 0


def test_wrong_version_and_missing_package_are_drift() -> None:
    lock = parse_lock("requirements.txt", b"pine==1.0\noak==2.0\n")
    report = against(lock, fingerprint(package("pine", "1.1"), package("elm", "1.0")))
    assert {
        (drift.subject, drift.a, drift.b, drift.severity) for drift in report.drifts if drift.facet == "packages"
    } == {
        ("pine", "1.0", "1.1", "warn"),
        ("oak", "2.0", None, "warn"),
        ("elm", None, "1.0", "info"),
    }
    assert report.exit_code() == 1
    assert report.a.id is None
    scope = [drift.why for drift in report.drifts if drift.facet == "unknown"]
    assert "speaks of packages only" in scope[0]


def test_a_version_does_not_prove_which_torch_was_meant() -> None:
    lock = parse_lock("requirements.txt", b"torch==2.11.0+cu128 --hash=sha256:" + b"a" * 64 + b"\n")
    build = package("torch", "2.11.0+cu128").build
    assert build is not None
    installed = fingerprint(package("torch", "2.11.0+cu128"))
    report = against(lock, installed)
    assert (report.exit_code(), [item.what for item in report.unknown]) == (3, ["packages: build of torch"])
    assert against(lock, installed, {"a" * 64: build}).exit_code() == 0
    swapped = against(lock, installed, {"a" * 64: "f" * 64})
    assert (swapped.drifts[0].facet, swapped.drifts[0].severity) == ("torch", "block")


def test_another_torch_than_the_lock_names() -> None:
    lock = parse_lock("requirements.txt", b"torch==2.11.0+cu128\n")
    now = fingerprint(package("torch", "2.11.0+cu130"), torch=torch("2.11.0+cu130", "13.0"))
    report = against(lock, now)
    assert (report.drifts[0].a, report.drifts[0].b, report.exit_code()) == ("2.11.0+cu128", "2.11.0+cu130", 1)
    cpu = fingerprint(package("torch", "2.11.0+cpu"), torch=torch("2.11.0+cpu", None))
    assert against(lock, cpu).drifts[0].effect == "breaks"


def test_a_requirement_without_a_local_version_is_met_by_one_with_it() -> None:
    """`torch==2.11.0` is met by 2.11.0+cu130: no drift, but nobody can say that this was meant."""
    lock = parse_lock("requirements.txt", b"torch==2.11.0\n")
    now = fingerprint(package("torch", "2.11.0+cu130"), torch=torch("2.11.0+cu130", "13.0"))
    assert against(lock, now).exit_code() == 3


def test_lock_as_the_second_side() -> None:
    lock = parse_lock("requirements.txt", b"pine==1.1\noak==2.0\n")
    b = Reference("the lock", "lock", lock.path, lock=lock)
    a = Reference("live", "live", fingerprint=ALONE)
    report = compare_references((a, b), Knowledge(dict, lambda _: Recalled(()), lambda: ALONE))
    assert [(drift.subject, drift.a, drift.b) for drift in report.drifts if drift.severity != "info"] == [
        ("pine", "1.0", "1.1")
    ]


def test_two_locks() -> None:
    one, two = (parse_lock(f"requirements-{n}.txt", f"pine=={n}.0\n".encode()) for n in (1, 2))
    references = tuple(Reference(lock.path, "lock", lock.path, lock=lock) for lock in (one, two))
    report = compare_references(references, Knowledge(dict, lambda _: Recalled(()), lambda: ALONE))
    assert [(drift.subject, drift.a, drift.b) for drift in report.drifts if drift.severity != "info"] == [
        ("pine", "1.0", "2.0")
    ]


CONFLICTING_UV = """
version = 1
revision = 5
requires-python = ">=3.11"
conflicts = [[{ package = "x", extra = "cpu" }, { package = "x", extra = "cu" }]]

[[package]]
name = "numpy"
version = "2.0.0"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "torch"
version = "2.8.0+cpu"
source = { registry = "https://download.pytorch.org/whl/cpu" }
wheels = [{ url = "https://e.org/torch-2.8.0%2Bcpu-py3-none-any.whl", hash = "sha256:aa" }]

[[package]]
name = "torch"
version = "2.8.0+cu128"
source = { registry = "https://download.pytorch.org/whl/cu128" }
dependencies = [{ name = "triton", marker = "extra == 'extra-1-x-cu'" }]
wheels = [{ url = "https://e.org/torch-2.8.0%2Bcu128-py3-none-any.whl", hash = "sha256:bb" }]

[[package]]
name = "triton"
version = "3.4.0"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "x"
version = "0.1"
source = { virtual = "." }
dependencies = [{ name = "numpy" }]

[package.optional-dependencies]
cpu = [{ name = "torch", version = "2.8.0+cpu", source = { registry = "https://download.pytorch.org/whl/cpu" } }]
cu = [{ name = "torch", version = "2.8.0+cu128", source = { registry = "https://download.pytorch.org/whl/cu128" } }]
"""
CONFLICTING_PYLOCK = """
lock-version = "1.0"
created-by = "test"
extras = ["cpu", "cu"]

[[packages]]
name = "numpy"
version = "2.0.0"
sdist = { name = "numpy-2.0.0.tar.gz", path = "s", hashes = { sha256 = "cc" } }

[[packages]]
name = "torch"
version = "2.8.0+cpu"
marker = "'cpu' in extras"
wheels = [{ name = "torch-2.8.0+cpu-py3-none-any.whl", path = "w", hashes = { sha256 = "aa" } }]

[[packages]]
name = "torch"
version = "2.8.0+cu128"
marker = "'cu' in extras"
wheels = [{ name = "torch-2.8.0+cu128-py3-none-any.whl", path = "w", hashes = { sha256 = "bb" } }]
"""
CONFLICTING_REQUIREMENTS = "numpy==2.0.0\ntorch==2.8.0+cpu\ntorch==2.8.0+cu128\n"
CONFLICTING_GROUPS = CONFLICTING_UV.replace("extra =", "group =").replace("optional-dep", "dev-dep")
CONFLICTING = {
    "uv.lock": CONFLICTING_UV,
    "groups/uv.lock": CONFLICTING_GROUPS,
    "pylock.toml": CONFLICTING_PYLOCK,
    "requirements.txt": CONFLICTING_REQUIREMENTS,
}


@pytest.mark.parametrize("path", CONFLICTING)
@pytest.mark.parametrize("local", ["cpu", "cu128"])
def test_of_conflicting_entries_the_installed_one_was_synced(path: str, local: str) -> None:
    lock = parse_lock(path, CONFLICTING[path].encode())
    installed = {"torch": ("2.8.0", f"2.8.0+{local}"), "numpy": ("2.0.0",)}
    selection = lock.select(HERE, installed)
    assert selection.several == ()
    assert {item.name: item.version for item in selection.packages} == {"numpy": "2.0.0", "torch": f"2.8.0+{local}"}


@pytest.mark.parametrize("path", CONFLICTING)
def test_where_none_of_them_is_installed_it_is_not_known_which_was_meant(path: str) -> None:
    lock = parse_lock(path, CONFLICTING[path].encode())
    (several,) = lock.select(HERE, {"torch": ("2.7.0",), "numpy": ("2.0.0",)}).several
    assert (several.name, several.versions) == ("torch", ("2.8.0+cpu", "2.8.0+cu128"))
    live = fingerprint(package("numpy", "2.0.0"), package("torch", "2.7.0"), torch=torch("2.7.0", "12.6"))
    report = against(lock, live)
    assert [item.subject for item in report.drifts if item.subject == "torch"] == []
    assert any("torch" in item.what and "which was synced is not known" in item.why for item in report.unknown)


@pytest.mark.parametrize("path", ["uv.lock", "groups/uv.lock", "pylock.toml"])
def test_what_no_sync_brought_in_is_not_asked_for(path: str) -> None:
    lock = parse_lock(path, CONFLICTING[path].encode())
    selection = lock.select(HERE, {"numpy": ("2.0.0",)})
    assert ([item.name for item in selection.packages], selection.several) == (["numpy"], ())


def test_one_version_of_two_sources_has_the_hashes_of_both() -> None:
    one = CONFLICTING_UV.replace("2.8.0+cpu", "2.8.0").replace("2.8.0+cu128", "2.8.0")
    (item,) = [
        item for item in parse_lock("uv.lock", one.encode()).select(HERE, {"torch": ("2.8.0",)}).packages
        if item.name == "torch"
    ]  # fmt: skip
    assert item.sha256 == ("aa", "bb")


FORKED = """
version = 1
requires-python = ">=3.11"
conflicts = [
    [{ package = "my-trainer", extra = "cpu" }, { package = "my-trainer", extra = "cu" }],
    [{ package = "my-trainer", group = "old" }, { package = "my-trainer", group = "new" }],
]

[[package]]
name = "my-trainer"
version = "0.1"
source = { editable = "." }
dependencies = [
    { name = "numpy", version = "1.26.4", marker = "extra == 'group-10-my-trainer-old'" },
    { name = "numpy", version = "2.1.0", marker = "extra != 'group-10-my-trainer-old'" },
]

[package.optional-dependencies]
cpu = [{ name = "torch", version = "2.8.0+cpu" }]
cu = [{ name = "torch", version = "2.8.0+cu128" }]
log = [{ name = "wandb" }]

[package.dev-dependencies]
old = [{ name = "numpy", version = "1.26.4" }]
new = [{ name = "numpy", version = "2.1.0" }]

[[package]]
name = "numpy"
version = "1.26.4"

[[package]]
name = "numpy"
version = "2.1.0"

[[package]]
name = "torch"
version = "2.8.0+cpu"

[[package]]
name = "torch"
version = "2.8.0+cu128"

[[package]]
name = "wandb"
version = "0.20"
"""


@pytest.mark.parametrize(
    ("installed", "meant"),
    [
        ({"numpy": "1.26.4", "torch": "2.8.0+cu128"}, {"numpy": "1.26.4", "torch": "2.8.0+cu128"}),
        ({"numpy": "2.1.0", "torch": "2.8.0+cpu"}, {"numpy": "2.1.0", "torch": "2.8.0+cpu"}),
        ({"numpy": "2.1.0", "wandb": "0.20"}, {"numpy": "2.1.0", "wandb": "0.20"}),
        ({"numpy": "2.0.0"}, {}),  # neither: which was synced is not known
    ],
)
def test_the_markers_of_conflicting_groups_choose_by_what_is_installed(
    installed: dict[str, str], meant: dict[str, str]
) -> None:
    selection = parse_lock("uv.lock", FORKED.encode()).select(HERE, {name: (v,) for name, v in installed.items()})
    assert {item.name: item.version for item in selection.packages} == meant
    assert [item.name for item in selection.several] == ([] if meant else ["numpy"])


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (AskedOfUv((("extra", "cpu"),)), {"numpy": "1.26.4", "torch": "2.8.0+cpu"}),
        (AskedOfUv((("extra", "cu"), ("group", "new"))), {"numpy": "2.1.0", "torch": "2.8.0+cu128"}),
        (AskedOfUv((("extra", "log"),)), {"numpy": "1.26.4", "torch": "2.8.0+cu128", "wandb": "0.20"}),
        (AskedOfUv((("extra", None),), (("extra", "cpu"), ("extra", "cu"))),
         {"numpy": "1.26.4", "torch": "2.8.0+cu128", "wandb": "0.20"}),
        (AskedOfUv((("extra", "cpu"),), package="another"), {"numpy": "1.26.4", "torch": "2.8.0+cu128"}),
    ],
)  # fmt: skip
def test_what_the_command_asks_of_uv_is_what_the_lock_is_selected_by(asked: AskedOfUv, meant: dict[str, str]) -> None:
    lock = parse_lock("uv.lock", FORKED.encode()).asking(asked)
    selection = lock.select(HERE, {"numpy": ("1.26.4",), "torch": ("2.8.0+cu128",)})
    assert ({item.name: item.version for item in selection.packages}, selection.several) == (meant, ())

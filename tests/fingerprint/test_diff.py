"""Two fingerprints in, graded drift out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from envguard.config import PolicyRule
from envguard.fingerprint.diff import compare
from envguard.model import plain
from envguard.model.drift import DiffReport, Drift
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import (
    Cuda,
    Driver,
    Environment,
    Fingerprint,
    Hook,
    Package,
    Problem,
    Shadowed,
)
from envguard.restore.byhand import said_for_hand
from tests.fingerprint.made import SYSTEM, cache, file_set, fingerprint, gpu, package, replace, torch, tree

BASE = fingerprint()


def drifts(b: Fingerprint, a: Fingerprint = BASE) -> dict[tuple[str, str], Drift]:
    report = compare(a, b)
    return {(drift.facet, drift.subject): drift for drift in report.drifts}


def grade(b: Fingerprint, facet: str, subject: str, a: Fingerprint = BASE) -> tuple[str, str]:
    drift = drifts(b, a)[facet, subject]
    assert drift.why
    return drift.severity, drift.effect


def with_packages(*packages: Package, **more: Any) -> Fingerprint:
    """The sound fingerprint with these packages in place of their namesakes."""
    names = {item.name for item in packages}
    kept = tuple(item for item in BASE.packages if item.name not in names)
    return replace(BASE, packages=kept + packages, **more)


def code(report: DiffReport) -> int:
    assert report.match == (report.exit_code() == 0)
    return report.exit_code()


def test_the_same_matches() -> None:
    report = compare(BASE, BASE, a_label="step_690", b_label="live")
    assert (report.drifts, report.unknown, report.match, code(report)) == ((), (), True, 0)
    assert (report.a.label, report.b.label, report.a.id) == ("step_690", "live", BASE.id)


def test_what_is_no_drift() -> None:
    """Prefix, host, times, installer, link mode, order, scripts: another machine with the same environment."""
    noisy = replace(
        BASE,
        taken_at="2027-01-01T00:00:00+00:00",
        envguard="9.9",
        python=replace(BASE.python, prefix="/elsewhere", executable="/elsewhere/bin/python", base="/opt"),
        sys_path=("/elsewhere/lib",),
        packages=tuple(
            replace(item, installer="pip", location="/elsewhere", installed_at="2027-01-01T00:00:00+00:00", files=99)
            for item in reversed(BASE.packages)
        ),
        system=replace(SYSTEM, host="other", boot_time="2027-01-01T00:00:00+00:00"),
        processes=None,
        deep=True,
        code=(tree(path="/elsewhere/project"),),
    )
    report = compare(BASE, noisy)
    assert (report.drifts, report.unknown, code(report)) == ((), (), 0)


def test_torch_swap() -> None:
    b = with_packages(
        package("torch", "2.11.0+cu130"), torch=torch("2.11.0+cu130", "13.0"), cuda=Cuda(build="13.0", packages={})
    )
    report = compare(BASE, b)
    assert code(report) == 1
    first = report.drifts[0]
    assert (first.facet, first.subject, first.a, first.b) == ("torch", "torch", "2.11.0+cu128", "2.11.0+cu130")
    assert (first.severity, first.effect) == ("block", "numerics")
    assert grade(b, "cuda", "build") == ("block", "performance")


def test_torch_of_pypi_is_told_by_its_version_file() -> None:
    """PyPI's METADATA says 2.11.0 for any CUDA; version.py says which."""
    a = with_packages(package("torch", "2.11.0"), torch=torch("2.11.0+cu128"))
    b = with_packages(package("torch", "2.11.0", "f" * 64), torch=torch("2.11.0+cu130", "13.0"))
    drift = drifts(b, a)["torch", "torch"]
    assert (drift.a, drift.b, drift.severity) == ("2.11.0+cu128", "2.11.0+cu130", "block")


def test_cuda_build_to_cpu_build_blocks() -> None:
    b = with_packages(
        package("torch", "2.11.0+cpu"), torch=torch("2.11.0+cpu", None), cuda=Cuda(build=None, packages={})
    )
    assert grade(b, "torch", "torch") == ("block", "breaks")
    assert "CPU build" in drifts(b)["torch", "torch"].why
    assert grade(BASE, "torch", "torch", b) == ("block", "breaks")


def test_cpu_build_under_the_same_version() -> None:
    a = with_packages(package("torch", "2.11.0"), torch=torch("2.11.0", "12.8"))
    b = with_packages(package("torch", "2.11.0", "f" * 64), torch=torch("2.11.0", None))
    drift = drifts(b, a)["torch", "torch"]
    assert (drift.severity, drift.effect, drift.a, drift.b) == ("block", "breaks", "CUDA 12.8", "CPU")


_ACCELERATORS: dict[str, dict[str, Any]] = {
    "CUDA 12.8": {"version": "2.8.0+cu128", "cuda": "12.8"},
    "CUDA 13.0": {"version": "2.8.0", "cuda": "13.0"},
    "ROCm 6.4.43482": {"version": "2.8.0+rocm6.4", "cuda": None, "hip": "6.4.43482"},
    "ROCm 6.2": {"version": "2.8.0", "cuda": None, "hip": "6.2"},
    "XPU 20250101": {"version": "2.8.0+xpu", "cuda": None, "xpu": "20250101"},
    "XPU": {"version": "2.9.0.dev20250801+xpu", "cuda": None},
    "CPU": {"version": "2.8.0+cpu", "cuda": None},
    "CPU ": {"version": "2.8.0", "cuda": None},
}


@pytest.mark.parametrize("was", _ACCELERATORS)
@pytest.mark.parametrize("now", _ACCELERATORS)
def test_a_change_of_accelerator_breaks_and_names_both(was: str, now: str) -> None:
    one, other = torch(**_ACCELERATORS[was]), torch(**_ACCELERATORS[now])
    assert one.built_for == was.strip()
    a = with_packages(package("torch", one.version or ""), torch=one)
    b = with_packages(package("torch", other.version or "", "f" * 64), torch=other)
    drift = drifts(b, a)["torch", "torch"]
    assert drift.severity == "block"
    if was.split()[0] != now.split()[0]:
        assert drift.effect == "breaks"
        assert f"{was.strip()} → {now.strip()}" in drift.why
        assert ("no accelerator will be used" in drift.why) is (now.strip() == "CPU")
    else:
        assert drift.effect == "numerics"


def test_another_build_under_the_same_version_blocks() -> None:
    b = with_packages(package("torch", "2.11.0+cu128", "f" * 64), torch=torch(git_version="0" * 40))
    drift = drifts(b)["torch", "torch"]
    assert (drift.severity, drift.effect) == ("block", "numerics")
    assert "git 70d99e998b → 0000000000" in drift.why
    assert drift.b == "f" * 64


def test_torch_without_record_is_told_by_its_own_files() -> None:
    """conda's, Debian's, or one built from source."""

    def bare(**change: Any) -> Fingerprint:
        item = msgspec.structs.replace(package("torch", "2.11.0+cu128"), build=None)
        return with_packages(item, torch=torch(torch_key="k" * 64, **change))

    assert code(compare(bare(), bare())) == 0
    for change in ({"git_version": "0" * 40}, {"libraries": {"libtorch_cuda.so": "bb" * 20}}):
        assert grade(bare(**change), "torch", "torch", bare()) == ("block", "numerics")
    a = bare()
    b = replace(a, torch=torch(torch_key="x" * 64))
    assert "its Python files" in drifts(b, a)["torch", "torch"].why


def test_patched_file_in_torch_blocks_and_is_named() -> None:
    b = with_packages(package("torch", "2.11.0+cu128", "f" * 64, departs=("torch/nn/attention/flex_attention.py",)))
    drift = drifts(b)["torch", "torch"]
    assert (drift.severity, drift.effect) == ("block", "numerics")
    assert "torch/nn/attention/flex_attention.py" in drift.why
    assert grade(BASE, "torch", "torch", b) == ("warn", "numerics")


def test_a_patch_that_only_a_deep_look_can_see_is_undetermined() -> None:
    a = with_packages(package("rich", "14.0", "f" * 64, departs=("rich/a.py",), depth="deep"))
    b = with_packages(package("rich", "14.0", depth="stat"))
    report = compare(a, b)
    assert (report.drifts, code(report)) == ((), 3)
    assert "rich/a.py" in report.unknown[0].why


def test_triton_and_runtime_libraries() -> None:
    a = with_packages(package("nvidia-cublas-cu12", "12.8.4.1"), package("nvidia-nvtx-cu12", "12.8.90"))
    b = with_packages(package("nvidia-cublas-cu12", "12.9.0"), package("triton", "3.7.0"))
    assert grade(b, "torch", "triton", a) == ("block", "numerics")
    assert grade(b, "cuda", "nvidia-cublas-cu12", a) == ("block", "numerics")
    assert grade(b, "cuda", "nvidia-nvtx-cu12", a) == ("block", "breaks")
    assert grade(a, "cuda", "nvidia-nvtx-cu12", b) == ("warn", "breaks")


def test_cuda_wheels_under_another_name_are_a_change() -> None:
    a = with_packages(package("nvidia-cublas-cu12", "12.8.4.1"), package("nvidia-nvtx-cu12", "12.8.90"))
    b = with_packages(
        package("torch", "2.11.0+cu130"), package("nvidia-cublas", "13.0.0.19"), torch=torch("2.11.0+cu130", "13.0")
    )
    found = drifts(b, a)
    change = found["cuda", "nvidia-cublas"]
    assert (change.a, change.b) == ("12.8.4.1 (nvidia-cublas-cu12)", "13.0.0.19 (nvidia-cublas)")
    assert ("cuda", "nvidia-cublas-cu12") not in found
    assert found["cuda", "nvidia-nvtx-cu12"].effect == "breaks"
    assert next(iter(found)) == ("torch", "torch"), "the cause is told before what came with it"


def test_transformers_is_numerics() -> None:
    b = with_packages(package("transformers", "5.8.1"))
    drift = drifts(b)["packages", "transformers"]
    assert (drift.severity, drift.effect, drift.a, drift.b) == ("warn", "numerics", "5.6.0", "5.8.1")
    assert code(compare(BASE, b)) == 1


def test_other_packages() -> None:
    a = with_packages(package("rich", "14.0"), package("wandb", "0.19"))
    b = with_packages(package("rich", "14.1"), package("tqdm", "4.0"))
    assert grade(b, "packages", "rich", a) == ("warn", "none")
    assert grade(b, "packages", "wandb", a) == ("warn", "breaks")
    assert grade(b, "packages", "tqdm", a) == ("info", "none")


def test_a_package_only_in_b_is_info_unless_it_is_of_the_torch_stack() -> None:
    report = compare(BASE, with_packages(package("sglang", "0.5.6")))
    assert (code(report), report.match) == (0, True)
    assert grade(with_packages(package("flash-attn", "2.8")), "packages", "flash-attn") == ("warn", "numerics")
    assert grade(with_packages(package("torchvision", "0.26")), "packages", "torchvision") == ("warn", "numerics")


def test_a_package_that_shadows_another() -> None:
    hides = Shadowed(name="utils", wins="/venv/utils.py", loses="/venv/lib/utils/__init__.py")
    drift = drifts(replace(BASE, shadowed=(hides,)))["packages", "utils"]
    assert (drift.severity, drift.effect) == ("warn", "breaks")
    assert "/venv/utils.py" in drift.why
    assert drifts(replace(BASE, shadowed=(hides,)), replace(BASE, shadowed=(hides,))) == {}


def test_what_shadows_is_the_same_at_another_prefix() -> None:
    def at(prefix: str, project: str, wins: str) -> Fingerprint:
        hides = Shadowed(name="utils", wins=wins, loses=f"{prefix}/lib/python3.11/site-packages/utils/__init__.py")
        python, code = replace(BASE.python, prefix=prefix), (replace(tree(), path=project),)
        return replace(BASE, python=python, code=code, shadowed=(hides,))

    here = at("/srv/a/.venv", "/srv/a", "/srv/a/.venv/lib/utils.py")
    assert ("packages", "utils") not in drifts(at("/node2/.venv", "/node2", "/node2/.venv/lib/utils.py"), here)
    assert ("packages", "utils") in drifts(at("/node2/.venv", "/node2", "/node2/.venv/other/utils.py"), here)
    assert ("packages", "utils") in drifts(at("/node2/.venv", "/node2", "/srv/a/.venv/lib/utils.py"), here)
    of_code = at("/srv/a/.venv", "/srv/a", "/srv/a/utils.py")
    assert ("packages", "utils") not in drifts(at("/node2/.venv", "/node2", "/node2/utils.py"), of_code)


def test_a_broken_requirement_names_the_line() -> None:
    needs = package("transformers", "5.6.0", requires=("tokenizers<0.23,>=0.22", "torch>=2.4 ; extra == 'torch'"))
    a = with_packages(needs, package("tokenizers", "0.22.1"))
    b = with_packages(needs, package("tokenizers", "0.24.0"))
    drift = drifts(b, a)["packages", "transformers"]
    assert (drift.severity, drift.effect) == ("warn", "breaks")
    assert drift.why == ("transformers 5.6.0 requires `tokenizers<0.23,>=0.22`, but tokenizers 0.24.0 is installed")
    assert drifts(b, b) == {}, "broken on both sides alike is no drift"


def test_a_broken_requirement_on_torch_blocks() -> None:
    needs = package("transformers", "5.6.0", requires=("torch==2.11.0",))
    a, b = with_packages(needs), with_packages(needs, package("torch", "2.12.0"), torch=torch("2.12.0"))
    assert grade(b, "packages", "transformers", a) == ("block", "breaks")


@pytest.mark.parametrize(
    ("change", "graded"),
    [({"version": "3.12.1"}, ("minor", "block", "breaks")), ({"version": "3.11.10"}, ("version", "warn", "numerics")),
     ({"abi": "cp311t"}, ("abi", "block", "breaks")),
     ({"implementation": "pypy"}, ("implementation", "block", "breaks"))],
)  # fmt: skip
def test_python(change: dict[str, str], graded: tuple[str, str, str]) -> None:
    subject, *expected = graded
    assert grade(replace(BASE, python=replace(BASE.python, **change)), "python", subject) == tuple(expected)


def test_python_unknown_on_one_side() -> None:
    report = compare(BASE, replace(BASE, python=replace(BASE.python, abi=None)))
    assert code(report) == 3
    assert report.unknown == (Unknown("python abi", "B does not know it"),)


def test_driver() -> None:
    assert BASE.driver is not None
    newer = replace(BASE, driver=replace(BASE.driver, version="595.71.05", kernel_module="595.71.05"))
    assert grade(newer, "driver", "version") == ("warn", "performance")
    assert grade(BASE, "driver", "version", newer) == ("block", "breaks")
    # Ubuntu's two-part number: the library was upgraded, the kernel module was not.
    split = replace(BASE, driver=Driver(version="595.84", kernel_module="580.65.06", cuda="13.2", agrees=False))
    drift = drifts(split)["driver", "agrees"]
    assert (drift.severity, drift.effect, drift.a, drift.b) == ("block", "breaks", "580.65.06", "595.84")
    assert "rebooted" in drift.why
    assert grade(replace(BASE, driver=None), "driver", "version") == ("block", "breaks")
    seen = replace(BASE, driver=None, unknown=(Unknown("driver", "NVML error 999"),))
    assert [(drift.facet) for drift in compare(BASE, seen).drifts] == []
    assert code(compare(BASE, seen)) == 3


def test_gpus() -> None:
    gpus = BASE.gpus
    assert gpus is not None
    fewer = drifts(replace(BASE, gpus=gpus[:7]))["gpu", "count"]
    assert (fewer.a, fewer.b) == ("8 × NVIDIA RTX PRO 6000", "7 × NVIDIA RTX PRO 6000")
    assert (fewer.severity, fewer.effect) == ("block", "breaks")
    assert grade(BASE, "gpu", "count", replace(BASE, gpus=gpus[:7])) == ("warn", "numerics")
    assert grade(replace(BASE, gpus=()), "gpu", "count") == ("block", "breaks")

    def one(**change: Any) -> Fingerprint:
        return replace(BASE, gpus=(*gpus[:6], gpu(6, **change), gpus[7]))

    assert grade(one(name="NVIDIA H200"), "gpu", "model") == ("block", "numerics")
    assert grade(one(uuid_digest="another"), "gpu", "gpu6.uuid") == ("info", "none")
    assert grade(one(memory_bytes=48 << 30), "gpu", "gpu6.memory") == ("block", "breaks")
    assert grade(one(power_limit_w=300.0), "gpu", "gpu6.power_limit") == ("warn", "performance")
    assert drifts(one(power_limit_w=300.0))["gpu", "gpu6.power_limit"].b == "300 W"
    assert grade(one(ecc=False), "gpu", "gpu6.ecc") == ("warn", "performance")
    assert grade(
        one(mig="enabled"), "gpu", "gpu6.mig", replace(BASE, gpus=(*gpus[:6], gpu(6, mig="disabled"), gpus[7]))
    ) == (
        "block",
        "breaks",
    )


def test_a_field_that_nvml_refuses() -> None:
    refused = tuple(gpu(index, ecc=None, refused={"ecc": "Not Supported"}) for index in range(8))
    assert code(compare(replace(BASE, gpus=refused), replace(BASE, gpus=refused))) == 0
    report = compare(BASE, replace(BASE, gpus=refused))
    assert code(report) == 3
    assert report.unknown[0] == Unknown("gpu gpu0.ecc", "B: Not Supported")


def test_gpus_that_could_not_be_seen_fail_closed_even_on_both_sides() -> None:
    blind = replace(BASE, gpus=None, unknown=(Unknown("gpu", "NVML error 999: Unknown Error"),))
    for a, b in ((BASE, blind), (blind, BASE), (blind, blind)):
        report = compare(a, b)
        assert code(report) == 3
        assert [item.what for item in report.unknown].count("gpu") >= 1
    never = replace(BASE, gpus=None)
    assert code(compare(never, never)) == 3


def test_no_gpu_on_both_sides_is_determined() -> None:
    none = replace(BASE, gpus=(), driver=None)
    assert code(compare(none, none)) == 0


def test_context_memory() -> None:
    a = replace(BASE, gpus=tuple(gpu(index, context_bytes=512_000_000) for index in range(8)))
    b = replace(BASE, gpus=tuple(gpu(index, context_bytes=712_000_000) for index in range(8)))
    drift = drifts(b, a)["memory", "gpu6.context"]
    assert (drift.severity, drift.effect, drift.a, drift.b) == ("warn", "breaks", "512 MB", "712 MB")
    assert "200 MB more" in drift.why
    assert grade(a, "memory", "gpu6.context", b) == ("info", "performance")
    assert drifts(b) == {}, "measured with --probe on one side only"


@pytest.mark.parametrize(
    ("change", "graded"),
    [({"verdict": "EMPTY", "bytes": 0, "entries": 0}, ("warn", "performance")),
     ({"verdict": "FOREIGN"}, ("warn", "performance")),
     ({"verdict": "UNSAFE", "why": "mode 777"}, ("block", "breaks")),
     ({"verdict": "MIXED"}, ("info", "performance")), ({"bytes": 20_000_000}, ("warn", "performance")),
     ({"bytes": 400_000_000, "digest": "x"}, ("info", "performance"))],
)  # fmt: skip
def test_compile_cache(change: dict[str, Any], graded: tuple[str, str]) -> None:
    assert grade(replace(BASE, compile_cache=(cache(**change),)), "compile_cache", "inductor") == graded


def test_compile_cache_gone_or_come() -> None:
    gone = replace(BASE, compile_cache=())
    drift = drifts(gone)["compile_cache", "inductor"]
    assert (drift.severity, drift.a, drift.b) == ("warn", "353 MB", None)
    assert grade(BASE, "compile_cache", "inductor", gone) == ("info", "performance")
    elsewhere = replace(BASE, compile_cache=(cache(path="/tmp/torchinductor_other"),))
    assert drifts(elsewhere) == {}
    unjudged = replace(BASE, compile_cache=(cache(verdict="UNKNOWN", why="Permission denied"),))
    assert compare(BASE, unjudged).unknown == (Unknown("compile_cache inductor", "B: Permission denied"),)


def test_code() -> None:
    def b(**change: Any) -> Fingerprint:
        return replace(BASE, code=(tree(**change),))

    dirty = b(dirty=True, diff_digest="9" * 64, dirty_files=("dflash_model.py",))
    drift = drifts(dirty)["code", "/srv/project"]
    assert (drift.severity, drift.effect) == ("warn", "numerics")
    assert "dflash_model.py" in drift.why
    other = b(dirty=True, diff_digest="8" * 64, dirty_files=("dflash_model.py",))
    assert grade(other, "code", "/srv/project", dirty) == ("warn", "numerics")
    assert grade(BASE, "code", "/srv/project", dirty) == ("warn", "numerics")
    assert grade(b(commit="b" * 40), "code", "/srv/project") == ("warn", "numerics")
    assert grade(b(branch="try"), "code", "/srv/project") == ("info", "none")
    assert grade(b(submodules={"kernels": "1" * 40}), "code", "/srv/project/kernels") == ("warn", "numerics")
    assert compare(BASE, replace(BASE, code=None)).unknown == (Unknown("code", "not recorded in B"),)


def test_data_and_config() -> None:
    grown = replace(BASE, data=(file_set(rows=1_100_000, digest="x"),))
    drift = drifts(grown)["data", "data/train.jsonl"]
    assert (drift.severity, drift.effect, drift.a, drift.b) == ("warn", "numerics", "902087 rows", "1100000 rows")
    edited = drifts(replace(BASE, data=(file_set(digest="x" * 64),)))["data", "data/train.jsonl"]
    assert (edited.a, edited.b) == ("d" * 64, "x" * 64)
    assert grade(replace(BASE, data=()), "data", "data/train.jsonl") == ("block", "breaks")
    a, b = (
        replace(BASE, config=(file_set("c.toml", None),)),
        replace(BASE, config=(file_set("c.toml", None, digest="x"),)),
    )
    assert grade(b, "config", "c.toml", a) == ("warn", "numerics")


def test_data_that_is_not_there() -> None:
    gone = replace(
        BASE,
        data=(file_set(rows=None, files=0, bytes=0, digest=None),),
        problems=(Problem(kind="data-missing", subject="data/train.jsonl", says="it is not there"),),
    )
    (drift,) = compare(BASE, gone).drifts
    assert (drift.facet, drift.severity, drift.effect, drift.b) == ("data", "block", "breaks", None)
    assert compare(gone, gone).match


def test_data_that_was_not_hashed_is_no_match() -> None:
    blind = replace(BASE, data=(file_set(digest=None),))
    assert compare(BASE, blind).unknown == (Unknown("data data/train.jsonl", "no digest in B"),)
    grown = replace(BASE, data=(file_set(rows=None, digest=None, bytes=5_000_000_000),))
    assert (
        drifts(grown, replace(BASE, data=(file_set(rows=None, digest=None),)))["data", "data/train.jsonl"].b
        == "5.0 GB"
    )


@pytest.mark.parametrize(
    ("name", "graded"),
    [("RANK", ("info", "none")), ("MASTER_PORT", ("info", "none")), ("CUDA_VISIBLE_DEVICES", ("warn", "breaks")),
     ("NVIDIA_TF32_OVERRIDE", ("warn", "numerics")), ("PYTORCH_CUDA_ALLOC_CONF", ("warn", "performance")),
     ("NCCL_P2P_DISABLE", ("warn", "performance")), ("LD_LIBRARY_PATH", ("warn", "breaks")),
     ("PATH", ("info", "none")), ("TORCHINDUCTOR_CACHE_DIR", ("info", "none")), ("HF_HOME", ("info", "none"))],
)  # fmt: skip
def test_variables(name: str, graded: tuple[str, str]) -> None:
    b = replace(BASE, env=Environment(digest="x", variables={**BASE.env.variables, name: "other"}))  # type: ignore[union-attr]
    assert grade(b, "env", name) == graded


def test_what_a_launcher_sets_for_its_ranks() -> None:
    """A stamp is taken in a rank, `launch` compares in the shell that starts torchrun."""

    def env(**variables: str) -> Fingerprint:
        return replace(BASE, env=Environment(digest="x", variables=variables))

    shell = env(NCCL_DEBUG="INFO")
    rank = env(NCCL_DEBUG="INFO", RANK="3", CUDA_VISIBLE_DEVICES="3", OMP_NUM_THREADS="1", TORCHELASTIC_RUN_ID="x")
    for report in (compare(rank, shell), compare(shell, rank)):
        assert (code(report), {drift.severity for drift in report.drifts}) == (0, {"info"})
    other = env(RANK="5", CUDA_VISIBLE_DEVICES="5", OMP_NUM_THREADS="8")
    assert grade(other, "env", "CUDA_VISIBLE_DEVICES", rank) == ("info", "none")
    assert grade(other, "env", "OMP_NUM_THREADS", rank) == ("warn", "performance")


def process(variables: str = "", started: str | None = None, origin: str | None = "loaded") -> Fingerprint:
    """A stamp. `X=1 Y=2` are variables; `started` alike, with `X` alone for one that was not there at the start."""
    before: dict[str, str | None] | None = None
    if started is not None:
        parts = (each.partition("=") for each in started.split())
        before = {name: value if equals else None for name, equals, value in parts}
    env = Environment(digest="x", variables=dict(each.split("=", 1) for each in variables.split()), started=before)
    return replace(BASE, env=env, origin=origin)


def shell(variables: str = "") -> Fingerprint:
    return process(variables, origin=None)


NOTHING, OWN, DIFFERS = None, "own", "differs"


@pytest.mark.parametrize(
    ("a", "b", "expected", "values"),
    [
        # A process that was started like the shell, and did something to the variable or nothing.
        (process("OMP_X=1", ""), shell("OMP_X=1"), NOTHING, ()),
        (process("OMP_X=1", "OMP_X"), shell(), OWN, ("1", None)),
        (process("OMP_X=2", "OMP_X=1"), shell("OMP_X=1"), OWN, ("2", "1")),
        (process("", "OMP_X=1"), shell("OMP_X=1"), OWN, (None, "1")),
        # One that was started otherwise: what was handed to it is held against what would be handed over now.
        (process("OMP_X=1", ""), shell("OMP_X=2"), DIFFERS, ("1", "2")),
        (process("OMP_X=1", ""), shell(), DIFFERS, ("1", None)),
        (process("", ""), shell("OMP_X=1"), DIFFERS, (None, "1")),
        (process("OMP_X=2", "OMP_X=1"), shell("OMP_X=3"), DIFFERS, ("1", "3")),
        (process("OMP_X=2", "OMP_X=1"), shell("OMP_X=2"), DIFFERS, ("1", "2")),
        (process("OMP_X=2", "OMP_X=1"), shell(), DIFFERS, ("1", None)),
        (process("OMP_X=1", "OMP_X"), shell("OMP_X=2"), DIFFERS, (None, "2")),
        (process("", "OMP_X=1"), shell("OMP_X=2"), DIFFERS, ("1", "2")),
        (process("", "OMP_X=1"), shell(), DIFFERS, ("1", None)),
        # The shell has by now what the process gave itself where there was nothing.
        (process("OMP_X=1", "OMP_X"), shell("OMP_X=1"), NOTHING, ()),
        # Two processes.
        (process("OMP_X=1", "OMP_X"), process("", ""), OWN, ("1", None)),
        (process("OMP_X=2", "OMP_X=1"), process("OMP_X=1", ""), OWN, ("2", "1")),
        (process("OMP_X=1", "OMP_X"), process("OMP_X=1", "OMP_X"), NOTHING, ()),
        (process("OMP_X=2", "OMP_X=1"), process("OMP_X=2", ""), NOTHING, ()),
        (process("OMP_X=1", "OMP_X"), process("OMP_X=2", "OMP_X"), DIFFERS, ("1", "2")),
        (process("OMP_X=2", "OMP_X=1"), process("OMP_X=4", "OMP_X=3"), DIFFERS, ("2", "4")),
        (process("OMP_X=2", "OMP_X=1"), process("OMP_X=3", ""), DIFFERS, ("2", "3")),
        (process("OMP_X=1", ""), process("OMP_X=2", ""), DIFFERS, ("1", "2")),
        # A process that does not tell what it was started with: a stamp of an earlier envguard, or setproctitle.
        (process("OMP_X=1"), shell("OMP_X=1"), NOTHING, ()),
        (process("OMP_X=1"), shell(), DIFFERS, ("1", None)),
        (process("OMP_X=1", "OMP_X"), process(""), OWN, ("1", None)),
        (process("OMP_X=1", "OMP_X"), process("OMP_X=1"), NOTHING, ()),
        (process("", ""), process("OMP_X=1"), DIFFERS, (None, "1")),
        (process("OMP_X=2", "OMP_X=1"), process("OMP_X=2"), NOTHING, ()),
        # Neither is a process: `snapshot --into`, `launch`, a shell.
        (shell("OMP_X=1"), shell("OMP_X=1"), NOTHING, ()),
        (shell("OMP_X=1"), shell(), DIFFERS, ("1", None)),
        # The process gave itself a value that is withheld.
        (process("", "OMP_X"), shell(), NOTHING, ()),
    ],
)
def test_what_a_process_set_itself(
    a: Fingerprint, b: Fingerprint, expected: str | None, values: tuple[str | None, ...]
) -> None:
    """Every pair of sides, either way round: only what was handed to a process can stand against a start."""
    for first, second, wanted in ((a, b, values), (b, a, values[::-1])):
        report = compare(first, second)
        rows = [(drift.a, drift.b) for drift in report.drifts if drift.subject == "OMP_X"]
        assert rows == ([wanted] if expected is not NOTHING else [])
        assert code(report) == (1 if expected is DIFFERS else 0)
        assert all((drift.effect == "none") is (expected is OWN) for drift in report.drifts)
    if expected is OWN:
        (drift,) = compare(a, b).drifts
        assert drift.why == "the process, or what launched its ranks, set or removed it itself"


def test_what_torchrun_sets_where_nothing_is_set_and_what_is_set_now() -> None:
    # The rank tells that its launcher was started with none: what would be handed over now is another start.
    rank = process("RANK=0 OMP_NUM_THREADS=1", "RANK OMP_NUM_THREADS")
    assert code(compare(rank, shell())) == 0
    assert grade(rank, "env", "OMP_NUM_THREADS", shell("OMP_NUM_THREADS=7")) == ("warn", "performance")
    # A rank that does not tell, as one of a launcher that is no program of Python.
    for untold in (process("RANK=0 OMP_NUM_THREADS=1", ""), process("RANK=0 OMP_NUM_THREADS=1")):
        assert code(compare(untold, shell())) == 0


@pytest.mark.parametrize(
    ("name", "value", "own"),
    [("CUDA_MODULE_LOADING", "LAZY", True), ("CUDA_MODULE_LOADING", "EAGER", False),
     ("TRITON_PTXAS_PATH", "{prefix}/lib/python3.11/site-packages/torch/_inductor/bin/ptxas", True),
     ("TRITON_PTXAS_PATH", "{prefix}/lib/python3.11/site-packages/triton/backends/nvidia/bin/ptxas", True),
     ("TRITON_PTXAS_PATH", "/usr/local/cuda/bin/ptxas", False),
     ("TRITON_PTXAS_PATH", "/elsewhere/lib/python3.11/site-packages/torch/_inductor/bin/ptxas", False)],
)  # fmt: skip
def test_what_torch_sets_where_a_stamp_does_not_tell(name: str, value: str, own: bool) -> None:
    text = f"{name}={value.format(prefix=BASE.python.prefix)}"
    for first, second in ((process(text), shell()), (shell(), process(text))):
        assert code(compare(first, second)) == (0 if own else 1)
    assert code(compare(process(text), shell(f"{name}=other"))) == 1  # a shell that hands over another
    assert code(compare(shell(text), shell())) == 1  # torch sets it in no shell
    assert code(compare(process(text, ""), shell())) == 1  # this one was started with it, and tells
    assert code(compare(process(text, name), shell())) == 0


def test_the_launchers_variables_among_those_that_a_process_set() -> None:
    rank = process("RANK=3 CUDA_VISIBLE_DEVICES=3 OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=0,1,2,3")
    assert code(compare(rank, shell("CUDA_VISIBLE_DEVICES=0,1,2,3"))) == 0
    # Without a launcher a process that narrowed its mask would choose from another list now.
    one = process("CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=0,1,2,3")
    assert grade(shell("CUDA_VISIBLE_DEVICES=0"), "env", "CUDA_VISIBLE_DEVICES", one) == ("warn", "breaks")
    assert grade(shell("CUDA_VISIBLE_DEVICES=0,1,2,3"), "env", "CUDA_VISIBLE_DEVICES", one) == ("info", "none")


def test_what_a_person_is_told_to_export_is_what_was_handed_over() -> None:
    stamped = process("OMP_X=2 OMP_Y=1", "OMP_X=1 OMP_Y")
    assert said_for_hand(stamped, shell("OMP_X=1")) == []
    (told,) = said_for_hand(stamped, shell("OMP_X=3"))
    assert told == "not restored: env OMP_X: 3 here, 1 there: `export OMP_X=1`"


@pytest.mark.parametrize("kind", ["pth-code", "startup-code"])
def test_start_up_code_that_no_build_takes_away_is_named(kind: str) -> None:
    stray = Problem(kind=kind, subject="zz.pth", says="line 1 is code of no package")
    (told,) = said_for_hand(fingerprint(), replace(fingerprint(), problems=(stray,)))
    assert told.startswith("not restored: packages zz.pth: ")


@pytest.mark.parametrize("exact", [True, False])
def test_a_newcomer_that_runs_by_itself_is_named_where_it_stays(exact: bool) -> None:
    newcomer = package("codey", hooks=(Hook("pth-code", "codey.pth"),))
    alone = fingerprint(package("numpy"))
    told = said_for_hand(alone, fingerprint(package("numpy"), newcomer), {"codey"} if exact else ())
    assert [line.partition(": codey")[0] for line in told] == ([] if exact else ["not restored: packages codey"])


def test_a_value_that_is_no_text_is_the_same_on_both_sides() -> None:
    stored = msgspec.json.decode(plain.encode(process("OMP_X=1", "OMP_X=/caf\udce9")), type=Fingerprint)
    assert code(compare(stored, shell("OMP_X=/caf\udce9"))) == 0


def test_system() -> None:
    def b(**change: Any) -> Fingerprint:
        return replace(BASE, system=replace(SYSTEM, **change))

    assert grade(b(arch="aarch64"), "system", "arch") == ("block", "breaks")
    assert grade(b(kernel="6.11.0"), "system", "kernel") == ("info", "none")
    assert grade(b(memory_bytes=128 << 30), "system", "memory") == ("warn", "breaks")
    assert grade(b(cpus=8), "system", "cpus") == ("warn", "performance")
    assert drifts(b(memory_bytes=(512 << 30) - (1 << 20))) == {}


def test_problems_of_b_alone() -> None:
    problem = Problem(kind="pair", subject="torchvision", says="torchvision 0.25+cu128 is built for CUDA 12.8")
    b = replace(BASE, problems=(problem,))
    report = compare(BASE, b)
    assert [(drift.severity, drift.why) for drift in report.drifts] == [("block", problem.says)]
    assert compare(b, b).match


def test_problems_that_have_a_row_of_their_own_or_concern_a_newcomer() -> None:
    def says(kind: str, subject: str) -> Problem:
        return Problem(kind=kind, subject=subject, says=f"{subject}: {kind}")

    b = with_packages(
        package("transformers", "5.6.0", "f" * 64, departs=("transformers/trainer.py",)),
        package("sglang", "0.5.6"),
        problems=(
            says("files-modified", "transformers"),
            says("files-missing", "sglang"),
            says("process-stale", "4711"),
            says("pth-code", "zz_hook.pth"),
        ),
    )
    found = [(drift.subject, drift.severity) for drift in compare(BASE, b).drifts]
    assert found == [("zz_hook.pth", "warn"), ("transformers", "warn"), ("sglang", "info"), ("sglang", "info")]


def test_deleted_files_are_told_as_missing_and_not_as_an_edit() -> None:
    gone = Problem(kind="files-missing", subject="transformers", says="installed, but 1 of its 9 files is missing: x")
    damaged = package("transformers", "5.6.0", "f" * 64, departs=("transformers/trainer.py",))
    found = compare(BASE, with_packages(damaged, problems=(gone,))).drifts
    assert [(drift.subject, drift.effect, drift.why) for drift in found] == [("transformers", "breaks", gone.says)]
    # Where some were altered too, each kind has its row; where A lacked some already, those that are news are told.
    both = package("transformers", "5.6.0", "f" * 64, departs=("transformers/a.py", "transformers/b.py"))
    edited = Problem(kind="files-modified", subject="transformers", says="1 of its files is not what was installed")
    rows = compare(BASE, with_packages(replace(both, missing=both.departs[:1]), problems=(gone, edited))).drifts
    told = [(row.effect, row.why.rpartition(": ")[2]) for row in rows]
    assert told == [("breaks", "x"), ("numerics", "transformers/b.py")]
    (row,) = compare(replace(BASE, problems=(gone,)), with_packages(damaged, problems=(gone,))).drifts
    assert (row.effect, row.why.rpartition(": ")[2]) == ("breaks", "transformers/trainer.py")


@pytest.mark.parametrize("name", ["torch", "triton", "nvidia-nccl-cu12", "flash-attn", "transformers"])
def test_deleted_files_are_graded_no_lower_than_edited_ones(name: str) -> None:
    """A training that does without flash-attn's kernels goes on, and computes something else."""
    whole = package(name, "1.0", "e" * 64)
    damaged = package(name, "1.0", "f" * 64, departs=("x.py",), record="e" * 64)
    grades = {}
    for kind in ("files-missing", "files-modified"):
        told = (Problem(kind=kind, subject=name, says="x.py"),)
        (row,) = compare(with_packages(whole), with_packages(damaged, problems=told)).drifts
        grades[kind] = row.severity
    assert grades["files-missing"] == grades["files-modified"]


def test_unknown_on_one_side_is_undetermined_and_on_both_alike_is_info() -> None:
    unseen = Unknown("packages in /opt/site", "Permission denied")
    b = replace(BASE, unknown=(unseen,))
    for report in (compare(BASE, b), compare(b, BASE)):
        assert (report.unknown, report.drifts, code(report)) == ((unseen,), (), 3)
    report = compare(b, b)
    assert (report.unknown, code(report)) == ((), 0)
    assert [(drift.facet, drift.severity) for drift in report.drifts] == [("unknown", "info")]
    other = replace(BASE, unknown=(Unknown(unseen.what, "Input/output error"),))
    assert code(compare(b, other)) == 3


def test_drift_goes_before_what_is_undetermined() -> None:
    b = with_packages(package("transformers", "5.8.1"), unknown=(Unknown("x", "y"),))
    assert code(compare(BASE, b)) == 1


def test_policy() -> None:
    b = with_packages(package("transformers", "5.8.1"))
    assert code(compare(BASE, b, [PolicyRule("packages", "info", "transformers")])) == 0
    blind = replace(BASE, unknown=(Unknown("code /work", "git is not installed"),))
    assert code(compare(BASE, blind, [PolicyRule("unknown", "info", "code*")])) == 0
    assert code(compare(BASE, blind, [PolicyRule("*", "info")])) == 3, "`*` does not answer for what nobody knows"


def test_no_record_on_both_sides_is_told_once() -> None:
    bare = [package(name, "1", "") for name in ("a", "b")]
    both = with_packages(*(msgspec.structs.replace(item, build=None) for item in bare))
    report = compare(both, both)
    assert code(report) == 0
    assert [drift.subject for drift in report.drifts] == ["builds"]
    one = with_packages(*(msgspec.structs.replace(item, build="1" * 64) for item in bare))
    assert code(compare(both, one)) == 3


def test_the_worst_comes_first() -> None:
    b = with_packages(
        package("torch", "2.11.0+cu130"),
        package("transformers", "5.8.1"),
        package("new", "1"),
        torch=torch("2.11.0+cu130"),
    )
    severities = [drift.severity for drift in compare(BASE, b).drifts]
    assert severities == sorted(severities, key=["block", "warn", "info"].index)

"""What a machine has to offer against what a run needs: NVML's answers as they are, no GPU needed."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from envguard.acquire.machine.headroom import Disk, GpuNow, GpusNow, Headroom, visible
from envguard.acquire.seam.host import Space
from envguard.launch.preflight import Expected, check_all
from envguard.model.action import Check
from envguard.model.fingerprint import CompileCache, Driver, FileSet, Fingerprint, Gpu
from tests.launch.fingerprints import fingerprint

GB = 10**9
H200 = "NVIDIA H200"
ROOM = Disk("/data", Space(bytes=1000 * GB, free=500 * GB, files_free=None))
SHM = Disk("/dev/shm", Space(bytes=64 * GB, free=60 * GB, files_free=None))
IDLE: dict[str, Any] = {
    "memory": ["is", 141 * GB],
    "used": ["is", GB // 2],
    "processes": ["is", []],
    "uncorrected": ["is", 0],
    "remapped": ["is", [0, 0, 0, 0]],
    "retirement_pending": ["refused", 3, "Not Supported"],
    "throttle": ["is", 0x1],
    "mig": ["is", [0, 0]],
    "mig_instances": ["is", []],
}


def gpu_now(index: int = 0, name: str = H200, **facts: list[Any]) -> GpuNow:
    return GpuNow(index, hashlib.sha256(f"GPU-{index}".encode()).hexdigest()[:16], name, {**IDLE, **facts})


def gpu(index: int = 0, context: int | None = None, **fields: Any) -> Gpu:
    base: dict[str, Any] = {
        "uuid_digest": None, "memory_bytes": 141 * GB, "compute_capability": "9.0", "mig": "disabled", "ecc": True,
        "power_limit_w": 700.0, "p2p": {}, "refused": {},
    }  # fmt: skip
    return Gpu(index=index, name=H200, context_bytes=context, **{**base, **fields})


def headroom(*gpus: GpuNow, **fields: Any) -> Headroom:
    base: dict[str, Any] = {
        "gpus": GpusNow(gpus), "shared_memory": SHM, "disks": (ROOM,), "open_files": (65536, None), "commands": {},
    }  # fmt: skip
    return Headroom(**{**base, **fields})


def expected(**fields: Any) -> Expected:
    base: dict[str, Any] = {
        "gpus": None, "visible_devices": None, "peak_memory": {}, "checkpoint_bytes": None, "cold_start_s": None,
    }  # fmt: skip
    return Expected(**{**base, **fields})


def by_name(checks: tuple[Check, ...]) -> dict[str, Check]:
    assert len({check.check for check in checks}) == len(checks)
    return {check.check: check for check in checks}


def on_gpus(*gpus: GpuNow, live: Fingerprint | None = None, **fields: Any) -> dict[str, Check]:
    known = live or fingerprint(gpus=tuple(gpu(one.index) for one in gpus))
    return by_name(check_all(headroom(*gpus), known, expected(**fields)))


def test_a_machine_without_gpus_needs_none() -> None:
    checks = by_name(check_all(headroom(), fingerprint(gpus=()), expected(gpus=())))
    assert all(check.ok for check in checks.values())
    assert "gpu processes" not in checks


def test_idle_gpus_pass() -> None:
    checks = on_gpus(gpu_now(0), gpu_now(1), gpus=(gpu(0), gpu(1)))
    assert {name for name, check in checks.items() if check.ok is not True} == set()
    assert checks["gpus"].detail == "2 × NVIDIA H200"


def test_nvml_that_refuses_is_unknown_and_never_no_gpu() -> None:
    refused = headroom(gpus=GpusNow(None, "NVML refuses: Unknown Error (error 999)"))
    for known in (None, (gpu(),)):
        check = by_name(check_all(refused, fingerprint(gpus=known), expected()))["gpus"]
        assert (check.ok, check.facet) == (None, "gpu")
        assert "999" in check.detail


def test_fewer_or_other_gpus_than_recorded_fail_for_good() -> None:
    for have in ((gpu_now(0),), (gpu_now(0), gpu_now(1, "NVIDIA H100"))):
        check = on_gpus(*have, gpus=(gpu(0), gpu(1)))["gpus"]
        assert (check.ok, check.passing) == (False, False)
        assert "the reference ran on 2 × NVIDIA H200" in check.detail


def test_cuda_visible_devices_hides_gpus() -> None:
    check = on_gpus(gpu_now(0), gpu_now(1), gpus=(gpu(0), gpu(1)), visible_devices="1")["gpus"]
    assert check.ok is False
    assert "CUDA_VISIBLE_DEVICES=1" in check.detail
    busy = gpu_now(0, processes=["is", [[123, 40 * GB]]])
    assert on_gpus(busy, gpu_now(1), visible_devices="1")["gpu processes"].ok is True


@pytest.mark.parametrize(
    ("setting", "left"),
    [(None, [0, 1, 2]), ("", []), ("2,0", [2, 0]), ("0,-1,1", [0]), ("7", []), ("GPU-1", [1]), (" 1 ,2", [1, 2])],
)
def test_which_gpus_a_setting_leaves(setting: str | None, left: list[int]) -> None:
    seen = visible((gpu_now(0), gpu_now(1), gpu_now(2)), setting)
    assert seen is not None
    assert [one.index for one in seen] == left


def test_a_setting_that_names_what_nvml_does_not_is_unknown() -> None:
    assert on_gpus(gpu_now(0), visible_devices="MIG-5f6a")["gpus"].ok is None


def test_a_process_on_a_gpu_passes_by_itself_and_is_named() -> None:
    room = headroom(gpu_now(0), gpu_now(1, processes=["is", [[123, 40 * GB]]]), commands={123: "python serve.py"})
    check = by_name(check_all(room, fingerprint(gpus=(gpu(0), gpu(1))), expected()))["gpu processes"]
    assert (check.ok, check.passing, check.detail) == (False, True, "GPU 1 is used by PID 123 (python serve.py)")


def test_memory_that_no_visible_process_holds_is_in_use_all_the_same() -> None:
    check = on_gpus(gpu_now(0, used=["is", 90 * GB]))["gpu processes"]
    assert (check.ok, check.passing) == (False, True)
    assert "cannot be seen" in check.detail


def test_free_memory_must_hold_the_earlier_peak_and_the_larger_context() -> None:
    now = gpu_now(0, memory=["is", 96 * GB], used=["is", GB // 2])
    live = fingerprint(gpus=(gpu(0, context=700_000_000),))
    before = (gpu(0, context=500_000_000),)
    peak = 95_400_000_000
    fits = by_name(check_all(headroom(now), fingerprint(gpus=(gpu(0),)), expected(peak_memory={0: peak})))
    assert fits["gpu memory"].ok is True
    short = by_name(check_all(headroom(now), live, expected(peak_memory={0: peak}, gpus=before)))["gpu memory"]
    assert (short.ok, short.facet) == (False, "memory")
    assert "200 MB more for the CUDA context" in short.detail


def test_uncorrected_errors_and_rows_that_wait_fail_for_good() -> None:
    for facts in (
        {"uncorrected": ["is", 2]}, {"remapped": ["is", [0, 1, 1, 0]]}, {"remapped": ["is", [0, 0, 0, 1]]},
        {"retirement_pending": ["is", 1]},
    ):  # fmt: skip
        check = on_gpus(gpu_now(0, **facts))["gpu errors"]
        assert (check.ok, check.passing) == (False, False)


def test_a_board_that_has_no_such_counter_passes_and_a_lost_one_is_unknown() -> None:
    absent = ["refused", 3, "Not Supported"]
    check = on_gpus(gpu_now(0, uncorrected=absent, remapped=absent, retirement_pending=absent, mig=absent))
    assert (check["gpu errors"].ok, check["gpu mig"].ok) == (True, True)
    lost = on_gpus(gpu_now(0, uncorrected=["refused", 15, "GPU is lost"]))["gpu errors"]
    assert lost.ok is None
    assert "GPU is lost" in lost.detail


@pytest.mark.parametrize(("bits", "ok"), [(0x0, True), (0x1, True), (0x4, True), (0x8, False), (0x20, False)])
def test_throttling_passes_by_itself(bits: int, ok: bool) -> None:
    check = on_gpus(gpu_now(0, throttle=["is", bits]))["gpu clocks"]
    assert check.ok is ok
    assert check.passing is not ok


def test_mig_without_an_instance_fails() -> None:
    assert on_gpus(gpu_now(0, mig=["is", [1, 1]]))["gpu mig"].ok is False
    assert on_gpus(gpu_now(0, mig=["is", [1, 1]], mig_instances=["is", ["MIG 1g.18gb"]]))["gpu mig"].ok is True


def test_another_path_between_gpus_fails() -> None:
    live = fingerprint(gpus=(gpu(0, p2p={"1": "SYS"}), gpu(1, p2p={"0": "SYS"})))
    before = (gpu(0, p2p={"1": "NVLink"}), gpu(1, p2p={"0": "NVLink"}))
    check = on_gpus(gpu_now(0), gpu_now(1), live=live, gpus=before)["gpu links"]
    assert check.ok is False
    assert "NVLink → SYS" in check.detail


def test_a_driver_that_is_being_upgraded_passes_by_itself() -> None:
    driver = Driver(version="595.84", kernel_module="595.71.05", cuda=None, agrees=False)
    check = by_name(check_all(headroom(), fingerprint(driver=driver, gpus=None), expected()))["driver"]
    assert (check.ok, check.passing, check.facet) == (False, True, "driver")
    assert "595.71.05" in check.detail
    assert "reboot" in check.detail


def test_a_containers_shared_memory_is_too_small_for_gpus_alone() -> None:
    small = headroom(
        gpu_now(0), shared_memory=Disk("/dev/shm", Space(bytes=64 << 20, free=64 << 20, files_free=None))
    )
    assert by_name(check_all(small, fingerprint(gpus=(gpu(),)), expected()))["shared memory"].ok is False
    assert by_name(check_all(small, fingerprint(gpus=()), expected()))["shared memory"].ok is True


def test_the_disk_must_hold_two_checkpoints() -> None:
    for free, checkpoint, ok in ((5 * GB, 2 * GB, True), (5 * GB, 3 * GB, False), (GB // 2, None, False)):
        disk = Disk("/data", Space(bytes=100 * GB, free=free, files_free=10))
        room = headroom(disks=(disk,))
        assert by_name(check_all(room, fingerprint(), expected(checkpoint_bytes=checkpoint)))["disk"].ok is ok
    full = headroom(disks=(Disk("/data", Space(bytes=100 * GB, free=50 * GB, files_free=0)),))
    assert by_name(check_all(full, fingerprint(), expected()))["disk"].ok is False
    unseen = headroom(disks=(Disk("/data", None, "Permission denied"),))
    assert by_name(check_all(unseen, fingerprint(), expected()))["disk"].ok is None


def test_few_descriptors_fail_and_say_what_raises_them() -> None:
    check = by_name(check_all(headroom(open_files=(64, 4096)), fingerprint(), expected()))["open files"]
    assert check.ok is False
    assert "ulimit -n 4096" in check.detail


def cache(verdict: str, **fields: Any) -> CompileCache:
    raw = {"kind": "inductor", "path": "/c", "verdict": verdict, "entries": 3, "bytes": 353_000_000, "writers": {}}
    return msgspec.convert({**raw, **fields}, CompileCache)


def test_a_cold_cache_is_foretold_with_what_the_last_one_took() -> None:
    for verdict in ("EMPTY", "FOREIGN"):
        live = fingerprint(compile_cache=(cache(verdict),))
        check = by_name(check_all(headroom(), live, expected(cold_start_s=28.7)))["compile cache inductor"]
        assert check.ok is True  # whether it may be cold is the comparison's to grade
        assert "the last cold start took 29 s" in check.detail
    for verdict, ok in (("VALID", True), ("UNSAFE", False), ("UNKNOWN", None)):
        live = fingerprint(compile_cache=(cache(verdict, why="mode 777"),))
        assert by_name(check_all(headroom(), live, expected()))["compile cache inductor"].ok is ok


def test_data_without_a_digest_is_unknown() -> None:
    sets = (
        FileSet(path="a.parquet", files=1, bytes=10, rows=2, digest="d" * 64),
        FileSet(path="b", files=None, bytes=None, rows=None, digest=None),
    )
    checks = by_name(check_all(headroom(), fingerprint(data=sets), expected()))
    assert (checks["data a.parquet"].ok, checks["data b"].ok) == (True, None)

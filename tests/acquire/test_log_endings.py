"""How a run ended, by the line that says so, behind whatever launchers, containers and loggers put before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envguard.acquire.runs.endings import HINT, ending_of
from envguard.acquire.runs.prefixes import strip
from tests.acquire.logs import read_folder, write

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 6 has a total capacity"
ENDS = {
    OOM: "oom",
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 6; 10.76 GiB total capacity)": "oom",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has": "oom",
    "RuntimeError: CUDA error: out of memory": "oom",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate": "oom",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": "oom",
    "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function.": "fx-tracing",
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup.": "oom-kill",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=113.0. Some of the step tasks have been OOM Killed.":
        "oom-kill",
    "    Reason:       OOMKilled": "oom-kill",
    "[12345.678] Out of memory: Killed process 4711 (python3) total-vm:1234kB": "oom-kill",
    "slurmstepd: error: *** JOB 12345 ON node001 CANCELLED AT 2026-05-18T10:00:00 DUE TO PREEMPTION ***": "preempted",
    "Pod was preempted by scheduler": "preempted",
    "slurmstepd: error: *** STEP 1.0 ON node001 CANCELLED AT 2026-05-18T10:00:00 DUE TO TIME LIMIT ***": "time-limit",
    "=>> PBS: job killed: walltime 3630 exceeded limit 3600": "time-limit",
    "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-05-18T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***":
        "node-failed",
    "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-05-18T10:00:00 ***": "cancelled",
    "[rank3]:[E518 20:41:07.123456789 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout"
    ": WorkNCCL(SeqNum=4711, OpType=ALLREDUCE)": "watchdog",
    "terminate called after throwing an instance of 'c10::DistBackendError'": "core-dumped",
    "Segmentation fault (core dumped)": "core-dumped",
    "Segmentation fault": "core-dumped",
    "Fatal Python error: Segmentation fault": "core-dumped",
    "train.sh: line 9:  8156 Segmentation fault      (core dumped) python main.py": "core-dumped",
    "  traceback : Signal 11 (SIGSEGV) received by PID 12345": "core-dumped",
    "free(): invalid pointer": "core-dumped",
    "Killed": "killed",
    "/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed                  python3 main.py": "killed",
    "srun: error: node001: task 3: Killed": "killed",
    "srun: error: node[001-002]: tasks 0-3,7: Killed": "killed",
    "  traceback : Signal 9 (SIGKILL) received by PID 12345": "killed",
    "  exitcode  : -9 (pid: 12345)": "killed",
    "RuntimeError: DataLoader worker (pid 12345) is killed by signal: Killed.": "killed",
    "    Exit Code:    137": "killed",
    "subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.": "killed",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.": "oom-kill",
    "MemoryError": "host-memory",
    "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 12. GiB for an array": "host-memory",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory":
        "host-memory",
    "OSError: [Errno 12] Cannot allocate memory": "host-memory",
    "OSError: [Errno 28] No space left on device": "disk-full",
    "OSError: [Errno 122] Disk quota exceeded": "disk-full",
    "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 1234 vs 1200": "disk-full",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": "hardware",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.": "hardware",
    "RuntimeError: CUDA error: unspecified launch failure": "hardware",
    "make: *** [train] Error 137": "killed",
    "command terminated with exit code 137": "killed",
    "exited with code 137": "killed",
    "srun: error: node1: task 0: Exited with exit code 137": "killed",
    "ValueError: no": "traceback",
    "my.package._module.OddError": "traceback",
    "KeyboardInterrupt": "traceback",
    "W0518 20:41:07.123000 140 torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGTERM death "
    "signal, shutting down workers": "terminated",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 140 got signal: 15": "traceback",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:": "launcher",
}  # fmt: skip
PREFIXES = {
    "": "", "torchrun": "[rank0]: ", "torchrun --tee": "[default3]:", "mpirun": "[1,0]<stderr>:", "srun -l": "0: ",
    "pdsh": "node3: ", "Docker": "2026-05-18T10:00:00.123456789Z ", "CRI": "2026-05-18T10:00:00.123456789Z stderr F ",
    "colour": "\x1b[31m", "a logger": "2026-05-18 10:00:00,123 - root - ERROR - ", "Hydra":
    "[2026-05-18 10:00:00,123][__main__][ERROR] - ", "Ray": "(RayTrainWorker pid=4711, ip=10.0.0.1) ",
    "a bar": "\r 59%|###   | 59/100 [00:59<01:20,  1.31it/s]", "rank and logger": "[rank3]:[titan] 2026-05-18 "
    "10:00:00,123 - root - ERROR - ", "level": "ERROR:root:", "a bar with a postfix":
    "Epoch 3: 5%|▌ | 59/1000 [00:59<11:20, 1.31s/it, loss=2.0, lr=1e-5]",
}  # fmt: skip


def kind(line: str) -> str | None:
    return ending_of(strip(line.encode()).text)


@pytest.mark.parametrize("line", ENDS)
def test_each_way_to_end(line: str) -> None:
    assert kind(line) == ENDS[line]
    assert HINT.search(line.encode()) is not None


@pytest.mark.parametrize("name", PREFIXES)
@pytest.mark.parametrize("line", [OOM, "Killed", "RuntimeError: boom", "Segmentation fault (core dumped)"])
def test_what_stands_before_a_line_is_stripped(name: str, line: str) -> None:
    assert kind(PREFIXES[name] + line) == ENDS.get(line, "traceback")


@pytest.mark.parametrize(
    "line",
    [
        "reconstruction error: 0.1", "INFO error_rate=0.3", "signal to noise 3", "    except torch.OutOfMemoryError:",
        "    raise ValueError(message)", "Preemption is enabled", "NCCL watchdog thread started",
        "Killed 3 of 4 orcs",
        "time limit: 10:00:00", "ErrorBoundary is mounted", "from errors import TrainError", "0 errors, 0 Exceptions",
        "loaded NoErrorException(3)", "saving the Exit token",
    ],
)  # fmt: skip
def test_ordinary_lines_are_no_end(line: str) -> None:
    assert kind(line) is None


@pytest.mark.parametrize("name", PREFIXES)
def test_out_of_memory_is_a_finding_with_its_gpu(tmp_path: Path, name: str) -> None:
    write(tmp_path, "slurm-1.out", f"2026-05-18 10:00:00 INFO step 5\n{PREFIXES[name]}{OOM}\nRuntimeError: x\n")
    assert read_folder(tmp_path).titles == ["out of memory on GPU 6 (slurm-1.out)"]


def test_of_the_lines_of_one_failure_the_cause_is_told(tmp_path: Path) -> None:
    write(
        tmp_path, "slurm-1.out",
        "2026-05-18 10:00:00 start\n[rank1]: ValueError: bad row\n"
        "W0518 10:00:01.000000 1 torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGTERM death "
        "signal\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.\n",
    )  # fmt: skip
    read = read_folder(tmp_path)
    assert [end.kind for end in read.ends] == ["oom-kill"]
    assert read.titles == ["killed for lack of memory (slurm-1.out)"]


def test_a_docker_line_has_its_own_time(tmp_path: Path) -> None:
    write(tmp_path, "c-json.log", '{"log":"RuntimeError: x\\n","stream":"stderr","time":"2026-05-18T10:00:00.5Z"}\n')
    (end,) = read_folder(tmp_path).ends
    assert end.event.time == "2026-05-18T10:00:00+00:00"

"""What the NVIDIA driver's library says, through pynvml where it is at hand, else through nvidia-smi."""

import ctypes
import errno
import hashlib
import re
import shutil
import sys
import threading

from .programs import query

NVML_TIMEOUT = 20.0


def nvml():
    """What NVML says, unjudged; each fact is ["is", value] or ["refused", NVML's error number, its words].

    {"source": "pynvml", "start": fact, "driver": fact, "cuda": fact, "gpus": [{name: fact}], "links": [[i, j, {…}]]}
    or {"source": "nvidia-smi", "code": …, "xml": …, "err": …} or {"source": null}: neither is at hand. UUIDs leave
    the machine as digests only. A GPU that fell off its bus blocks NVML for good, so that it is asked in a thread
    that may be left behind.
    """
    if "pynvml" not in sys.modules and shutil.which("nvidia-smi") is None:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            # No driver, no answer: importing pynvml to hear that costs as much as the start of a command.
            return {"source": "pynvml", "start": ["refused", 12, "NVML Shared Library Not Found"]}
    try:
        import pynvml
    except Exception:  # not there, or a deprecated namesake whose warning is an error to its caller
        return _nvidia_smi()
    done = []  # type: list[dict[str, object] | Exception]

    def ask():
        try:
            done.append(_ask_nvml(pynvml))
        except Exception as error:  # what the binding of another version does is an answer, not our end
            done.append(error)

    thread = threading.Thread(target=ask, name="nvml", daemon=True)
    thread.start()
    thread.join(NVML_TIMEOUT)
    if not done:
        raise OSError(errno.ETIMEDOUT, "NVML gave no answer within %g s" % NVML_TIMEOUT)
    if isinstance(done[0], Exception):
        raise OSError(errno.EIO, "pynvml: %s: %s" % (type(done[0]).__name__, done[0]))
    return done[0]


def _nvidia_smi():
    try:
        said = query(["nvidia-smi", "-q", "-x"], None, NVML_TIMEOUT)
    except FileNotFoundError:
        return {"source": None}
    text = re.sub(r"<(serial|pdi)>[^<]*</\1>", "", said["out"])
    text = re.sub(r"<uuid>([^<]*)</uuid>", lambda m: "<uuid>%s</uuid>" % _uuid_digest(m.group(1).strip()), text)
    return {"source": "nvidia-smi", "code": said["code"], "xml": text, "err": said["err"]}


def _uuid_digest(uuid):
    return hashlib.sha256(uuid.encode("utf-8")).hexdigest()[:16]


def _ask_nvml(library):
    def fact(call, *arguments):
        try:
            value = call(*arguments)
        except library.NVMLError as error:
            return ["refused", int(getattr(error, "value", 999)), str(error)]
        except AttributeError as error:  # an older pynvml, or a driver without this function
            return ["refused", 13, str(error)]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        return ["is", list(value) if isinstance(value, tuple) else value]

    started = fact(lambda: library.nvmlInit())
    if started[0] == "refused":
        return {"source": "pynvml", "start": started}
    try:
        count = fact(lambda: library.nvmlDeviceGetCount())
        handles, gpus = [], []
        for index in range(count[1] if count[0] == "is" else 0):
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
            except library.NVMLError as error:
                gpus.append({"handle": ["refused", int(error.value), str(error)]})
                continue
            handles.append((index, handle))
            gpus.append(_ask_gpu(library, handle, fact))
        return {
            "source": "pynvml", "start": ["is", None], "count": count, "gpus": gpus,
            "driver": fact(lambda: library.nvmlSystemGetDriverVersion()),
            "cuda": fact(lambda: library.nvmlSystemGetCudaDriverVersion_v2()),
            "links": _ask_links(library, handles, fact),
        }  # fmt: skip
    finally:
        fact(lambda: library.nvmlShutdown())


def _ask_gpu(library, handle, fact):
    def instances():
        found = []
        for index in range(library.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                part = library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except library.NVMLError_NotFound:
                continue  # a slot without an instance
            found.append(_text(library.nvmlDeviceGetName(part)))
        return found

    def processes():
        return [[one.pid, one.usedGpuMemory] for one in library.nvmlDeviceGetComputeRunningProcesses(handle)]

    return {
        "name": fact(lambda: library.nvmlDeviceGetName(handle)),
        "uuid_digest": fact(lambda: _uuid_digest(_text(library.nvmlDeviceGetUUID(handle)))),
        "memory": fact(lambda: library.nvmlDeviceGetMemoryInfo(handle).total),
        "used": fact(lambda: library.nvmlDeviceGetMemoryInfo(handle).used),
        "capability": fact(lambda: library.nvmlDeviceGetCudaComputeCapability(handle)),
        "mig": fact(lambda: library.nvmlDeviceGetMigMode(handle)),
        "mig_instances": fact(instances),
        "ecc": fact(lambda: library.nvmlDeviceGetEccMode(handle)),
        "power_limit_mw": fact(lambda: library.nvmlDeviceGetEnforcedPowerLimit(handle)),
        "processes": fact(processes),
        # Volatile: since the driver was loaded. Corrected errors are what ECC is for.
        "uncorrected": fact(lambda: library.nvmlDeviceGetTotalEccErrors(handle, 1, 0)),
        "remapped": fact(lambda: library.nvmlDeviceGetRemappedRows(handle)),
        "retirement_pending": fact(lambda: library.nvmlDeviceGetRetiredPagesPendingStatus(handle)),
        "throttle": fact(lambda: library.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    }


def _ask_links(library, handles, fact):
    links = []
    for at, (first, one) in enumerate(handles):
        for second, other in handles[at + 1 :]:
            facts = {
                "ancestor": fact(lambda: library.nvmlDeviceGetTopologyCommonAncestor(one, other)),  # noqa: B023
                "read": fact(lambda: library.nvmlDeviceGetP2PStatus(one, other, 0)),  # noqa: B023
                "nvlink": fact(lambda: library.nvmlDeviceGetP2PStatus(one, other, 2)),  # noqa: B023
            }
            links.append([first, second, facts])
    return links


def _text(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

"""The GPUs of the machine, field by field as NVML gives or refuses them.

"No GPU" is said only where nothing speaks for one: no kernel module, no device node, no library. Whatever NVML
cannot say while something does is unknown, because a start on a machine whose GPUs cannot be seen must not look
like a start on a machine without any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envguard.acquire.machine.driver import NO_DRIVER, NO_LIBRARY, read_driver
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes, Section
from envguard.model.fingerprint import Driver, Gpu

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`.
TOPOLOGY = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
PCI_DEVICES = "/sys/bus/pci/devices"
NOT_SUPPORTED = 3
NVLINK = "NVLink"


@dataclass(frozen=True)
class GpuFacts:
    """The driver and the GPUs; `gpus` is None where it could not be determined whether there are any."""

    driver: Driver | None
    gpus: tuple[Gpu, ...] | None


def read_gpus(host: Host) -> Section[GpuFacts]:
    """Driver and GPUs of the machine."""
    notes = Notes()
    try:
        nvml = host.nvml()
    except OSError as error:
        nvml = {"source": "error", "why": error.strerror or str(error)}
    facts = read_driver(host, nvml, notes)
    traces = _traces(host, notes)
    if facts.driver is not None:
        traces = (*traces, f"driver {facts.driver.kernel_module or facts.driver.version}")
    if facts.refusal is None and nvml["source"] == "pynvml":
        gpus = _from_pynvml(nvml, notes)
    elif facts.refusal is None and nvml["source"] == "nvidia-smi":
        gpus = _from_smi(str(nvml["xml"]), notes)
    else:
        gpus = _without_nvml(host, nvml, facts.refusal, traces, notes)
    return notes.section(GpuFacts(facts.driver, gpus))


def _traces(host: Host, notes: Notes) -> tuple[str, ...]:
    """Device nodes that speak for a GPU."""
    found = []
    for path in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd"):
        try:
            if host.find(path) is not None:
                found.append(path)
        except OSError as error:
            notes.unseen(f"gpus: device node {path}", error)
    return tuple(found)


def _without_nvml(
    host: Host, nvml: dict[str, Any], refusal: tuple[int, str] | None, traces: tuple[str, ...], notes: Notes
) -> tuple[Gpu, ...] | None:
    """NVML gave nothing: no GPU where nothing speaks for one, else unknown with the reason."""
    nodes = [trace for trace in traces if trace.startswith("/dev/")]
    absent = nvml["source"] is None or (refusal is not None and refusal[0] == NO_LIBRARY)
    if absent and not nodes:
        # A container without GPUs still sees the host's /proc and PCI bus: without a node there is no GPU in it.
        if not traces and (found := _on_bus(host)):
            says = f"an NVIDIA GPU is on the PCI bus ({found[0]}), and no driver is installed: CUDA cannot use it"
            notes.problem("gpu-without-driver", "gpu", says)
        return ()
    if refusal is not None and refusal[0] == NO_DRIVER and not nodes and not _on_bus(host):
        return ()
    if nodes == ["/dev/kfd"]:
        why = "an AMD GPU is here (/dev/kfd), and only NVIDIA's are read"
    elif refusal is not None:
        why = f"NVML refuses: {refusal[1]} (error {refusal[0]})"
    elif nvml["source"] == "error":
        why = f"NVML: {nvml['why']}"
    else:
        why = "neither NVML nor nvidia-smi is at hand"
    notes.unseen("gpus", f"{why}; {', '.join(traces)} is there" if traces and refusal is None else why)
    return None


def _on_bus(host: Host) -> tuple[str, ...]:
    """PCI addresses of NVIDIA's display and 3D controllers; empty where the bus cannot be seen."""
    try:
        addresses = [name for name, _ in host.listing(PCI_DEVICES)]
    except OSError:
        return ()  # a machine without PCI (a virtual one, WSL): the device nodes decide
    found = []
    for address in addresses:
        try:
            vendor = host.read(f"{PCI_DEVICES}/{address}/vendor", 16).strip()
            kind = host.read(f"{PCI_DEVICES}/{address}/class", 16).strip()
        except OSError:
            continue  # a device that left the bus while it was being asked
        if vendor == b"0x10de" and kind.startswith(b"0x03"):
            found.append(address)
    return tuple(found)


class _Fields:
    """Takes NVML's facts of one GPU, and keeps the refusals by field."""

    def __init__(self, facts: dict[str, list[Any]]) -> None:
        self.facts = facts
        self.refused: dict[str, str] = {}

    def get(self, field: str, fact: str | None = None) -> Any:
        answer = self.facts.get(fact or field, ["refused", NOT_SUPPORTED, "not asked for"])
        if answer[0] == "is" and not _is_undecodable(answer[1]):
            return answer[1]
        if answer[0] == "is":
            self.refused[field] = f"undecodable: NVML says {answer[1]!r}"
            return None
        self.refused[field] = f"{answer[2]} (error {answer[1]})"
        return None


def _is_undecodable(said: Any) -> bool:
    """A text that was no UTF-8: its reader put U+FFFD where the bytes were."""
    return isinstance(said, str) and "\ufffd" in said


def _from_pynvml(nvml: dict[str, Any], notes: Notes) -> tuple[Gpu, ...] | None:
    if nvml["count"][0] != "is":
        notes.unseen("gpus", f"NVML counts none: {nvml['count'][2]} (error {nvml['count'][1]})")
        return None
    links = _links(nvml["links"], len(nvml["gpus"]))
    found = []
    for index, facts in enumerate(nvml["gpus"]):
        gpu = _gpu(index, _Fields(facts), links[index])
        found.append(gpu)
        _say_refusals(gpu, facts, notes)
    return tuple(found)


def _gpu(index: int, fields: _Fields, p2p: dict[str, str]) -> Gpu:
    if "handle" in fields.facts:  # NVML gives no handle: nothing of this GPU is known but that it is there
        fields.get("all", "handle")
        return _blank(index, fields.refused)
    capability, mig, ecc = fields.get("compute_capability", "capability"), fields.get("mig"), fields.get("ecc")
    power = fields.get("power_limit_w", "power_limit_mw")
    return Gpu(
        index=index,
        name=fields.get("name"),
        uuid_digest=fields.get("uuid_digest"),
        memory_bytes=fields.get("memory_bytes", "memory"),
        compute_capability=".".join(map(str, capability)) if capability is not None else None,
        mig=_mig(mig, fields) if mig is not None else None,
        ecc=bool(ecc[0]) if ecc is not None else None,
        power_limit_w=power / 1000 if power is not None else None,
        p2p=p2p,
        context_bytes=None,
        refused=fields.refused,
    )


def _blank(index: int, refused: dict[str, str]) -> Gpu:
    return Gpu(
        index=index, name=None, uuid_digest=None, memory_bytes=None, compute_capability=None, mig=None, ecc=None,
        power_limit_w=None, p2p={}, context_bytes=None, refused=refused,
    )  # fmt: skip


def _mig(mode: list[int], fields: _Fields) -> str:
    """ "disabled", or "enabled: 2 × 1g.10gb": the instances by what their names say last."""
    if not mode[0]:
        return "disabled"
    names = [str(name).rpartition("MIG ")[2] for name in fields.get("mig_instances") or []]
    counted = {name: names.count(name) for name in sorted(set(names))}
    return "enabled: " + (", ".join(f"{count} × {name}" for name, count in counted.items()) or "no instance")


def _links(links: list[Any], count: int) -> list[dict[str, str]]:
    """For each GPU, how it reaches each other one; a pair that NVML says nothing about is left out."""
    found: list[dict[str, str]] = [{} for _ in range(count)]
    for first, second, facts in links:
        ancestor, read, nvlink = facts["ancestor"], facts["read"], facts["nvlink"]
        if nvlink[:2] == ["is", 0]:
            path = NVLINK
        elif ancestor[0] == "is":
            path = TOPOLOGY.get(ancestor[1], f"level {ancestor[1]}")
        else:
            continue
        if read[0] == "is" and read[1] != 0:
            path += ", no peer access"
        found[first][str(second)] = found[second][str(first)] = path
    return found


# What a launch depends on; a power limit that is not supported is a fact about the board and no gap.
_ESSENTIAL = ("all", "name", "memory_bytes", "compute_capability")


def _say_refusals(gpu: Gpu, facts: dict[str, list[Any]], notes: Notes) -> None:
    for field in _ESSENTIAL:
        if field in gpu.refused:
            what = f"gpu {gpu.index}" if field == "all" else f"gpu {gpu.index} {field}"
            notes.unseen(what, gpu.refused[field])


# --- nvidia-smi -q -x ----------------------------------------------------------------------------------------


def _from_smi(text: str, notes: Notes) -> tuple[Gpu, ...] | None:
    from xml.etree import ElementTree  # a training process with pynvml does without it

    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # expat takes no undecoded bytes
    try:
        log = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^<>]*>", "", text, count=1))
    except ElementTree.ParseError as error:
        notes.unseen("gpus", f"nvidia-smi's answer cannot be read: {error}")
        return None
    found = tuple(_smi_gpu(index, node) for index, node in enumerate(log.iter("gpu")))
    for gpu in found:
        _say_refusals(gpu, {}, notes)
    return found


def _smi_gpu(index: int, node: Element) -> Gpu:
    refused: dict[str, str] = {}

    def text(field: str, *paths: str) -> str | None:
        said = next((found for path in paths if (found := node.findtext(path)) is not None), "absent").strip()
        if said in ("N/A", "[N/A]", "absent", "") or said.startswith(("[", "Unknown")):
            refused[field] = f"nvidia-smi says {said!r}"
            return None
        if _is_undecodable(said):
            refused[field] = f"undecodable: nvidia-smi says {said!r}"
            return None
        return said

    def number(field: str, said: str | None) -> float | None:
        try:
            return float(said.split()[0]) if said is not None else None
        except ValueError:
            refused[field] = f"nvidia-smi says {said!r}"
            return None

    memory, power = (
        number("memory_bytes", text("memory_bytes", "fb_memory_usage/total")),
        number(
            "power_limit_w",
            text("power_limit_w", "gpu_power_readings/current_power_limit", "power_readings/power_limit"),
        ),
    )
    ecc, mig = text("ecc", "ecc_mode/current_ecc"), text("mig", "mig_mode/current_mig")
    refused["compute_capability"] = "nvidia-smi does not tell it here"
    return Gpu(
        index=index,
        name=text("name", "product_name"),
        uuid_digest=text("uuid_digest", "uuid"),
        memory_bytes=int(memory) << 20 if memory is not None else None,
        compute_capability=None,
        mig=mig.lower() if mig is not None else None,
        ecc=ecc == "Enabled" if ecc is not None else None,
        power_limit_w=power,
        p2p={},
        context_bytes=None,
        refused=refused,
    )

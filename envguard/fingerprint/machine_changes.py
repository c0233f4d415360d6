"""What differs between the machines of two fingerprints: driver, GPUs, their memory, and what lies under them."""

from __future__ import annotations

from collections import Counter

from packaging.version import InvalidVersion, Version

from envguard.fingerprint.changes import Differences, not_recorded
from envguard.fingerprint.rules import Change
from envguard.fingerprint.units import size
from envguard.model.drift import Facet
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Driver, Fingerprint, Gpu, System

# Below this, two contexts of one build differ by what else the driver happens to keep.
CONTEXT_TOLERANCE = 32 << 20
# The kernel and the firmware take a little more or less of the same memory modules at each boot.
MEMORY_TOLERANCE = 0.01


def machine_changes(a: Fingerprint, b: Fingerprint) -> Differences:
    """Everything below the environment; the host's name is no difference."""
    yield from _driver(a.driver, b.driver, _says(a, "driver"), _says(b, "driver"))
    yield from _gpus(a.gpus, b.gpus)
    yield from _system(a.system, b.system)


def _says(fingerprint: Fingerprint, facet: str) -> bool:
    return any(facet_of_unknown(item.what) == facet for item in fingerprint.unknown)


def facet_of_unknown(what: str) -> str:
    """The facet that an `Unknown` is about, by its first word; "unknown" for what belongs to none."""
    first = what.split(" ", 1)[0].split(":", 1)[0].split(".", 1)[0].lower()
    known = {"gpus": "gpu", "nvml": "gpu", "nvidia": "gpu", "compile": "compile_cache"}
    return known.get(first, first)


def _driver(old: Driver | None, new: Driver | None, a_unknown: bool, b_unknown: bool) -> Differences:
    if old is None and new is None:
        return
    if old is None or new is None:
        # No driver is a fact, unless that side says that it could not look.
        if not (a_unknown if old is None else b_unknown):
            was, now = old.version if old else None, new.version if new else None
            yield Change("driver", "version", "added" if old is None else "removed", was, now)
        return
    if old.version != new.version:
        if old.version is None or new.version is None:
            yield Unknown("driver version", f"{'A' if old.version is None else 'B'} does not know it")
        else:
            yield Change("driver", "version", _order(old.version, new.version), old.version, new.version)
    if new.agrees is False and old.agrees is not False:
        yield Change("driver", "agrees", "changed", new.kernel_module, new.version)


def _order(old: str, new: str) -> str:
    try:
        return "less" if Version(new) < Version(old) else "more"
    except InvalidVersion:
        return "changed"


def _gpus(old: tuple[Gpu, ...] | None, new: tuple[Gpu, ...] | None) -> Differences:
    if old is None or new is None:
        if (old is None) != (new is None):
            yield not_recorded("gpu", old is None)
        return
    if len(old) != len(new):
        kind = "less" if len(new) < len(old) else "more"
        yield Change("gpu", "count", kind, models(old), models(new))
    elif Counter(gpu.name for gpu in old) != Counter(gpu.name for gpu in new):
        yield Change("gpu", "model", "changed", models(old), models(new))
    for before, after in zip(old, new, strict=False):
        yield from _gpu(before, after)


def models(gpus: tuple[Gpu, ...]) -> str:
    """`8 × NVIDIA H200`, or `none`."""
    counts = Counter(gpu.name or "GPU of unknown model" for gpu in gpus)
    return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items())) or "none"


def _gpu(old: Gpu, new: Gpu) -> Differences:
    prefix = f"gpu{new.index}"
    if old.name != new.name and None in (old.name, new.name):
        yield _refused(prefix, "name", old, new)
    for field, shown in (("memory_bytes", "memory"), ("power_limit_w", "power_limit")):
        was, now = getattr(old, field), getattr(new, field)
        if was == now:
            continue
        if was is None or now is None:
            yield _refused(prefix, field, old, new)
            continue
        unit = size if field == "memory_bytes" else lambda watts: f"{watts:g} W"
        yield Change("gpu", f"{prefix}.{shown}", "less" if now < was else "more", unit(was), unit(now))
    for field in ("compute_capability", "mig", "ecc"):
        was, now = getattr(old, field), getattr(new, field)
        if was == now:
            continue
        if was is None or now is None:
            yield _refused(prefix, field, old, new)
        else:
            yield Change("gpu", f"{prefix}.{field}", "changed", _plain(was), _plain(now))
    if old.uuid_digest and new.uuid_digest and old.uuid_digest != new.uuid_digest and old.name == new.name:
        yield Change("gpu", f"{prefix}.uuid", "changed", old.uuid_digest, new.uuid_digest)
    if old.p2p != new.p2p:
        yield Change("gpu", f"{prefix}.p2p", "changed", _links(old.p2p), _links(new.p2p))
    yield from _context(prefix, old.context_bytes, new.context_bytes)


def _plain(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _links(p2p: dict[str, str]) -> str:
    return ", ".join(f"{other}: {link}" for other, link in sorted(p2p.items())) or "none"


def _refused(prefix: str, field: str, old: Gpu, new: Gpu) -> Unknown:
    """A field that only one side could read: NVML may refuse in a container what it tells outside."""
    side, gpu = ("A", old) if getattr(old, field) is None else ("B", new)
    return Unknown(f"gpu {prefix}.{field}", f"{side}: {gpu.refused.get(field, 'not read')}")


def _context(prefix: str, was: int | None, now: int | None) -> Differences:
    # Measured only with --probe: a side without it has not measured, and that is no drift.
    if was is None or now is None or abs(now - was) <= CONTEXT_TOLERANCE:
        return
    kind: str = "more" if now > was else "less"
    yield Change("memory", f"{prefix}.context", kind, size(was), size(now), size(abs(now - was)) or "")


def _system(old: System | None, new: System | None) -> Differences:
    if old is None or new is None:
        if (old is None) != (new is None):
            yield not_recorded("system", old is None)
        return
    for field in ("arch", "kernel", "os", "container", "cpu"):
        was, now = getattr(old, field), getattr(new, field)
        if was != now:
            yield Change("system", field, "changed", was, now)
    yield from _amounts("system", old, new)


def _amounts(facet: Facet, old: System, new: System) -> Differences:
    if old.cpus != new.cpus and None not in (old.cpus, new.cpus):
        kind = "less" if (new.cpus or 0) < (old.cpus or 0) else "more"
        yield Change(facet, "cpus", kind, str(old.cpus), str(new.cpus))
    was, now = old.memory_bytes, new.memory_bytes
    if was and now and abs(now - was) > was * MEMORY_TOLERANCE:
        yield Change(facet, "memory", "less" if now < was else "more", size(was), size(now))

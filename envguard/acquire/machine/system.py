"""The machine under the environment: kernel, operating system, container, CPU, memory, boot."""

from __future__ import annotations

import re
import shlex

from envguard import clock
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes, Section
from envguard.model.fingerprint import System


def read_system(host: Host) -> Section[System]:
    """What the kernel and the operating system say of themselves."""
    notes = Notes()
    machine = host.machine()
    return notes.section(
        System(
            host=machine.host,
            kernel=machine.kernel,
            os=_os(host, notes),
            arch=machine.arch,
            container=_container(host, notes),
            cpu=_cpu(host, notes),
            cpus=machine.cpus,
            memory_bytes=_memory(host, notes),
            boot_time=clock.iso(machine.boot_time, 0) if machine.boot_time is not None else None,
        )
    )


def _text(host: Host, path: str) -> str | None:
    """A small file's text, None where there is none. Raises any other `OSError`."""
    try:
        return host.read(path, 1 << 20).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _os(host: Host, notes: Notes) -> str | None:
    """PRETTY_NAME of os-release(5), else its NAME and VERSION."""
    try:
        text = _text(host, "/etc/os-release") or _text(host, "/usr/lib/os-release")
    except OSError as error:
        notes.unseen("system os", error)
        return None
    values = {}
    for line in (text or "").splitlines():
        name, separator, value = line.partition("=")
        if separator:
            try:
                values[name.strip()] = "".join(shlex.split(value))
            except ValueError:  # an unclosed quote: taken as it stands
                values[name.strip()] = value.strip("\"'")
    joined = " ".join(part for part in (values.get("NAME"), values.get("VERSION_ID")) if part)
    return values.get("PRETTY_NAME") or joined or None


def _container(host: Host, notes: Notes) -> str | None:
    """ "docker", "podman", "kubernetes", "lxc", …; None on the bare machine or in a virtual one.

    Each witness is one that the container's own manager sets: the `container` variable and /run/systemd/container
    (LXC, nspawn, podman), the marker files, the service account's folder, the cgroup path.
    """
    try:
        if _text(host, "/var/run/secrets/kubernetes.io/serviceaccount/namespace") is not None:
            return "kubernetes"
        named = host.environ().get("container") or (_text(host, "/run/systemd/container") or "").strip()
        if host.environ().get("KUBERNETES_SERVICE_HOST"):
            return "kubernetes"
        if named:
            return named
        if host.find("/.dockerenv") is not None:
            return "docker"
        if host.find("/run/.containerenv") is not None:
            return "podman"
        return _by_first_process(host)
    except OSError as error:
        notes.unseen("system container", error)
        return None


def _by_first_process(host: Host) -> str | None:
    groups = _text(host, "/proc/1/cgroup") or ""
    for word, kind in (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc")):
        if re.search(rf"/{word}[-./]", groups):
            return kind
    # An LXC host mounts its own view of /proc files through lxcfs.
    mounts = _text(host, "/proc/self/mounts") or ""
    return "lxc" if re.search(r"^lxcfs /proc/", mounts, re.MULTILINE) else None


def _cpu(host: Host, notes: Notes) -> str | None:
    try:
        text = _text(host, "/proc/cpuinfo")
    except OSError as error:
        notes.unseen("system cpu", error)
        return None
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text or "", re.MULTILINE)
    if found is not None:
        return found.group(1).strip()
    # ARM servers name the designer and the part by number alone.
    part = [re.search(rf"^CPU {name}\s*:\s*(\S+)$", text or "", re.MULTILINE) for name in ("implementer", "part")]
    return "implementer {} part {}".format(*(each.group(1) for each in part if each)) if all(part) else None


def _memory(host: Host, notes: Notes) -> int | None:
    """Bytes that this environment may use: the machine's, or the cgroup's limit where that is lower."""
    try:
        found = re.search(r"^MemTotal:\s*(\d+) kB$", _text(host, "/proc/meminfo") or "", re.MULTILINE)
        limits = [
            _text(host, path) for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
        ]
    except OSError as error:
        notes.unseen("system memory", error)
        return None
    if found is None:
        notes.unseen("system memory", "/proc/meminfo does not tell it")
        return None
    total = int(found.group(1)) * 1024
    given = [int(limit) for limit in limits if limit is not None and limit.strip().isdigit()]
    return min([total, *given])

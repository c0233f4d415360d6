"""Living processes from /proc, and the files that they map."""

import os
import time

from .environment import visible_environment
from .machine import machine
from .redaction import redact_argv


def _proc_text(pid, name):
    with open("/proc/%s/%s" % (pid, name), "rb") as stream:
        return stream.read()


def _maps(text):
    """Mapped files in the text of a maps file: [(path, inode, deleted, device), …], each file once."""
    seen = {}  # type: dict[tuple[str, int, bool, int], None]
    for line in os.fsdecode(text).splitlines():
        parts = line.split(None, 5)
        if len(parts) == 6 and parts[5].startswith("/"):
            path = parts[5]
            deleted = path.endswith(" (deleted)")
            major, _, minor = parts[3].partition(":")
            device = os.makedev(int(major, 16), int(minor, 16))
            seen[(path[: -len(" (deleted)")] if deleted else path, int(parts[4]), deleted, device)] = None
    return sorted(seen)


def processes(under=()):
    """Living processes: pid, parent, start (s since epoch), uid, argv (redacted), exe, cwd, environment, maps.

    Maps are kept where a mapped file, the executable or the working directory lies under one of `under` (all
    processes otherwise keep an empty list, so that a bundle does not hold every library of the machine). A field
    that the kernel refuses is null and named in `refused`.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    boot = machine()["boot_time"] or 0
    with open("/proc/uptime", encoding="ascii") as stream:
        up = float(stream.read().split()[0])
    # /proc/stat gives the boot time in whole seconds; now minus uptime gives it to a hundredth.
    precise_boot = time.time() - up if boot else up
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                out.append(_process(name, under, precise_boot, ticks))
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended while it was being read
    out.sort(key=lambda process: process["pid"])
    return out


def _process(pid, under, boot, ticks):
    refused = []

    def attempt(what, call, otherwise):
        try:
            return call()
        except PermissionError:
            refused.append(what)
            return otherwise
        except FileNotFoundError:
            if what in ("exe", "cwd"):  # a kernel thread, or the executable's mount is gone
                return otherwise
            raise

    fields = os.fsdecode(_proc_text(pid, "stat")).rpartition(")")[2].split()
    argv = [word for word in os.fsdecode(_proc_text(pid, "cmdline")).split("\0")][:-1]
    exe = attempt("exe", lambda: os.readlink("/proc/%s/exe" % pid), None)
    cwd = attempt("cwd", lambda: os.readlink("/proc/%s/cwd" % pid), None)
    pairs = attempt("environ", lambda: os.fsdecode(_proc_text(pid, "environ")).split("\0"), [])
    maps = attempt("maps", lambda: _proc_text(pid, "maps"), b"")
    prefixes = tuple(root.rstrip("/") + "/" for root in under)
    paths = [exe or "", (cwd or "") + "/"] + argv[:2]
    # Most processes of a machine map nothing of an environment: looking for its name costs less than parsing.
    concerned = any(path.startswith(prefixes) for path in paths) or any(
        b" " + os.fsencode(prefix) in maps for prefix in prefixes
    )
    return {
        "pid": int(pid), "parent": int(fields[1]), "state": fields[0], "started": boot + int(fields[19]) / ticks,
        "uid": os.stat("/proc/%s" % pid).st_uid, "argv": redact_argv(argv), "exe": exe, "cwd": cwd,
        "environ": visible_environment(tuple(pair.partition("=")[::2]) for pair in pairs if "=" in pair),
        "maps": _maps(maps) if prefixes and concerned else [],
        "refused": refused,
    }  # fmt: skip

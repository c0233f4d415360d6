"""Who and where this is, and the room on its file systems."""

import os
import time


def machine():
    """Who and where: uid, user, host name, uname, boot time (s), clock, time zone offset (s), working directory."""
    try:
        import pwd

        user = pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        user = str(os.getuid())
    boot = None
    try:
        with open("/proc/stat", encoding="ascii") as stream:
            for line in stream:
                if line.startswith("btime "):
                    boot = int(line.split()[1])
    except (OSError, ValueError):
        boot = None
    name = os.uname()
    now = time.time()
    return {
        "uid": os.getuid(), "user": user, "home": os.path.expanduser("~"), "host": name.nodename,
        "kernel": name.release, "system": name.sysname, "arch": name.machine, "boot_time": boot, "now": now,
        "utc_offset": time.localtime(now).tm_gmtoff, "cwd": os.getcwd(), "cpus": os.cpu_count(),
        "tmpdir": os.environ.get("TMPDIR") or "/tmp",
    }  # fmt: skip


def space(path):
    """The file system that holds `path`: {"bytes", "free", "files_free"}; free to this user, None for no limit."""
    found = os.statvfs(path)
    return {
        "bytes": found.f_frsize * found.f_blocks, "free": found.f_frsize * found.f_bavail,
        "files_free": found.f_favail if found.f_files else None,
    }  # fmt: skip

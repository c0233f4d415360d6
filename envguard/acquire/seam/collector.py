"""Raw facts of a machine: the one file that touches it, and the one file that travels to another.

Everything here is standard library and Python 3.8 syntax, because ``collect --via`` sends this file's text to a
machine where nothing but ``python3`` is sure to be there. It records facts and parses nothing: what a fact means
is decided by the readers in ``envguard.acquire``, which get the same facts from here, from a far machine, or from
a bundle. The live host calls these functions directly; ``serve`` answers the same calls over a pipe.

Nothing here changes the machine: no file is written, no ``__pycache__`` is made, no lock is taken.
"""

import base64
import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import stat as stat_module
import subprocess
import sys
import threading
import time

# Environment variables that a witness may want. Everything else stays where it is: a variable that is not listed
# is never read into a fact, so a secret cannot reach a file by being forgotten on a deny-list.
ENVIRONMENT_PREFIXES = (
    "CUDA", "CUBLAS", "CUDNN", "NVIDIA_", "NCCL_", "TORCH", "TRITON_", "PYTORCH_", "INDUCTOR", "OMP_", "MKL_",
    "OPENBLAS_", "HF_HOME", "HF_HUB_OFFLINE", "HF_DATASETS_", "TRANSFORMERS_", "TOKENIZERS_", "XDG_", "UV_",
    "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHON", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "HOME",
    "USER", "LOGNAME", "TMPDIR", "SLURM_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "GLOO_", "UCX_", "FLASH_ATTENTION_", "XFORMERS_", "ENVGUARD_", "DEEPSPEED_", "ACCELERATE_",
    "KUBERNETES_SERVICE_HOST", "container",
)  # fmt: skip
SECRET_NAME = re.compile(
    r"(?i)(^|_)(?:API|ACCESS|AUTH|SECRET|PRIVATE|SESSION|CLIENT)*"
    r"(KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|PAT|BEARER|SIGNATURE)(_|$)"
)
# The last word of an option's or setting's name decides: `--hf-token` is a secret, `--tokenizer` and `--token-budget`
# are what a training command line is made of.
SECRET_LAST_WORD = (
    r"(?:[\w.-]*(?:[-_.]|api|access|account|auth|client|private|secret|session|shared))?"
    r"(?:key|token|secret|password|passwd|passphrase|credentials?|auth|cookie|bearer|signature)|-*(?:pass|pwd|pat|sig)"
)
SECRET_OPTION = re.compile(r"(?i)(?<![\w.-])(?:%s)$" % SECRET_LAST_WORD)
# A value ends at its closing quote, else at a blank: what else may be part of a password cannot be known.
_VALUE = r"(?:\\*\"[^\"]*\"?|\\*'[^']*'?|\S+)"
# `name=value` anywhere in a word (`a=1&token=x`), `name: value` of YAML and prose, `"name": "value"` of JSON. A colon
# alone is none: it parts the folders of a search path. `key: ` is how people announce a key of a dictionary.
ASSIGNMENT = re.compile(
    r"(?i)(?<![\w.-])(?!key[ \t]*:)((?:%s)(?:\\*[\"']?[ \t]*=[ \t]*|\\*[\"'][ \t]*:[ \t]*|:[ \t]+))%s"
    % (SECRET_LAST_WORD, _VALUE)
)
OPTION = re.compile(r"(?i)(?<!\S)((?=-)(?:%s)[ \t]+)(?!-)%s" % (SECRET_LAST_WORD, _VALUE))
HEADER = re.compile(
    r"(?i)((?<![\w.-])(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]*(?:key|token|secret|auth|signature))\\*[\"']?"
    r"\s*:\s*\\*[\"']?|(?<!\w)bearer[ \t]+(?=[\w.~+/=-]{8}))[^\r\n\"']+"
)
# Up to the last `@` before a slash: a password may hold one too.
USER_INFO = re.compile(r"(?<=://)[^/?#\s\"'\\]+@")
SECRET_VALUE = re.compile(
    r"(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|wandb_[A-Za-z0-9]{16,}|AIza[\w-]{30,}"
    r"|pypi-[\w-]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*)"
)
REDACTED = "[redacted]"

# What `query` may run: programs that answer about the machine and write nothing.
QUERY_PROGRAMS = ("git", "nvidia-smi", "dpkg-query", "uname", "id", "last", "systemd-detect-virt")


def redact(text):
    """Strips user info from URLs, values of secret-looking settings and options, and strings shaped like tokens."""
    text = USER_INFO.sub("", text)
    text = HEADER.sub(_keep_name, text)
    text = ASSIGNMENT.sub(_keep_name, text)
    text = OPTION.sub(_keep_name, text)
    return SECRET_VALUE.sub(REDACTED, text)


def _keep_name(match):
    return match.group(1) + REDACTED


def redact_argv(argv):
    """A command line without secrets: `--token X`, `--token=X`, `-u name:X`, `https://user:pw@host`, token shapes."""
    out, last = [], ""
    for word in argv:
        name, colon, rest = word.partition(":")
        if word.startswith("-"):
            # Such an option's own value is all of the word: a password may hold blanks and quotes.
            option, equals, _ = word.partition("=")
            out.append(option + "=" + REDACTED if equals and SECRET_OPTION.search(option) else redact(word))
        elif last == "login" or (last.startswith("-") and SECRET_OPTION.search(last)):
            out.append(REDACTED)
        elif last in ("-u", "--user", "--proxy-user") and colon and name and rest and not rest.isdigit():
            out.append(name + ":" + REDACTED)
        else:
            out.append(redact(word))
        last = word
    return out


# --- statx: os.stat knows no birth time on Linux before Python 3.15 --------------------------------------------


class _Timestamp(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_int64), ("nsec", ctypes.c_uint32), ("pad", ctypes.c_int32)]


class _Statx(ctypes.Structure):
    _fields_ = [
        ("mask", ctypes.c_uint32), ("blksize", ctypes.c_uint32), ("attributes", ctypes.c_uint64),
        ("nlink", ctypes.c_uint32), ("uid", ctypes.c_uint32), ("gid", ctypes.c_uint32),
        ("mode", ctypes.c_uint16), ("spare0", ctypes.c_uint16), ("ino", ctypes.c_uint64),
        ("size", ctypes.c_uint64), ("blocks", ctypes.c_uint64), ("attributes_mask", ctypes.c_uint64),
        ("atime", _Timestamp), ("btime", _Timestamp), ("ctime", _Timestamp), ("mtime", _Timestamp),
        ("rest", ctypes.c_uint8 * 128),
    ]  # fmt: skip


_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800
_libc = None


def birth_ns(path):
    """Birth time of `path` itself (a link is not followed) in ns since the epoch; None where the kernel has none."""
    global _libc
    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(_libc, "statx"):
        return None
    buffer = _Statx()
    flags = _AT_SYMLINK_NOFOLLOW
    if _libc.statx(_AT_FDCWD, os.fsencode(path), flags, _STATX_BTIME, ctypes.byref(buffer)) != 0:
        return None
    if not buffer.mask & _STATX_BTIME:
        return None
    if buffer.btime.sec <= 0:
        return None  # a file system image that was built without births says 1970, which is no time of birth
    return buffer.btime.sec * 10**9 + buffer.btime.nsec


def _kind(mode):
    if stat_module.S_ISREG(mode):
        return "file"
    if stat_module.S_ISDIR(mode):
        return "directory"
    if stat_module.S_ISLNK(mode):
        return "link"
    return "other"


def _facts(result, birth):
    return (
        _kind(result.st_mode), stat_module.S_IMODE(result.st_mode), result.st_size, result.st_nlink, result.st_uid,
        result.st_gid, result.st_ino, result.st_dev, result.st_mtime_ns, result.st_ctime_ns, birth,
    )  # fmt: skip


def stat(path):
    """lstat with birth time: (kind, mode, size, nlink, uid, gid, inode, device, mtime, ctime, btime|None), ns."""
    return _facts(os.lstat(path), birth_ns(path))


def stat_target(path):
    """The same for what a link leads to; no birth time, since it would be the link's own."""
    return _facts(os.stat(path), None)


def listing(path):
    """Names in a directory with their kinds, sorted by name: ((name, kind), …)."""
    with os.scandir(path) as entries:
        out = []
        for entry in entries:
            if entry.is_symlink():
                kind = "link"
            elif entry.is_dir(follow_symlinks=False):
                kind = "directory"
            else:
                kind = "file" if entry.is_file(follow_symlinks=False) else "other"
            out.append((entry.name, kind))
    out.sort()
    return tuple(out)


def walk(root, births=False, skip=()):
    """Every path below `root` with its stat: (((relative path, *facts), …), ((relative path, why), …)).

    Directories come before what they hold; links are not followed; directory names in `skip` are not entered.
    Without `births` the birth times are None: statx costs more than lstat over a hundred thousand files.
    """
    found, failed = [], []
    stack = [""]
    while stack:
        relative = stack.pop()
        directory = os.path.join(root, relative) if relative else root
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            if not relative:
                raise
            failed.append((relative, error.strerror or str(error)))
            continue
        inner = []
        for entry in entries:
            name = entry.name if not relative else relative + "/" + entry.name
            try:
                result = entry.stat(follow_symlinks=False)
                birth = birth_ns(entry.path) if births else None
            except OSError as error:
                failed.append((name, error.strerror or str(error)))
                continue
            found.append((name,) + _facts(result, birth))
            if stat_module.S_ISDIR(result.st_mode) and entry.name not in skip:
                inner.append(name)
        stack.extend(reversed(inner))
    return tuple(found), tuple(failed)


def stats(root, names):
    """What ties a content to its place, of many files at once: a flat [size, mtime, ctime, inode, …], times in ns.

    Links are followed, since what an import reads is what counts. A file that cannot be seen has its negative errno
    for a size, and EISDIR where it is no regular file. One flat list: half the cost of a tuple a file.
    """
    try:
        # Each name is looked up from here: the way to a folder deep down costs as much as the file itself.
        folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return [-(error.errno or errno.EIO), 0, 0, 0] * len(names)
    try:
        return _stats_below(folder, names)
    finally:
        os.close(folder)


def _stats_below(folder, names):
    flat = []  # type: list[int]
    look, regular = os.stat, stat_module.S_ISREG
    for name in names:
        try:
            result = look(name, dir_fd=folder)
        except OSError as error:
            flat += (-(error.errno or errno.EIO), 0, 0, 0)
            continue
        except ValueError:  # a NUL in the name: no such file can be
            flat += (-errno.ENOENT, 0, 0, 0)
            continue
        if regular(result.st_mode):
            # Overlay and cluster file systems set the top bit of an inode: kept to what a signed number holds.
            flat += (result.st_size, result.st_mtime_ns, result.st_ctime_ns, result.st_ino & 0x7FFFFFFFFFFFFFFF)
        else:
            flat += (-errno.EISDIR, 0, 0, 0)
    return flat


def order(path):
    """Names in a directory as the kernel gives them: importlib.metadata takes the first of two that fit."""
    return os.listdir(path)


def read(path, limit=None, offset=0):
    """Bytes of a regular file: at most `limit` from `offset` (a negative offset counts from the end).

    Opened without blocking and refused unless regular, so that a FIFO or device in a hostile tree hangs nothing.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat_module.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            if offset:
                size = os.fstat(descriptor).st_size
                stream.seek(max(0, size + offset) if offset < 0 else offset)
            return stream.read() if limit is None else stream.read(limit)
    finally:
        os.close(descriptor)


def digest(path):
    """sha256 of a regular file's content, hex."""
    return hashed(path, "sha256")


def hashed(path, algorithm):
    """Digest of a regular file's content, hex, by an algorithm of hashlib's that has a length of its own."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        result = os.fstat(descriptor)
        if not stat_module.S_ISREG(result.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        # Most files of an environment are small: a buffer of their size costs less than clearing a large one.
        view = memoryview(bytearray(min(result.st_size + 1, 1 << 20)))
        hasher = hashlib.new(algorithm)
        while True:
            count = os.readv(descriptor, [view])
            if not count:
                return hasher.hexdigest()
            hasher.update(view[:count])
    finally:
        os.close(descriptor)


def lines(path):
    """[sha256 in hex, lines]: a text file's digest and its count of lines that are not blank, in one reading."""
    hasher, count, blank, last = hashlib.sha256(), 0, True, b"\n"
    for offset in range(0, os.stat(path).st_size, 1 << 22):
        piece = read(path, 1 << 22, offset)
        hasher.update(piece)
        data = last + piece
        if blank == (last == b"\n") and not any(mark in data for mark in (b"\n\n", b"\n\r", b"\n ", b"\n\t")):
            count += piece.count(b"\n")  # no line of it is blank: counted without looking at each
            blank = piece.endswith(b"\n")
        else:
            for part in piece.splitlines(True):
                blank = blank and not part.strip()
                if part.endswith(b"\n"):
                    count += not blank
                    blank = True
        last = piece[-1:]
    return [hasher.hexdigest(), count + (not blank)]


def chain(parts):
    """sha256, hex, over a sequence of ("text", words) and ("file", path): the words in UTF-8 and whole files."""
    hasher = hashlib.sha256()
    for kind, value in parts:
        hasher.update(value.encode("utf-8") if kind == "text" else read(value))
    return hasher.hexdigest()


def scan(path, needles, before, after, limit, most):
    """[sha256 in hex, texts]: a file's digest, and what stands around each of the plain `needles` in its first bytes.

    A text is `before` bytes, the needle and `after` bytes, in Latin-1; at most `most` a needle, within `limit` bytes.
    """
    data = read(path, limit)
    texts = []
    for needle in needles:
        sought, at = needle.encode("latin-1"), -1
        for _ in range(most):
            at = data.find(sought, at + 1)
            if at < 0:
                break
            texts.append(data[max(0, at - before) : at + len(sought) + after].decode("latin-1"))
    whole = len(data) < limit
    return [hashlib.sha256(data).hexdigest() if whole else digest(path), texts]


def readlink(path):
    """Where a symbolic link points, as written."""
    return os.readlink(path)


def realpath(path):
    """The path with every link resolved; parts that do not exist stay as written."""
    return os.path.realpath(path)


def environ():
    """The environment variables that a witness may see, without secrets."""
    return _visible_environment(os.environ.items())


def _visible_environment(items):
    kept = {}
    for name, value in items:
        if name.startswith(ENVIRONMENT_PREFIXES) and not SECRET_NAME.search(name):
            kept[name] = redact(value)
    return kept


def withheld():
    """Names of listed variables whose value looks like a secret, or holds one; no value leaves here."""
    return sorted(
        name
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT_PREFIXES) and (SECRET_NAME.search(name) or REDACTED in redact(value))
    )


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
        "environ": _visible_environment(tuple(pair.partition("=")[::2]) for pair in pairs if "=" in pair),
        "maps": _maps(maps) if prefixes and concerned else [],
        "refused": refused,
    }  # fmt: skip


def query(argv, cwd=None, timeout=20.0):
    """Runs a program that only answers: {"code", "out", "err"}; the program is one of QUERY_PROGRAMS.

    Git is kept from writing: without these options it refreshes `.git/index` while it answers.
    """
    if argv[0] not in QUERY_PROGRAMS:
        raise ValueError("not a query program: %r" % (argv[0],))
    if argv[0] == "git":
        quiet = ["--no-optional-locks", "-c", "diff.autoRefreshIndex=false", "-c", "core.fsmonitor=false"]
        argv = [argv[0]] + quiet + list(argv[1:])
    # Looked up by hand: where a folder of PATH may not be read, exec says "Permission denied" of a program that is
    # simply not installed, and a fact would turn into something undetermined.
    program = shutil.which(argv[0])
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    environment = dict(os.environ, LC_ALL="C.UTF-8", GIT_TERMINAL_PROMPT="0", GIT_OPTIONAL_LOCKS="0")
    try:
        done = subprocess.run(
            list(argv), executable=program, cwd=cwd, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, "no answer within %g s" % timeout, argv[0])
    return {"code": done.returncode, "out": os.fsdecode(done.stdout), "err": os.fsdecode(done.stderr)}


def probe(executable, program, timeout=180.0):
    """Runs a program in an environment's own interpreter: {"code", "out", "err"}; a negative code is its signal.

    It writes no bytecode and no CUDA cache, starts in `/` so that no file of the working directory is imported, and
    is ended with everything that it started when its time is over.
    """
    environment = dict(
        os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONFAULTHANDLER="1", CUDA_CACHE_DISABLE="1", LC_ALL="C.UTF-8",
    )  # fmt: skip
    child = subprocess.Popen(
        [executable, "-B", "-c", program], cwd="/", env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, "no answer within %g s" % timeout, executable)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    return {"code": child.returncode, "out": os.fsdecode(out), "err": os.fsdecode(err[-65536:])}


# --- NVML: what the NVIDIA driver's library says, through pynvml where it is at hand, else through nvidia-smi ----

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
    text = re.sub(r"(?s)<(serial|pdi)>.*?</\1>", "", said["out"])
    text = re.sub(r"<uuid>\s*(.*?)\s*</uuid>", lambda m: "<uuid>%s</uuid>" % _uuid_digest(m.group(1)), text)
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


OPERATIONS = {
    function.__name__: function
    for function in (
        stat,
        stat_target,
        listing,
        walk,
        stats,
        order,
        read,
        digest,
        hashed,
        lines,
        chain,
        scan,
        readlink,
        realpath,
        environ,
        withheld,
        machine,
        processes,
        query,
        probe,
        nvml,
        space,
    )
}


def answer(operation, arguments):
    """One call as JSON-able data: {"value": …}, {"bytes": base64} or {"error": [errno, message]}."""
    try:
        value = OPERATIONS[operation](*arguments)
    except OSError as error:
        return {"error": [error.errno or errno.EIO, error.strerror or str(error)]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    return {"value": value}


def serve(requests, replies):
    """Answers one JSON request a line, [operation, arguments], with one JSON line, until the input ends."""
    for line in iter(requests.readline, ""):
        operation, arguments = json.loads(line)
        replies.write(json.dumps(answer(operation, arguments)) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)

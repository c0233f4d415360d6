"""Programs that answer about the machine, and an environment's own interpreter: the only ones that are ever run."""

import errno
import os
import shutil
import signal
import subprocess

# What `query` may run: programs that answer about the machine and write nothing.
QUERY_PROGRAMS = ("git", "nvidia-smi", "dpkg-query", "uname", "id", "last", "systemd-detect-virt")
# How long a killed program may take to be gone: one that hangs in a driver goes only when the driver lets it.
GONE_S = 5.0


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
        if child.returncode is None:
            _end(child)
    return {"code": child.returncode, "out": os.fsdecode(out), "err": os.fsdecode(err[-65536:])}


def _end(child):
    """Ends a program with its session, and waits for neither the end of its pipes nor, without limit, its own.

    What it started in a session of its own lives on, and may hold those pipes for as long as it pleases.
    """
    # Not polled before: its number, and with it that of its session, is its own until it is waited for.
    os.killpg(child.pid, signal.SIGKILL)
    child.stdout.close()
    child.stderr.close()
    try:
        child.wait(GONE_S)
    except subprocess.TimeoutExpired:
        pass  # a signal is no answer: that there was none is what is told

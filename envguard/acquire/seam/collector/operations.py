"""Everything that may be asked, by name, and the loop that answers it over a pipe."""

import base64
import errno
import json

from .contents import chain, digest, hashed, lines, read, scan
from .environment import environ, withheld
from .files import listing, order, readlink, realpath, stat, stat_target, stats, walk
from .machine import machine, space
from .nvml import nvml
from .processes import processes
from .programs import probe, query

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

"""Starts COMMAND as `launch` does once the gate has opened, and nothing else: `python supervisor.py COMMAND…`."""

from __future__ import annotations

import os
import sys

from envguard.launch import child


def main() -> int:
    mask = child.block_signals()
    try:
        started = child.start(sys.argv[1:], os.environ, mask, stdout_to_stderr="TO_STDERR" in os.environ)
    except child.CannotExecute as error:
        sys.stderr.write(f"error: {error}\n")
        return error.code
    return started.wait().code


if __name__ == "__main__":
    sys.exit(main())

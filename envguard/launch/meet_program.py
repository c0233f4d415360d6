"""Run by the environment's own interpreter: meets the other nodes in torch.distributed's store and swaps texts.

Reads one JSON object on stdin: `host`, `port`, `nodes`, `rank` (null: whoever comes gets the next number), `key`,
`timeout` (s), `payload` (text). Prints one: `payloads` by rank, or `error` with what happened and `missing` ranks.
Standard library and torch alone; this file is read as text and never imported by envguard.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any


def is_here(host: str) -> bool:
    """Whether `host` is an address of this machine, so that the store has to be served from here."""
    try:
        addresses = {str(item[4][0]) for item in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                continue
            return True
    return False


def open_store(asked: dict[str, Any]) -> tuple[Any, bool]:
    """(the store, whether it is served from here); several agents on one machine share one server."""
    stores: Any = importlib.import_module("torch.distributed")
    place = {"host_name": asked["host"], "port": asked["port"], "wait_for_workers": False}
    timeout = timedelta(seconds=asked["timeout"])
    if asked["rank"] == 0 or (asked["rank"] is None and is_here(asked["host"])):
        try:
            return stores.TCPStore(**place, is_master=True, timeout=timeout), True
        except (OSError, RuntimeError) as error:
            if asked["rank"] is not None or "in use" not in str(error).lower():
                raise
    return stores.TCPStore(**place, is_master=False, timeout=timeout), False


def meet(asked: dict[str, Any]) -> dict[str, Any]:
    """Tells this node's payload and waits for all others'."""
    store, serves = open_store(asked)
    key, nodes = asked["key"], asked["nodes"]
    rank = asked["rank"] if asked["rank"] is not None else store.add(f"{key}/arrived", 1) - 1
    store.set(f"{key}/{rank}", asked["payload"])
    deadline = time.monotonic() + asked["timeout"]
    missing = list(range(nodes))
    while missing and time.monotonic() < deadline:
        missing = [other for other in missing if not store.check([f"{key}/{other}"])]
        if missing:
            time.sleep(0.1)
    if missing:
        return {"error": "not every node came", "missing": missing}
    payloads = [store.get(f"{key}/{other}").decode() for other in range(nodes)]
    store.add(f"{key}/done", 1)
    # The store goes with the process that serves it: it stays until everyone has read.
    while serves and store.add(f"{key}/done", 0) < nodes and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"payloads": payloads, "rank": rank}


def main() -> None:
    asked = json.load(sys.stdin)
    try:
        answer = meet(asked)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", "missing": []}
    send(json.dumps(answer) + "\n")


def send(text: str) -> None:
    """Writes all of it: under PYTHONUNBUFFERED sys.stdout passes a text on once, and a pipe may take a part."""
    sys.stdout.flush()
    data = text.encode()
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


if __name__ == "__main__":
    main()

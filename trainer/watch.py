"""No rank outlives another's death: a thread that looks each second whether the others still are.

A collective on NCCL never notices a dead peer, and a blocked one on gloo may take minutes. So each rank tells
where it runs, the ranks of one machine look after each other's processes, and whoever finds or suffers a
failure says so in the store, where the other machines read it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import psutil
from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from trainer.errors import RankFailed
from trainer.launcher import LAUNCHER

logger = logging.getLogger("trainer")
FAILED, DONE, WHERE = "trainer/failed", "trainer/done", "trainer/where"
INTERVAL = 1.0
"""Seconds between two looks."""


def machine() -> str:
    """Names what process ids are relative to: host, boot and pid namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{socket.gethostname()}:{boot}:{os.stat('/proc/self/ns/pid').st_ino}"


class DeathWatch:
    """Ends this process, by ``os._exit``, within two looks of any other rank's unexpected end.

    The main thread may be stuck in a collective that no exception reaches; leaving the process is the one
    way out. Checkpoints are whole or absent, so nothing is lost that a crash would not have lost too.
    """

    def __init__(self, store: Store, rank: int, world: int, leave: Callable[[int], NoReturn] = os._exit) -> None:
        self.store, self.rank, self.world, self.leave = store, rank, world, leave
        # A connection of its own: the main thread may hold the other one in a long wait.
        self.own: Store = store.clone()  # type: ignore[attr-defined]
        process = psutil.Process()
        here = {"machine": machine(), "pid": process.pid, "started": process.create_time()}
        store.set(f"{WHERE}/{rank}", json.dumps(here))
        launcher = os.environ.get(LAUNCHER)
        self._launcher = psutil.Process(int(launcher)) if launcher else None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="death watch")
        self._thread.start()

    def fail(self, error: BaseException) -> str | None:
        """Tells all ranks that this one ends with an error; returns what another told before, which led to it."""
        mine = f"rank {self.rank}: {type(error).__name__}: {error}"
        try:
            told = bytes(self.store.compare_set(FAILED, "", mine)).decode()
        except DistError as gone:
            logger.error("rank %d cannot tell the others: %s", self.rank, gone)
            return None
        return None if told == mine else told

    def close(self) -> None:
        """Tells all ranks that this one is done, and looks no longer."""
        self.store.set(f"{DONE}/{self.rank}", "1")
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        peers: dict[int, psutil.Process | None] | None = None
        while not self._stop.wait(INTERVAL):
            try:
                peers = peers if peers is not None else self._peers()
                reason = self._failure(peers or {})
            except Exception as error:  # the store went away with the machine that held it
                reason = f"the ranks' store is gone: {error}"
            if reason is not None and not self._stop.is_set():
                logger.error("rank %d ends: %s", self.rank, reason)
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                self.leave(RankFailed.exit_code)

    def _peers(self) -> dict[int, psutil.Process | None] | None:
        """The other ranks of this machine; None until all ranks have told where they are."""
        keys = [f"{WHERE}/{rank}" for rank in range(self.world)]
        if not self.own.check(keys):
            return None
        places = {rank: json.loads(self.own.get(key)) for rank, key in enumerate(keys)}
        here = places.pop(self.rank)["machine"]
        return {rank: _process(place) for rank, place in places.items() if place["machine"] == here}

    def _failure(self, peers: dict[int, psutil.Process | None]) -> str | None:
        if self.own.check([FAILED]):
            return bytes(self.own.get(FAILED)).decode()
        if self._launcher is not None and not _alive(self._launcher):
            return "what started the ranks is gone"
        for rank, process in peers.items():
            if not _alive(process) and not self.own.check([f"{DONE}/{rank}"]):
                reason = f"rank {rank} is gone"
                self.own.set(FAILED, reason)
                return reason
        return None


def _process(place: dict[str, Any]) -> psutil.Process | None:
    """The process that was started there and then; None where it is no more."""
    try:
        process = psutil.Process(place["pid"])
        return process if process.create_time() == place["started"] else None
    except psutil.NoSuchProcess:
        return None


def _alive(process: psutil.Process | None) -> bool:
    try:
        return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(store: Store, key: str) -> bytes:
    """A key's value; waits as long as it takes (the death watch ends a wait for a dead rank)."""
    while not store.check([key]):
        time.sleep(0.05)
    return store.get(key)

"""The most memory that a run takes on each GPU, looked at now and then: the next launch will need it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

FIRST_S, EVERY_S = 10.0, 30.0


class PeakMemory:
    """Samples NVML in a thread of its own, which a GPU that fell off its bus may block without harm to the watch.

    What counts is how much more is taken than before the start: in a container NVML names no processes.
    """

    def __init__(self, before: Mapping[int, int], tell: Callable[[dict[str, int]], None]) -> None:
        self._before = dict(before)
        self._tell = tell
        self._peak: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu memory", daemon=True)

    def start(self) -> None:
        if self._before:
            self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def _run(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
            handles = {index: pynvml.nvmlDeviceGetHandleByIndex(index) for index in self._before}
        except pynvml.NVMLError:
            return  # it answered at the gate; a run without a recorded peak is held against none next time
        wait = FIRST_S
        while not self._stop.wait(wait):
            wait = EVERY_S
            self._sample(pynvml, handles)

    def _sample(self, library: Any, handles: Mapping[int, Any]) -> None:
        grown = False
        for index, handle in handles.items():
            try:
                taken = int(library.nvmlDeviceGetMemoryInfo(handle).used) - self._before[index]
            except library.NVMLError:
                continue  # one GPU that is lost does not hide the others
            # A peak that creeps by a few MiB is not worth a write each time.
            if taken > self._peak.get(str(index), 0) + (64 << 20):
                self._peak[str(index)], grown = taken, True
        if grown:
            self._tell(dict(self._peak))

"""The watch beside a run: what changes in its environment, code, configuration, data and compile cache, as sentences.

One thread concludes; the others only listen. At rest it wakes every few seconds for a handful of stats. What it says
is one sentence a transaction: changes are gathered until it has been quiet for a moment.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from envguard import clock
from envguard.acquire.packages.environment import Environment
from envguard.acquire.processes.live_processes import read_processes
from envguard.acquire.seam.host import Host
from envguard.launch import installs
from envguard.launch.sources import Batch, Sources
from envguard.launch.who import Actor, KernelWitness, candidates
from envguard.model.action import ChangeSeen

TICK_S = 5.0
QUIET_S = 1.5
LONGEST_S = 120.0
_SHOWN = 3


@dataclass(frozen=True)
class Watched:
    """What is watched: paths. `code` are folders that hold files of the run's code, `tracked` those files."""

    env: Environment
    code: tuple[str, ...]
    tracked: frozenset[str]
    files: tuple[tuple[str, str], ...]
    """(facet, path) of configuration and data, whose stat is looked at."""
    caches: tuple[str, ...]


@dataclass(frozen=True)
class By:
    """Who did it: processes, else an installer's own word without a process; false where nobody is known."""

    actors: tuple[Actor, ...]
    installer: str | None = None

    def __bool__(self) -> bool:
        return bool(self.actors or self.installer)

    def __str__(self) -> str:
        return " and ".join(str(actor) for actor in self.actors) or self.installer or ""

    @property
    def phrase(self) -> str:
        return f" by {self}" if self else ""

    @property
    def in_full(self) -> str | None:
        return " and ".join(actor.in_full for actor in self.actors) or self.installer


class Watch:
    """`tell` gets each change, from the watch's own thread; `tick` is called every few seconds with the time."""

    def __init__(
        self,
        host: Host,
        watched: Watched,
        pid: int,
        tell: Callable[[ChangeSeen], None],
        tick: Callable[[float], None],
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """`begun` is called once, from the watch's own thread, when nothing can happen unseen any more."""
        self._begun = begun
        self._host = host
        self._watched = watched
        self._pid = pid
        self._tell = tell
        self._tick = tick
        self._sources = Sources()
        self._witness = KernelWitness.open()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._installed = installs.scan(host, watched.env.site)
        self._stats = self._look_at_files()
        self._most = self._count_caches()
        self._suspects: tuple[Actor, ...] = ()
        self.ready = threading.Event()

    @property
    def notes(self) -> list[str]:
        """What is seen late or not at all."""
        return self._sources.notes

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the watch; what has just changed is still told."""
        self._stop.set()
        self._sources.queue.put(Batch(time.time(), frozenset()))  # it need not wait for its next look
        self._thread.join(timeout=10)
        self._sources.close()
        if self._witness is not None:
            self._witness.close()

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._listen()
            self._begun()
            self._loop()
        except Exception as error:  # a fault of the watch must not end the run, nor pass for silence
            says = f"the watch has failed and sees nothing any more: {type(error).__name__}: {error}"
            self._tell(self._change("unknown", "watch", says, By(())))

    def _listen(self) -> None:
        site = [path for path in self._watched.env.site if self._host.find(path) is not None]
        self._sources.listen(self._host, site, self._watched.code)
        if self._witness is not None:
            for folder in site:
                self._witness.watch(folders_below(self._host, folder))
            self._witness.watch(self._watched.code)
            for cache in self._watched.caches:
                self._witness.watch([cache, f"{cache}/fxgraph", f"{cache}/aotautograd"])
            self._witness.start()
        self.ready.set()

    def _loop(self) -> None:
        paths: set[str] = set()
        opened = last = next_tick = 0.0
        while not self._stop.is_set():
            try:
                batch: Batch | None = self._sources.queue.get(timeout=0.25 if paths else 1.0)
            except queue.Empty:
                batch = None
            now = time.time()
            if batch is not None and batch.paths:
                if not paths:
                    opened = batch.time
                    self._suspect()
                paths |= batch.paths
                last = now
            if paths and (now - last >= QUIET_S or now - opened >= LONGEST_S):
                self._conclude(paths, opened)
                paths = set()
            if now >= next_tick:
                next_tick = now + TICK_S
                self._poll()
                self._tick(now)
        self._drain(paths, opened)

    def _drain(self, paths: set[str], opened: float) -> None:
        while not self._sources.queue.empty():
            batch = self._sources.queue.get()
            opened = opened if paths else batch.time
            paths |= batch.paths
        if paths:
            self._conclude(paths, opened)
        self._poll()
        self._tick(time.time())

    def _suspect(self) -> None:
        """Who could be doing it, taken now: in a moment they may have ended."""
        if self._witness is None:
            roots = (self._watched.env.prefix, *self._watched.env.site, *self._watched.code)
            self._suspects = candidates(self._host, roots, frozenset({os.getpid(), self._pid}))

    # --- what it means ---

    def _conclude(self, paths: Iterable[str], opened: float) -> None:
        found = tuple(paths)
        site = [path for path in found if path.startswith(tuple(f"{root}/" for root in self._watched.env.site))]
        replaced = [path for path in found if path in self._watched.env.site]
        code = [path for path in found if path not in site and path not in replaced and self._is_code(path)]
        if site or replaced:
            self._packages(site, opened)
        if code:
            shown = _some(sorted(os.path.basename(path) for path in code))
            by = self._by(code, opened)
            says = f"{_count(len(code), 'file')} of the code changed at {_at(opened)}{by.phrase}: {shown}"
            self._tell(self._change("code", code[0], says, by, opened))

    def _packages(self, paths: Sequence[str], opened: float) -> None:
        before = self._installed
        after = self._installed = installs.scan(self._host, self._watched.env.site, before)
        found = installs.swaps(before, after)
        if found:
            folders = [item.directory for swap in found for item in (swap.before, swap.after) if item is not None]
            by = self._by(folders, opened) or By((), _installer(found))
            says = installs.sentence(found, _at(opened), str(by) or None, self._stale(found))
            facet = "torch" if any(swap.name == "torch" for swap in found) else "packages"
            self._tell(self._change(facet, ", ".join(installs.roots(found)), says, by, opened))
            if self._witness is not None:
                for swap in found:
                    if swap.after is not None:
                        self._witness.watch(self._new_folders(paths))
                        break
            return
        edited = [path for path in paths if ".dist-info/" not in path and not self._is_folder(path)]
        if edited:
            by = self._by(edited, opened)
            shown = _some(sorted(self._relative(path) for path in edited))
            says = f"{_count(len(edited), 'installed file')} changed at {_at(opened)}{by.phrase}: {shown}"
            self._tell(self._change("packages", self._relative(edited[0]).split("/")[0], says, by, opened))

    def _new_folders(self, paths: Sequence[str]) -> Iterator[str]:
        yield from {path for path in paths if self._is_folder(path)}

    def _is_code(self, path: str) -> bool:
        return path in self._watched.tracked or (
            path.startswith(tuple(f"{folder}/" for folder in self._watched.code)) and path.endswith(".py")
        )

    def _is_folder(self, path: str) -> bool:
        try:
            stat = self._host.find(path)
        except OSError:
            return False
        return stat is not None and stat.is_directory

    def _relative(self, path: str) -> str:
        for root in self._watched.env.site:
            if path.startswith(f"{root}/"):
                return path[len(root) + 1 :]
        return path

    def _stale(self, found: Sequence[installs.Swap]) -> tuple[str, ...]:
        """Packages of which a process of the run has files mapped that were replaced underneath it."""
        family = descendants(self._host, self._pid)
        stale = {
            file.path
            for process in read_processes(self._host, self._watched.env).value
            if process.pid in family
            for file in process.stale
        }
        names = {self._relative(path).split("/")[0].lower().replace("_", "-") for path in stale}
        return tuple(swap.name for swap in found if swap.before is not None and swap.name in names)

    def _by(self, paths: Iterable[str], since: float) -> By:
        if self._witness is None:
            return By(self._suspects[:1])
        # inotify's word comes up to a debounce later than the kernel's.
        return By(self._witness.who(paths, since - 2 * TICK_S)[:2])

    # --- what is looked at every few seconds ---

    def _look_at_files(self) -> dict[str, tuple[int, int, int] | None]:
        found: dict[str, tuple[int, int, int] | None] = {}
        for _, path in self._watched.files:
            try:
                stat = self._host.find(path)
            except OSError:
                continue
            found[path] = (stat.mtime_ns, stat.size, stat.inode) if stat is not None else None
        return found

    def _count_caches(self) -> dict[str, int]:
        return {path: count_entries(self._host, path) for path in self._watched.caches}

    def _poll(self) -> None:
        now = time.time()
        stats = self._look_at_files()
        for facet, path in self._watched.files:
            if path in stats and path in self._stats and stats[path] != self._stats[path]:
                by = self._by([path], now - TICK_S)
                what = "is gone since" if stats[path] is None else "changed at"
                says = f"{facet} {path} {what} {_at(now)}{by.phrase}"
                self._tell(self._change(facet, path, says, by))
        self._stats = {**self._stats, **stats}
        for path, count in self._count_caches().items():
            # Against the most that it held, since a large cache is not cleared between two looks.
            most = self._most[path] = max(self._most[path], count)
            if count * 2 < most:
                self._most[path] = count
                by = self._by([f"{path}/fxgraph", f"{path}/aotautograd", path], now - TICK_S)
                says = (
                    f"compile cache {path} was cleared at {_at(now)}{by.phrase} ({most} entries, now {count}): "
                    "the next start compiles cold"
                )
                self._tell(self._change("compile_cache", path, says, by))

    def _change(self, facet: str, subject: str, says: str, by: By, at: float | None = None) -> ChangeSeen:
        return ChangeSeen(time=clock.iso(at or time.time()), facet=facet, subject=subject, says=says, by=by.in_full)


def count_entries(host: Host, cache: str) -> int:
    """Entries of a compile cache, counted in folders and not opened; 0 where there is none."""
    total = 0
    for folder in (cache, f"{cache}/fxgraph", f"{cache}/aotautograd"):
        try:
            total += len(host.listing(folder))
        except OSError:
            continue  # not there yet, or not any more: that is the count
    return total


def folders_below(host: Host, root: str) -> Iterator[str]:
    """`root` and every folder below it, without those of bytecode; what cannot be listed is passed over."""
    stack = [root]
    while stack:
        folder = stack.pop()
        yield folder
        try:
            names = host.listing(folder)
        except OSError:
            continue
        stack += [f"{folder}/{name}" for name, kind in names if kind == "directory" and name != "__pycache__"]


def descendants(host: Host, pid: int) -> frozenset[int]:
    """A process and all that came from it, as far as they live."""
    children: dict[int, list[int]] = {}
    for process in host.processes():
        children.setdefault(process.parent, []).append(process.pid)
    found, stack = {pid}, [pid]
    while stack:
        for child in children.get(stack.pop(), ()):
            found.add(child)
            stack.append(child)
    return frozenset(found)


def _installer(found: Sequence[installs.Swap]) -> str | None:
    """What the dist-info says put it there: the installer's own word, without a process."""
    names = {swap.after.installer for swap in found if swap.after is not None and swap.after.installer}
    return " and ".join(sorted(names)) or None


def _at(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")

"""What became of the processes of a run: signals that were handed to them, and those that outlive the command."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from envguard import clock
from envguard.launch import family
from envguard.launch.child import ENDING, Ended
from envguard.launch.family import Family, Member
from envguard.launch.ledger import Ledger
from envguard.model.action import LeftBehind, SignalSeen

# Workers of a data loader and uploaders of a tracker end a moment after their parent.
_SETTLE_S = 1.0
_LOOK_S = 60.0
# As long as torchrun gives its ranks: a trainer may be saving a checkpoint.
_GRACE_S = 30.0


class Ranks:
    """Keeps the record of a run's processes. `heard` is for the thread that waits, `look` for any."""

    def __init__(self, ledger: Ledger, pid: int, warn: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._pid = pid
        self._warn = warn
        self._family = Family(ledger.record.id)
        self._ending = False
        self._looked = -_LOOK_S

    def look(self) -> None:
        """Remembers which processes the command has, once a minute: it is a look at every process of the machine."""
        if time.monotonic() - self._looked >= _LOOK_S:
            self._looked = time.monotonic()
            self._family.look(self._pid)

    def before(self, number: signal.Signals) -> None:
        """A signal is about to be handed on, which may end the launcher that its ranks are known by."""
        self._ending = self._ending or number in ENDING
        self._family.look(self._pid)

    def heard(self, number: signal.Signals, reached: tuple[int, ...]) -> None:
        """A signal was handed to these processes."""
        seen = SignalSeen(time=clock.now(), signal=number.name, to=reached)
        self._ledger.change(signals=(*self._ledger.record.signals, seen))
        self._ledger.note("run.signal", run=self._ledger.record.id, signal=number.name, to=list(reached))
        if not reached:
            self._warn(
                f"{number.name} was not handed on: no process of the run has a handler for it, and it would end the "
                f"command (PID {self._pid}) without its ranks"
            )

    def after(self, ended: Ended) -> None:
        """Ends what outlives a command that a signal ended, and names what outlives one that ended by itself."""
        living = family.wait_for(self._family.left(), _SETTLE_S)
        if not living:
            return
        commands = {member: family.command_of(member) for member in living}
        by: dict[Member, str] = {}
        stopped = self._ledger.record.stopped is not None
        if ended.signal is not None or self._ending or stopped:
            self._warn(f"{_count(living)} the command, and get SIGTERM: {_listed(commands)}")
            family.send(living, signal.SIGTERM)
            stubborn = family.wait_for(living, _GRACE_S)
            family.send(stubborn, signal.SIGKILL)
            remain = family.wait_for(stubborn, _SETTLE_S)
            by = {m: "SIGKILL" if m in stubborn else "SIGTERM" for m in living if m not in remain}
            if remain:
                self._warn(f"{_count(remain)} SIGKILL: {_listed({m: commands[m] for m in remain})}")
        else:
            self._warn(f"{_count(living)} the command: {_listed(commands)}")
        left = tuple(LeftBehind(pid=m.pid, command=commands[m], ended=by.get(m)) for m in living)
        self._ledger.change(left=left)
        names = [f"{item.pid}: {item.command}" for item in left]
        self._ledger.note("run.left", run=self._ledger.record.id, processes=names)


def _count(members: tuple[Member, ...]) -> str:
    return "1 process outlives" if len(members) == 1 else f"{len(members)} processes outlive"


def _listed(commands: dict[Member, str]) -> str:
    return ", ".join(f"PID {member.pid} ({command[:80]})" for member, command in commands.items())

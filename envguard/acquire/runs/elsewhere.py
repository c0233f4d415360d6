"""Whether a fingerprint is of another environment of this machine, which is still there to be asked about."""

from __future__ import annotations

from envguard.acquire.packages.environment import is_environment
from envguard.acquire.seam.host import Host
from envguard.acquire.torch.cache_evidence import taken_here
from envguard.model.fingerprint import Fingerprint


def other_environment(host: Host, taken: Fingerprint, prefix: str) -> str | None:
    """The prefix that `taken` is of, where that is not `prefix` and an environment of this machine even now.

    A project that was moved or copied, or whose venv was made anew elsewhere, has its old prefix nowhere: its stamps
    speak of the environment that goes on. Two that lie side by side are two: with the wrong one active, each
    difference between them would be told as something that happened.
    """
    theirs = taken.python.environment
    try:
        same = theirs == prefix or host.realpath(theirs) == host.realpath(prefix)
        if same or not taken_here(taken, host.machine()):
            return None
        return theirs if is_environment(host, theirs) else None
    except OSError:  # a bundle that holds no word on it
        return None


def said_of_another(host: Host, label: str, taken: Fingerprint | None, prefix: str, how: str = "") -> str | None:
    """That what `label` names was taken in another environment than the one at `prefix`; None where it was not."""
    theirs = other_environment(host, taken, prefix) if taken is not None else None
    return says(label, theirs, prefix, how) if theirs is not None else None


def says(label: str, theirs: str, prefix: str, how: str) -> str:
    """One sentence for whoever looks at the wrong one."""
    named = "" if how in ("", prefix) else f" ({how})"
    return (
        f"{label} was made in {theirs}, another environment, which is still there; this is about {prefix}{named}: "
        f"`--python {theirs}` asks about that one"
    )

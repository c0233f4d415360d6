"""The collector as one text for a machine that has no envguard: its loader, its modules' sources, and what starts it.

class Sources: …                                  collector/loader.py, as it is
provide({"envguard_collector.files": "…", …})     every module of the package, as it is
from envguard_collector.operations import serve
"""

from __future__ import annotations

from importlib import resources

from envguard.acquire.seam import collector

NAME = "envguard_collector"
"""What the package is called over there; tracebacks name its modules `envguard_collector/files.py`."""


def program() -> str:
    """The text; executed it defines `serve(requests, replies)`, run as a script it serves stdin. It imports and
    compiles in memory only, on Python 3.8 and newer."""
    found = {
        item.name.removesuffix(".py"): item.read_text(encoding="utf-8")
        for item in sorted(resources.files(collector).iterdir(), key=lambda item: item.name)
        if item.name.endswith(".py")
    }
    loader = found.pop("loader")
    texts = {NAME: found.pop("__init__"), **{f"{NAME}.{module}": text for module, text in found.items()}}
    return (
        f"{loader}\n\nprovide({texts!r})\nfrom {NAME}.operations import serve\n\n"
        'if __name__ == "__main__":\n    serve(sys.stdin, sys.stdout)\n'
    )

"""What a program of a command line gets from those before it, and what is known of the start that they end in."""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace

from envguard.acquire.packages.starts import Started
from envguard.acquire.seam.host import Host
from envguard.fingerprint.uv_choices import AskedOfUv

DEFAULT_PATH = "/bin:/usr/bin"  # confstr(_CS_PATH): where a program is looked for without PATH
WRITE = "write the interpreter's path, or name the environment with --python"


class What(enum.Enum):
    """What is not known of a start. An environment named with `--python` settles the first, and no other."""

    INTERPRETER = "interpreter of the command"
    VARIABLES = "variables of the command"
    PACKAGES = "packages of the command"


@dataclass(frozen=True)
class Undetermined:
    """What is not known, why, and what to write so that it is."""

    what: What
    why: str
    write: str


@dataclass(frozen=True)
class Runner:
    """The interpreter that COMMAND runs on, the word that names it, and whether the words choose an environment: a
    path, `uv run` or an activation does; a bare `python` is what PATH has, also where nothing was activated."""

    word: str
    started: Started
    chosen: bool

    @property
    def interpreter(self) -> str | None:
        """As `--python` would name it; None where the words choose none."""
        return self.started.interpreter if self.chosen and self.started.prefix is not None else None


@dataclass(frozen=True)
class Start:
    """`environ` and `folder` are what the program gets. `runner` is None where no Python is started, or where
    `undetermined` holds why it is not known. `path0`: the folders of the started code, first on `sys.path`; None
    where they are not known."""

    environ: Mapping[str, str]
    folder: str
    runner: Runner | None = None
    undetermined: tuple[Undetermined, ...] = ()
    path0: tuple[str, ...] | None = None
    asked: AskedOfUv | None = None
    """The extras and groups that `uv run` is given."""


@dataclass(frozen=True)
class Layer:
    """What the next program of the chain gets."""

    host: Host
    environ: dict[str, str]
    folder: str
    depth: int = 0
    doubts: tuple[Undetermined, ...] = ()
    chosen: bool = False

    @property
    def path(self) -> str:
        return self.environ.get("PATH", DEFAULT_PATH)

    def absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.folder, path))

    def doubt(self, why: str, write: str = WRITE, what: What = What.INTERPRETER) -> Layer:
        return replace(self, doubts=(*self.doubts, Undetermined(what, why, write)))

    def set(self, name: str, value: str) -> Layer:
        if name == "PATH":  # another PATH is another choice of what a bare name starts
            return replace(self, environ={**self.environ, name: value}, chosen=True)
        return replace(self, environ={**self.environ, name: value})

    def unset(self, *names: str) -> Layer:
        return replace(self, environ={name: value for name, value in self.environ.items() if name not in names})

    def inside(self, prefix: str) -> Layer:
        """As an activated environment has it."""
        environ = {**self.environ, "VIRTUAL_ENV": prefix, "PATH": f"{prefix}/bin:{self.path}"}
        return replace(self, environ=environ, chosen=True)

    def nothing(self) -> Start:
        return Start(self.environ, self.folder, undetermined=self.doubts)

    def unknown(self, why: str, write: str = WRITE) -> Start:
        return self.doubt(why, write).nothing()

"""A throw-away machine room: its own home, uv cache, venv, project and temporary folder, and nothing of the user's.

Both the demo and the tests play on it. Whatever runs on a stage gets a made-up environment: PATH, a home below the
stage, no `VIRTUAL_ENV`, no user configuration; so neither can the stage touch what is the user's, nor can the
user's settings change what the stage shows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import packaging
import uv

import envguard


class Stage:
    """Folders: `project` (with `.venv`, `checkpoints`), `wheels`, `cache` (uv's), `home`, `tmp`, `library`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / "project"
        self.wheels = root / "wheels"
        self.cache = root / "uv-cache"
        self.home = root / "home"
        self.tmp = root / "tmp"
        self.library = root / "library"
        self.checkpoints = self.project / "checkpoints"
        self.venv = self.project / ".venv"
        for folder in (self.project, self.wheels, self.home, self.tmp, self.library, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def python(self) -> Path:
        """The venv's interpreter."""
        return self.venv / "bin" / "python"

    @property
    def site(self) -> Path:
        """The venv's site-packages."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.venv / "lib" / version / "site-packages"

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of everything that runs on the stage."""
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TERM", "COLUMNS", "TZ") if name in os.environ}
        return {
            **kept,
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "TMPDIR": str(self.tmp),
            "UV_CACHE_DIR": str(self.cache),
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "PYTHONUNBUFFERED": "1",
            **(extra or {}),
        }

    def uv(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs the real uv against the stage's own cache; raises CalledProcessError with its output as a note."""
        done = subprocess.run(
            [uv.find_uv_bin(), *arguments],
            cwd=self.project,
            env=self.environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
            error.add_note(done.stderr)
            raise error
        return done

    def make_venv(self) -> None:
        """`uv venv` with the interpreter that runs envguard."""
        self.uv("venv", "--quiet", "--python", sys.executable, str(self.venv))

    def install(
        self, *requirements: str, index: str | None = None, arguments: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """`uv pip install` from the folder of wheels, or from an index URL where one is given."""
        where = ["--index-url", index] if index else ["--offline", "--no-index", "--find-links", str(self.wheels)]
        return self.uv("pip", "install", "--python", str(self.python), *where, *arguments, *requirements)

    def lend_envguard(self) -> None:
        """Makes `envguard` and the two packages that its stamp needs importable in this venv, by a `.pth` file.

        A user would install `envguard-forensics` into the environment; a stage has no index to install it from.
        """
        for module in (envguard, msgspec, packaging):
            assert module.__file__ is not None
            source = Path(module.__file__).parent
            link = self.library / source.name
            if not link.exists():
                link.symlink_to(source)
        (self.site / "envguard-lent.pth").write_text(f"{self.library}\n")

    def envguard_command(self, *arguments: str) -> list[str]:
        """`envguard …` as it is run here: the module of this very interpreter, `-P` so that no file of the project
        can stand in for one of its imports."""
        return [sys.executable, "-P", "-m", "envguard", *arguments]

    def envguard(
        self, *arguments: str, extra: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs envguard in the project and returns what it printed, whatever its exit code."""
        return subprocess.run(
            self.envguard_command(*arguments),
            cwd=cwd or self.project,
            env=self.environ(extra),
            capture_output=True,
            text=True,
            check=False,
        )

    def remove(self) -> None:
        """Takes the whole stage down."""
        shutil.rmtree(self.root)

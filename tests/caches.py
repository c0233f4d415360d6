"""Compile caches as inductor leaves them, for tests of every room that looks at one."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from envguard.acquire.seam.host import LiveHost
from envguard.acquire.torch.compile_cache import content_name
from envguard.acquire.torch.torch_key import cache_tag, read_torch_key
from envguard.demo.stage import Stage


def write_cache(root: Path, tag: str, more: str = "", entries: int = 3) -> None:
    """Entries with the plain text that inductor leaves in them (for the CPU), named by content as inductor does;
    `more` makes them another model's."""
    for number in range(entries):
        text = f"{number}{more} [{tag}] torch_version: x".encode()
        name = content_name(hashlib.sha256(text).hexdigest())
        folder = root / "fxgraph" / name[:2] / f"key{number}"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(text)
    (root / "aa").mkdir()
    (root / "aa" / "kernel.py").write_text(f"# generated{more}\n")
    root.chmod(0o700)


def tag_of(stage: Stage, version: str = "2.11.0+cu128") -> str:
    """The tag that the torch which lies on the stage now would write."""
    python = "3." + stage.site.parent.name.removeprefix("python3.")
    return cache_tag(read_torch_key(LiveHost(), str(stage.site / "torch"), version, python), python)


def stamp_as_trainer(stage: Stage, checkpoint: Path, cache: Path) -> None:
    """Stamps a checkpoint as the bundled trainer does: in a process of the environment that sets its own cache."""
    stage.lend_envguard()
    program = (
        "import os, sys; os.environ['TORCHINDUCTOR_CACHE_DIR'] = sys.argv[1]\n"
        "import envguard; envguard.stamp(sys.argv[2])"
    )
    words = [str(stage.python), "-c", program, str(cache), str(checkpoint)]
    subprocess.run(words, cwd=stage.project, env=stage.environ(), check=True)


def cache_of_step_4(stage: Stage) -> Path:
    """The cache that a run's trainer set for itself, which the stamp of its step_4 alone names."""
    (stage.project / "envguard.toml").write_text("")
    cache, checkpoint = stage.project / ".cache" / "inductor", stage.checkpoints / "step_4"
    checkpoint.mkdir()
    (checkpoint / "model.bin").write_bytes(b"x")
    write_cache(cache, tag_of(stage))
    stamp_as_trainer(stage, checkpoint, cache)
    return cache

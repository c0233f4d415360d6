"""Made-up environments of a given number of files: packages of a thousand small modules, each with a true RECORD."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

FILES_A_PACKAGE = 1000


def make_venv(folder: Path, files: int) -> Path:
    """A venv below `folder` whose packages hold `files` files in all."""
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    for number in range(files // FILES_A_PACKAGE):
        _package(site, f"made_{number:04d}")
    return venv


def _package(site: Path, name: str) -> None:
    rows = []
    dist_info = f"{name}-1.0.dist-info"
    contents = {
        f"{name}/part_{n // 50}/module_{n}.py": f"x = {n}\n".encode() * 40 for n in range(FILES_A_PACKAGE - 2)
    }
    contents[f"{dist_info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    contents[f"{dist_info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    for path, data in contents.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    (site / dist_info / "INSTALLER").write_text("pip\n")
    (site / dist_info / "RECORD").write_text("\n".join([*rows, f"{dist_info}/RECORD,,"]) + "\n")

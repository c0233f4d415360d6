"""The file in an environment that names the restores of it (written by `envguard.restore.register`)."""

from __future__ import annotations

REGISTER = ".envguard-restores"

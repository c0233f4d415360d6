"""``python -m trainer``."""

import contextlib

with contextlib.suppress(ImportError):
    # First of all: a stamp says what lay on disk when this process began, whatever is installed under it later.
    import envguard  # noqa: F401

from trainer.cli import main

if __name__ == "__main__":
    main()

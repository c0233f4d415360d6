"""A callback for Lightning: every checkpoint that the trainer saves gets a stamp, whoever asked for it.

    from envguard.integrations.lightning import StampCallback
    trainer = Trainer(…, callbacks=[StampCallback()])

Works with `lightning.pytorch` and with `pytorch_lightning`, whichever the program uses.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from envguard.acquire.runs.checkpoints import STAMP_SUFFIX
from envguard.integrations.saved import stamp_saved

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class StampCallback(Callback):  # type: ignore[misc]
    """Stamps a checkpoint when it is on disk. Lightning's own hooks come before it is written, so the trainer's
    `save_checkpoint` is what is followed: it ends with a barrier, after which every rank's part is there."""

    def __init__(self) -> None:
        self._pending: list[str] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if getattr(trainer.save_checkpoint, "stamps", False):
            return
        save, remove = trainer.save_checkpoint, trainer.strategy.remove_checkpoint

        def save_and_stamp(filepath: Any, *args: Any, **kwargs: Any) -> None:
            save(filepath, *args, **kwargs)
            if trainer.is_global_zero:
                self._stamp(os.fspath(filepath))

        def remove_with_stamp(filepath: Any) -> None:
            remove(filepath)
            if trainer.is_global_zero:
                with contextlib.suppress(OSError):
                    os.unlink(os.fspath(filepath) + STAMP_SUFFIX)

        save_and_stamp.stamps = True  # type: ignore[attr-defined]
        trainer.save_checkpoint = save_and_stamp
        trainer.strategy.remove_checkpoint = remove_with_stamp

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._catch_up()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._catch_up()

    def _stamp(self, path: str) -> None:
        # An asynchronous writer may not have it on disk yet: it is stamped when it is there.
        if os.path.exists(path):
            stamp_saved(path)
        else:
            self._pending.append(path)

    def _catch_up(self) -> None:
        waiting, self._pending = self._pending, []
        for path in waiting:
            self._stamp(path)

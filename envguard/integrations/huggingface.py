"""A callback for the Hugging Face `Trainer`: every checkpoint that it saves gets a stamp.

from envguard.integrations.huggingface import StampCallback
trainer = Trainer(…, callbacks=[StampCallback()])
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from envguard.integrations.saved import stamp_saved


class StampCallback(TrainerCallback):
    """Stamps `checkpoint-N` on every rank once that rank has saved its part: the last to finish names all files."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        # In a hyperparameter search the checkpoint lies in a folder of the trial's own.
        trial = getattr(state, "trial_name", None)
        if trial is not None and not os.path.isdir(folder):
            folder = os.path.join(args.output_dir, trial, f"checkpoint-{state.global_step}")
        stamp_saved(folder)

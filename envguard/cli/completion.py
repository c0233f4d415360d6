"""`envguard completion SHELL`: the script with which a shell completes commands and options."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from envguard.cli.app import PROGRAM, VARIABLE, single, whole_group


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell to complete in.")],
) -> None:
    """Print a completion script for a shell.

    bash and zsh: `eval "$(envguard completion bash)"` in ~/.bashrc or ~/.zshrc. fish: `envguard completion fish >
    ~/.config/fish/completions/envguard.fish`.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, shell
    sys.stdout.write(found(whole_group(), {}, PROGRAM, VARIABLE).source() + "\n")


app = single(completion)

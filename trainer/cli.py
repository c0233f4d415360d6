"""The command line: one function a command, each of which loads only what it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainer.config import load_config
from trainer.errors import ConfigError, exit_code, is_expected, message

app = typer.Typer(
    name="trainer",
    help="Trains DFlash drafters (block-diffusion speculative decoding) against a frozen target model.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The training text.", no_args_is_help=True)
app.add_typer(data_app, name="data")

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")]
# typer 0.25 drops the help of arguments under click 8.4.
ARGUMENTS = "CONFIG is a TOML file, as those in configs/; any value of it is overridden by section.key=value."
Checkpoint = Annotated[Path | None, typer.Option(help="A path, or a step_N of the run; by default its newest.")]


@app.command(epilog=ARGUMENTS)
def train(
    config: ConfigPath,
    overrides: Overrides = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start from nothing; an earlier run is set aside.")] = False,
    weights_only: Annotated[
        Path | None,
        typer.Option(help="Start a new run from the weights of this checkpoint: a path, or a step_N of this run."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Resume at this checkpoint, a path or a step_N of this run, instead of at the newest."),
    ] = None,
    new_data: Annotated[
        bool, typer.Option("--new-data", help="Resume on changed data: keep the optimizer, begin at its first row.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print shapes, memory, FLOPs and the plan; train nothing.")
    ] = False,
    targets: Annotated[int | None, typer.Option(help="Target ranks: topology.targets.")] = None,
    drafters: Annotated[int | None, typer.Option(help="Drafter ranks: topology.drafters.")] = None,
) -> None:
    """Train, going on from the newest checkpoint if there is one.

    With more than one target or drafter, the ranks are started under torchrun on this machine.

    On several machines, start torchrun yourself: torchrun ... -m trainer train CONFIG.
    """
    counts = {"targets": targets, "drafters": drafters}
    extra = [f"topology.{name}={count}" for name, count in counts.items() if count is not None]
    values = load_config(config, [*(overrides or ()), *extra])
    if sum([fresh, weights_only is not None, checkpoint is not None or new_data]) > 1:
        raise ConfigError("--fresh, --weights-only, and --checkpoint or --new-data exclude each other")
    if dry_run:
        from trainer.dryrun import show

        show(values)
        return
    from trainer.launcher import launch, wants_ranks

    if wants_ranks(values, asked=bool(extra)):
        raise typer.Exit(launch(values, sys.argv[1:]))
    from trainer.job import run
    from trainer.resume import Start

    start = Start(fresh=fresh, weights_only=weights_only, checkpoint=checkpoint, new_data=new_data)
    raise typer.Exit(run(values, start))


@app.command(epilog=ARGUMENTS)
def evaluate(
    config: ConfigPath,
    overrides: Overrides = None,
    checkpoint: Checkpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the report, as JSON, here too.")] = None,
) -> None:
    """Measure acceptance on held-out prompts, simulated and by real greedy decoding."""
    from trainer import evaluate as module

    module.run(load_config(config, overrides or ()), checkpoint=checkpoint, as_json=as_json, out=out)


@app.command(epilog=ARGUMENTS)
def export(
    config: ConfigPath,
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    overrides: Overrides = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write a checkpoint's drafter for SGLang and vLLM."""
    from trainer import export as module

    module.run(load_config(config, overrides or ()), out, checkpoint=checkpoint)


@app.command(epilog=ARGUMENTS)
def regenerate(config: ConfigPath, overrides: Overrides = None) -> None:
    """Let the target write the responses that the drafter trains on; goes on where it was stopped."""
    from trainer import regenerate as module

    module.run(load_config(config, overrides or ()))


@data_app.command(epilog=ARGUMENTS)
def inspect(config: ConfigPath, overrides: Overrides = None) -> None:
    """Tokenise the text and show counts, lengths, packing and every bad line."""
    from trainer.data import inspect as module

    module.run(load_config(config, overrides or ()))


def main() -> None:
    """Runs the command line; what is expected to fail ends it with one message and an exit code."""
    try:
        app()
    except Exception as error:
        if not is_expected(error):
            raise
        print(f"error: {message(error)}", file=sys.stderr)
        raise SystemExit(exit_code(error)) from error

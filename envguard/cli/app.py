"""The command line's root: which commands there are, and what happens to an error.

Commands are imported when they are called: `envguard --help` and a mistyped option must not pay for all of them.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import inspect
import io
import os
import sys
from typing import Any, NoReturn, TextIO, get_type_hints

import click
import typer.core
import typer.main

from envguard import __version__
from envguard.cli.requirements import OWN_ENVIRONMENT, unmet
from envguard.cli.words import as_meant
from envguard.errors import Error

GROUPS: dict[str, dict[str, str]] = {
    "Look": {
        "timeline": "What happened to this environment, when, and how we know.",
        "diff": "Graded drift between two fingerprints, checkpoints or the live environment.",
        "verify": "Installed files against RECORD, and RECORD against a stamp and the cache.",
        "log": "Checkpoints with their stamps, snapshots, runs and restores: a list.",
    },
    "Record": {
        "snapshot": "Fingerprint the environment; stamp a checkpoint with it.",
        "collect": "Gather the evidence of a machine into one file.",
        "vault": "What `snapshot --keep` stored: list it, or drop what nothing refers to.",
    },
    "Act": {
        "restore": "Bring packages back to a reference, offline and exactly, or change nothing.",
        "launch": "Start a command only on a clean match, and record the run.",
        "waivers": "List the waivers that launches heed, or revoke one.",
    },
    "Learn": {
        "demo": "Replay the eleven-minute gap in a throw-away directory.",
        "schema": "Print the JSON Schema of an answer.",
        "completion": "Print a completion script for bash, zsh or fish.",
    },
}
COMMANDS: dict[str, str] = {name: text for group in GROUPS.values() for name, text in group.items()}

# What a write fails with where nothing is wrong with the program: `envguard log > /dev/full`.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
PROGRAM, VARIABLE = "envguard", "_ENVGUARD_COMPLETE"
"""The name to complete, and the variable by which a shell's script asks for completions."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class OneCommand(typer.core.TyperCommand):
    """A command with one list of arguments: Typer writes it, and click 8.5 would write another."""

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing: `format_options` of Typer has them."""


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are modules of `envguard.cli`, each with a Typer `app` of one command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"envguard.cli.{cmd_name}")
        command = typer.main.get_command(module.app)
        _with_help(command)
        command.name = cmd_name
        command.context_settings = {**CONTEXT, **command.context_settings}
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Typer would look for the nearest among commands that are loaded: here none is."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command '{args[0]}'." + (f" Did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=12)


def _with_help(command: click.Command) -> None:
    """Gives each argument its help: click 8.5 has a field of that name, and takes away what Typer had put there."""
    if command.callback is None:
        return
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            notes = getattr(hints.get(parameter.name or ""), "__metadata__", ())
            parameter.help = next((note.help for note in notes if getattr(note, "help", None)), None)


def whole_group() -> LazyGroup:
    """The command line: every command, none of them imported yet."""
    return LazyGroup(
        name="envguard",
        help="Know what changed on a training machine, prove it, undo it.",
        context_settings=CONTEXT,
        no_args_is_help=True,
        rich_markup_mode=None,
        params=[
            click.Option(
                ["--version"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=_version,
                help="Print the version and exit.",
            ),
        ],
    )


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"envguard {__version__}")
        ctx.exit()


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and exits with the contract's code."""
    words = as_meant(sys.argv[1:] if arguments is None else arguments, COMMANDS)
    _fill_closed_streams()
    _take_every_character(words)
    try:
        code = _outcome(words)
        sys.stdout.flush()
    except BrokenPipeError:
        code = _reader_gone()
    except OSError as error:
        _lead_nowhere(sys.stdout)
        code = _report(error, words, as_json=False)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _outcome(words: list[str]) -> int:
    """The exit code of the command; an error is reported here. Raises `BrokenPipeError` where nobody reads it."""
    try:
        return _run(words)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        return _report(error, words)


def _reader_gone() -> int:
    """The reader of our output went away (`envguard … | head`): not an error to shout about, nor a success."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _lead_nowhere(stream)
    return 141


def _lead_nowhere(stream: TextIO) -> None:
    """What a stream still holds can no longer be written: the interpreter would try once more, and exit with 120."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fill_closed_streams() -> None:
    """A standard stream that our caller closed (`>&-`) leads nowhere.

    Otherwise the next file to be opened gets its number, and is written into by whoever means to print. What is
    started from here still finds it closed, since the descriptor is not inherited.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _take_every_character(words: list[str]) -> None:
    """A stream of an old locale must not end a command: an arrow or a path that it lacks is escaped there.
    Nor does a stream without a buffer cut an answer.

    JSON is UTF-8 whatever the locale says (RFC 8259): a Python escape in it would be no JSON.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            if isinstance(stream.buffer, io.RawIOBase):
                # PYTHONUNBUFFERED: a raw stream may take a part of a long answer, and the rest would be lost.
                whole = io.BufferedWriter(stream.detach())
                stream = io.TextIOWrapper(whole, stream.encoding, line_buffering=True)
                setattr(sys, name, stream)
            stream.reconfigure(errors="backslashreplace")
    if "--json" in words and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


def _run(words: list[str]) -> int:
    """Parses and runs. Not `Group.main`, which turns a closed pipe into exit code 1: here that means a finding."""
    group = whole_group()
    if VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, PROGRAM, VARIABLE, os.environ[VARIABLE])
    try:
        with group.make_context("envguard", list(words)) as context:
            group.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return 0


def _report(error: Exception, words: list[str], as_json: bool = True) -> int:
    own = words[: words.index("--")] if "--" in words else words
    if isinstance(error, click.ClickException):
        usage = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "envguard"
        message, code = error.format_message(), 2
        hint: str | None = f"`{usage} --help` shows what there is"
    elif isinstance(error, Error):
        message, hint, code = str(error), error.hint, error.code
    elif isinstance(error, OSError) and error.errno in NO_ROOM:
        message, code = f"{error.filename or 'the answer'} cannot be written: {error.strerror}", 2
        hint = "it needs room, and a device that takes writes"
    else:
        message = f"{type(error).__name__}: {error}"
        hint, code = "this is a fault in envguard; `-vv` prints the traceback to report", 2
        if others := unmet():
            hint = f"{'; '.join(others)}: {OWN_ENVIRONMENT}"
    if any(word.startswith("-vv") for word in own) or own.count("-v") > 1:
        import traceback

        traceback.print_exception(error)
    from envguard.report.errors import print_error

    print_error(message, hint, code, as_json=as_json and "--json" in own)
    return code


def single(command: Any) -> typer.Typer:
    """A Typer app of one command, as `LazyGroup` expects it in a module's `app`."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=OneCommand, context_settings=CONTEXT)(command)
    return app

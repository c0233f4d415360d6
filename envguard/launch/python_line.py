"""The words after an interpreter or a launcher of ranks: the folders that it puts first, and what ranks run on."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import replace

from envguard.launch.starting import WRITE, Layer, Runner, Start, Undetermined, What

# They start each rank with the interpreter that they run on, unless an option or PYTHON_EXEC names another.
_RANK_SCRIPTS = frozenset({"torchrun", "deepspeed", "accelerate", "accelerate-launch", "composer"})
_RANK_MODULES = frozenset({
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
})  # fmt: skip
_NO_PYTHON = frozenset({"--no-python", "--no_python"})
_PYTHON_VALUES = "WX"

Program = Callable[[Layer, tuple[str, ...]], Start]
"""Reads the program that begins with these words."""


def read_python(layer: Layer, runner: Runner, arguments: tuple[str, ...], program: Program) -> Start:
    """`python [OPTIONS] SCRIPT | -m MODULE | -c TEXT`: its isolation, and the folder that it puts first."""
    rest, flags = list(arguments), set[str]()
    form, target = "", ""
    while rest and not form:
        word = rest.pop(0)
        if word == "-" or not word.startswith("-"):
            form, target = "script", word
        elif word.startswith("--"):
            del rest[: 1 if word == "--check-hash-based-pycs" else 0]
        else:
            for position, letter in enumerate(word[1:], 1):
                attached = word[position + 1 :]
                if letter in "cm":
                    form, target = letter, attached or (rest.pop(0) if rest else "")
                elif letter in _PYTHON_VALUES and not attached:
                    del rest[:1]
                if letter in "cm" + _PYTHON_VALUES:
                    break
                flags.add(letter)
    if "S" in flags:
        layer = layer.doubt("python -S leaves site-packages off the path", "leave out -S", What.PACKAGES)
    if flags & {"I", "E"}:
        layer = layer.unset(*(name for name in layer.environ if name.startswith("PYTHON")))
    if flags & {"I", "s"}:
        layer = layer.set("PYTHONNOUSERSITE", "1")
    safe = bool(flags & {"I", "P"} or layer.environ.get("PYTHONSAFEPATH"))
    first = [] if safe else [_first_of(layer, form, target)]
    ranks = form == "m" and target in _RANK_MODULES
    if form == "m":
        first += _first_of_ranks(layer, rest, safe)
    started = Start(layer.environ, layer.folder, runner, layer.doubts, tuple(dict.fromkeys(first)))
    return _of_ranks(layer, started, rest, program) if ranks else started


def _first_of(layer: Layer, form: str, target: str) -> str:
    """`sys.path[0]`: the folder of the script behind its links, else the working directory."""
    if form != "script" or target == "-":
        return layer.folder
    path = layer.host.realpath(layer.absolute(target))
    try:
        is_folder = layer.host.stat_target(path).is_directory
    except OSError:
        is_folder = False
    return path if is_folder else posixpath.dirname(path)


def _first_of_ranks(layer: Layer, words: Sequence[str], safe: bool) -> list[str]:
    """The folder of the script that a launcher or a profiler starts."""
    if safe and layer.environ.get("PYTHONSAFEPATH"):
        return []
    if {"-m", "--module"} & set(words):
        return [layer.folder]
    script = next((word for word in words if word.endswith(".py")), None)
    return [_first_of(layer, "script", script)] if script is not None else []


def read_console_script(
    layer: Layer, runner: Runner, path: str, name: str, arguments: tuple[str, ...], program: Program
) -> Start:
    """A script that names its interpreter: a launcher of ranks, a training script, an entry point."""
    if name not in _RANK_SCRIPTS:
        own = (posixpath.dirname(layer.host.realpath(path)),) if name.endswith(".py") else None
        return Start(layer.environ, layer.folder, runner, layer.doubts, own)
    safe = bool(layer.environ.get("PYTHONSAFEPATH"))
    first = tuple(_first_of_ranks(layer, arguments, safe))
    return _of_ranks(layer, Start(layer.environ, layer.folder, runner, layer.doubts, first), arguments, program)


def _of_ranks(layer: Layer, launcher: Start, words: Sequence[str], program: Program) -> Start:
    """Ranks run on the launcher's interpreter, but for PYTHON_EXEC and for `--no-python`."""
    named = layer.environ.get("PYTHON_EXEC")
    if _NO_PYTHON & set(words):
        why = "the launcher starts its ranks without Python (--no-python)"
        return replace(launcher, undetermined=(*launcher.undetermined, Undetermined(What.INTERPRETER, why, WRITE)))
    if not named:
        return launcher
    ranks = program(layer, (named,))
    return replace(launcher, runner=ranks.runner, undetermined=ranks.undetermined)

"""What a command line starts: the chain of wrappers before the program, and the interpreter that the program runs on.

One parser decides it, from the words and from files; nothing is run. Where the words do not determine the
interpreter, the answer is `Undetermined` with what to write, and never a guess.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from envguard.acquire.packages.environment import is_environment, is_tool, which_in
from envguard.acquire.packages.starts import started_by
from envguard.acquire.seam.host import Host
from envguard.launch import shell_line, uv_project
from envguard.launch.options import Options, read_options
from envguard.launch.python_line import read_console_script, read_python
from envguard.launch.shell_line import NotSimple
from envguard.launch.starting import WRITE, Layer, Runner, Start, Undetermined, What
from envguard.launch.wrappers import CHOOSERS, CONDA_RUN_OPTIONS, INERT, UV_OPTIONS, WRAPPERS, Wrapper

_MOST_SCRIPT = 64 << 10
_MOST_LAYERS = 20
# `$(dirname "$0")`: the folder of the script itself.
_OWN_FOLDER = re.compile(r'\$\(\s*dirname\s+"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"?\s*\)')


def parse_start(host: Host, command: Sequence[str], environ: Mapping[str, str], folder: str) -> Start:
    """What COMMAND starts in the absolute `folder`. An empty COMMAND starts nothing."""
    return _program(Layer(host, dict(environ), folder), tuple(command))


def _program(layer: Layer, words: tuple[str, ...]) -> Start:
    if not words:
        return layer.nothing()
    if layer.depth > _MOST_LAYERS:
        return layer.unknown("more than twenty programs start each other")
    word, name = words[0], posixpath.basename(words[0])
    inner = replace(layer, depth=layer.depth + 1)
    if name in WRAPPERS:
        return _wrapped(inner, name, WRAPPERS[name], words[1:])
    if name in shell_line.SHELLS:
        return _shell(inner, name, words[1:])
    if name == "uv":
        return _uv(inner, words)
    if name == "conda":
        return _conda(inner, words)
    if name in CHOOSERS:
        return layer.unknown(f"{name} runs the command in an environment of its own choice", CHOOSERS[name])
    return _resolved(inner, word, name, words[1:])


def _resolved(layer: Layer, word: str, name: str, arguments: tuple[str, ...]) -> Start:
    """An interpreter, a script, or a program of which nothing is known."""
    if "$" in word:
        return layer.unknown(f"the program is `{word}`, which a shell expands")
    path = layer.absolute(word) if "/" in word else which_in(layer.host, word, layer.path)
    started = started_by(layer.host, path, layer.path) if path is not None else None
    if path is None or started is None:
        if name in INERT and ("/" not in word or posixpath.dirname(word) in ("/bin", "/usr/bin")):
            return layer.nothing()
        if path is None:
            return layer.unknown(f"{word} is not on PATH")
        return _unknown_file(layer, path, name, arguments)
    if started.prefix is not None and is_tool(layer.host, started.prefix):
        return layer.unknown(f"{word} is a tool with an environment of its own, {started.prefix}")
    runner = Runner(word, started, layer.chosen or "/" in word)
    if started.interpreter == path:
        return read_python(layer, runner, arguments, _program)
    return read_console_script(layer, runner, path, name, arguments, _program)


def _unknown_file(layer: Layer, path: str, name: str, arguments: tuple[str, ...]) -> Start:
    """A file that is no Python: a short shell script is read; of any other program nothing is known."""
    try:
        text = layer.host.read(path, _MOST_SCRIPT + 1)
    except OSError:
        text = b""  # what may be executed and not read is no script
    if text.startswith(b"#!") and len(text) <= _MOST_SCRIPT:
        first = text.partition(b"\n")[0].decode("utf-8", "replace").removeprefix("#!").split()
        names = [posixpath.basename(word) for word in first]
        if (names[:1] and names[0] in shell_line.SHELLS) or (names[:1] == ["env"] and names[-1] in shell_line.SHELLS):
            return _shell_text(layer, text.decode("utf-8", "replace"), name, arguments, path)
    return layer.unknown(f"which interpreter {name} starts does not follow from the command line")


# --- wrappers ---


def _wrapped(layer: Layer, name: str, wrapper: Wrapper, words: tuple[str, ...]) -> Start:
    if wrapper.words:
        if not words or words[0] not in wrapper.words:
            return layer.unknown(f"{name} {words[0] if words else ''}: no command is known to follow")
        words = words[1:]
    if name == "env":
        words = _split_string(words)
    options = read_options(wrapper, words)
    if options.unknown is not None:
        why = f"{name} {options.unknown}: the option is not known, nor whether the next word is its value"
        return layer.unknown(why, f"write {options.unknown}=VALUE, or {name} before `envguard launch`")
    for option, _ in options.found:
        if option in wrapper.opaque:
            return layer.unknown(
                f"{name} {option}: {wrapper.opaque[option]}", f"write {name} before `envguard launch`"
            )
    if wrapper.needs and not options.has(*wrapper.needs):
        return layer.unknown(f"{name} without {' or '.join(sorted(wrapper.needs))} starts no command")
    layer = _changed_by(layer, name, wrapper, options)
    rest = list(options.rest)
    while wrapper.assigns and rest and (pair := shell_line.assignment(rest[0])) is not None:
        layer = layer.set(*pair)
        del rest[0]
    del rest[: wrapper.operands]
    if ":" in rest and wrapper is WRAPPERS["mpirun"]:
        return layer.unknown(f"{name} starts several programs (`:`)")
    return _program(layer, tuple(rest))


def _changed_by(layer: Layer, name: str, wrapper: Wrapper, options: Options) -> Layer:
    """The variables and the folder that a wrapper's options give to the command."""
    for option, values in options.found:
        value = values[0] if values else ""
        if option in wrapper.clears:
            layer = replace(layer, environ={})
        elif option in wrapper.unsets:
            layer = layer.unset(value)
        elif option in wrapper.folder and value:
            layer = replace(layer, folder=layer.absolute(value))
        elif option in wrapper.sets:
            given, equals, text = value.partition("=")
            if len(values) == 2:
                layer = layer.set(value, values[1])
            elif equals:
                layer = layer.set(given, text)
        elif option == "--export" and value:
            layer = _exported(layer, name, value)
    if wrapper.resets is not None and not options.has(*wrapper.resets):
        why = f"which variables {name} hands on, PATH among them, is in its own configuration"
        layer = layer.doubt(why, f"write {name} before `envguard launch`, or `{name} -E`", What.VARIABLES)
    return layer


def _exported(layer: Layer, name: str, value: str) -> Layer:
    """Slurm's `--export=ALL,NAME=VALUE,…`; without ALL the variables of the job are not handed on."""
    first, *others = value.split(",")
    if first != "ALL":
        why = f"{name} --export={value} hands on other variables than those here"
        return layer.doubt(why, "write --export=ALL, or --export=ALL,NAME=VALUE", What.VARIABLES)
    for each in others:
        given, equals, text = each.partition("=")
        if equals:
            layer = layer.set(given, text)
    return layer


def _split_string(words: tuple[str, ...]) -> tuple[str, ...]:
    """`env -S 'NAME=VALUE program words'` as the words that env makes of it."""
    for position, word in enumerate(words):
        for option in ("-S", "--split-string="):
            if word.startswith(option) or word == option.rstrip("="):
                text = word.removeprefix(option) if word not in ("-S", "--split-string") else None
                after = words[position + 1 :]
                if text is None:
                    text, after = (after[0] if after else ""), after[1:]
                return (*words[:position], *_split(text), *after)
        if not word.startswith("-") and shell_line.assignment(word) is None:
            break
    return words


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # env would not read it either
        return []


# --- shells ---


def _shell(layer: Layer, name: str, words: tuple[str, ...]) -> Start:
    """`bash -c TEXT`, `bash SCRIPT`."""
    rest, text = list(words), False
    while rest and rest[0][:1] in "-+" and len(rest[0]) > 1:
        word = rest.pop(0)
        if word == "--":
            break
        if word in ("--rcfile", "--init-file", "-o", "+o", "-O", "+O"):
            del rest[:1]
        elif word == "--login" or (not word.startswith("--") and word[0] == "-" and {"l", "i"} & set(word[1:])):
            layer = layer.doubt(
                f"{name} {word} reads the user's profile first, which may change PATH", f"write {name} -c"
            )
        if word[0] == "-" and not word.startswith("--") and "c" in word[1:]:
            text = True
        if word[0] in "-+" and not word.startswith("--") and len(word) > 2 and word.endswith(("o", "O")):
            del rest[:1]  # `-euo pipefail`
    if layer.environ.get("BASH_ENV") and name == "bash":
        layer = layer.doubt("BASH_ENV names a script that bash reads first", "write `env -u BASH_ENV bash …`")
    if not rest:
        return layer.unknown(f"{name} reads its commands from its input")
    if text:
        return _shell_text(layer, rest[0], f"{name} -c", tuple(rest[2:]))
    path = layer.absolute(rest[0])
    try:
        script = layer.host.read(path, _MOST_SCRIPT + 1)
    except OSError as error:
        return layer.unknown(f"{rest[0]} cannot be read: {error.strerror or error}")
    if len(script) > _MOST_SCRIPT:
        return layer.unknown(f"{rest[0]} is longer than {_MOST_SCRIPT >> 10} KiB")
    return _shell_text(layer, script.decode("utf-8", "replace"), rest[0], tuple(rest[1:]), path)


def _shell_text(layer: Layer, text: str, name: str, arguments: tuple[str, ...], script: str | None = None) -> Start:
    """Several simple commands, of which those that start Python all start the same one: then it does not matter which
    of them run."""
    if script is not None:
        text = _OWN_FOLDER.sub(lambda match: posixpath.dirname(script), text)
    try:
        commands = shell_line.simple_commands(text)
    except NotSimple as error:
        return layer.unknown(f"what {name} starts is not one simple command: {error}")
    starts: list[Start] = []
    for command in commands:
        words = [word for each in command.words for word in _words(each, layer.environ, arguments)]
        before = layer
        layer, started = _shell_command(layer, words)
        if layer is not before and not command.always:
            why = f"{name} changes its environment in a part that may not run: `{' '.join(command.words)}`"
            layer = layer.doubt(why)
        starts += [started] if started is not None else []
        if command.words[0] == "exec" and command.always:
            break
    running = [start for start in starts if start.runner is not None]
    prefixes = {start.runner.started.prefix for start in running if start.runner is not None}
    last = running[-1] if running else layer.nothing()
    doubts = tuple(dict.fromkeys(doubt for start in (*starts, layer.nothing()) for doubt in start.undetermined))
    if len(prefixes) > 1:
        why = f"{name} starts interpreters of several environments: {', '.join(map(str, sorted(map(str, prefixes))))}"
        doubts = (*doubts, Undetermined(What.INTERPRETER, why, WRITE))
    return replace(last, undetermined=doubts)


def _words(word: str, environ: Mapping[str, str], arguments: tuple[str, ...]) -> Sequence[str]:
    return arguments if word in ("$@", "$*", "${@}") else (shell_line.expanded(word, environ),)


def _shell_command(layer: Layer, words: list[str]) -> tuple[Layer, Start | None]:
    """What one simple command changes for those after it, or what it starts."""
    pairs: list[tuple[str, str]] = []
    while words and (pair := shell_line.assignment(words[0])) is not None:
        pairs.append(pair)
        del words[0]
    if not words:  # a variable of the shell alone counts for what it expands in later words
        return _assigned(layer, pairs), None
    name, rest = words[0], words[1:]
    if name in ("export", "readonly", "declare"):
        given = [pair for word in rest if (pair := shell_line.assignment(word)) is not None]
        return _assigned(layer, given), None
    if name in ("set", "shopt"):
        return layer, None
    if name == "unset":
        return layer.unset(*rest), None
    if name == "cd":
        target = next((word for word in rest if not word.startswith("-")), layer.environ.get("HOME", ""))
        if "$" in target or rest == ["-"]:
            return layer.doubt(f"cd {target} is not known before it runs"), None
        return replace(layer, folder=layer.absolute(target)), None
    if name in ("source", "."):
        return _sourced(layer, rest[0] if rest else ""), None
    if name in ("module", "ml", "spack", "conda") and rest[:1] != ["run"]:
        why = f"`{name} {rest[0] if rest else ''}` changes PATH when it runs"
        return layer.doubt(why, "write it before `envguard launch`"), None
    return layer, _program(_assigned(layer, pairs), tuple(words))


def _assigned(layer: Layer, pairs: Sequence[tuple[str, str]]) -> Layer:
    for name, value in pairs:
        if "$" in value and name in ("PATH", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH"):
            layer = layer.doubt(f"{name}={value} is not known before it runs")
        layer = layer.set(name, value)
    return layer


def _sourced(layer: Layer, script: str) -> Layer:
    """`source X/bin/activate` is the environment X; what another script does is not known."""
    path = layer.absolute(script)
    prefix = posixpath.dirname(posixpath.dirname(path))
    named = re.fullmatch(r"activate(\.\w+)?", posixpath.basename(path)) is not None
    if (
        "$" not in script
        and named
        and posixpath.dirname(path).endswith("/bin")
        and is_environment(layer.host, prefix)
    ):
        return layer.inside(prefix)
    return layer.doubt(f"`source {script}` may change PATH when it runs", "write it before `envguard launch`")


# --- programs that choose an environment ---


def _conda(layer: Layer, words: tuple[str, ...]) -> Start:
    """`conda run -p PREFIX`, `conda run -n NAME`."""
    hint = "write the interpreter of its environment, PREFIX/bin/python"
    if words[1:2] != ("run",):
        return layer.unknown("conda runs no command that is known", hint)
    options = read_options(CONDA_RUN_OPTIONS, words[2:])
    if options.unknown is not None:
        return layer.unknown(f"conda run {options.unknown}: the option is not known", hint)
    layer = _changed_by(layer, "conda", CONDA_RUN_OPTIONS, options)
    prefix, name = options.last("-p", "--prefix"), options.last("-n", "--name")
    places = [layer.absolute(prefix)] if prefix is not None else _conda_places(layer, words[0], name)
    found = next((place for place in places if is_environment(layer.host, place)), None)
    if found is None:
        return layer.unknown(f"conda's environment {prefix or name or 'by default'} is not found", hint)
    return _program(layer.inside(found).set("CONDA_PREFIX", found), options.rest)


def _conda_places(layer: Layer, conda: str, name: str | None) -> list[str]:
    """Where an environment of that name may be."""
    program = layer.environ.get("CONDA_EXE") or (conda if "/" in conda else which_in(layer.host, conda, layer.path))
    root = posixpath.dirname(posixpath.dirname(layer.host.realpath(program))) if program else None
    if name is None:
        return [layer.environ["CONDA_PREFIX"]] if layer.environ.get("CONDA_PREFIX") else []
    if name == "base":
        return [root] if root else []
    folders = [folder for folder in layer.environ.get("CONDA_ENVS_PATH", "").split(":") if folder]
    folders += [f"{root}/envs"] if root else []
    folders += [f"{layer.environ['HOME']}/.conda/envs"] if layer.environ.get("HOME") else []
    return [f"{folder}/{name}" for folder in folders]


def _uv(layer: Layer, words: tuple[str, ...]) -> Start:
    """`uv run`: the project's environment, which uv first makes as the lock has it, unless `--no-sync` is given."""
    before = read_options(UV_OPTIONS, words[1:])
    if before.rest[:1] != ("run",) or before.unknown is not None:
        return layer.unknown(f"uv {' '.join(before.rest[:2]) or before.unknown or ''}: no command is known to follow")
    after = read_options(UV_OPTIONS, before.rest[1:])
    if after.unknown is not None:
        return layer.unknown(f"uv run {after.unknown}: the option is not known", f"write {after.unknown}=VALUE")
    options = Options((*before.found, *after.found), after.rest)
    layer = _changed_by(layer, "uv", UV_OPTIONS, options)
    chosen = uv_project.choose(layer.host, options, layer.environ, layer.folder)
    for why, write in chosen.variables:
        layer = layer.doubt(why, write, What.VARIABLES)
    if chosen.syncs:
        position = len(words) - len(before.rest) + 1
        exact = shlex.join((*words[:position], "--no-sync", *words[position:]))
        why = "uv run installs what the lock and its options ask for before it starts the command"
        layer = layer.doubt(why, f"install with `uv sync` first, then write {exact}", What.PACKAGES)
    if chosen.interpreter is None:
        return layer.unknown(chosen.why, "write the interpreter of the environment that trains")
    started = started_by(layer.host, chosen.interpreter, layer.path)
    prefix = started.prefix if started is not None else None
    inner = layer.inside(prefix) if prefix is not None else layer
    rest = options.rest
    if options.has("-m", "--module"):
        rest = (chosen.interpreter, "-m", *rest)
    elif rest and uv_project.is_script(layer.host, layer.absolute(rest[0]), rest[0]):
        rest = (chosen.interpreter, *rest)
    return replace(_program(inner, rest), asked=uv_project.asked_of(options))

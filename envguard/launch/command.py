"""What a command line starts: the chain of wrappers before the program, and the interpreter that the program runs on.

One parser decides it, from the words and from files; nothing is run. Where the words do not determine the
interpreter, the answer is `Undetermined` with what to write, and never a guess.
"""

from __future__ import annotations

import enum
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from envguard.acquire.packages.environment import is_environment, is_tool, which_in
from envguard.acquire.packages.starts import Started, started_by
from envguard.acquire.seam.host import Host
from envguard.fingerprint.uv_choices import AskedOfUv
from envguard.launch import shell_line, uv_project
from envguard.launch.options import Options, read_options
from envguard.launch.shell_line import NotSimple
from envguard.launch.wrappers import CHOOSERS, CONDA_RUN_OPTIONS, INERT, UV_OPTIONS, WRAPPERS, Wrapper

_MOST_SCRIPT = 64 << 10
_MOST_LAYERS = 20
DEFAULT_PATH = "/bin:/usr/bin"  # confstr(_CS_PATH): where a program is looked for without PATH
# They start each rank with the interpreter that they run on, unless an option or PYTHON_EXEC names another.
_RANK_SCRIPTS = frozenset({"torchrun", "deepspeed", "accelerate", "accelerate-launch", "composer"})
_RANK_MODULES = frozenset({
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
})  # fmt: skip
_NO_PYTHON = frozenset({"--no-python", "--no_python"})
_PYTHON_VALUES = "WX"
# `$(dirname "$0")`: the folder of the script itself.
_OWN_FOLDER = re.compile(r'\$\(\s*dirname\s+"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"?\s*\)')
_WRITE = "write the interpreter's path, or name the environment with --python"


class What(enum.Enum):
    """What is not known of a start. An environment named with `--python` settles the first, and no other."""

    INTERPRETER = "interpreter of the command"
    VARIABLES = "variables of the command"
    PACKAGES = "packages of the command"


@dataclass(frozen=True)
class Undetermined:
    """What is not known, why, and what to write so that it is."""

    what: What
    why: str
    write: str


@dataclass(frozen=True)
class Runner:
    """The interpreter that COMMAND runs on, the word that names it, and whether the words choose an environment: a
    path, `uv run` or an activation does; a bare `python` is what PATH has, also where nothing was activated."""

    word: str
    started: Started
    chosen: bool

    @property
    def interpreter(self) -> str | None:
        """As `--python` would name it; None where the words choose none."""
        return self.started.interpreter if self.chosen and self.started.prefix is not None else None


@dataclass(frozen=True)
class Start:
    """`environ` and `folder` are what the program gets. `runner` is None where no Python is started, or where
    `undetermined` holds why it is not known. `path0`: the folders of the started code, first on `sys.path`; None
    where they are not known."""

    environ: Mapping[str, str]
    folder: str
    runner: Runner | None = None
    undetermined: tuple[Undetermined, ...] = ()
    path0: tuple[str, ...] | None = None
    asked: AskedOfUv | None = None
    """The extras and groups that `uv run` is given."""


@dataclass(frozen=True)
class _Layer:
    """What the next program of the chain gets."""

    host: Host
    environ: dict[str, str]
    folder: str
    depth: int = 0
    doubts: tuple[Undetermined, ...] = ()
    chosen: bool = False

    @property
    def path(self) -> str:
        return self.environ.get("PATH", DEFAULT_PATH)

    def absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.folder, path))

    def doubt(self, why: str, write: str = _WRITE, what: What = What.INTERPRETER) -> _Layer:
        return replace(self, doubts=(*self.doubts, Undetermined(what, why, write)))

    def set(self, name: str, value: str) -> _Layer:
        if name == "PATH":  # another PATH is another choice of what a bare name starts
            return replace(self, environ={**self.environ, name: value}, chosen=True)
        return replace(self, environ={**self.environ, name: value})

    def unset(self, *names: str) -> _Layer:
        return replace(self, environ={name: value for name, value in self.environ.items() if name not in names})

    def inside(self, prefix: str) -> _Layer:
        """As an activated environment has it."""
        environ = {**self.environ, "VIRTUAL_ENV": prefix, "PATH": f"{prefix}/bin:{self.path}"}
        return replace(self, environ=environ, chosen=True)

    def nothing(self) -> Start:
        return Start(self.environ, self.folder, undetermined=self.doubts)

    def unknown(self, why: str, write: str = _WRITE) -> Start:
        return self.doubt(why, write).nothing()


def parse_start(host: Host, command: Sequence[str], environ: Mapping[str, str], folder: str) -> Start:
    """What COMMAND starts in the absolute `folder`. An empty COMMAND starts nothing."""
    return _program(_Layer(host, dict(environ), folder), tuple(command))


def _program(layer: _Layer, words: tuple[str, ...]) -> Start:
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


def _resolved(layer: _Layer, word: str, name: str, arguments: tuple[str, ...]) -> Start:
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
        return _python(layer, runner, arguments)
    return _console_script(layer, runner, path, name, arguments)


def _unknown_file(layer: _Layer, path: str, name: str, arguments: tuple[str, ...]) -> Start:
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


def _wrapped(layer: _Layer, name: str, wrapper: Wrapper, words: tuple[str, ...]) -> Start:
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


def _changed_by(layer: _Layer, name: str, wrapper: Wrapper, options: Options) -> _Layer:
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


def _exported(layer: _Layer, name: str, value: str) -> _Layer:
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


def _shell(layer: _Layer, name: str, words: tuple[str, ...]) -> Start:
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


def _shell_text(layer: _Layer, text: str, name: str, arguments: tuple[str, ...], script: str | None = None) -> Start:
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
        doubts = (*doubts, Undetermined(What.INTERPRETER, why, _WRITE))
    return replace(last, undetermined=doubts)


def _words(word: str, environ: Mapping[str, str], arguments: tuple[str, ...]) -> Sequence[str]:
    return arguments if word in ("$@", "$*", "${@}") else (shell_line.expanded(word, environ),)


def _shell_command(layer: _Layer, words: list[str]) -> tuple[_Layer, Start | None]:
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


def _assigned(layer: _Layer, pairs: Sequence[tuple[str, str]]) -> _Layer:
    for name, value in pairs:
        if "$" in value and name in ("PATH", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH"):
            layer = layer.doubt(f"{name}={value} is not known before it runs")
        layer = layer.set(name, value)
    return layer


def _sourced(layer: _Layer, script: str) -> _Layer:
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


# --- interpreters ---


def _python(layer: _Layer, runner: Runner, arguments: tuple[str, ...]) -> Start:
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
    return _of_ranks(layer, started, rest) if ranks else started


def _first_of(layer: _Layer, form: str, target: str) -> str:
    """`sys.path[0]`: the folder of the script behind its links, else the working directory."""
    if form != "script" or target == "-":
        return layer.folder
    path = layer.host.realpath(layer.absolute(target))
    try:
        is_folder = layer.host.stat_target(path).is_directory
    except OSError:
        is_folder = False
    return path if is_folder else posixpath.dirname(path)


def _first_of_ranks(layer: _Layer, words: Sequence[str], safe: bool) -> list[str]:
    """The folder of the script that a launcher or a profiler starts."""
    if safe and layer.environ.get("PYTHONSAFEPATH"):
        return []
    if {"-m", "--module"} & set(words):
        return [layer.folder]
    script = next((word for word in words if word.endswith(".py")), None)
    return [_first_of(layer, "script", script)] if script is not None else []


def _console_script(layer: _Layer, runner: Runner, path: str, name: str, arguments: tuple[str, ...]) -> Start:
    """A script that names its interpreter: a launcher of ranks, a training script, an entry point."""
    if name not in _RANK_SCRIPTS:
        own = (posixpath.dirname(layer.host.realpath(path)),) if name.endswith(".py") else None
        return Start(layer.environ, layer.folder, runner, layer.doubts, own)
    safe = bool(layer.environ.get("PYTHONSAFEPATH"))
    first = tuple(_first_of_ranks(layer, arguments, safe))
    return _of_ranks(layer, Start(layer.environ, layer.folder, runner, layer.doubts, first), arguments)


def _of_ranks(layer: _Layer, launcher: Start, words: Sequence[str]) -> Start:
    """Ranks run on the launcher's interpreter, but for PYTHON_EXEC and for `--no-python`."""
    named = layer.environ.get("PYTHON_EXEC")
    if _NO_PYTHON & set(words):
        why = "the launcher starts its ranks without Python (--no-python)"
        return replace(launcher, undetermined=(*launcher.undetermined, Undetermined(What.INTERPRETER, why, _WRITE)))
    if not named:
        return launcher
    ranks = _program(layer, (named,))
    return replace(launcher, runner=ranks.runner, undetermined=ranks.undetermined)


# --- programs that choose an environment ---


def _conda(layer: _Layer, words: tuple[str, ...]) -> Start:
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


def _conda_places(layer: _Layer, conda: str, name: str | None) -> list[str]:
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


def _uv(layer: _Layer, words: tuple[str, ...]) -> Start:
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

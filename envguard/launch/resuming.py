"""Which checkpoint a command line goes on from, by the options that say so, whatever a trainer calls them.

    --resume step_690   trainer.resume_path=out/ckpt.pt   --load runs/a --ckpt-step 500   --checkpoint.load_step 200
    --resume_from_checkpoint=True --output_dir out        --resume                        --init_from=resume

The start is held against that checkpoint alone. Where the words name one that cannot be found here, or more than one,
which it is cannot be determined.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Literal

from envguard.acquire.runs.checkpoint_at import NotOne, checkpoint_at, latest_in
from envguard.acquire.runs.checkpoint_names import match_name, short_name
from envguard.acquire.runs.checkpoint_parts import WEIGHTS
from envguard.acquire.runs.checkpoints import Checkpoint, step_of
from envguard.acquire.runs.stamps import read_stamp
from envguard.acquire.section import reason
from envguard.fingerprint.places import Places
from envguard.fingerprint.reference import called, newest_run
from envguard.launch.shell_line import NotSimple, simple_commands

Strength = Literal["resumes", "names", "may"]
"""How far an option's name goes: training goes on (`resume`, `load`, `restore`), it is about checkpoints, or it may
take one, as any option does that is about nothing else (`-r`, `model=`, a word without an option)."""

_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh"})
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_MARK = re.compile(rb"#!\s*\S*(?:/|\s)(?:sh|bash|zsh|dash|ksh)\b")
_MOST_MARK = 128
_MOST_SCRIPT = 64 << 10
_SETTING = re.compile(r"[+]{0,2}[A-Za-z_][\w.@/:-]*")
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_RESUMES = frozenset({"load", "reload", "continue", "resume", "resumed", "restore", "autoresume"})
_JOINED = re.compile(r"resume|restore|^load(?:path|from|dir|file|ckpt|checkpoint|model|weights|step|iter)")
_CHECKPOINT = re.compile(r"checkpoint|ckpt")
# Options with such a word are about saving, about another model than the one that is trained, or about no checkpoint.
_OTHER = frozenset({
    "save", "saving", "out", "output", "write", "export", "push", "upload", "every", "interval", "freq",
    "frequency", "keep", "limit", "total", "num", "number", "max", "min", "format", "hub", "download",
    "tokenizer", "vocab", "data", "dataset", "datasets", "dataloader", "loader", "workers", "teacher",
    "student", "reward", "ref", "reference", "critic", "draft", "target", "eval", "test", "strict", "impl",
    "implementation", "activation", "activations", "gradient", "grad", "checkpointing", "policy", "best",
    "monitor", "no", "use", "enable", "disable", "in", "only", "balance", "balancing", "wandb", "mlflow",
    "comet", "neptune", "id", "async", "last", "time", "timeout", "args", "env", "config", "optim", "optimizer",
    "scheduler", "rng", "states", "mode",
})  # fmt: skip
# The same words as the name of a section say nothing of the options in it: `config.resume.path`.
_SECTIONS = frozenset({"config", "args", "env", "mode"})
_STEP = frozenset({"step", "iter", "iteration"})
_PLACE = frozenset({"dir", "directory", "folder", "root"})
_OUTPUTS = frozenset({
    ("save",), ("out",), ("output",), ("outputdir",), ("outdir",), ("savedir",), ("output", "dir"), ("out", "dir"),
    ("save", "dir"), ("checkpoint", "dir"), ("checkpoints", "dir"), ("ckpt", "dir"), ("root", "dir"), ("run", "dir"),
    ("work", "dir"), ("exp", "dir"), ("log", "dir"), ("dump", "folder"), ("save", "folder"), ("checkpoint", "folder"),
    ("checkpoints", "path"), ("save", "path"), ("output", "path"),
})  # fmt: skip
_NOT = frozenset({"", "0", "false", "no", "none", "null", "off", "never", "disable", "disabled", "scratch"})
_NEWEST = frozenset({"1", "true", "yes", "on", "auto", "latest", "last", "newest", "-1", "most_recent"})


@dataclass(frozen=True)
class Resumed:
    """What a command line goes on from: `checkpoint`, which `label` names; or `why` it cannot be determined."""

    label: str
    checkpoint: Checkpoint | None = None
    why: str | None = None


@dataclass(frozen=True)
class _Option:
    """An option of the command line; `value` is None for a switch, `name` empty for a word without an option."""

    name: str
    value: str | None

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(token.lower() for token in _TOKEN.findall(self.name))

    @property
    def strength(self) -> Strength | None:
        tokens = frozenset(self.tokens)
        joined = "".join(self.tokens)
        own = frozenset(token.lower() for token in _TOKEN.findall(self.name.rpartition(".")[2]))
        if (tokens & (_OTHER - _SECTIONS) or own & _SECTIONS) and joined not in ("resumemode",):
            return None
        if tokens & _RESUMES or _JOINED.search(joined):
            return "resumes"
        if _CHECKPOINT.search(joined):
            return "names"
        return None if self.is_output else "may"

    @property
    def is_output(self) -> bool:
        """Whether it names the folder in which the run saves."""
        return self.tokens in _OUTPUTS or (self.tokens[-2:] in _OUTPUTS and len(self.tokens) > 1)

    @property
    def is_step(self) -> bool:
        """Whether it is a step and nothing more (`--step 200`): in the run directory that is loaded from."""
        return (
            len(self.tokens) == 1
            and self.tokens[0] in _STEP
            and re.fullmatch(r"[1-9]\d*", self.value or "") is not None
        )

    @property
    def about_steps(self) -> bool:
        return bool(_STEP.intersection(self.tokens)) or "".join(self.tokens).endswith(("step", "iter", "iteration"))


def resumed(command: Sequence[str], places: Places, environ: Mapping[str, str] | None = None) -> Resumed | None:
    """What COMMAND goes on from; None where its words name nothing. `places.start` and `environ` are the folder and
    the variables that its program gets. Raises `InputError` for what cannot be seen."""
    words = [Template(word).safe_substitute(environ or {}) for word in _words(command, places)]
    return _Reading(tuple(_options(words)), places).answer()


def _options(words: Sequence[str]) -> Iterator[_Option]:
    taken = False
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else None
        if taken:
            taken = False
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and word.strip("-"):
            if equals:
                yield _Option(name, _clean(value))
            elif following is not None and (not following.startswith("-") or following == "-1"):
                taken = True
                yield _Option(name, _clean(following))
            else:
                yield _Option(name, None)
        elif equals and _SETTING.fullmatch(name) and "/" not in name:
            yield _Option(name.lstrip("+"), _clean(value))
        else:
            yield _Option("", word)


def _words(command: Sequence[str], places: Places) -> Iterator[str]:
    """The words of a command, with those of the text or the script that a shell in it is given."""
    shell: str | None = None
    """What the shell that is begun takes next: `script`, or `text` after `-c`."""
    for position, word in enumerate(command):
        text: str | None = None
        if posixpath.basename(word) in _SHELLS:
            shell = "script"
        elif shell is not None and word.startswith(("-", "+")):
            shell = "text" if re.fullmatch(r"-[a-z]*c", word) else shell
        elif shell is not None:
            text, shell = word if shell == "text" else _script(places, word), None
        elif word.endswith(_SCRIPTS) or (position == 0 and "/" in word):
            text = _script(places, word, marked=not word.endswith(_SCRIPTS))
        if text is None:
            yield word
            continue
        try:
            for simple in simple_commands(text):
                yield from simple.words
        except NotSimple:  # loops and substitutions: which words its programs get is not known before it runs
            continue


def _script(places: Places, word: str, marked: bool = False) -> str | None:
    """The text of a script of a shell; `marked`: only of one whose first line names the shell."""
    try:
        head = places.host.read(places.path(word), _MOST_MARK)
        if marked and not _MARK.match(head):
            return None
        return places.host.read(places.path(word), _MOST_SCRIPT).decode("utf-8", "replace")
    except OSError:
        return None  # the shell will meet the same error


def _clean(value: str) -> str:
    """A value without the quotes and backslashes that Hydra's grammar asks for."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return value.replace("\\=", "=").strip()


class _Reading:
    def __init__(self, options: Sequence[_Option], places: Places) -> None:
        self.options = options
        self.places = places
        self.found = places.checkpoints().found
        self.unseen: Resumed | None = None

    def answer(self) -> Resumed | None:
        named = [option for option in self.options if option.strength is not None and option.value is not None]
        step = next((option for option in named if self._is_step(option)), None)
        if step is not None and step.value is not None and int(step.value) > 0:
            return self._of_step(int(step.value))
        missing: Resumed | None = None
        strengths: tuple[Strength, ...] = ("resumes", "names", "may")
        for strength in strengths:
            results = [self._named(option) for option in named if option.strength == strength]
            chosen = [item for item in results if item is not None and item.checkpoint is not None]
            if chosen:
                return self._one(chosen)
            doubt = next((item for item in results if item is not None), None)
            missing = missing or doubt
        if missing is not None:
            return missing
        newest = next((option for option in self.options if self._is_newest(option)), None)
        return self._newest(newest) if newest is not None or (step is not None and step.value == "-1") else None

    def _is_step(self, option: _Option) -> bool:
        value = option.value or ""
        if option.strength == "resumes":
            plain = "resume" in "".join(option.tokens) or "restore" in option.tokens
            return (option.about_steps and re.fullmatch(r"-1|\d+", value) is not None) or (
                plain and value.isdecimal() and int(value) > 1
            )
        return (
            option.strength == "names"
            and option.tokens in (("ckpt", "step"), ("checkpoint", "step"))
            and (value.isdecimal())
        )

    def _is_newest(self, option: _Option) -> bool:
        """Whether an option asks for the newest checkpoint without naming it: `--resume`, `resume=True`."""
        value = (option.value or "true").lower()
        joined = "".join(option.tokens)
        if joined == "initfrom":
            return value == "resume"
        asks = option.strength == "resumes" and ("resume" in joined or "restore" in joined)
        last = option.strength == "names" and value in ("last", "latest", "auto") and not option.about_steps
        return (asks and value in _NEWEST) or last

    def _named(self, option: _Option) -> Resumed | None:
        """What the value of an option is: a checkpoint; why it cannot be determined; None where it names none."""
        value = option.value or ""
        if value.lower() in _NOT or (value.isdecimal() and not self._exists(value)):
            return None
        resumes = option.strength == "resumes"
        try:
            at = checkpoint_at(self.places.host, self.places.path(value))
        except OSError as error:
            return Resumed(value, why=f"{value} cannot be read: {reason(error)}") if resumes else None
        looks = "/" in value or value.endswith(WEIGHTS) or "$" in value
        if option.strength == "may":
            marked = isinstance(at, Checkpoint) and (at.step is not None or at.stamp_path is not None)
            return Resumed(value, at) if looks and marked and isinstance(at, Checkpoint) else None
        if isinstance(at, Checkpoint):
            return Resumed(value, at)
        if isinstance(at, NotOne) and at.inner:
            return self._run(value, at) if resumes else None
        if value.lower() in _NEWEST and self._output() is not None:
            return None  # of the folder that the run saves in: `_newest`
        by_name = match_name(self.found, value) if value and not value.isdecimal() else ()
        by_name = by_name or (called(value, self.places) if value and not looks else ())
        if by_name:
            return self._one([Resumed(value, item) for item in by_name])
        if value.lower() in _NEWEST:
            return None
        place = bool(_PLACE.intersection(option.tokens)) and not resumes
        if (resumes and looks) or (step_of(posixpath.basename(value)) is not None and not place):
            return Resumed(
                value, why=f"{value} is not here: {'there is none' if at is None else 'it is no checkpoint'}"
            )
        return None

    def _exists(self, value: str) -> bool:
        return self.places.host.find(self.places.path(value)) is not None

    def _run(self, value: str, run: NotOne) -> Resumed:
        if run.kind == "several":
            return Resumed(value, why=f"{value} holds several runs, or weights of its own beside checkpoints")
        step = next((int(item.value or "") for item in self.options if item.is_step), None)
        if step is not None:
            inner = next((item for item in run.inner if item.step == step), None)
            why = f"{value} holds no checkpoint of step {step}"
            return self._called(inner) if inner is not None else Resumed(value, why=why)
        try:
            found = latest_in(self.places.host, run)
        except OSError as error:
            return Resumed(value, why=f"{value} cannot be read: {reason(error)}")
        if isinstance(found, Checkpoint):
            return self._called(found)
        return Resumed(value, why=f"{found.path} names a checkpoint that is not here")

    def _of_step(self, step: int) -> Resumed:
        inside = [item for run in self._runs() for item in run.inner if item.step == step]
        if self.unseen is not None:
            return self.unseen
        found = inside or [item for item in self.found if item.step == step]
        if not found:
            return Resumed(str(step), why=f"no checkpoint of step {step} is here")
        return self._one([self._called(item) for item in found])

    def _runs(self) -> Sequence[NotOne]:
        """The run directories that options name. One that cannot be read is `unseen`."""
        runs = []
        for option in self.options:
            if option.value and (option.is_output or option.strength in ("resumes", "names")):
                try:
                    at = checkpoint_at(self.places.host, self.places.path(option.value))
                except OSError as error:
                    self.unseen = Resumed(option.value, why=f"{option.value} cannot be read: {reason(error)}")
                    continue
                if isinstance(at, NotOne) and at.inner:
                    runs.append(at)
        return runs

    def _newest(self, option: _Option | None) -> Resumed | None:
        """The newest checkpoint of the folder that the run saves in; of the newest run where no option names one."""
        runs = self._runs()
        if self.unseen is not None:
            return self.unseen
        for run in runs:
            return self._run(posixpath.relpath(run.path, self.places.start), run)
        if option is not None and "".join(option.tokens) == "initfrom":
            return self._named(_Option("resume", self._output() or "out"))
        if self._output() is not None:
            return None  # nothing is there to go on from
        run_of_newest = newest_run(self.places)
        return self._called(run_of_newest[-1]) if run_of_newest else None

    def _output(self) -> str | None:
        return next((item.value for item in self.options if item.is_output and item.value), None)

    def _called(self, checkpoint: Checkpoint) -> Resumed:
        """A checkpoint that no word names by itself, under what does."""
        known = any(item.path == checkpoint.path for item in self.found)
        return Resumed(short_name(checkpoint, self.found) if known else checkpoint.path, checkpoint)

    def _one(self, found: Sequence[Resumed]) -> Resumed:
        """The one of several that are meant: they may be one checkpoint, or all be of one environment."""
        every = {item.checkpoint.path: item for item in found if item.checkpoint is not None}
        if len(every) == 1 or len(self._environments(every.values())) == 1:
            return next(iter(every.values()))
        return Resumed(found[0].label, why=f"it may be any of {', '.join(sorted(every))}")

    def _environments(self, found: Iterable[Resumed]) -> set[str]:
        """The ids of their stamps; a path of its own for one without a stamp that counts."""
        ids = set()
        for item in found:
            assert item.checkpoint is not None
            try:
                stamp = read_stamp(self.places.host, item.checkpoint)
            except OSError:
                stamp = None
            counts = stamp is not None and stamp.counts and stamp.fingerprint is not None
            ids.add(stamp.fingerprint.id if counts and stamp and stamp.fingerprint else item.checkpoint.path)
        return ids

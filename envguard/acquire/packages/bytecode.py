"""Compiled files that Python runs instead of the source beside them, and that were not compiled from it.

CPython takes `__pycache__/x.cpython-311.pyc` for `x.py` where its header has the source's time and size, or the
source's hash; an unchecked one it takes in any case. What is in it, it does not compare. Here the source is compiled
and its code compared; nothing is run, and nothing is loaded from the file. Compilers of two releases differ, so only
files of the very release that envguard runs on can be judged.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import platform
import re
import struct
import sysconfig
import time
import warnings
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envguard.acquire.packages.distributions import Distribution
from envguard.acquire.packages.environment import Environment
from envguard.acquire.packages.import_winners import own_paths
from envguard.acquire.packages.interpreter import plain_version
from envguard.acquire.packages.marshalled import NotMarshalled, digest_marshalled
from envguard.acquire.seam.host import Host
from envguard.acquire.section import Notes
from envguard.clock import NS
from envguard.model.fingerprint import Bytecode
from envguard.state.digests import Digests, Key, is_racy

SECONDS = 1.0
"""For what was not compared before; torch's 1,300 modules take about three. `--deep` compares all."""
MOST_BYTES = 32 << 20
_HEADER = 16
_BY_TIME, _UNCHECKED, _CHECKED = 0, 1, 3


@dataclass(frozen=True)
class _Compiled:
    """A compiled file and its source, both below the distribution's location, with their stats."""

    dist: Distribution
    path: str
    source: str
    level: int
    key: Key
    source_key: Key

    @property
    def mark(self) -> str:
        text = f"{self.path} {self.key} {self.source_key}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def is_racy(self, now_ns: int) -> bool:
        return is_racy(self.key, now_ns) or is_racy(self.source_key, now_ns)


def judge_bytecode(
    host: Host, env: Environment, watched: Iterable[Distribution], digests: Digests, deep: bool, notes: Notes
) -> Bytecode:
    """Names each compiled file of the watched distributions whose code is not its source's. The newest are compared
    first; a sound one is not compared again while neither file changes."""
    found = [each for dist in watched if dist.editable is None for each in _compiled(host, env, dist, digests, notes)]
    if not is_own_release(env):
        if found and deep:
            why = f"they are of Python {env.version or 'unknown'}, and envguard runs on {platform.python_version()}"
            notes.unseen("compiled files of watched packages", f"{why}: install envguard beside what it examines")
        return Bytecode(compared=0, left=len(found))
    known = {each.dist.directory: _known(digests, each.dist) for each in found}
    sound: dict[str, set[str]] = {directory: set() for directory in known}
    end, now, left = time.monotonic() + SECONDS, time.time_ns(), 0
    for each in sorted(found, key=lambda item: -item.key[2]):
        directory = each.dist.directory
        if each.mark not in known[directory]:
            if not deep and time.monotonic() > end:
                left += 1
                continue
            if not _is_sound(host, each, notes) or each.is_racy(now):
                continue
        sound[directory].add(each.mark)
    for directory, marks in sound.items():
        if marks != known[directory]:
            digests.memo[_question(directory)] = " ".join(sorted(marks))
    return Bytecode(compared=len(found) - left, left=left)


def is_own_release(env: Environment) -> bool:
    """Whether the environment's interpreter compiles as the one that envguard runs on."""
    return (
        (env.implementation, env.abi) == (platform.python_implementation(), sysconfig.get_config_var("SOABI"))
        and env.version is not None
        and plain_version(env.version) == plain_version(platform.python_version())
    )


def _question(directory: str) -> str:
    return f"sound bytecode of {directory}"


def _known(digests: Digests, dist: Distribution) -> set[str]:
    return set(digests.memo.get(_question(dist.directory), "").split())


def _compiled(
    host: Host, env: Environment, dist: Distribution, digests: Digests, notes: Notes
) -> Iterator[_Compiled]:
    """The compiled files from which the environment's interpreter may take a module of a distribution."""
    tag = (env.abi or "").split("-")
    if len(tag) < 2:
        return
    # The free-threaded build of a release has the same tag; `-O` and `-OO` write files of their own.
    wanted = re.compile(rf"(.+)\.{tag[0]}-{tag[1].rstrip('td')}(?:\.opt-([12]))?\.pyc")
    own = own_paths(dist, digests)
    folders = {path.rpartition("/")[0] for path in own if path.endswith(".py")}
    pairs: list[tuple[str, str, int]] = []
    for folder in sorted(folders):
        place = f"{folder}/__pycache__" if folder else "__pycache__"
        try:
            names = host.listing(f"{dist.location}/{place}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            notes.unseen(f"compiled files in {dist.location}/{place}", error)
            continue
        for name, _ in names:
            source = f"{folder}/{match[1]}.py".lstrip("/") if (match := wanted.fullmatch(name)) else ""
            if match is not None and source in own:
                pairs.append((f"{place}/{name}", source, int(match[2] or 0)))
    keys = host.stats(dist.location, [path for path, _, _ in pairs])
    source_keys = host.stats(dist.location, [source for _, source, _ in pairs])
    for at, (path, source, level) in enumerate(pairs):
        key, source_key = _key(keys, at), _key(source_keys, at)
        if key[0] >= 0 and source_key[0] >= 0:  # without a source, Python takes none from __pycache__
            yield _Compiled(dist, path, source, level, key, source_key)


def _key(stats: array[int], at: int) -> Key:
    return (stats[4 * at], stats[4 * at + 1], stats[4 * at + 2], stats[4 * at + 3])


def _is_sound(host: Host, each: _Compiled, notes: Notes) -> bool:
    """Whether Python takes nothing from it but what is in its source; what else is so is a problem or unknown."""
    path, source = f"{each.dist.location}/{each.path}", f"{each.dist.location}/{each.source}"
    try:
        data, text = host.read(path, MOST_BYTES), host.read(source, MOST_BYTES)
    except OSError as error:
        notes.unseen(f"compiled file {path}", error)
        return False
    if not _is_taken(data[:_HEADER], text, each.source_key) or _same_code(data[_HEADER:], text, source, each.level):
        return True
    says = f"{path} is run instead of {each.source} and was not compiled from it: remove it"
    notes.problem("foreign-bytecode", each.dist.name, says, path)
    return False


def _is_taken(header: bytes, text: bytes, source: Key) -> bool:
    """Whether CPython runs a compiled file with this header (`importlib._bootstrap_external.SourceLoader`)."""
    if len(header) < _HEADER or header[:4] != importlib.util.MAGIC_NUMBER:
        return False
    flags, mtime, size = struct.unpack_from("<III", header, 4)
    if flags == _BY_TIME:
        return (mtime, size) == (source[1] // NS & 0xFFFFFFFF, source[0] & 0xFFFFFFFF)
    return flags == _UNCHECKED or (flags == _CHECKED and header[8:] == importlib.util.source_hash(text))


def _same_code(body: bytes, text: bytes, source: str, level: int) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(text, source, "exec", dont_inherit=True, optimize=level)
        return digest_marshalled(body) == digest_marshalled(marshal.dumps(code))
    except (NotMarshalled, SyntaxError, ValueError):
        return False  # nothing was compiled from a source that does not compile

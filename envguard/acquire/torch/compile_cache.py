"""Compile caches, judged from outside: who wrote the entries, for which GPU and triton, and whether to trust them.

An inductor entry is a pickle that inductor loads with full trust; here it is never unpickled. It holds its cache
key's parts as plain text ("[tag] torch_version: …", "system_info[device]: {'name': …}"), which are found as bytes.
The verdict VALID means that this torch build wrote the entries, not that the next start will hit them.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from envguard import clock
from envguard.acquire.memo import Memo, key_of
from envguard.acquire.packages.tree_memo import TreeMemo
from envguard.acquire.seam.host import Host, Stat, Walk
from envguard.acquire.section import Notes, reason
from envguard.acquire.torch.cache_places import Kind, Place
from envguard.acquire.torch.cache_stamp import is_passing
from envguard.acquire.torch.cache_trust import Trust
from envguard.clock import NS
from envguard.model.fingerprint import CompileCache

Verdict = Literal["VALID", "FOREIGN", "MIXED", "EMPTY", "UNSAFE", "UNKNOWN", "OTHER"]
ENTRY_FOLDERS = ("fxgraph/", "aotautograd/")
UNNAMED = "unnamed"
TAG = "] torch_version: "
SYSTEM = "system_info["
_TAG = re.compile(r"\[([a-z2-7]{51})\] torch_version: ")
_GPU = re.compile(r"system_info\[device\]: \{'name': '([^']{1,200})'")
# triton_key is the version with digests of triton's own files joined to it.
_TRITON_KEY = re.compile(r"system_info\[version\]: \{'triton': '([0-9A-Za-z.+]{1,40}?)[0-9a-f]{64}[-']")
_KERNEL_TRITON = re.compile(r'"triton_version": "([^"]{1,80})')
_CONTENT_NAME = re.compile(r"[a-z2-7]{51}")
DIGEST_LIMIT = 1 << 30
"""Bytes that a default run hashes at most of a cache that it has not seen before."""


@dataclass(frozen=True)
class Build:
    """What the environment would write and read: its cache tag, its triton, its GPUs.

    None: a tag or GPUs that are not known, a triton that is not installed.
    """

    tag: str | None
    tag_unknown: str | None = None
    """Why `tag` is None."""
    triton: str | None = None
    gpus: frozenset[str] | None = None


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """What one file said when it had that stat."""

    key: tuple[int, int, int, int]
    digest: str
    writers: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    tritons: tuple[str, ...] = ()


@dataclass
class Files:
    """A cache's files by what they are to us; paths relative to its root."""

    entries: dict[str, Stat]
    others: dict[str, Stat]
    bytes: int
    oldest_ns: int | None
    newest_ns: int | None
    autotune: int


def read_cache(
    host: Host, place: Place, build: Build, memo: Memo, notes: Notes, deep: bool = False, budget: int = DIGEST_LIMIT
) -> CompileCache:
    """One cache. A folder that is not there is EMPTY: a cleared cache and one never made look alike.

    Entries are always read. Of the compiled files beside them at most `budget` bytes are hashed that no earlier look
    hashed (with `deep` all are); where that does not suffice there is no digest.
    """
    what = f"compile_cache {place.path}"
    try:
        stat = host.stat(place.path)
        # A link is judged as such, and what it leads to is read.
        top = host.stat_target(place.path) if stat.is_link else stat
        walked = host.walk(host.realpath(place.path) if stat.is_link else place.path)
    except (FileNotFoundError, NotADirectoryError):
        return _blank(place, "EMPTY", "it is not there")
    except OSError as error:
        notes.unseen(what, error)
        return _blank(place, "UNKNOWN", reason(error))
    if walked.failed:
        notes.unseen(what, f"{len(walked.failed)} of its folders cannot be read: {': '.join(walked.failed[0])}")
    machine = host.machine()
    files = _sorted_out(place.kind, walked)
    seen, whole = _look(host, walked.root, place, files, memo, notes, deep, budget)
    unsafe = _unsafe(host, place, (stat, top), walked, seen)
    verdict: Verdict
    why: str | None
    verdict, why = ("UNSAFE", unsafe) if unsafe is not None else _verdict(place.kind, build, files, seen)
    if verdict != "UNSAFE" and walked.failed:
        verdict, why = "UNKNOWN", f"{len(walked.failed)} of its folders cannot be read"
    entries = [seen[path] for path in files.entries if path in seen]
    return CompileCache(
        kind=place.kind,
        path=place.path,
        verdict=verdict,
        entries=len(files.entries),
        bytes=files.bytes,
        writers=_writers(entries),
        owner=machine.user if top.uid == machine.uid else f"uid {top.uid}",
        mode=f"{top.mode:04o}",
        files=len(files.entries) + len(files.others),
        oldest=clock.iso_ns(files.oldest_ns) if files.oldest_ns is not None else None,
        newest=clock.iso_ns(files.newest_ns) if files.newest_ns is not None else None,
        gpus=_union(entry.gpus for entry in entries),
        tritons=_union(entry.tritons for entry in entries),
        autotune=files.autotune,
        digest=_digest(files, seen) if whole else None,
        why=why,
    )


def _blank(place: Place, verdict: Verdict, why: str) -> CompileCache:
    nothing = 0 if verdict == "EMPTY" else None
    return CompileCache(
        kind=place.kind, path=place.path, verdict=verdict, entries=nothing, bytes=nothing, writers={}, files=nothing,
        autotune=nothing, why=why,
    )  # fmt: skip


def _sorted_out(kind: Kind, walked: Walk) -> Files:
    """Locks hold nothing and come and go: they are left out everywhere."""
    files = Files({}, {}, 0, None, None, 0)
    for path, stat in walked.entries:
        if not stat.is_file or is_passing(path):
            continue
        is_entry = path.startswith(ENTRY_FOLDERS) if kind == "inductor" else _is_kernel_record(path)
        is_entry = is_entry and kind in ("inductor", "triton")
        (files.entries if is_entry else files.others)[path] = stat
        files.bytes += stat.size
        files.oldest_ns = min(files.oldest_ns or stat.mtime_ns, stat.mtime_ns)
        files.newest_ns = max(files.newest_ns or stat.mtime_ns, stat.mtime_ns)
        files.autotune += path.endswith((".best_config", ".autotune.json"))
    return files


def _is_kernel_record(path: str) -> bool:
    """`<hash>/<kernel>.json`, where triton names the version that compiled; a group file lists its companions."""
    name = path.rpartition("/")[2]
    return name.endswith(".json") and not name.startswith("__grp__") and not name.endswith(".autotune.json")


def _look(
    host: Host, root: str, place: Place, files: Files, memo: Memo, notes: Notes, deep: bool, budget: int
) -> tuple[dict[str, Seen], bool]:
    """What each file says, kept from an earlier look where its stat is the same; and whether all could be hashed."""
    tree = TreeMemo(memo, f"compile_cache {place.path}", Seen, forget=deep)
    unread = 0
    for path, stat in (*files.entries.items(), *files.others.items()):
        if tree.recall(path, key_of(stat)) is not None:
            continue
        is_entry = path in files.entries
        if not is_entry and not deep:
            budget -= stat.size
            if budget < 0:
                unread += 1
                continue
        try:
            tree.fresh[path] = _read(host, f"{root}/{path}", stat, place.kind, is_entry)
        except FileNotFoundError:
            continue  # a compile that is running replaced it under a temporary name
        except OSError as error:
            unread += 1
            notes.unseen(f"compile_cache {place.path}/{path}", error)
    tree.save(int(host.machine().now * NS))
    return tree.fresh, unread == 0


def _read(host: Host, path: str, stat: Stat, kind: Kind, is_entry: bool) -> Seen:
    if not is_entry:
        return Seen(key_of(stat), host.digest(path))
    if kind == "triton":
        digest, texts = host.scan(path, ('"triton_version"',), 0, 100)
        tritons = _union(match.groups() for match in map(_KERNEL_TRITON.search, texts) if match)
        writers = tuple(f"triton {version.partition('+')[0]}" for version in tritons)
        return Seen(key_of(stat), digest, writers, (), tritons)
    digest, texts = host.scan(path, (TAG, SYSTEM), 52, 240)
    writers = _union(match.groups() for match in map(_TAG.search, texts) if match)
    gpus = _union(match.groups() for match in map(_GPU.search, texts) if match)
    tritons = _union(match.groups() for match in map(_TRITON_KEY.search, texts) if match)
    return Seen(key_of(stat), digest, writers, gpus, tritons)


def _union(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({item for group in groups for item in group}))


def _writers(entries: list[Seen]) -> dict[str, int]:
    """Writer → entries. One that names two is counted under both, joined: no build of torch writes such an entry."""
    counted = Counter("+".join(entry.writers) or UNNAMED for entry in entries)
    return dict(sorted(counted.items()))


def _unsafe(host: Host, place: Place, tops: tuple[Stat, Stat], walked: Walk, seen: dict[str, Seen]) -> str | None:
    trust = Trust(host, host.machine().uid)
    why = trust.of_place(place.path, tops[0]) or trust.of(tops[1], place.path)
    if why is not None:
        return why
    for path, stat in walked.entries:
        if not path.startswith("locks/") and (why := trust.of(stat, path)) is not None:
            return why
    return _tampered(place.kind, seen)


def _tampered(kind: Kind, seen: dict[str, Seen]) -> str | None:
    """inductor names an entry after its content: one whose content has another name was changed afterwards."""
    if kind != "inductor":
        return None
    changed = []
    for path, entry in seen.items():
        name = path.rpartition("/")[2]
        if path.startswith(ENTRY_FOLDERS) and _CONTENT_NAME.fullmatch(name) and name != content_name(entry.digest):
            changed.append(path)
    if not changed:
        return None
    return f"{len(changed)} entries are not what their names say ({changed[0]}): written over or torn"


def writer_tag(text: str) -> str | None:
    """The tag of the torch build that a piece of an entry names as its writer."""
    match = _TAG.search(text)
    return match.group(1) if match is not None else None


def content_name(digest: str) -> str:
    """The name under which inductor stores an entry with that sha256."""
    return base64.b32encode(bytes.fromhex(digest))[:51].decode().lower()


def _verdict(kind: Kind, build: Build, files: Files, seen: dict[str, Seen]) -> tuple[Verdict, str | None]:
    if kind not in ("inductor", "triton"):
        return ("OTHER", "its files do not name the build that wrote them") if files.others else ("EMPTY", "no file")
    if not files.entries:
        # Compiled files alone are never looked up: triton's own helpers, or a run with the graph cache turned off.
        return "EMPTY", f"no entry beside {len(files.others)} compiled files" if files.others else "it holds no file"
    own = build.tag if kind == "inductor" else f"triton {(build.triton or 'of no kind').partition('+')[0]}"
    if own is None:
        return "UNKNOWN", build.tag_unknown
    entries = [seen[path] for path in files.entries if path in seen]
    ours = sum(entry.writers == (own,) for entry in entries)
    if len(entries) < len(files.entries):
        return "UNKNOWN", f"{len(files.entries) - len(entries)} of {len(files.entries)} entries could not be read"
    if ours == 0:
        return "FOREIGN", "every entry was written by another build"
    if ours < len(entries):
        return "MIXED", f"{len(entries) - ours} of {len(entries)} entries were written by another build"
    gpus = _union(entry.gpus for entry in entries)
    if gpus and build.gpus is not None and not build.gpus & set(gpus):
        return "FOREIGN", f"this build wrote it, for another GPU: {', '.join(gpus)}"
    return "VALID", None


def _digest(files: Files, seen: dict[str, Seen]) -> str:
    hasher = hashlib.sha256()
    for path in sorted((*files.entries, *files.others)):
        if path in seen:
            hasher.update(f"{path}\0{seen[path].digest}\n".encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()

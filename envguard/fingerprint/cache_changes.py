"""What differs between two fingerprints' compile caches: each is held against the one at its own path.

A fingerprint of now looks where the reference had its caches (`acquire.torch.cache_evidence`), so that one that is
gone is seen to be gone, however full another one is. What is left over is held together by kind: the default path
has a user's name in it, and another machine has paths of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from envguard.acquire.torch.cache_evidence import same_machine
from envguard.fingerprint.changes import Differences, not_recorded
from envguard.fingerprint.rules import Change
from envguard.fingerprint.units import size
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import CompileCache, Fingerprint, Torch

Pair = tuple[CompileCache | None, CompileCache | None]
_BAD = {"UNSAFE": "unsafe", "FOREIGN": "foreign", "MIXED": "mixed"}


def cache_changes(a: Fingerprint, b: Fingerprint) -> Differences:
    """Compile caches: by path, then by kind among those whose path the other side does not name."""
    if a.compile_cache is None or b.compile_cache is None:
        if (a.compile_cache is None) != (b.compile_cache is None):
            yield not_recorded("compile_cache", a.compile_cache is None)
        return
    here = _on_one_machine(a, b)
    pairs = _pairs(a.compile_cache, b.compile_cache)
    for subject, (old, new) in zip(subjects(_either(pair) for pair in pairs), pairs, strict=True):
        change = _stale(subject, old, new, a.torch, b.torch) or _cache_change(
            subject, old, new, a.compile_cache, b.compile_cache, here
        )
        if change is not None:
            yield change


def _stale(
    subject: str, old: CompileCache | None, new: CompileCache | None, was: Torch | None, now: Torch | None
) -> Change | None:
    """Compiled extensions of another torch. Their folder's name has Python and CUDA alone, so that this torch loads
    them and does not build them anew; for another accelerator they lie in another folder."""
    if old is None or new is None or new.kind != "torch_extensions" or was is None or now is None:
        return None
    same_torch = (was.version, was.git_version) == (now.version, now.git_version)
    if same_torch or (was.accelerator, was.cuda) != (now.accelerator, now.cuda) or new.verdict != "OTHER":
        return None
    if old.verdict != "OTHER" or (old.files, old.bytes, old.newest) != (new.files, new.bytes, new.newest):
        return None  # compiled again since, if not all of it: what is older cannot be told apart
    detail = f"{new.path} was compiled with torch {was.version}"
    return Change("compile_cache", subject, "stale", was.version, now.version, detail)


def subjects(caches: Iterable[CompileCache]) -> list[str]:
    """How each is named beside the others: `inductor`, `triton`; a second one of a kind with its path."""
    named: list[str] = []
    for cache in caches:
        named.append(cache.kind if cache.kind not in named else f"{cache.kind} {cache.path}")
    return named


def _either(pair: Pair) -> CompileCache:
    old, new = pair
    if new is not None:
        return new
    assert old is not None, "a pair of no caches"
    return old


def _on_one_machine(a: Fingerprint, b: Fingerprint) -> bool:
    if a.system is None or b.system is None:
        return False
    return same_machine(a.system.host, a.gpus, b.system.host, b.gpus)


def _pairs(old: tuple[CompileCache, ...], new: tuple[CompileCache, ...]) -> list[Pair]:
    """In the order of the older side, by kind; then what only the newer one has."""
    by_path = {(cache.kind, cache.path): cache for cache in new}
    of: dict[tuple[str, str], CompileCache] = {}
    for cache in old:
        if (cache.kind, cache.path) in by_path:
            of[cache.kind, cache.path] = by_path.pop((cache.kind, cache.path))
    for cache in old:
        key = (cache.kind, cache.path)
        left = next((rest for rest, each in by_path.items() if each.kind == cache.kind), None)
        if key not in of and left is not None:
            of[key] = by_path.pop(left)
    pairs: list[Pair] = [(cache, of.get((cache.kind, cache.path))) for cache in old]
    pairs += [(None, cache) for cache in by_path.values()]
    return sorted(pairs, key=lambda pair: _either(pair).kind)


def _cache_change(
    subject: str,
    old: CompileCache | None,
    new: CompileCache | None,
    olds: Iterable[CompileCache],
    news: Iterable[CompileCache],
    here: bool,
) -> Change | Unknown | None:
    for side, cache in (("A", old), ("B", new)):
        if cache is not None and cache.verdict == "UNKNOWN":
            return Unknown(f"compile_cache {subject}", f"{side}: {cache.why or 'its entries could not be judged'}")
    kind = _kind_of(old, new, olds, news, here)
    if kind is None:
        return None
    detail = _gone(old, new, here) if kind == "cleared" else (new and new.why) or ""
    return Change("compile_cache", subject, kind, _size(old), _size(new), detail)


def _kind_of(
    old: CompileCache | None,
    new: CompileCache | None,
    olds: Iterable[CompileCache],
    news: Iterable[CompileCache],
    here: bool,
) -> str | None:
    if new is None:
        if old is None or old.verdict == "EMPTY":
            return None
        # Of a path that the newer side does not name nothing is known, but that it has no cache of the kind at all.
        return "cleared" if here and not any(cache.kind == old.kind for cache in news) else "unseen"
    if old is None and new.verdict not in ("EMPTY", "UNSAFE") and any(cache.kind == new.kind for cache in olds):
        return "elsewhere"
    kind = _change_of(old, new)
    if kind == "foreign" and old is not None and _untouched(old, new) and _warm_elsewhere(new, news):
        return "moved"
    return kind


def _change_of(old: CompileCache | None, new: CompileCache) -> str | None:
    had = old is not None and old.verdict != "EMPTY"
    if new.verdict == "EMPTY":
        return "cleared" if had else None
    if old is None or not had:
        return _BAD.get(new.verdict, "warmed")
    if new.verdict != old.verdict:
        return _BAD.get(new.verdict, "changed")
    if new.bytes is not None and old.bytes is not None and new.bytes * 2 < old.bytes:
        return "shrunk"
    # A stamp does not hash a large cache inside a training process: then counts and sizes speak alone.
    hashed = old.digest is not None and new.digest is not None
    same = (old.bytes, old.entries) == (new.bytes, new.entries) and (not hashed or old.digest == new.digest)
    return None if same else "changed"


def _untouched(old: CompileCache, new: CompileCache) -> bool:
    """The folder is as it was, and only the build that would read it is another."""
    return old.path == new.path and (old.bytes, old.entries, old.writers) == (new.bytes, new.entries, new.writers)


def _warm_elsewhere(cache: CompileCache, others: Iterable[CompileCache]) -> bool:
    return any(other.kind == cache.kind and other.verdict == "VALID" for other in others)


def _gone(old: CompileCache | None, new: CompileCache | None, here: bool) -> str:
    if new is None or old is None:
        return f"{old.path if old is not None else 'the cache'} is gone"
    if not here:
        return f"{new.path} is empty on this machine"
    if new.path != old.path:
        return f"{new.path} is empty, and {old.path} was not"
    # A folder that is left with compiled files and no entry is as cold as none.
    return f"{new.path} is gone" if new.files == 0 else f"{new.path} is empty ({new.why})"


def _size(cache: CompileCache | None) -> str | None:
    return None if cache is None else size(cache.bytes)

"""The git trees that a run executes from: commit, branch, and a digest of what departs from it.

git answers through `Host.query`, which keeps it from touching `.git/index`. Contents are digested here and not by
`git diff`, whose text changes with everybody's configuration. Where git cannot answer (not installed, a tree that
belongs to another user), the commit is still read from the files under `.git`, and the rest is unknown.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass, field

from envguard.acquire.project.git_history import odd_file
from envguard.acquire.seam.host import Answer, Host
from envguard.acquire.section import Notes, Section, reason
from envguard.model.fingerprint import Code

# Untracked files that an import or a launch could pick up; data and checkpoints beside them are none of the code.
CODE_PATTERNS = (
    "*.py", "*.pyi", "*.pyx", "*.pth", "*.so", "*.c", "*.cc", "*.cpp", "*.cu", "*.cuh", "*.h", "*.hpp", "*.sh",
    "*.toml", "*.cfg", "*.yaml", "*.yml",
)  # fmt: skip
MOST_UNTRACKED = 5000
MOST_BYTES = 1 << 30
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass
class _Tree:
    """What `git status` said; paths relative to the root of the work tree."""

    commit: str | None = None
    branch: str | None = None
    changed: dict[str, str] = field(default_factory=dict)
    """Tracked path that differs from HEAD → submodule state ("N..." for a file)."""


def read_code(host: Host, paths: tuple[str, ...]) -> Section[tuple[Code, ...]]:
    """One `Code` a path (absolute: a folder of a work tree, or a file), each once."""
    notes = Notes()
    found: dict[str, Code] = {}
    for path in paths:
        code = _read(host, path, notes)
        if code is not None:
            found.setdefault(code.path, code)
    return notes.section(tuple(found.values()))


def _read(host: Host, path: str, notes: Notes) -> Code | None:
    what = f"code {path}"
    try:
        is_folder = host.stat_target(path).is_directory
    except OSError as error:
        notes.unseen(what, "it is not there" if isinstance(error, FileNotFoundError) else error)
        return None
    folder = path if is_folder else posixpath.dirname(path)
    try:
        top = _ask(host, folder, "rev-parse", "--show-toplevel", "--is-bare-repository")
    except OSError as error:
        return _from_files(host, folder, f"git cannot be asked: {reason(error)}", notes)
    if top.code != 0:
        return _refused(host, path, folder, top, notes)
    root = top.out.splitlines()[0]
    scope = posixpath.relpath(path, root) if path != root and not is_folder else "."
    return _of_tree(host, root if is_folder else path, root, scope, notes)


def _ask(host: Host, folder: str, *words: str) -> Answer:
    return host.query(("git", "-C", folder, *words), None, 60.0)


def _refused(host: Host, path: str, folder: str, answer: Answer, notes: Notes) -> Code | None:
    said = next((line for line in answer.err.splitlines() if line.strip()), f"git ended with {answer.code}")
    said = said.removeprefix("fatal: ")
    if "must be run in a work tree" in answer.err:
        notes.unseen(f"code {path}", "a bare repository: nothing is checked out here")
        return None
    found = _from_files(host, folder, f"git refuses: {said}", notes)
    if found is None and path != folder and "not a git repository" in answer.err:
        return _plain_file(host, path, notes)
    return found


def _plain_file(host: Host, path: str, notes: Notes) -> Code | None:
    """A configured file outside of version control: its content is all there is to hold on to."""
    try:
        return Code(path=path, commit=None, branch=None, dirty=None, diff_digest=host.digest(path))
    except OSError as error:
        notes.unseen(f"code {path}", error)
        return None


def _of_tree(host: Host, path: str, root: str, scope: str, notes: Notes) -> Code | None:
    what = f"code {path}"
    odd = odd_file(host, root)
    if odd is not None:
        return _from_files(host, root, f"{odd} is no regular file: git would wait for it", notes)
    words = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=no", "--ignore-submodules=none")
    try:
        status = _ask(host, root, *words, "--", scope)
    except OSError as error:
        return _from_files(host, root, f"git status: {reason(error)}", notes)
    if status.code != 0:
        return _from_files(host, root, f"git status: {status.err.strip()[:200]}", notes)
    tree = _parse_status(status.out)
    if tree.commit is None:
        notes.unseen(what, "the repository has no commit yet")
    return Code(
        path=path,
        commit=tree.commit,
        branch=tree.branch,
        dirty=bool(tree.changed),
        diff_digest=_content(host, root, tuple(tree.changed), what, notes) if tree.changed else None,
        dirty_files=tuple(sorted(tree.changed)),
        untracked_digest=_untracked(host, root, scope, what, notes),
        submodules=_submodules(host, root, tree.changed, what, notes),
        tree=_files_of(host, root, tree.commit),
    )


def _files_of(host: Host, root: str, commit: str | None) -> str | None:
    """The tree of a commit; None where git does not tell, which leaves the commit alone to go by."""
    if commit is None:
        return None
    try:
        answer = _ask(host, root, "rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")
    except OSError:
        return None
    return answer.out.strip() if answer.code == 0 and _COMMIT.fullmatch(answer.out.strip()) else None


def _parse_status(text: str) -> _Tree:
    """Porcelain v2 with -z: header lines, `1`/`2`/`u` entries; a rename's old name follows as a field of its own."""
    tree = _Tree()
    fields = iter(text.split("\0"))
    for entry in fields:
        kind, _, rest = entry.partition(" ")
        if entry.startswith("# branch.oid "):
            commit = entry.removeprefix("# branch.oid ")
            tree.commit = commit if _COMMIT.fullmatch(commit) else None
        elif entry.startswith("# branch.head "):
            head = entry.removeprefix("# branch.head ")
            tree.branch = None if head == "(detached)" else head
        elif kind in ("1", "2", "u"):
            parts = rest.split(" ", {"1": 7, "2": 8, "u": 9}[kind])
            tree.changed[parts[-1]] = parts[1]
            if kind == "2":
                tree.changed.setdefault(next(fields, ""), "N...")
    tree.changed.pop("", None)
    return tree


def _content(host: Host, root: str, names: tuple[str, ...], what: str, notes: Notes) -> str | None:
    """One digest over what the named files are now; staged or not makes no difference to what runs."""
    hasher, spent = hashlib.sha256(), 0
    for name in sorted(names):
        path = f"{root}/{name}"
        try:
            stat = host.find(path)
            if stat is None:
                state = "deleted"
            elif stat.is_link:
                state = f"link {host.readlink(path)}"
            elif stat.is_directory:
                state = f"submodule {_checked_out(host, path)}"
            else:
                spent += stat.size
                if spent > MOST_BYTES:
                    notes.unseen(what, f"more than {MOST_BYTES >> 30} GiB differ from the commit")
                    return None
                state = f"{'x' if stat.mode & 0o100 else '-'} {host.digest(path)}"
        except OSError as error:
            notes.unseen(what, f"{name}: {reason(error)}")
            return None
        hasher.update(f"{name}\0{state}\n".encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()


def _untracked(host: Host, root: str, scope: str, what: str, notes: Notes) -> str | None:
    """A digest of untracked code files that are not ignored; None where there are none."""
    if scope != ".":
        return None
    patterns = [f":(glob)**/{pattern}" for pattern in CODE_PATTERNS]
    try:
        answer = _ask(host, root, "ls-files", "--others", "--exclude-standard", "-z", "--", *patterns)
    except OSError as error:
        notes.unseen(f"{what}: untracked files", error)
        return None
    names = tuple(name for name in answer.out.split("\0") if name)
    if answer.code != 0:
        notes.unseen(f"{what}: untracked files", answer.err.strip()[:200])
        return None
    if len(names) > MOST_UNTRACKED:
        notes.unseen(f"{what}: untracked files", f"{len(names)} code files are untracked")
        return None
    return _content(host, root, names, f"{what}: untracked files", notes) if names else None


def _submodules(host: Host, root: str, changed: dict[str, str], what: str, notes: Notes) -> dict[str, str]:
    """Path → commit that is checked out, with `-dirty` where its files differ from it."""
    try:
        if host.find(f"{root}/.gitmodules") is None:
            return {}
        answer = _ask(host, root, "ls-files", "--stage", "-z")
    except OSError as error:
        notes.unseen(f"{what}: submodules", error)
        return {}
    found = {}
    for entry in answer.out.split("\0"):
        facts, _, name = entry.partition("\t")
        if facts.startswith("160000 "):
            state = changed.get(name, "N...")
            dirty = "-dirty" if state[2:3] == "M" or state[3:4] == "U" else ""
            found[name] = _checked_out(host, f"{root}/{name}") + dirty
    return found


def _checked_out(host: Host, folder: str) -> str:
    return _head(host, folder)[0] or "not checked out"


def _from_files(host: Host, folder: str, why: str, notes: Notes) -> Code | None:
    """Commit and branch as `.git` holds them; everything that needs git itself is unknown. None without a `.git`."""
    root = folder
    while root not in ("/", ""):
        try:
            if host.find(f"{root}/.git") is not None:
                break
        except OSError as error:
            notes.unseen(f"code {folder}", error)
            return None
        root = posixpath.dirname(root)
    else:
        return None
    commit, branch = _head(host, root)
    notes.unseen(f"code {root}", f"{why}: whether its files are those of the commit is not known")
    return Code(path=root, commit=commit, branch=branch, dirty=None, diff_digest=None)


def _head(host: Host, root: str) -> tuple[str | None, str | None]:
    """(commit, branch) of a work tree from HEAD, the loose ref, and packed-refs; None for what they do not tell."""
    try:
        store = f"{root}/.git"
        if not host.stat(store).is_directory:  # a linked work tree or a submodule: a file that points elsewhere
            pointed = _line(host, store).removeprefix("gitdir: ")
            store = posixpath.normpath(posixpath.join(root, pointed))
        head = _line(host, f"{store}/HEAD")
        if not head.startswith("ref: "):
            return (head if _COMMIT.fullmatch(head) else None), None
        ref = head.removeprefix("ref: ")
        branch = ref.removeprefix("refs/heads/")
        common = store
        if host.find(f"{store}/commondir") is not None:
            common = posixpath.normpath(posixpath.join(store, _line(host, f"{store}/commondir")))
        return _resolve(host, common, ref), branch
    except OSError:
        return None, None  # the caller says what git said; a damaged .git adds nothing to it


def _resolve(host: Host, store: str, ref: str) -> str | None:
    if host.find(f"{store}/{ref}") is not None:
        commit = _line(host, f"{store}/{ref}")
        return commit if _COMMIT.fullmatch(commit) else None
    if host.find(f"{store}/packed-refs") is None:
        return None
    for line in host.read(f"{store}/packed-refs", 16 << 20).decode("utf-8", "replace").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref and _COMMIT.fullmatch(commit):
            return commit
    return None


def _line(host: Host, path: str) -> str:
    return host.read(path, 64 << 10).decode("utf-8", "surrogateescape").strip()

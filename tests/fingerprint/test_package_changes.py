"""What counts as a difference of packages that no RECORD describes, or whose files are not what RECORD says."""

from __future__ import annotations

from typing import Any

import pytest

from envguard.fingerprint.diff import compare
from envguard.model.fingerprint import Code, Fingerprint, Package, Problem, Shadowed
from envguard.model.identity import fingerprint_id
from tests.fingerprint.made import fingerprint, package, replace, tree

A, B = "/home/ada/main", "/home/ada/copy"


def editable(path: str = A, source: str | None = "1" * 64, name: str = "mine", **more: Any) -> Package:
    return package(name, editable=path, source=source, **more)


def side(*packages: Package, code: tuple[Code, ...] = (), **more: Any) -> Fingerprint:
    return fingerprint(package("torch", "2.11.0+cu128"), *packages, code=code, **more)


def told(a: Fingerprint, b: Fingerprint) -> tuple[int, list[tuple[str, str, str]]]:
    """Exit code, and (facet, subject, severity) of each drift above info."""
    report = compare(a, b)
    rows: list[tuple[str, str, str]] = [
        (item.facet, item.subject, item.severity) for item in report.drifts if item.severity != "info"
    ]
    return report.exit_code(), rows


MINE = [("packages", "mine", "warn")]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (editable(), (0, [])),
        (editable(source="2" * 64), (1, MINE)),
        (editable(B, "2" * 64), (1, MINE)),
        (editable(B), (0, [])),
        (editable(source=None), (3, [])),
        (editable(B, None), (3, [])),
        (package("mine"), (1, MINE)),
        (editable(version="0.2"), (1, MINE)),
        (editable(departs=("__editable__.mine.pth",), record="r"), (1, MINE)),
    ],
)
def test_an_editable_install_is_compared_by_content_and_by_where_it_points(
    now: Package, expected: tuple[int, list[tuple[str, str, str]]]
) -> None:
    assert told(side(editable()), side(now)) == expected


def test_where_it_points_is_said_and_no_difference_on_another_machine() -> None:
    [drift] = compare(side(editable()), side(editable(B))).drifts
    assert (drift.severity, drift.a, drift.b) == ("info", A, B)
    there = side(editable(B))
    there = replace(there, python=replace(there.python, prefix="/other/venv"))
    assert compare(side(editable()), there).drifts == ()


@pytest.mark.parametrize("name", ["torch", "flash-attn", "apex"])
def test_code_that_torch_is_made_of_blocks(name: str) -> None:
    a, b = (fingerprint(editable(source=text * 64, name=name), code=()) for text in "12")
    assert [item[2] for item in told(a, b)[1]] == ["block"]


def test_a_stamp_without_contents_leaves_it_to_the_git_tree() -> None:
    """As earlier versions stamped."""
    old = side(editable(source=None), code=(tree(path=A),))
    assert told(old, old)[0] == 0
    assert told(old, side(editable(), code=(tree(path=A),)))[0] == 3
    without = side(editable(source=None))
    assert told(without, without)[0] == 3


def test_what_git_tells_is_told_once() -> None:
    a = side(editable(), code=(tree(path=A),))
    edited = replace(tree(path=A), dirty=True, diff_digest="d" * 64, dirty_files=("mine/x.py",))
    assert told(a, side(editable(source="2" * 64), code=(edited,))) == (1, [("code", A, "warn")])
    # An extension that git ignores, and files that it does not track, are no commit and no edit.
    for same in (tree(path=A), replace(tree(path=A), untracked_digest="u" * 64)):
        assert told(a, side(editable(source="2" * 64), code=(same,))) == (1, MINE)


@pytest.mark.parametrize("kind", ["worktree", "clone", "plain copy"])
def test_two_trees_that_share_a_venv(kind: str) -> None:
    """The project's own tree stays what it was; the environment leads to another one."""
    there = {
        "worktree": (tree(path=A), replace(tree(path=B), commit="b" * 40, branch="exp")),
        "clone": (tree(path=A), tree(path=B)),
        "plain copy": (tree(path=A),),
    }[kind]
    a, b = side(editable(), code=(tree(path=A),)), side(editable(B, "2" * 64), code=there)
    assert told(a, b) == (1, MINE)
    assert told(b, a) == (1, MINE), "nothing is called gone that only no longer is looked at"


def test_trees_of_one_install_are_one_tree_wherever_they_lie() -> None:
    own = tree(path="/home/ada/project")
    a = side(editable(), code=(own, tree(path=A)))
    assert told(a, side(editable(B), code=(own, tree(path=B)))) == (0, [])
    moved = replace(tree(path=B), commit="b" * 40)
    code, rows = told(a, side(editable(B, "2" * 64), code=(own, moved)))
    assert (code, ("code", B, "warn") in rows) == (1, True)
    assert told(a, side(code=(own,)))[1] == [("packages", "mine", "warn")]


def test_a_file_outside_of_version_control_is_known_by_content() -> None:
    a, b = (Code(path="/srv/train.py", commit=None, branch=None, dirty=None, diff_digest=text) for text in "12")
    assert told(side(code=(a,)), side(code=(a,)))[0] == 0
    assert told(side(code=(a,)), side(code=(b,))) == (1, [("code", "/srv/train.py", "warn")])


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ("1", "1", (0, [])),
        ("1", "2", (1, [("packages", "apex", "block")])),
        ("1", None, (3, [])),
        (None, "2", (3, [])),
    ],
)
def test_an_egg_is_compared_by_content(
    then: str | None, now: str | None, expected: tuple[int, list[tuple[str, str, str]]]
) -> None:
    a, b = (side(replace(package("apex"), build=None, source=text)) for text in (then, now))
    assert told(a, b) == expected
    assert (a.id == b.id) == (then == now)


def test_an_id_of_before_contents_were_known_stays_what_it_was() -> None:
    old = side(replace(package("apex"), build=None), editable(source=None))
    new = side(replace(package("apex"), build=None), editable(source="1" * 64))
    assert old.id == new.id == fingerprint_id(old.python, old.packages, old.torch, old.driver, old.gpus)


def with_files(missing: str = "", altered: str = "", taken: str = "", name: str = "pine") -> Package:
    """A package of which some files (a letter each) are not as its RECORD says."""
    departs = tuple(sorted(missing + altered + taken))
    if not departs:
        return package(name)
    return package(
        name,
        build=f"{missing}-{altered}-{taken}".encode().hex().ljust(64, "0"),
        departs=departs,
        missing=tuple(missing),
        overwritten=tuple((path, "oak") for path in taken),
    )


@pytest.mark.parametrize(
    ("then", "now", "kinds"),
    [
        (with_files(), with_files(altered="a"), {"patched"}),
        (with_files(), with_files(taken="a"), {"overwritten"}),
        (with_files(), with_files(altered="a", taken="b"), {"patched", "overwritten"}),
        (with_files(missing="a"), with_files(missing="ab"), {"problem:files-missing"}),
        (with_files(taken="ab"), with_files(missing="ab"), {"problem:files-missing"}),
        (with_files(missing="a"), with_files(altered="a"), {"patched"}),
        (with_files(altered="a"), with_files(), {"mended"}),
        (with_files(missing="a"), with_files(altered="b"), {"mended", "patched"}),
        (with_files(taken="a"), with_files(), {"mended"}),
        (with_files(altered="a"), replace(with_files(altered="a"), build="9" * 64), {"patched"}),
        (with_files(), package("pine", build="9" * 64), {"rebuilt"}),
        (with_files(), replace(with_files(altered="a"), record="9" * 64), {"rebuilt", "patched"}),
    ],
)
def test_damage_is_no_other_build(then: Package, now: Package, kinds: set[str]) -> None:
    lacked, lacks = (
        (Problem(kind="files-missing", subject="pine", says="some are missing"),) if item.missing else ()
        for item in (then, now)
    )
    if "problem:files-missing" in kinds:
        lacked = lacks  # else the problem itself is the row
    report = compare(side(then, problems=lacked), side(now, problems=lacks))
    assert {drift.kind for drift in report.drifts} == kinds


@pytest.mark.parametrize("name", ["triton-xpu", "pytorch-triton-rocm", "triton", "flash-attn"])
def test_a_package_whose_files_are_anothers_names_it(name: str) -> None:
    [drift] = compare(side(package(name)), side(with_files(taken="a", name=name))).drifts
    assert (drift.kind, drift.severity, drift.b) == ("overwritten", "block", "oak")
    assert "oak installs files of the same path" in drift.why


@pytest.mark.parametrize("name", ["torch", "nvidia-nccl-cu12", "flash-attn", "pine"])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("/usr/lib/python3/site-packages", "/venv/lib/python3.11/site-packages"),
        ("/usr/lib/python3/site-packages", "/home/ada/.local/lib/python3.11/site-packages"),
        ("/venv/lib/python3.11/site-packages", "/home/ada/overlay"),
    ],
)
def test_what_is_hidden_was_not_replaced(theirs: str, ours: str, name: str) -> None:
    """A venv over system packages, `--user`, `--target` on PYTHONPATH."""
    then, now = package(name, "1.0", location=theirs), package(name, "2.0", location=ours)
    beaten = Shadowed(name=name, wins=f"{ours}/{name}-2.0.dist-info", loses=f"{theirs}/{name}-1.0.dist-info")
    told = compare(fingerprint(then), fingerprint(now, shadowed=(beaten,), torch=None)).drifts
    kinds = {drift.kind: drift for drift in told if drift.subject == name and drift.kind != "shadowed"}
    assert set(kinds) == {"hidden"}
    assert (kinds["hidden"].a, kinds["hidden"].b) != (None, None)
    assert "still installed" in kinds["hidden"].why
    replaced = fingerprint(replace(now, location=theirs), torch=None)
    assert "hidden" not in {drift.kind for drift in compare(fingerprint(then), replaced).drifts}

"""Configuration: which source wins, and what a misspelt key says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from envguard import config
from envguard.errors import UsageError
from envguard.project import find_root, open_project


def test_later_sources_win_over_earlier_ones(tmp_path: Path) -> None:
    user = tmp_path / "user.toml"
    user.write_text('refuse = "block"\nlock = "user.toml"\nstate = "user-state"\n')
    (tmp_path / "envguard.toml").write_text('lock = "project.toml"\nstate = "project-state"\n')
    merged = config.load(tmp_path, {"ENVGUARD_STATE": "/env-state"}, user)
    assert (merged.refuse, merged.lock, merged.state) == ("block", "project.toml", "/env-state")


@pytest.mark.parametrize(
    ("text", "hint"), [('checkpoint = ["x"]', "did you mean `checkpoints`?"), ("zzz = 1", "the keys are:")]
)
def test_an_unknown_key_is_an_error_with_a_suggestion(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "envguard.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        config.load(tmp_path, {}, None)
    assert hint in str(caught.value.hint)


def test_a_variable_of_a_wrong_type_is_an_error() -> None:
    with pytest.raises(UsageError, match="refuse"):
        config.load(None, {"ENVGUARD_REFUSE": "never"}, None)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ('refuse = "wran"', "refuse: Invalid enum value 'wran'", "`refuse` is one of: warn, block"),
        ('checkpoints = "runs"', "checkpoints: Expected `array`, got `str`", "configuration.md"),
        ("[throughput]\nfraction = 7", "throughput.fraction: Expected `float` <= 1.0", "configuration.md"),
        ("vault_max_days = -1", "vault_max_days: Expected `int` >= 0", "configuration.md"),
    ],
)
def test_a_wrong_value_names_the_file_the_key_and_what_it_takes(
    tmp_path: Path, text: str, says: str, hint: str
) -> None:
    (tmp_path / "envguard.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        config.load(tmp_path, {}, None)
    assert str(caught.value) == f"{tmp_path / 'envguard.toml'}: {says}"
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "says"),
    [("ENVGUARD_REFUZE", "did you mean `ENVGUARD_REFUSE`?"), ("ENVGUARD_FOO", "the keys are: python")],
)
def test_an_unknown_variable_is_a_doubt_and_ends_nothing(tmp_path: Path, name: str, says: str) -> None:
    environ = {name: "block", "ENVGUARD_LAUNCH": "x", "ENVGUARD_STATE": "/s"}
    assert config.load(None, environ, None) == config.Config(state="/s")
    (doubt,) = config.doubts(tmp_path, tmp_path, environ)
    assert doubt.startswith(f"variable {name} is ignored: {says}")


ODD_PYPROJECT = {
    "garbage": lambda path: path.write_bytes(b"\xff\x00"),
    "5,000 digits": lambda path: path.write_text("a = " + "9" * 5000),
    "nested": lambda path: path.write_text("a = " + "[" * 100_000),
    "hole": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "loop": lambda path: path.symlink_to(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("odd", ODD_PYPROJECT)
def test_an_odd_pyproject_is_named_and_ends_nothing(tmp_path: Path, odd: str) -> None:
    make: Any = ODD_PYPROJECT[odd]
    make(tmp_path / "pyproject.toml")
    (tmp_path / ".git").mkdir()
    assert find_root(tmp_path) == tmp_path
    assert config.load(tmp_path, {}, None) == config.Config()
    (doubt,) = config.doubts(tmp_path, tmp_path, {})
    assert doubt.startswith(f"{tmp_path}/pyproject.toml is ignored: ")


@pytest.mark.parametrize("odd", ODD_PYPROJECT)
def test_an_odd_configuration_of_ours_is_an_error(tmp_path: Path, odd: str) -> None:
    make: Any = ODD_PYPROJECT[odd]
    make(tmp_path / "envguard.toml")
    with pytest.raises(UsageError, match=r"envguard\.toml cannot be read"):
        config.load(find_root(tmp_path), {}, None)


def test_a_broken_pyproject_with_our_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.envguard]\nrefuse = "block\n')
    assert find_root(tmp_path) == tmp_path
    with pytest.raises(UsageError, match=r"pyproject\.toml cannot be read"):
        config.load(tmp_path, {}, None)


def test_lists_from_variables_are_split_like_path(tmp_path: Path) -> None:
    assert config.load(None, {"ENVGUARD_CHECKPOINTS": "a:b"}, None).checkpoints == ("a", "b")


def test_hyphens_are_as_good_as_underscores(tmp_path: Path) -> None:
    (tmp_path / "envguard.toml").write_text('link-mode = "hardlink"')
    assert config.load(tmp_path, {}, None).link_mode == "hardlink"


def test_pyproject_counts_only_with_its_table(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "pyproject.toml").write_text("[tool.envguard]\nrefuse = 'block'\n")
    assert find_root(inner) == tmp_path
    assert open_project(inner, {"HOME": str(tmp_path)}).config.refuse == "block"


def test_state_lies_in_the_project_or_by_prefix_in_the_state_home(tmp_path: Path) -> None:
    (tmp_path / "p" / ".git").mkdir(parents=True)
    assert open_project(tmp_path / "p", {}).state == tmp_path / "p" / ".envguard"
    bare = tmp_path / "bare"
    bare.mkdir()
    environ = {"XDG_STATE_HOME": str(tmp_path / "s")}
    one = open_project(bare, environ, prefix="/venv/a").state
    two = open_project(bare, environ, prefix="/venv/b").state
    assert one.parent == tmp_path / "s" / "envguard"
    assert one != two

"""Installs that did not end, and folders that only look like one."""

from __future__ import annotations

import shutil

import pytest

from envguard.acquire.packages.cut_short import read_cut_short
from envguard.acquire.packages.distributions import read_distributions
from envguard.acquire.packages.environment import locate
from envguard.acquire.packages.site_trees import SiteTrees
from envguard.acquire.seam.host import LiveHost
from envguard.demo.stage import Stage
from envguard.demo.wheels import build_wheel
from envguard.model.evidence import Unknown


def told(stage: Stage) -> list[str]:
    host, unknown = LiveHost(), list[Unknown]()
    env = locate(host, str(stage.python), "/")
    return [
        item.package
        for item in read_cut_short(host, env, read_distributions(host, env), SiteTrees(host, unknown), unknown)
    ]


@pytest.mark.parametrize("version", ["0.9", "1.1", "1.12.1+cu116"])
def test_an_empty_dist_info_beside_a_whole_install_is_stale_and_no_install(version: str, stage: Stage) -> None:
    build_wheel(stage.wheels, "pine", "1.0", {"pine/__init__.py": b"", "pine/a.py": b"x = 1\n"})
    stage.install("pine")
    (stage.site / f"pine-{version}.dist-info").mkdir()
    assert told(stage) == []
    (stage.site / "pine/a.py").unlink()
    assert told(stage) == ["pine"], "with a file of the other one gone, either may be what was cut short"
    shutil.rmtree(stage.site / "pine-1.0.dist-info")
    assert "pine" in told(stage)

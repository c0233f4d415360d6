"""The machine under the environment, on the kinds of machine that there are."""

from __future__ import annotations

import platform

import pytest

from envguard.acquire.machine.system import read_system
from envguard.acquire.seam.host import LiveHost
from tests.acquire.made_up import MACHINE, MadeUp

UBUNTU = b'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\n'
MEMORY = b"MemTotal:       16303428 kB\nMemFree: 1 kB\n"
FILES: dict[str, bytes | OSError] = {
    "/etc/os-release": UBUNTU,
    "/proc/meminfo": MEMORY,
    "/proc/cpuinfo": b"processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n",
    "/proc/1/cgroup": b"0::/init.scope\n",
}


def test_this_machine() -> None:
    section = read_system(LiveHost())
    found = section.value
    assert (found.host, found.kernel, found.arch) == (platform.node(), platform.release(), platform.machine())
    assert found.os
    assert found.memory_bytes
    assert found.boot_time
    assert section.unknown == ()


def test_a_bare_machine() -> None:
    found = read_system(MadeUp(FILES)).value
    assert (found.os, found.cpu, found.container) == ("Ubuntu 24.04.3 LTS", "AMD EPYC 9654 96-Core Processor", None)
    assert found.memory_bytes == 16303428 * 1024
    assert (found.cpus, found.boot_time) == (8, "2023-11-14T22:13:20+00:00")


@pytest.mark.parametrize(
    ("more", "environ", "kind"),
    [
        ({"/.dockerenv": b""}, {}, "docker"),
        ({"/run/.containerenv": b""}, {}, "podman"),
        ({"/run/systemd/container": b"lxc\n"}, {}, "lxc"),
        ({"/run/systemd/container": b"systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({}, {"container": "lxc"}, "lxc"),
        ({"/proc/1/cgroup": b"0::/lxc/200/init.scope\n"}, {}, "lxc"),
        ({"/proc/1/cgroup": b"12:pids:/docker/4ac5\n"}, {}, "docker"),
        ({"/proc/1/cgroup": b"0::/system.slice/docker-4ac5.scope\n"}, {}, "docker"),
        ({"/proc/1/cgroup": b"0::/kubepods.slice/kubepods-burstable.slice\n"}, {}, "kubernetes"),
        ({"/.dockerenv": b""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"/var/run/secrets/kubernetes.io/serviceaccount/namespace": b"ml"}, {}, "kubernetes"),
        ({"/proc/self/mounts": b"lxcfs /proc/meminfo fuse.lxcfs rw 0 0\n"}, {}, "lxc"),
    ],
)
def test_containers(more: dict[str, bytes], environ: dict[str, str], kind: str) -> None:
    assert read_system(MadeUp({**FILES, **more}, environ=environ)).value.container == kind


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(b"max\n", 16303428 * 1024), (b"8589934592\n", 8 << 30), (b"9223372036854771712", 16303428 * 1024)],
)
def test_a_cgroup_s_limit_is_what_counts(limit: bytes, expected: int) -> None:
    assert read_system(MadeUp({**FILES, "/sys/fs/cgroup/memory.max": limit})).value.memory_bytes == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"NAME=Alpine\nVERSION_ID=3.20\n", "Alpine 3.20"),
        (b"PRETTY_NAME='Debian \"12\"'\n", 'Debian "12"'),
        (b'PRETTY_NAME="unclosed\n', "unclosed"),
        (b"\xff\xfe\n", None),
        (b"", None),
    ],
)
def test_an_os_release_of_any_form(text: bytes, name: str | None) -> None:
    assert read_system(MadeUp({**FILES, "/etc/os-release": text})).value.os == name


def test_an_arm_server_names_its_parts() -> None:
    text = b"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    assert read_system(MadeUp({**FILES, "/proc/cpuinfo": text})).value.cpu == "implementer 0x41 part 0xd4f"


def test_what_is_refused_is_unknown_and_the_rest_is_there() -> None:
    refused = PermissionError(13, "Permission denied")
    section = read_system(MadeUp(dict.fromkeys(FILES, refused), machine={**MACHINE, "boot_time": None}))
    assert {item.what for item in section.unknown} == {
        "system os", "system container", "system cpu", "system memory",
    }  # fmt: skip
    assert section.value.host == "box"
    assert section.value.boot_time is None

"""PEP 508's marker values of an environment, from what its files tell: never those of the interpreter that asks."""

from __future__ import annotations

import platform

# As `sys.implementation.name` and `platform.python_implementation()` spell them.
_IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy"}


def marker_values(
    implementation: str | None, version: str | None, arch: str, kernel: str, system: str = "Linux"
) -> dict[str, str]:
    """Every marker variable but `extra`, the one table of them.

    `implementation` in either spelling, `version` of the language in full, `arch`, `kernel` and `system` as uname
    has them. Where the files name no version, that of the running interpreter stands in. `platform_version` (the
    kernel's build line) is recorded nowhere and empty.
    """
    name = (implementation or "cpython").lower()
    full = version or platform.python_version()
    return {
        "implementation_name": name,
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": arch,
        "platform_python_implementation": _IMPLEMENTATIONS.get(name, implementation or "CPython"),
        "platform_release": kernel,
        "platform_system": system,
        "platform_version": "",
        "python_full_version": full,
        "python_version": ".".join(full.split(".")[:2]),
        "sys_platform": system.lower(),
    }

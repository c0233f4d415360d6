"""What a wheel's WHEEL file says of the wheel: the tags that an interpreter has to take, and the build number."""

from __future__ import annotations

import itertools

from envguard.acquire.packages.metadata import parse_headers


def parse_wheel(text: str) -> tuple[tuple[str, ...], str | None]:
    """(tags, build number or None) of a WHEEL file.

    Builders are to write one tag a line. maturin before 1.8 wrote the compressed set of the file name
    (`cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64`), which no interpreter lists among the tags that it
    takes: safetensors 0.4 and tokenizers 0.19 would be wheels for no machine at all.
    """
    headers = parse_headers(text)
    tags = dict.fromkeys(tag for line in headers.get("tag", ()) for tag in _expanded(line))
    return tuple(tags), next(iter(headers.get("build", ())), None)


def _expanded(line: str) -> tuple[str, ...]:
    parts = line.split("-")
    if len(parts) != 3:
        return (line,)
    return tuple("-".join(tag) for tag in itertools.product(*(part.split(".") for part in parts)))

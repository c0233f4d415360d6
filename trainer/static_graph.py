"""How everything here is compiled: whole, for static shapes, with numbers that no stopwatch decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

# Kernels whose numbers depend on their tiles (reductions) get them by rule: timed at each cold start, on a GPU that
# is warmer by then, a run resumed without its compile cache would go on with other losses. It has to be an option of
# each function: set for the process, torch takes it back once it has traced the first one, for it then restores
# `use_deterministic_algorithms`, which sets inductor's flag along with its own.
OPTIONS: dict[str, Any] = {"deterministic": True}


def static_graph(function: Function) -> Function:
    """``function`` in one graph a shape, compiled when it is first called with it, forward and backward."""
    return cast("Function", torch.compile(function, dynamic=False, fullgraph=True, options=OPTIONS))

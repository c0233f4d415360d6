"""Compilation without surprises: private cache a build, counted recompiles, never a silent fall to eager.

One thread of a process compiles: the one that runs the steps. Prefetch and transport threads touch no
compiled function, which ``CompiledDrafter`` checks on every call.
"""

from __future__ import annotations

import os
import stat
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainer.config import LayerType
from trainer.errors import CompileError
from trainer.mask import Mask
from trainer.model import Drafter
from trainer.static_graph import static_graph

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True)
class CompileCounts:
    """Graphs compiled and cache hits and misses of this process so far."""

    graphs: int
    hits: int
    misses: int

    @classmethod
    def now(cls) -> CompileCounts:
        """Reads torch's own counters."""
        from torch._dynamo.utils import counters

        autograd, inductor = counters["aot_autograd"], counters["inductor"]
        return cls(
            graphs=counters["stats"]["unique_graphs"],
            hits=autograd["autograd_cache_hit"] + inductor["fxgraph_cache_hit"],
            misses=autograd["autograd_cache_miss"] + inductor["fxgraph_cache_miss"],
        )


def private_cache(root: str) -> Path:
    """Points inductor at a directory of this torch build alone, unless the environment names one.

    Raises CompileError where others may write there: cache entries are run as code.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch writes its default into the environment when dynamo is imported: that is nobody's choice.
    if os.environ.get(CACHE_VARIABLE) in (None, default_cache_dir()):
        version = f"{torch.__version__}-{torch.version.git_version[:12]}"
        os.environ[CACHE_VARIABLE] = str(Path(root).absolute() / version)
    path = Path(os.environ[CACHE_VARIABLE])
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    _refuse_others(path, stat.S_IWGRP | stat.S_IWOTH)
    # Precompiled C++ headers lie in torch's default place whatever the variable says. torch makes it by the umask,
    # which often lets the user's own group write.
    if (headers := Path(default_cache_dir())).exists():
        _refuse_others(headers, stat.S_IWOTH)
    return path


def _refuse_others(folder: Path, writable: int) -> None:
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & writable:
        raise CompileError(f"{folder} is another user's or others may write there; what lies there is run as code")


def shorten_tracing(device: torch.device) -> None:
    """Takes from a start what a process that traces would wait for: 0.6 of the 6.7 s of a warm one.

    torch asks for the number of devices some thousand times while it traces; with this variable it remembers it. Its
    cache keys hold a digest of all of triton, which another thread takes while target and drafter are made.
    """
    if device.type != "cuda":
        return
    from torch._inductor.runtime.triton_compat import HAS_TRITON, triton_key

    if HAS_TRITON:
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        threading.Thread(target=triton_key, name="digest of triton", daemon=True).start()


def compile_strictly() -> None:
    """Makes errors of flex_attention's one warning that it runs uncompiled, and of a code object past its limit."""
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    warnings.filterwarnings("error", message=".*flex_attention called without torch.compile.*")


class CompiledDrafter:
    """The drafter's forward, its body compiled whole with static shapes; plain where compilation is off.

    ``flex``: attention is compiled even so. Call ``freeze`` after every shape has run forward and backward:
    from then on a recompile is an error.
    """

    def __init__(self, drafter: Drafter, *, enabled: bool, shapes: int, flex: bool = False) -> None:
        self.enabled = enabled
        self.compiles = enabled or flex
        self.frozen: CompileCounts | None = None
        self.thread = threading.get_ident()
        self.drafter = drafter
        self.body: Callable[..., Tensor] = drafter.body
        if self.compiles:
            torch._dynamo.config.recompile_limit = max(8, 2 * shapes)
        if enabled:
            self.body = static_graph(drafter.body)

    def __call__(
        self, taps: Tensor, position: Tensor, block: Tensor, block_position: Tensor, masks: Mapping[LayerType, Mask]
    ) -> Tensor:
        """``Drafter.forward``; CompileError where it would compile after ``freeze`` or comes from another thread."""
        if threading.get_ident() != self.thread:
            raise CompileError("the drafter was called from a second thread of its process")
        try:
            at_context, at_block = self.drafter.rotary(position), self.drafter.rotary(block_position)
            return self.body(taps, at_context, block, at_block, masks)
        except RuntimeError as error:
            if self.frozen is not None and "recompile" in str(error):
                raise CompileError(f"a compiled function met a new shape after warm-up: {error}") from error
            raise

    def freeze(self) -> None:
        """Forbids any further compilation in this process."""
        if self.compiles:
            torch.compiler.set_stance("fail_on_recompile")
            self.frozen = CompileCounts.now()

    @property
    def recompiles(self) -> int:
        """Graphs compiled since ``freeze``; anything but 0 is a fault."""
        return CompileCounts.now().graphs - self.frozen.graphs if self.frozen is not None else 0

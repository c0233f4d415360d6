"""How bad a difference is: one table, read top-down, the first rule that fits decides.

`diff` finds changes; this table grades them, and `docs/rules.md` is this table printed. A rule fits when its facet
is the change's and its patterns (shell patterns, `|` between alternatives) fit the change's kind and subject.
Each facet ends in a rule that fits everything, so that nothing goes ungraded.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache

import msgspec

from envguard.config import PolicyRule
from envguard.errors import UsageError
from envguard.model.drift import FACETS, Drift, Effect, Facet, Severity


@dataclass(frozen=True)
class Change:
    """A difference that has no grade yet. `detail` is what a person wants to know beside the two values."""

    facet: Facet
    subject: str
    kind: str
    a: str | None = None
    b: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class Rule:
    """`why` is a template over `{subject}`, `{a}`, `{b}`, `{detail}`."""

    facet: Facet
    kind: str
    subject: str
    severity: Severity
    effect: Effect
    why: str

    def fits(self, change: Change) -> bool:
        return self.facet == change.facet and _fits(self.kind, change.kind) and _fits(self.subject, change.subject)


def _fits(patterns: str, text: str) -> bool:
    return _globs(patterns).match(text) is not None


@cache
def _globs(patterns: str) -> re.Pattern[str]:
    """One expression for a whole list: it is asked of every package, of which there may be 100,000."""
    return re.compile("|".join(map(translate, patterns.split("|"))))


# The contract's `torch*, triton, nvidia-*, flash-attn, xformers, apex`.
TORCH_STACK = "torch*|triton|triton-*|pytorch-triton*|nvidia-*|flash-attn*|flash_attn*|xformers|apex"
# Those of the stack that are reported as packages; nvidia-ml-py is none, it only asks NVML.
BUILT_ON_TORCH = "torch*|flash-attn*|flash_attn*|xformers|apex"
# Libraries that compute, draw random numbers, tokenise or set the defaults of what computes.
NUMERIC = (
    "transformers|tokenizers|numpy|scipy|accelerate|peft|trl|datasets|safetensors|sentencepiece|tiktoken"
    "|bitsandbytes|deepspeed|megatron-*|transformer-engine*|liger-kernel|sglang*|vllm*|flashinfer*|timm|diffusers"
    "|lightning|pytorch-lightning|optimum*|unsloth*|kernels|einops|jax*|causal-conv1d|mamba-ssm|sgl-kernel"
)
DETERMINISM = (
    "NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32*|CUBLAS_WORKSPACE_CONFIG|CUBLASLT_WORKSPACE_SIZE|PYTHONHASHSEED"
    "|FLASH_ATTENTION_*|XFORMERS_*|TRANSFORMERS_*|HF_DATASETS_*|MKL_CBWR|NCCL_ALGO|NCCL_PROTO"
)
TUNING = (
    "PYTORCH_*|CUDA_*|NCCL_*|TORCH*|TRITON_*|INDUCTOR*|OMP_*|MKL_*|OPENBLAS_*|GLOO_*|UCX_*|DEEPSPEED_*|ACCELERATE_*"
)
CUDA_MATHS = (
    "nvidia-cublas*|nvidia-cudnn*|nvidia-cusparse*|nvidia-cusolver*|nvidia-cufft*|nvidia-curand*|nvidia-cutlass*"
)
# Set by torchrun, SLURM and the like for each rank: never one value for a run.
PER_RANK = (
    "RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_RANK|ROLE_WORLD_SIZE|GROUP_WORLD_SIZE|MASTER_ADDR"
    "|MASTER_PORT|TORCHELASTIC_*|SLURM_*|OMPI_*|PMI_*"
)
# Kind of change of a variable that a process gave another value than it was started with.
OWN = "own"


# First word of a problem's kind → the facet that it is about; the others are about packages.
PROBLEM_FACETS: dict[str, Facet] = {
    "torch": "torch", "triton": "torch", "library": "torch", "pair": "torch", "cuda": "cuda", "driver": "driver",
    "gpu": "gpu", "compile": "compile_cache", "code": "code", "config": "config", "data": "data", "python": "python",
    "base": "python", "pythonhome": "python", "system": "system", "install": "packages",
}  # fmt: skip
# Told by a row of its own, or about something that is no part of a comparison (a process that runs on old files).
PROBLEMS_TOLD_ELSEWHERE = ("driver-mismatch", "process-stale", "config-missing", "data-missing", "unowned")
STARTUP_CODE = ("pth-code", "startup-code")
PTH_LEAVES = "pth-leaves"
"""A `.pth` of no package that adds a path outside the environment."""
PROBLEMS_OF_CONTENTS = ("files-modified", "files-overwritten")


def takes_part(name: str) -> bool:
    """Whether a package is known to take part in what is computed."""
    return _fits(NUMERIC, name)


def is_torch_stack(name: str) -> bool:
    """Whether a package (normalised name) belongs to torch, what it is built on, or what is built against it.

    nvidia-ml-py only asks NVML: it holds no CUDA library, and monitoring tools come and go with it.
    """
    return _fits(TORCH_STACK, name) and name != "nvidia-ml-py"


RULES: tuple[Rule, ...] = (
    # python
    Rule("python", "changed", "implementation|abi|platform|minor", "block", "breaks",
         "compiled extensions and compile caches are made for one Python {subject}: {a}, not {b}"),
    Rule("python", "changed", "version", "warn", "numerics",
         "another patch release of Python ({a} → {b}); fixes in it can alter results"),
    Rule("python", "changed", "build", "warn", "numerics",
         "another build of the same Python release: {detail} ({a} → {b})"),
    Rule("python", "problem:base-minor|problem:base-gone|problem:base-script", "*", "block", "breaks", "{detail}"),
    Rule("python", "problem:*", "*", "warn", "breaks", "{detail}"),
    Rule("python", "*", "*", "warn", "breaks", "the interpreter differs in {subject}"),
    # torch: the package itself, triton, and what they were built from
    Rule("torch", "cpu", "torch", "block", "breaks",
         "a CPU build replaced the build for an accelerator ({detail}): no accelerator will be used"),
    Rule("torch", "gpu-build", "torch", "block", "breaks",
         "a build for an accelerator replaced the CPU build ({detail}): other numerics, and a driver is needed"),
    Rule("torch", "accelerator", "torch", "block", "breaks",
         "the build is for another accelerator ({detail}): it does not run on the one before"),
    Rule("torch", "changed", "torch", "block", "numerics",
         "another torch build: kernels and their rounding, memory use and every compile cache entry change with it"),
    Rule("torch", "rebuilt", "torch", "block", "numerics",
         "the same version number on another build ({detail}): not the torch that made the checkpoint"),
    Rule("torch", "patched", "*", "block", "numerics",
         "installed files were changed after the install: {detail}"),
    Rule("torch", "mended", "*", "warn", "numerics",
         "{a} had changed files that are as installed now: {detail}"),
    Rule("torch", "hidden", "*", "block", "numerics",
         "{b} hides {a}, which is still installed: {detail}"),
    Rule("torch", "overwritten", "*", "block", "numerics",
         "{b} installs files of the same path, and they lie over those of {subject}: {detail}"),
    Rule("torch", "repointed", "*", "info", "none", "{detail}; the code is the same"),
    Rule("torch", "metadata-gone", "*", "block", "breaks",
         "its metadata is gone and its code is still there ({detail}): of which build, nothing can tell"),
    Rule("torch", "removed", "torch", "block", "breaks", "torch is gone"),
    Rule("torch", "added", "torch", "block", "breaks", "there was no torch before"),
    Rule("torch", "changed|rebuilt", "*", "block", "numerics",
         "kernels are generated by {subject}: another build gives other kernels and a cold compile cache"),
    Rule("torch", "removed", "*", "block", "breaks", "torch.compile needs {subject}, which is gone"),
    Rule("torch", "added", "*", "warn", "performance", "{subject} was not there: torch compiles differently with it"),
    Rule("torch", "problem:*", "*", "block", "breaks", "{detail}"),
    Rule("torch", "*", "*", "block", "numerics", "torch differs in {subject}"),
    # cuda: what torch was built for, and the run-time libraries in wheels
    Rule("cuda", "changed", "build", "block", "performance",
         "built for CUDA {b}, not {a}: other libraries, another context size on each GPU, another least driver"),
    Rule("cuda", "changed|rebuilt|patched", CUDA_MATHS, "block", "numerics",
         "{subject} computes: another build rounds differently"),
    Rule("cuda", "changed|rebuilt|patched", "nvidia-nccl*", "block", "numerics",
         "NCCL chooses the order of reductions: another build rounds differently, and all nodes must agree on it"),
    Rule("cuda", "changed|rebuilt|patched", "*", "block", "performance",
         "another build of {subject}, which torch loads at run time"),
    Rule("cuda", "hidden", "*", "block", "numerics",
         "{b} hides {a}, which is still installed: {detail}"),
    Rule("cuda", "metadata-gone", "*", "block", "breaks",
         "its metadata is gone and its code is still there ({detail}): of which build, nothing can tell"),
    Rule("cuda", "removed", "*", "block", "breaks", "{subject} is gone: torch loads it at run time"),
    Rule("cuda", "added", "*", "warn", "breaks",
         "{subject} was not there: a second copy of a CUDA library can be loaded instead of the first"),
    Rule("cuda", "mended", "*", "warn", "numerics",
         "{subject} had changed files that are as installed now: {detail}"),
    Rule("cuda", "problem:*", "*", "block", "breaks", "{detail}"),
    Rule("cuda", "*", "*", "block", "breaks", "CUDA differs in {subject}"),
    # packages
    Rule("packages", "unmet", BUILT_ON_TORCH, "block", "breaks", "{detail}"),
    Rule("packages", "unmet-stack", "*", "block", "breaks", "{detail}"),
    Rule("packages", "unmet", "*", "warn", "breaks", "{detail}"),
    Rule("packages", "newcomer-unmet", "*", "info", "none",
         "{detail}; it came later and cannot work as it is, which nothing that ran before depends on"),
    Rule("packages", "shadowed", BUILT_ON_TORCH, "block", "breaks", "{detail}"),
    Rule("packages", "shadowed", "*", "warn", "breaks", "{detail}"),
    Rule("packages", "patched", BUILT_ON_TORCH, "block", "numerics",
         "installed files were changed after the install: {detail}"),
    Rule("packages", "patched", "*", "warn", "numerics",
         "installed files were changed after the install: {detail}"),
    Rule("packages", "mended", "*", "warn", "numerics",
         "it had changed files that are as installed now: {detail}"),
    Rule("packages", "rebuilt", BUILT_ON_TORCH, "block", "numerics",
         "the same version number on another build: made against another torch or CUDA, or changed"),
    Rule("packages", "changed", BUILT_ON_TORCH, "block", "numerics",
         "{subject} is built on torch and computes with it: another version can compute otherwise"),
    Rule("packages", "metadata-gone", BUILT_ON_TORCH, "block", "breaks",
         "its metadata is gone and its code is still there ({detail}): of which build, nothing can tell"),
    Rule("packages", "metadata-gone", "*", "warn", "breaks",
         "its metadata is gone and its code is still there ({detail}): of which build, nothing can tell"),
    Rule("packages", "removed", BUILT_ON_TORCH, "block", "breaks", "{subject} is gone: whatever imports it fails"),
    Rule("packages", "added", BUILT_ON_TORCH, "warn", "numerics",
         "{subject} was not there: models pick it up by themselves where they find it"),
    Rule("packages", "changed|rebuilt|origin", "transformers", "warn", "numerics",
         "resuming under another transformers has changed losses in silence (defaults, attention, loss scaling)"),
    Rule("packages", "changed|rebuilt|origin", NUMERIC, "warn", "numerics",
         "{subject} takes part in what is computed: results can change without an error"),
    Rule("packages", "removed", NUMERIC, "block", "breaks", "{subject} is gone"),
    Rule("packages", "changed|rebuilt|origin", "envguard-forensics", "info", "none",
         "envguard itself: it computes nothing"),
    Rule("packages", "changed", "*", "warn", "none",
         "another version; nothing is known of an effect on training, nor that there is none"),
    Rule("packages", "rebuilt", "*", "warn", "none", "the same version number with other content"),
    Rule("packages", "source", BUILT_ON_TORCH, "block", "numerics",
         "an editable install with other code than {subject} had: {detail}"),
    Rule("packages", "source", "*", "warn", "numerics",
         "an editable install with other code than {subject} had: {detail}"),
    Rule("packages", "hidden", BUILT_ON_TORCH, "block", "numerics",
         "{b} hides {a}, which is still installed: {detail}"),
    Rule("packages", "hidden", "*", "warn", "numerics",
         "{b} hides {a}, which is still installed: {detail}"),
    Rule("packages", "overwritten", BUILT_ON_TORCH, "block", "numerics",
         "{b} installs files of the same path, and they lie over those of {subject}: {detail}"),
    Rule("packages", "overwritten", "*", "warn", "numerics",
         "{b} installs files of the same path, and they lie over those of {subject}: {detail}"),
    Rule("packages", "repointed", "*", "info", "none", "{detail}; the code is the same"),
    Rule("packages", "origin", "*", "warn", "none", "installed from another place: {detail}"),
    Rule("packages", "removed", "*", "warn", "breaks", "{subject} is gone: whatever imports it fails"),
    Rule("packages", "hooks", "*", "warn", "numerics", "{subject} came later and takes part by itself: {detail}"),
    Rule("packages", "hooked", "*", "warn", "numerics", "{subject} takes part by itself, as it did not: {detail}"),
    Rule("packages", "added", "*", "info", "none",
         "came later; it shadows nothing and breaks nothing that was there"),
    Rule("packages", "overlay", "*", "info", "none",
         "`uv run --with` laid it over the environment for one command; the next command says for itself"),
    Rule("packages", "locked", "*", "info", "none", "{detail}"),
    Rule("packages", "unparsed", "*", "info", "none", "a requirement that cannot be read was not checked: {detail}"),
    Rule("packages", "startup", "*", "warn", "numerics", "what every start ran is gone: {detail}"),
    Rule("packages", "newcomer-problem", "*", "info", "none", "{detail}; it came later"),
    # Without its files a kernel is often done without, and the run goes on with another.
    Rule("packages", "problem:files-missing|problem:interrupted-install", BUILT_ON_TORCH, "block", "breaks",
         "{detail}"),
    Rule("packages", "problem:install-leftovers", "*", "info", "none", "{detail}"),
    Rule("packages", "problem:*", "*", "warn", "breaks", "{detail}"),
    Rule("packages", "*", "*", "warn", "none", "{subject} differs"),
    # driver
    Rule("driver", "changed", "agrees", "block", "breaks",
         "driver library and kernel module differ in version: CUDA fails until the machine is rebooted"),
    Rule("driver", "removed", "*", "block", "breaks", "there is no NVIDIA driver any more"),
    Rule("driver", "added", "*", "info", "none", "there was no NVIDIA driver before"),
    Rule("driver", "less", "version", "block", "breaks",
         "an older driver ({b}, was {a}): a CUDA build that is newer than it does not start"),
    Rule("driver", "changed|more", "*", "warn", "performance",
         "the driver compiles and schedules kernels: another one can change speed and memory, rarely results"),
    Rule("driver", "problem:*", "*", "block", "breaks", "{detail}"),
    Rule("driver", "*", "*", "warn", "performance", "the driver differs in {subject}"),
    # gpu
    Rule("gpu", "less|removed", "count", "block", "breaks", "fewer GPUs than the run was set up for"),
    Rule("gpu", "more|added", "count", "warn", "numerics",
         "more GPUs: where ranks follow the GPU count, batches and reductions are cut differently"),
    Rule("gpu", "changed", "model", "block", "numerics",
         "another GPU model: other kernels are chosen, other rounding, a cold compile cache"),
    Rule("gpu", "changed", "gpu*.compute_capability", "block", "numerics",
         "kernels are built for a compute capability"),
    Rule("gpu", "changed", "gpu*.mig", "block", "breaks", "MIG mode or slice differs: another memory and SM count"),
    Rule("gpu", "less", "gpu*.memory", "block", "breaks",
         "less memory on this GPU: a batch that just fitted will not"),
    Rule("gpu", "more", "gpu*.memory", "info", "none", "more memory on this GPU"),
    Rule("gpu", "changed", "gpu*.uuid", "info", "none", "another card of the same model"),
    Rule("gpu", "less|more|changed", "gpu*.power_limit", "warn", "performance", "the power limit bounds the clock"),
    Rule("gpu", "changed", "gpu*.ecc", "warn", "performance", "ECC takes bandwidth; without it flipped bits pass"),
    Rule("gpu", "changed", "gpu*.p2p", "warn", "performance", "GPUs reach each other by another path"),
    Rule("gpu", "problem:*", "*", "block", "breaks", "{detail}"),
    Rule("gpu", "*", "*", "warn", "performance", "the GPU differs in {subject}"),
    # memory
    Rule("memory", "more", "gpu*.context", "warn", "breaks",
         "an idle CUDA context takes {detail} more: a batch that just fitted runs out of memory"),
    Rule("memory", "*", "*", "info", "performance", "memory differs in {subject}"),
    # compile cache
    Rule("compile_cache", "unsafe", "*", "block", "breaks",
         "{detail}: whoever can write there runs code in the training process"),
    Rule("compile_cache", "cleared|removed", "*", "warn", "performance",
         "{detail}: the first start compiles cold, and all ranks at once"),
    Rule("compile_cache", "shrunk", "*", "warn", "performance",
         "most of the cache is gone: the first start compiles much of it again"),
    Rule("compile_cache", "stale", "*", "warn", "breaks",
         "{detail}, and is loaded by another torch without being built again: clear it"),
    Rule("compile_cache", "foreign", "*", "warn", "performance",
         "the entries are of another torch build: none will be used and the first start compiles cold"),
    Rule("compile_cache", "mixed", "*", "info", "performance",
         "entries of several torch builds lie together; only this build's are used"),
    Rule("compile_cache", "added|warmed|grown|changed", "*", "info", "performance", "runs add entries"),
    Rule("compile_cache", "moved", "*", "info", "performance",
         "what lies there is untouched and fits another build or GPU, and this build has a warm cache elsewhere"),
    Rule("compile_cache", "elsewhere", "*", "info", "performance", "a cache that the other side does not name"),
    Rule("compile_cache", "unseen", "*", "info", "performance", "nobody looked there on the other side"),
    Rule("compile_cache", "problem:*", "*", "warn", "performance", "{detail}"),
    Rule("compile_cache", "*", "*", "warn", "performance", "the cache differs in {subject}"),
    # code, config, data
    Rule("code", "dirty", "*", "warn", "numerics", "uncommitted edits that were not there: {detail}"),
    Rule("code", "edited", "*", "warn", "numerics", "the uncommitted edits are others: {detail}"),
    Rule("code", "clean", "*", "warn", "numerics", "uncommitted edits that the run had are gone"),
    Rule("code", "changed|submodule", "*", "warn", "numerics", "another commit is checked out"),
    Rule("code", "branch|recommitted|untracked|added|unlinked", "*", "info", "none", "{detail}"),
    Rule("code", "files", "*", "warn", "numerics", "the code differs"),
    Rule("code", "removed|missing", "*", "block", "breaks", "the code is gone"),
    Rule("code", "problem:*", "*", "warn", "numerics", "{detail}"),
    Rule("code", "*", "*", "warn", "numerics", "the code differs"),
    Rule("config", "removed|missing", "*", "block", "breaks", "the configuration is gone"),
    Rule("config", "problem:*", "*", "warn", "breaks", "{detail}"),
    Rule("config", "added", "*", "info", "none", "not recorded before"),
    Rule("config", "*", "*", "warn", "numerics", "the run would start with other settings"),
    Rule("data", "removed|missing", "*", "block", "breaks", "the data is gone"),
    Rule("data", "problem:*", "*", "block", "breaks", "{detail}"),
    Rule("data", "added", "*", "info", "none", "not recorded before"),
    Rule("data", "*", "*", "warn", "numerics",
         "other data: the order of samples, the epoch length and the loss are no longer comparable"),
    # environment variables
    Rule("env", "*", PER_RANK, "info", "none", "set for each rank by the launcher"),
    Rule("env", "*", "TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR", "info", "none",
         "where the compile cache lies; what is in it is judged by itself"),
    Rule("env", "launcher", "*", "info", "none", "the launcher sets it for what it starts"),
    Rule("env", OWN, "*", "info", "none", "the process, or what launched its ranks, set or removed it itself"),
    Rule("env", "torch", "*", "info", "none",
         "torch sets it itself when it first needs it; the stamp does not say what its process was started with"),
    Rule("env", "*", DETERMINISM, "warn", "numerics", "it decides how results are computed"),
    Rule("env", "*", "CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER", "warn", "breaks",
         "other GPUs are used"),
    Rule("env", "*", "LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME|CUDA_HOME|CUDA_PATH", "warn", "breaks",
         "other libraries or modules are loaded than those of the environment"),
    Rule("env", "*", TUNING, "warn", "performance", "it tunes memory, communication, compilation or threads"),
    Rule("env", "*", "*", "info", "none", "not known to alter a run"),
    # system
    Rule("system", "changed", "arch", "block", "breaks", "compiled for another processor architecture"),
    Rule("system", "less", "memory", "warn", "breaks", "less main memory: loading and workers may be killed"),
    Rule("system", "less", "cpus", "warn", "performance", "fewer CPUs for loading and compiling"),
    Rule("system", "problem:*", "*", "warn", "breaks", "{detail}"),
    Rule("system", "*", "*", "info", "none", "the machine differs in {subject}"),
    # undetermined on both sides alike
    Rule("unknown", "both", "*", "info", "none", "neither side could tell, for the same reason: {detail}"),
    Rule("unknown", "scope", "*", "info", "none", "{detail}"),
    Rule("unknown", "problem:*", "*", "warn", "breaks", "{detail}"),
    Rule("unknown", "*", "*", "warn", "breaks", "{detail}"),
)  # fmt: skip


def rule_for(change: Change) -> Rule:
    """The first rule that fits; each facet's last fits everything."""
    return next(rule for rule in RULES if rule.fits(change))


def grade(change: Change, policy: Sequence[PolicyRule] = ()) -> Drift:
    """The change with its grade. The first line of `policy` that fits overrides the severity, and says so."""
    rule = rule_for(change)
    drift = Drift(
        facet=change.facet,
        subject=change.subject,
        a=change.a,
        b=change.b,
        severity=rule.severity,
        effect=rule.effect,
        why=rule.why.format(subject=change.subject, a=change.a, b=change.b, detail=change.detail),
        kind=change.kind,
    )
    override = policy_for(policy, drift.facet, drift.subject)
    if override is None or override.severity == drift.severity:
        return drift
    said = f" [{drift.severity} → {override.severity} by policy{': ' + override.because if override.because else ''}]"
    return msgspec.structs.replace(drift, severity=override.severity, why=drift.why + said)


def policy_for(policy: Iterable[PolicyRule], facet: str, subject: str) -> PolicyRule | None:
    """The first line of a policy that speaks of this subject."""
    return next((line for line in policy if line.facet in ("*", facet) and _fits(line.subject, subject)), None)


def check_policy(policy: Iterable[PolicyRule]) -> None:
    """Raises `UsageError` for a facet that there is none of: such a line would never do anything."""
    for line in policy:
        if line.facet != "*" and line.facet not in FACETS:
            close = difflib.get_close_matches(line.facet, FACETS, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"the facets are: {', '.join(FACETS)}"
            raise UsageError(f"configuration: policy for unknown facet {line.facet!r}", hint)


def rules_table() -> str:
    """The table as `docs/rules.md` shows it."""
    lines = ["| facet | change | subject | severity | effect | why |", "|--|--|--|--|--|--|"]
    for rule in RULES:
        cells = (rule.facet, rule.kind, rule.subject, rule.severity, rule.effect, rule.why)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"

"""The fingerprint: the typed record of an environment at one moment.

Every field is there in JSON, null where unknown; `unknown` says what could not be seen and why. Sections are
appended to, never renamed: version 1 is a promise.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from envguard.model.evidence import Unknown
from envguard.model.local_version import Accelerator, parse_local


class Binary(msgspec.Struct, frozen=True, kw_only=True):
    """A program or library of the interpreter; `digest` is the sha256 (hex) of all of it."""

    size: int
    build_id: str | None
    digest: str


class Python(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter of the environment; `prefix`, `executable`, `base` and `binaries` are not
    part of the id."""

    implementation: str | None
    version: str | None
    abi: str | None
    platform: str | None
    prefix: str
    executable: str | None
    base: str | None
    kind: Literal["venv", "conda", "system"]
    extends: str | None = None
    """The environment over which this one was laid for a single command (`uv run --with`)."""
    binaries: dict[str, Binary] | None = None
    """`python` and, where there is one, the name of its shared library. None in fingerprints from before it was
    looked at, and where there is no interpreter."""

    @property
    def environment(self) -> str:
        """The prefix of the environment that stays when the command has ended."""
        return self.extends or self.prefix


HookKind = Literal["pth-code", "pth-path", "customizer", "entry-point", "inside"]


class Hook(msgspec.Struct, frozen=True, order=True):
    """Something of a package that runs without being asked for, or takes part in another package.

    `what` names it: the .pth and the path that it adds, `sitecustomize`, `torch.backends: npu`, `torch of torch`.
    """

    kind: HookKind
    what: str


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """One distribution as it lies on the environment's path.

    `build` is the build identity: the sha256 of the normalised RECORD, and of the files that depart from it where
    any do. None where there is no RECORD to take it from (`problems` says so).
    """

    name: str
    version: str | None
    build: str | None
    installer: str | None
    location: str
    editable: str | None = None
    direct_url: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    requires: tuple[str, ...] = ()
    requires_python: str | None = None
    record: str | None = None
    """The RECORD's identity alone, where files depart from it (`build` is then another); None elsewhere."""
    departs: tuple[str, ...] = ()
    """Paths whose content or size is not what RECORD says, or that are missing; relative to `location`."""
    unread: tuple[str, ...] = ()
    """Paths that could not be read, so that `build` is only what RECORD promises; `unknown` says why."""
    files: int | None = None
    bytes: int | None = None
    depth: Literal["stat", "watched", "deep"] = "stat"
    """How far contents were looked at: sizes only, watched packages hashed, or all hashed."""
    installed_at: str | None = None
    source: str | None = None
    """sha256 (hex) of content that no RECORD describes: the source tree of an editable install, the files of an egg.
    The same wherever they lie; None where RECORD describes it, and where it could not be read."""
    modules: tuple[str, ...] = ()
    """What it brings to import, by top-level name; empty in the stamp of a process, which does not read that."""
    missing: tuple[str, ...] = ()
    """Those of `departs` that are not there."""
    overwritten: tuple[tuple[str, str], ...] = ()
    """(path, package): those of `departs` over which another package installed its own file."""
    hooks: tuple[Hook, ...] | None = None
    """None where nobody looked, as in fingerprints from before there were any."""

    @property
    def identity(self) -> str | None:
        """What RECORD says of it, whatever became of the files."""
        return self.record or self.build


class Shadowed(msgspec.Struct, frozen=True, kw_only=True):
    """A name that two distributions or files claim, and which one import picks."""

    name: str
    wins: str
    loses: str


ACCELERATORS: dict[Accelerator, str] = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU", "cpu": "CPU"}
"""As each writes its own name."""


class Torch(msgspec.Struct, frozen=True, kw_only=True):
    """The torch build, read from files: `version.py` as text, ELF build-ids, never by importing it."""

    version: str | None
    metadata_version: str | None
    git_version: str | None
    cuda: str | None
    hip: str | None
    debug: bool | None
    libraries: dict[str, str | None]
    """Library file name → ELF build-id (None where the file has none)."""
    triton: str | None
    ptxas: dict[str, str]
    """Bundled ptxas file name → version string found in it."""
    torch_key: str | None
    """sha256 (hex) that inductor's cache keys hash; None unless computed."""
    cache_tag: str | None
    """The tag that inductor writes into each cache entry of this build."""
    xpu: str | None = None

    @property
    def accelerator(self) -> Accelerator | None:
        """What the build computes on, by `version.py`. None where that was not readable."""
        named: tuple[tuple[Accelerator, str | None], ...]
        named = (("cuda", self.cuda), ("rocm", self.hip), ("xpu", self.xpu))
        found = next((name for name, version in named if version), None)
        if found is not None or self.version is None:
            return found
        # Fingerprints from before `xpu` was recorded, and a `version.py` without it, name it in the version alone.
        local = parse_local(self.version).accelerator
        return local if local in ("rocm", "xpu") else "cpu"

    @property
    def built_for(self) -> str:
        """`CUDA 12.8`, `ROCm 6.4.43482`, `XPU 20250101`, `CPU`; a version that is unknown is left out."""
        name = self.accelerator
        if name is None:
            return "unknown"
        version = {"cuda": self.cuda, "rocm": self.hip, "xpu": self.xpu, "cpu": None}[name]
        return f"{ACCELERATORS[name]} {version or ''}".rstrip()


class Cuda(msgspec.Struct, frozen=True, kw_only=True):
    """CUDA as the environment has it: what torch was built for, and the nvidia-* run-time packages."""

    build: str | None
    packages: dict[str, str]


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The NVIDIA driver: as the library says and as the kernel module says; they differ after an upgrade."""

    version: str | None
    kernel_module: str | None
    cuda: str | None
    agrees: bool | None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; a field that NVML refused is None and named in `refused` with its reason."""

    index: int
    name: str | None
    uuid_digest: str | None
    memory_bytes: int | None
    compute_capability: str | None
    mig: str | None
    ecc: bool | None
    power_limit_w: float | None
    p2p: dict[str, str]
    """Index of another GPU → link ("NVLink", "PIX", "SYS", …)."""
    context_bytes: int | None
    """Memory that an idle CUDA context takes; only with --probe."""
    refused: dict[str, str]


CacheKind = Literal["inductor", "triton", "torch_extensions", "vllm", "flashinfer", "other"]
"""`torch_extensions`: libraries that `torch.utils.cpp_extension.load` compiled (DeepSpeed, quantisers); `other`:
files of no layout that is known."""


class CompileCache(msgspec.Struct, frozen=True, kw_only=True):
    """A compile cache directory of this environment; its entries are never unpickled."""

    kind: CacheKind
    path: str
    verdict: Literal["VALID", "FOREIGN", "MIXED", "EMPTY", "UNSAFE", "UNKNOWN", "OTHER"]
    """OTHER: of a kind whose files do not name the build that wrote them; it is compared by what it holds."""
    entries: int | None
    bytes: int | None
    writers: dict[str, int]
    """Writer (torch tag or version) → number of entries."""
    owner: str | None = None
    mode: str | None = None
    files: int | None = None
    oldest: str | None = None
    newest: str | None = None
    gpus: tuple[str, ...] = ()
    tritons: tuple[str, ...] = ()
    autotune: int | None = None
    digest: str | None = None
    why: str | None = None


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """A git tree that the run executes from."""

    path: str
    commit: str | None
    branch: str | None
    dirty: bool | None
    diff_digest: str | None
    dirty_files: tuple[str, ...] = ()
    untracked_digest: str | None = None
    submodules: dict[str, str] = {}
    tree: str | None = None
    """git's name for the files of the commit: two commits of one tree have the same files."""


class FileSet(msgspec.Struct, frozen=True, kw_only=True):
    """Configured code, config or data: a path with what it holds."""

    path: str
    files: int | None
    bytes: int | None
    rows: int | None
    digest: str | None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Allow-listed environment variables, without secrets, and one digest of those that are not per rank.

    The digest is of what was handed to the process: of the values in `started` where there are any.
    """

    digest: str
    variables: dict[str, str]
    withheld: tuple[str, ...] = ()
    """Names of allow-listed variables whose value looked like a secret; the value is stored nowhere."""
    started: dict[str, str | None] | None = None
    """Of a process that stamps itself: each variable that it set, changed or removed after its start → the value that
    it was started with, None where there was none. None where that is not known, and where no process is meant."""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """The machine under the environment."""

    host: str
    kernel: str
    os: str | None
    arch: str
    container: str | None
    cpu: str | None
    cpus: int | None
    memory_bytes: int | None
    boot_time: str | None


class LiveProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A living process of this environment; `stale` are mapped files whose name is gone or names another inode."""

    pid: int
    started: str
    command: str
    stale: tuple[str, ...]
    torch: str | None = None
    """The torch build that it still runs, where a library of torch is stale and its version could be found out."""


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment's own interpreter said when it imported torch (`--probe`); None for what it could not."""

    torch: str | None
    cuda: str | None
    cuda_available: bool | None
    devices: tuple[str, ...]
    cudnn: str | None
    nccl: str | None
    config: str | None
    """`torch.__config__.show()`."""
    import_s: float | None
    error: str | None
    """Why there is no answer: the exception that the import raised, the signal that ended it, the time-out."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A finding about the environment itself, independent of any comparison."""

    kind: str
    subject: str
    says: str
    path: str | None = None


class Bytecode(msgspec.Struct, frozen=True, kw_only=True):
    """Compiled files of watched packages: how many are known to hold their source's code, or are named in a problem,
    and how many were not compared."""

    compared: int
    left: int


class CheckpointRef(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint a stamp was made for, so that a stamp copied elsewhere is noticed."""

    name: str
    step: int | None
    files: dict[str, int]
    """File name relative to the checkpoint → size in bytes; the stamp itself is not among them."""
    samples: dict[str, str] = {}
    """File name → digest of its first and last 4 KiB: two steps of one run have files of the same sizes."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed on disk since the process loaded it."""

    what: str
    loaded: str | None
    disk: str | None
    path: str | None


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """An environment at one moment; in a stamp also `origin`, `checkpoint` and `diverged`."""

    schema: Literal["envguard.fingerprint"] = "envguard.fingerprint"
    version: Literal[1] = 1
    id: str
    envguard: str
    taken_at: str
    python: Python
    sys_path: tuple[str, ...]
    packages: tuple[Package, ...]
    shadowed: tuple[Shadowed, ...]
    torch: Torch | None
    cuda: Cuda | None
    driver: Driver | None
    gpus: tuple[Gpu, ...] | None
    compile_cache: tuple[CompileCache, ...] | None
    code: tuple[Code, ...] | None
    config: tuple[FileSet, ...] | None
    data: tuple[FileSet, ...] | None
    env: Environment | None
    system: System | None
    processes: tuple[LiveProcess, ...] | None
    problems: tuple[Problem, ...]
    unknown: tuple[Unknown, ...]
    deep: bool = False
    runtime: Runtime | None = None
    """Only with --probe."""
    origin: Literal["loaded", "launch", "live", "retrospective"] | None = None
    checkpoint: CheckpointRef | None = None
    diverged: tuple[Divergence, ...] | None = None
    bytecode: Bytecode | None = None
    """None where nobody looked: in a stamp, of a bundle, and in fingerprints from before it was looked at."""
    checksum: str | None = None
    """Of all else that a stored one says: `identity.sealed`."""

    def package(self, name: str) -> Package | None:
        """The distribution of that (normalised) name which import picks, or None."""
        for package in self.packages:
            if package.name == name:
                return package
        return None

"""Programs that execute the words after their own options: a table of which options take a value, what they change.

An option that is not in the table may take the next word as its value, so that the command's place is not known.
The words are those of the programs' manuals (coreutils 9, util-linux 2.40, sudo 1.9, Slurm 24, Open MPI 5 and
Hydra 4, Nsight 2025, CUDA 13, gdb 15).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Wrapper:
    """`values`: option → how many words follow it. `flags`: options without a value. `operands`: words between the
    options and the command."""

    values: dict[str, int] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()
    operands: int = 0
    words: tuple[str, ...] = ()
    """Sub-commands of which the first word must be one; those without the program's options."""
    needs: frozenset[str] = frozenset()
    """Options of which one must be there: without, no command follows (`gdb --args`)."""
    sets: frozenset[str] = frozenset()
    """Options whose value is NAME=VALUE, or NAME VALUE: a variable of the command."""
    folder: frozenset[str] = frozenset()
    """Options whose value is the command's working directory."""
    opaque: dict[str, str] = field(default_factory=dict)
    """Options under which the command is not what follows, or runs elsewhere → why."""
    assigns: bool = False
    """Words NAME=VALUE before the command set variables (env, sudo)."""
    unsets: frozenset[str] = frozenset()
    """Options whose value is the name of a variable that the command does not get."""
    clears: frozenset[str] = frozenset()
    """Options that take every variable away."""
    resets: frozenset[str] | None = None
    """The program hands on what its own configuration says, but for one of these options."""


def _wrapper(
    values: str = "", flags: str = "", *, sets: str = "", folder: str = "", two: str = "", words: str = "",
    needs: str = "", operands: int = 0, opaque: dict[str, str] | None = None, assigns: bool = False,
    unsets: str = "", clears: str = "", resets: str | None = None,
) -> Wrapper:  # fmt: skip
    one = (*values.split(), *folder.split(), *sets.split(), *unsets.split())
    counted = dict.fromkeys(one, 1) | dict.fromkeys(two.split(), 2)
    counted |= {option: 2 for option in ("-genv", "-env") if option in counted}
    alone = (*flags.split(), *(opaque or {}), *needs.split(), *clears.split(), *(resets or "").split())
    return Wrapper(
        values=counted,
        flags=frozenset(alone) - set(counted),
        operands=operands,
        words=tuple(words.split()),
        needs=frozenset(needs.split()),
        sets=frozenset(sets.split()),
        folder=frozenset(folder.split()),
        opaque=opaque or {},
        assigns=assigns,
        unsets=frozenset(unsets.split()),
        clears=frozenset(clears.split()),
        resets=None if resets is None else frozenset(resets.split()),
    )


_CONTAINER = "it starts the command in a container, whose interpreter is not seen from here"
_SEVERAL = "it starts several programs, which a file names"
_NO_COMMAND = "it starts no command of its own with this option"

_MPI = _wrapper(
    "-n -np -c --np -N --npernode -npernode -H -host --host -hosts -hostfile --hostfile -machinefile "
    "--machinefile -f --map-by -map-by --bind-to -bind-to --rank-by -rank-by -ppn --ppn -perhost --prefix -cpus- "
    "per-proc --cpus-per-proc --output -output-filename --output-filename --timeout --cpu-set -rmk -launcher "
    "-bootstrap -iface -genvlist -envlist --runtime-options --display --pernode-list --personality",
    "-q -v -V --quiet --verbose --oversubscribe -oversubscribe --allow-run-as-root --tag-output -tag-output "
    "--report-bindings -report-bindings --bind-to-core -bind-to-core --bynode --byslot -nolocal --nolocal "
    "--nooversubscribe --display-map -display-map --display-allocation -genvall -envall -l -prepend-rank "
    "--timestamp-output --pernode -pernode --use-hwthread-cpus --enable-recovery --stream-buffering -print-all- "
    "exitcodes",
    sets="-x -genv -env",
    two="-mca --mca -gmca --gmca --prtemca --pmixmca",
    folder="-wdir --wdir -wd --wd -cd",
    opaque={
        "-app": _SEVERAL, "--app": _SEVERAL, "-configfile": _SEVERAL,
        "-genvnone": "it hands no variables on", "-envnone": "it hands no variables on",
    },
)  # fmt: skip

WRAPPERS: dict[str, Wrapper] = {
    "env": _wrapper(
        "-a --argv0 -S --split-string", "-v --debug --block-signal --default-signal --ignore-signal "
        "--list-signal-handling", folder="-C --chdir", assigns=True, unsets="-u --unset",
        clears="-i - --ignore-environment",
        opaque={"-0": _NO_COMMAND, "--null": _NO_COMMAND},
    ),
    "sudo": _wrapper(
        "-u --user -g --group -p --prompt -C --close-from -h --host -T --command-timeout -r --role -t --type -U "
        "--other-user -a --auth-type -c --login-class",
        "-A --askpass -b --background -B --bell -H --set-home -k --reset-timestamp -n --non-interactive -P "
        "--preserve-groups -S --stdin", folder="-D --chdir", assigns=True, resets="-E --preserve-env",
        opaque={
            "-i": "a login shell starts the command", "--login": "a login shell starts the command",
            "-s": "a shell starts the command", "--shell": "a shell starts the command",
            "-R": "the command gets another root folder", "--chroot": "the command gets another root folder",
        },
    ),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c --class -n --classdata", "-t --ignore",
                       opaque=dict.fromkeys(("-p", "--pid"), _NO_COMMAND)),
    "chrt": _wrapper(
        "-T --sched-runtime -P --sched-period -D --sched-deadline",
        "-b --batch -d --deadline -f --fifo -i --idle -o --other -r --rr -R --reset-on-fork -v --verbose", operands=1,
        opaque=dict.fromkeys(("-p", "--pid", "-m", "--max"), _NO_COMMAND),
    ),
    "nohup": _wrapper(),
    "setsid": _wrapper("", "-c --ctty -f --fork -w --wait"),
    "stdbuf": _wrapper("-i --input -o --output -e --error"),
    "unbuffer": _wrapper("", "-p"),
    "time": _wrapper("-f --format -o --output", "-a --append -p --portability -v --verbose -q --quiet"),
    "timeout": _wrapper(
        "-k --kill-after -s --signal", "-f --foreground -p --preserve-status -v --verbose", operands=1
    ),
    "numactl": _wrapper(
        "-i --interleave -w --weighted-interleave -P --preferred-many -p --preferred -N --cpunodebind -C "
        "--physcpubind "
        "-m --membind", "-a --all -l --localalloc -b --balancing",
        opaque=dict.fromkeys(("-s", "--show", "-H", "--hardware"), _NO_COMMAND),
    ),
    "taskset": _wrapper("", "-a --all-tasks -c --cpu-list", operands=1,
                        opaque=dict.fromkeys(("-p", "--pid"), _NO_COMMAND)),
    "prlimit": _wrapper("", "--noheadings --raw --verbose", opaque={"-p": _NO_COMMAND, "--pid": _NO_COMMAND}),
    "flock": _wrapper(
        "-w --wait --timeout -E --conflict-exit-code", "-s --shared -x -e --exclusive -n --nb --nonblock -o --close "
        "-F --no-fork --verbose", operands=1, opaque={"-c": "a shell starts the command", "-u": _NO_COMMAND},
    ),
    "srun": _wrapper(
        "-A --account -b --begin -c --cpus-per-task -C --constraint -d --dependency -e --error -G --gpus -i "
        "--input -J --job-name -L --licenses -m --distribution -M --clusters -n --ntasks -N --nodes -o --output "
        "-p --partition -q --qos -r --relative -R --reservation --reservation -S --core-spec -t --time -T "
        "--threads -w --nodelist -W --wait -x --exclude --gpus-per-node --gpus-per-task --gpus-per-socket --gres "
        "--mem --mem-per-cpu --mem-per-gpu --mem-bind --ntasks-per-node --ntasks-per-gpu --ntasks-per-socket "
        "--ntasks-per-core --cpus-per-gpu --cpu-bind --gpu-bind --gpu-freq --cpu-freq --mpi --jobid --export "
        "--signal --comment --hint --network --nice --open-mode --priority --task-prolog --task-epilog --threads- "
        "per-core --tres-per-task --tres-bind --wckey --kill-on-bad-exit --time-min --sockets-per-node --cores- "
        "per-socket --deadline --delay-boot --epilog --prolog --switches --profile --acctg-freq --bcast --het- "
        "group --power --treewidth --resv-ports --slurmd-debug --tmp --mail-type --mail-user --mincpus --use-min- "
        "nodes --uid --gid -B --extra-node-info --container-id",
        "-E --preserve-env -H --hold -I --immediate -k --no-kill -K -l --label -O --overcommit -s --oversubscribe "
        "--overlap --exact --exclusive -u --unbuffered -v --verbose -vv -vvv -Q --quiet -X --disable-status -Z "
        "--no-allocate --pty --propagate --contiguous --spread-job --reboot --interactive --whole --compress "
        "--x11",
        folder="-D --chdir",
        opaque={
            "--multi-prog": _SEVERAL, "--container": _CONTAINER, "--container-image": _CONTAINER,
            "--container-name": _CONTAINER,
        },
    ),
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "orterun": _MPI,
    "prterun": _MPI,
    "mpiexec.hydra": _MPI,
    "nsys": _wrapper(
        "-t --trace -o --output -s --sample -c --capture-range -d --duration -y --delay -b --backtrace -w --show- "
        "output -x --stop-on-exit -p --nvtx-capture -f --force-overwrite -n --inherit-environment --cuda-graph- "
        "trace --cudabacktrace --cuda-memory-usage --capture-range-end --cpuctxsw --event-sample --export --gpu- "
        "metrics-device --gpu-metrics-devices --gpu-metrics-frequency --gpu-metrics-set --gpuctxsw --kill --nic- "
        "metrics --osrt-threshold --python-backtrace --python-sampling --python-sampling-frequency --pytorch "
        "--resolve-symbols --run-as --sampling-frequency --sampling-period --samples-per-backtrace --session-new "
        "--start-later --stats --trace-fork-before-exec --wait --cudnn-trace --session --process-scope "
        "--duration-frames -e --env-var --start-agent --python-functions-trace",
        "-h --help", words="profile launch",
        opaque=dict.fromkeys(("-e", "--env-var"), "it sets variables for the command in words of its own"),
    ),
    "ncu": _wrapper(
        "-o --export --set --section -k --kernel-name -c --launch-count -s --launch-skip --target-processes "
        "--metrics -i --import --replay-mode --cache-control --clock-control --nvtx-include --nvtx-exclude "
        "--kernel-id --kernel-name-base --page --csv-file --log-file --app-replay-match --graph-profiling "
        "--devices --chips --import-source --source-folders --warp-sampling-interval --config-file-path --apply- "
        "rules --launch-skip-before-match --range-filter --filter-mode --rule --print-details --call-stack-type "
        "--profile-from-start --check-exit-code --print-summary",
        "-f --force-overwrite --nvtx --csv --call-stack --quiet --verbose",
    ),
    "compute-sanitizer": _wrapper(
        "--tool --log-file --target-processes --launch-timeout --error-exitcode --kernel-name --kernel-regex "
        "--kernel-regex-exclude --launch-count --launch-skip --print-level --print-limit --save --report-api- "
        "errors --leak-check --padding --num-cuda-barriers --racecheck-report --show-backtrace --generate- "
        "coredump --xml-file "
        "--check-device-heap --require-cuda-init --demangle --destroy-on-device-error --language", "--xml",
    ),
    "py-spy": _wrapper(
        "-o --output -f --format -d --duration -r --rate", "-s --subprocesses -n --native -t --threads -i --idle -g "
        "--gil -F --function --nolineno --full-filenames --nonblocking", words="record top",
        opaque=dict.fromkeys(("-p", "--pid"), _NO_COMMAND),
    ),
    "gdb": _wrapper(
        "-ex --eval-command -x --command -iex -ix --cd -d --directory",
        "-q -quiet --quiet -batch --batch -nx --nx -n "
        "-return-child-result --return-child-result", needs="--args -args",
    ),
    "strace": _wrapper(
        "-e -o -s -p -E -u -O -S -a -P -I -b -X --trace --output",
        "-f -ff -c -C -t -tt -ttt -T -r -q -qq -v -x -xx -y "
        "-yy -k -i -n -w -z -Z -D -h -V --follow-forks",
        opaque={"-E": "it sets variables for the command in words of its own", "-p": _NO_COMMAND},
    ),
    "ltrace": _wrapper("-e -o -s -p -n -a -A -F -l -u -w -x", "-f -c -C -b -i -L -r -S -t -T"),
    "perf": _wrapper(
        "-e --event -F --freq -c --count -o --output -r --repeat -C --cpu --call-graph -m --mmap-pages -D --delay "
        "-I "
        "--interval-print -G --cgroup", "-a --all-cpus -g -d --detailed -s --stat -q --quiet -v --verbose -T -i "
        "--no-inherit -S --sync", words="record stat trace",
        opaque=dict.fromkeys(("-p", "--pid", "-t", "--tid"), _NO_COMMAND),
    ),
    "catchsegv": _wrapper(),
    "tini": _wrapper("-p -e", "-s -g -v -vv -vvv -w"),
    "tini-static": _wrapper("-p -e", "-s -g -v -vv -vvv -w"),
    "docker-init": _wrapper("-p -e", "-s -g -v -vv -vvv -w"),
    "dumb-init": _wrapper("-r --rewrite", "-c --single-child -v --verbose"),
    "catatonit": _wrapper("", "-g -L"),
    "xvfb-run": _wrapper(
        "-n --server-num -e --error-file -f --auth-file -p --xauth-protocol -s --server-args -w --wait",
        "-a --auto-servernum -l --listen-tcp",
    ),
    "chronic": _wrapper("", "-e -v"),
    "caffeinate": _wrapper("-t -w", "-d -i -m -s -u"),
    "command": _wrapper("", "-p", opaque=dict.fromkeys(("-v", "-V"), _NO_COMMAND)),
    "exec": _wrapper("-a", "-l", clears="-c"),
    "builtin": _wrapper(),
}  # fmt: skip

CHOOSERS: dict[str, str] = {
    "poetry": "`poetry env info --executable` prints its interpreter",
    "pdm": "`pdm info --python` prints its interpreter",
    "hatch": "`hatch env find` prints its environment",
    "pixi": "its environments lie below .pixi/envs: write .pixi/envs/default/bin/python",
    "pipenv": "`pipenv --py` prints its interpreter",
    "rye": "write .venv/bin/python",
    "mamba": "`conda run -p PREFIX` names an environment by its path",
    "micromamba": "`conda run -p PREFIX` names an environment by its path",
    "tox": "write the interpreter of its environment",
    "nox": "write the interpreter of its environment",
    "uvx": "it runs a tool in an environment of its own; write the interpreter that trains",
}
"""Programs that run a command in an environment of their own choice → how to name that environment's interpreter."""

INERT = frozenset({
    "true", "false", "exit", ":", "echo", "printf", "sleep", "test", "[", "pwd", "ls", "cat", "date", "hostname",
    "uname", "id", "whoami", "touch", "mkdir", "rm", "cp", "mv", "ln", "kill", "wait", "nvidia-smi", "printenv",
    "nproc", "git", "grep", "sed", "sort", "cut", "tr", "basename", "dirname", "realpath", "readlink", "chmod",
    "chown", "tar", "unzip", "curl", "wget", "lscpu", "free", "lspci", "which", "type", "df", "du", "stat",
    "head", "tail", "wc", "tee", "seq", "yes", "ulimit", "umask",
})  # fmt: skip
"""Programs that start no other program."""

UV_OPTIONS = _wrapper(
    "--extra --no-extra --group --no-group --only-group --no-editable-package --env-file -w --with --with- "
    "editable --with-requirements --package --python-platform --index --default-index -i --index-url --extra- "
    "index-url -f --find-links --index-strategy --keyring-provider -P --upgrade-package --upgrade-group "
    "--resolution --prerelease --fork-strategy --exclude-newer --exclude-newer-package --no-sources-package "
    "--reinstall-package --link-mode --refresh-package -C --config-setting --config-settings-package --no-build- "
    "isolation-package --no-build-package --no-binary-package --cache-dir -p --python --color --allow-insecure- "
    "host --project --config-file",
    "--all-extras --dev --no-dev --only-dev --no-default-groups --all-groups -m --module --no-editable --exact "
    "--no-env-file --isolated --active --no-active --no-sync --locked --frozen -s --script --gui-script --all- "
    "packages --no-project --no-index -U --upgrade --no-sources --reinstall --compile-bytecode --no-build- "
    "isolation --no-build --no-binary --require-build-hashes --no-require-build-hashes -n --no-cache --refresh "
    "--managed-python --no-managed-python --no-python-downloads -q --quiet -v --verbose --system-certs --native- "
    "tls --offline --no-offline --no-progress --no-config --preview --no-preview",
    folder="--directory",
)
"""The options of `uv` and `uv run`, 0.13."""

CONDA_RUN_OPTIONS = _wrapper(
    "-n --name -p --prefix",
    "-v --verbose --dev --debug-wrapper-scripts --no-capture-output --live-stream -q",
    folder="--cwd",
)

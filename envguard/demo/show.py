"""The demo: the story's acts narrated, each envguard command run for real, and held to what it has to answer."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable

from envguard.demo import story
from envguard.demo.stage import Stage
from envguard.demo.story import STAMPED, UNSTAMPED
from envguard.model.action import DemoReport, Step
from envguard.report.screen import Screen

# One string a paragraph: the console breaks lines where the terminal's width asks for it.
INTRODUCTION = (
    "A training run loses its speed. Eleven minutes after its last checkpoint somebody installed sglang, and torch "
    "was replaced underneath. Here that happens again, in seconds instead of minutes, in {root}",
    "Real: uv, its cache, a venv, a package index on the loopback address, the wheels and their RECORDs, the "
    "processes, the clock. Stand-ins: torch, triton, flashinfer, transformers and sglang are a few files each (torch "
    "maps a real shared library that holds no code), and the training loop hashes instead of training. Nothing of "
    "yours is touched.",
)


class Show:
    """Plays the story on a stage and keeps what each command returned."""

    def __init__(self, stage: Stage, screen: Screen) -> None:
        self.stage = stage
        self.screen = screen
        self.steps: list[Step] = []

    def tell(self, text: str) -> None:
        """A line of the story, on stdout where text is asked for, nowhere under --json or -q."""
        if not self.screen.json and not self.screen.quiet:
            self.screen.out.print(text)
            sys.stdout.flush()

    def command(self, *arguments: str, expected: int, proves: str) -> None:
        """Runs `envguard ARGUMENTS` on the stage, shows it with its own output, and keeps its code."""
        line = "envguard " + shlex.join(arguments)
        self.tell("")
        if not self.screen.json:
            self.screen.out.rule(style="dim")
            self.screen.out.print(f"$ {line}", style="bold", soft_wrap=True)  # a broken line cannot be pasted
            sys.stdout.flush()
        began = time.monotonic()
        # The child writes to our own streams, so that a terminal stays one; under --json its text has no place.
        code = subprocess.run(
            self.stage.envguard_command(*arguments),
            cwd=self.stage.project,
            env=self.stage.environ(self._colours()),
            stdout=subprocess.DEVNULL if self.screen.json else None,
            stderr=subprocess.DEVNULL if self.screen.json else None,
            check=False,
        ).returncode
        took = time.monotonic() - began
        self.steps.append(Step(command=line, code=code, expected=expected, proves=proves, seconds=round(took, 2)))
        if code == expected:
            self.tell(f"→ exit code {code}. {proves}")
        else:
            self.screen.warn(f"`{line}` returned {code} where it has to return {expected}")

    def _colours(self) -> dict[str, str]:
        return {"NO_COLOR": "1"} if self.screen.color == "never" else {}

    def play(self) -> DemoReport:
        """The whole story; `ok` only where every command answered as it had to and the build is back."""
        began = time.monotonic()
        stage = self.stage
        for paragraph in INTRODUCTION:
            self.tell(paragraph.format(root=stage.root) + "\n")
        self.tell("1. A venv with torch 2.11.0+cu128, and a run that saves checkpoints.")
        self._timed("   made", lambda: story.set_up(stage))
        before = story.cuda_on_disk(stage)
        with story.training(stage):
            self.tell(f"   {STAMPED} is saved with a stamp, {UNSTAMPED} without, and the run goes on.")
            time.sleep(2)
            self.tell("\n2. While it runs: `uv pip install sglang` into the same venv.")
            for line in story.swap(stage).splitlines():
                if line.startswith((" + ", " - ", " ~ ")):
                    self.tell(f"   uv: {line}")
            swapped = story.cuda_on_disk(stage)
            self.tell("\n3. What happened since the last checkpoint?")
            self.command(
                "timeline", "--since-checkpoint", UNSTAMPED, expected=1,
                proves=f"The file system alone says what was replaced and by what, and that {UNSTAMPED} is older.",
            )  # fmt: skip
        self._after_the_run()
        restored = story.cuda_on_disk(stage)
        ok = all(step.code == step.expected for step in self.steps) and before == restored != swapped
        seconds = time.monotonic() - began
        self.tell(f"\ntorch/version.py said CUDA {before} at first, {swapped} after the install, {restored} now.")
        self.tell(f"{'The gap is closed' if ok else 'NOT everything went as it has to'}, in {seconds:.0f} s.")
        return DemoReport(
            root=str(stage.root), steps=tuple(self.steps), cuda_before=before, cuda_swapped=swapped,
            cuda_restored=restored, ok=ok, seconds=round(seconds, 1),
        )  # fmt: skip

    def _after_the_run(self) -> None:
        loop = story.loop_command(self.stage, "--first", "691", "--steps", "20", "--pause", "0.02", "--work", "4000")
        self.command(
            "diff", STAMPED, expected=1,
            proves="Each difference from the stamped checkpoint is graded by what it does to a run.",
        )  # fmt: skip
        self.tell("\n4. Start again as if nothing had happened?")
        self.command(
            "launch", "--against", STAMPED, "--", *loop, expected=78,
            proves="Refused before a GPU hour is lost; the screen names the command that helps.",
        )  # fmt: skip
        self.tell("\n5. Back to exactly that build, from what the uv cache still holds, offline.")
        self.command(
            "restore", STAMPED, "-y", expected=0,
            proves="Verified against RECORD before, against the stamp after; the index is gone and was not needed.",
        )  # fmt: skip
        self.command(
            "launch", "--against", STAMPED, "--", *loop, expected=0,
            proves="A clean match: the run starts, and its own exit code comes back.",
        )  # fmt: skip

    def _timed(self, what: str, act: Callable[[], object]) -> None:
        began = time.monotonic()
        act()
        self.tell(f"{what} in {time.monotonic() - began:.1f} s")

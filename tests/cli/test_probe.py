"""`snapshot --probe` from the command line."""

from __future__ import annotations

import json

from envguard.demo.stage import Stage


def test_the_answer_holds_what_the_interpreter_said(torch_stage: Stage) -> None:
    init = torch_stage.site / "torch" / "__init__.py"
    before = sorted(str(path) for path in torch_stage.venv.rglob("*"))
    done = torch_stage.envguard("snapshot", "--probe", "--json")
    assert done.returncode == 0, done.stderr
    runtime = json.loads(done.stdout)["runtime"]
    # The stand-in has no function `torch.cuda.is_available`: what it lacks is null, and what it has is there.
    assert (runtime["torch"], runtime["cuda"], runtime["cuda_available"]) == ("2.11.0+cu128", "12.8", None)
    assert sorted(str(path) for path in torch_stage.venv.rglob("*")) == before
    init.unlink()
    init.write_text("raise RuntimeError('broken')")
    done = torch_stage.envguard("snapshot", "--probe")
    assert "cannot import torch: RuntimeError: broken" in " ".join(done.stdout.split())


def test_without_it_nothing_is_run(torch_stage: Stage) -> None:
    done = torch_stage.envguard("snapshot", "--json")
    assert json.loads(done.stdout)["runtime"] is None

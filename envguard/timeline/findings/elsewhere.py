"""The finding that the wrong environment is looked at: with two side by side, every difference between them would
else read as something that happened."""

from __future__ import annotations

from envguard.acquire.runs.checkpoints import Checkpoint
from envguard.acquire.runs.elsewhere import says
from envguard.acquire.survey import Survey
from envguard.model.event import Event
from envguard.timeline.findings.draft import Draft


def elsewhere_findings(survey: Survey, checkpoint: Checkpoint | None, saved: Event | None) -> list[Draft]:
    """That the checkpoint, by its own stamp or by the others of its run, was made in another environment."""
    if checkpoint is None:
        return []
    of_run = [item for item in survey.stamps if item.checkpoint.run_directory == checkpoint.run_directory]
    own = [item for item in of_run if item.checkpoint.path == checkpoint.path and item.counts]
    near = sorted((item for item in of_run if item.counts), key=lambda item: item.checkpoint.saved_ns)
    stamp = (own or near)[-1] if own or near else None
    theirs = survey.elsewhere.get(stamp.path) if stamp is not None else None
    if stamp is None or theirs is None:
        return []
    text = says(stamp.checkpoint.name, theirs, survey.env.prefix, survey.env.how)
    caveat = f"the stamp says so ({stamp.path}); what is told below happened here, whatever that run used"
    events = (saved,) if saved is not None else ()
    title = f"{checkpoint.name} was made in another environment"
    if not own:
        title = f"the run of {checkpoint.name} used another environment"
    return [Draft((-2,), title, f"{text}.", events, (caveat,))]

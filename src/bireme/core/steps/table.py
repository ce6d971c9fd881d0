"""What may happen to a step: its table (law 4). In which phase of its job it may happen, the job's table says."""

from __future__ import annotations

from operator import attrgetter

from bireme.core.jobs.table import job_label
from bireme.core.kinds.life import Absent, Key, Life, Phase, Rows
from bireme.core.model import events as e
from bireme.core.model.steps import StepState
from bireme.core.state.state import State

_STEP: Rows = {
    (Absent, e.StepCreated): (StepState.STARTING,),
    (StepState.STARTING, e.StepStarted): (StepState.RUNNING,),
    (StepState.STARTING, e.StepEnding): (StepState.STARTING,),
    (StepState.STARTING, e.StepNodeEnded): (StepState.STARTING, StepState.ENDED),
    (StepState.RUNNING, e.StepEnding): (StepState.RUNNING,),
    (StepState.RUNNING, e.StepNodeEnded): (StepState.RUNNING, StepState.ENDED),
}


def _step_phase(state: State, key: Key) -> Phase:
    job_id, step_id = key
    job = state.jobs.get(job_id)
    step = job.steps.get(step_id) if job is not None else None
    return Absent if step is None else step.state


STEP = Life(
    "step",
    _STEP,
    {event: (attrgetter("job_id", "step_id"),) for _, event in _STEP},
    _step_phase,
    lambda state, key: f"{job_label(state, key[0])}.{key[1]}",
)

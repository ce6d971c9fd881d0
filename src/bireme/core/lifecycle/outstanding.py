"""Commands that the state says were given and that nothing has confirmed: sent again when a daemon starts.

Pure: derived from the state alone. Commands are idempotent: what was obeyed already is only confirmed again.
Invariant: whatever `apply` commands, and a crash may swallow, is either here or needs no repeating (a signal is not).
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.lifecycle.apply import terminate_leftovers
from bireme.core.lifecycle.state import State
from bireme.core.lifecycle.stepping import terminate_step
from bireme.core.model import commands as c
from bireme.core.model.jobs import Ending, Job, Running, Starting, Suspended
from bireme.core.model.steps import StepState


def outstanding(state: State) -> list[c.Command]:
    commands = [command for job in state.holding.values() if not job.mirrored for command in _of_job(state, job)]
    return [*commands, *(terminate_leftovers(start, nodes) for start, nodes in sorted(state.leftovers.items()))]


def _of_job(state: State, job: Job) -> Iterator[c.Command]:
    phase = job.phase
    if isinstance(phase, Starting):
        yield c.LaunchJob(job, phase.allocation)
    elif isinstance(phase, Ending):
        grace_s = state.config.settings.kill_wait_s
        nodes = phase.allocation.node_names
        yield c.TerminateJob(job.id, job.generation, nodes, grace_s, given_up=phase.given_up)
    elif isinstance(phase, Suspended):
        yield c.SuspendJob(job.id, job.generation, phase.allocation.node_names)
    elif isinstance(phase, Running):
        if phase.suspended_s:
            yield c.ResumeJob(job.id, job.generation, phase.allocation.node_names)
        for step in job.steps.values():
            if step.state is StepState.STARTING:
                yield c.LaunchStep(job, phase.allocation, step)
            if step.outcome and step.state is not StepState.ENDED:
                yield terminate_step(state, job, step)

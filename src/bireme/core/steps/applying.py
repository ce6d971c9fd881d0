"""What events do to the steps of a job: created, started, ending, ended on one node after the other.

The handlers are called by `apply` only. Invariant: a step has ended when it has ended on each of its nodes, and its
status is the worst of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.jobs import Ending, Job, Running
from bireme.core.model.resources import NO_USAGE, ExitStatus, merge_usage
from bireme.core.model.steps import Step, StepState
from bireme.core.state.state import State

KEPT_ENDED_STEPS = 64
"""Ended steps kept in memory per job; all of them are in the history."""
KILL = 9
CAUSES = {
    "TIMEOUT": "TIME LIMIT",
    "REQUEUED": "JOB REQUEUE",
    "PREEMPTED": "PREEMPTION",
    "NODE_FAIL": "NODE FAILURE",
}
"""What Slurm writes into a job's stderr when it ends it, by the outcome."""


def step_created(state: State, event: e.StepCreated, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    assert isinstance(job.phase, Running)
    ended = [number for number, step in job.steps.items() if step.state is StepState.ENDED]
    for number in ended[:-KEPT_ENDED_STEPS]:
        del job.steps[number]
    step = Step(job.id, event.step_id, event.spec, event.nodes, created_at=at)
    job.steps[step.id] = step
    job.next_step = max(job.next_step, step.id + 1)
    return (c.LaunchStep(job, job.phase.allocation, step),)


def step_started(state: State, event: e.StepStarted, at: float) -> Sequence[c.Command]:
    step = state.jobs[event.job_id].steps[event.step_id]
    step.state = StepState.RUNNING
    step.started_at = event.at
    return ()


def step_ending(state: State, event: e.StepEnding, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    step = job.steps[event.step_id]
    step.outcome = step.outcome or event.outcome
    step.cancelled_by = event.by_uid
    return (terminate_step(state, job, step, event.signal),)


def terminate_step(state: State, job: Job, step: Step, signal: int = 0) -> c.TerminateStep:
    """The command that ends a step on the nodes where it has not ended yet."""
    nodes = tuple(node.node for node in step.nodes if node.node not in step.ended_nodes)
    grace_s = 0 if signal == KILL else state.config.settings.kill_wait_s
    return c.TerminateStep(job.id, job.generation, step.id, nodes, grace_s, CAUSES.get(step.outcome, ""))


def step_node_ended(state: State, event: e.StepNodeEnded, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    step = job.steps[event.step_id]
    step.ended_nodes |= {event.node}
    step.status = worse(step.status, event.status)
    step.usage = merge_usage((step.usage, event.usage)) if step.usage is not NO_USAGE else event.usage
    if len(step.ended_nodes) < len(step.nodes):
        return ()
    step.state = StepState.ENDED
    step.ended_at = event.at
    step.started_at = step.started_at or step.created_at
    step.outcome = step.outcome or _outcome_word(step.status)
    if not isinstance(job.phase, Ending):  # what the job's own end did to its steps says nothing of them
        job.worst_step_status = worse(job.worst_step_status, step.status)
    job.usage = merge_usage((job.usage, step.usage)) if job.usage is not NO_USAGE else step.usage
    return ()


def worse(one: ExitStatus, other: ExitStatus) -> ExitStatus:
    """The status that a step of several tasks reports: out of memory, then the larger exit code, then a signal."""
    rank = lambda status: (status.out_of_memory, status.code, status.signal)  # noqa: E731
    return max(one, other, key=rank)


def _outcome_word(status: ExitStatus) -> str:
    if status.out_of_memory:
        return "OUT_OF_MEMORY"
    if status.signal:
        return "CANCELLED"
    return "FAILED" if status.code else "COMPLETED"

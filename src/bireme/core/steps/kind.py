"""Steps as a kind: what is reported of them, when their time limits end them, and what of them goes into history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bireme.core.jobs.due import running_overdue
from bireme.core.jobs.intake import held_job
from bireme.core.kinds.kind import Kind, StepOver
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.jobs import Running
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.model.steps import StepState
from bireme.core.state.state import State
from bireme.core.steps import applying as stepping
from bireme.core.steps.table import STEP


def _began(state: State, seen: o.StepBegan, now: float) -> list[e.Event]:
    job = held_job(state, seen)
    step = job.steps.get(seen.step_id) if job is not None else None
    if job is None or step is None or step.state is not StepState.STARTING:
        return []
    return [e.StepStarted(job.id, job.generation, seen.step_id, seen.at)]


def _node_finished(state: State, seen: o.StepNodeFinished, now: float) -> list[e.Event]:
    job = held_job(state, seen)
    step = job.steps.get(seen.step_id) if job is not None else None
    if job is None or step is None or step.state is StepState.ENDED or seen.node in step.ended_nodes:
        return []
    return [e.StepNodeEnded(job.id, job.generation, step.id, seen.node, seen.status, seen.usage, seen.at, seen.failed)]


def _overdue(state: State, now: float, decided: Sequence[e.Event]) -> Iterator[e.Event]:
    """Steps that reached their own time limits, in jobs that go on."""
    ending = {event.job_id for event in decided if isinstance(event, e.JobEnding)}
    for job in running_overdue(state):
        if job.id in ending:
            continue
        for step in job.steps.values():
            limit, started = step.spec.time_limit_s, step.started_at
            if limit is None or started is None or step.outcome or step.state is StepState.ENDED:
                continue
            if now >= started + limit:
                yield e.StepEnding(job.id, job.generation, step.id, "TIMEOUT", signal=15)


def _ended(state: State, event: e.StepNodeEnded, now: float) -> Iterator[StepOver]:
    job = state.jobs[event.job_id]
    step = job.steps[event.step_id]
    if step.state is StepState.ENDED:
        yield StepOver(job, step)


def _outstanding(state: State) -> Iterator[c.Command]:
    for job in state.holding.values():
        if job.mirrored or not isinstance(job.phase, Running):
            continue
        for step in job.steps.values():
            if step.state is StepState.STARTING:
                yield c.LaunchStep(job, job.phase.allocation, step)
            if step.outcome and step.state is not StepState.ENDED:
                yield stepping.terminate_step(state, job, step)


STEPS = Kind(
    life=STEP,
    applies={
        e.StepCreated: stepping.step_created,
        e.StepStarted: stepping.step_started,
        e.StepEnding: stepping.step_ending,
        e.StepNodeEnded: stepping.step_node_ended,
    },
    interprets={o.StepBegan: _began, o.StepNodeFinished: _node_finished},
    decides=_overdue,
    chronicles_after={e.StepNodeEnded: _ended},
    outstanding=_outstanding,
    passes_over=frozenset(
        (
            e.ClusterConfigured,
            *e.JOB_EVENTS,
            *e.NODE_EVENTS,
            *e.LOSS_EVENTS,
            e.PartitionUpdated,
            *e.ACCOUNT_EVENTS,
            *e.RESERVATION_EVENTS,
            *SERVICE_EVENTS,
            *IDLE_EVENTS,
            *e.FAULT_EVENTS,
        )
    ),
)

"""Who would start if some jobs ended now: what a pool would win, planned and not guessed.

Asked by `GET /v1/idle` in a fork of the daemon. It ends the jobs in the state that it is given, so that state must be
nobody else's; then the planner's own pass says who starts, beside those who would have started anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bireme.core.lifecycle.apply import apply
from bireme.core.model import events as e
from bireme.core.model.jobs import Outcome, Running
from bireme.core.plan.decisions import Start, StartGang
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.trial import EVERY_START
from bireme.core.plan.unplanned import without_a_pass
from bireme.core.state.state import State


def started_if_ended(state: State, job_ids: Collection[int], now: float) -> list[int]:
    """Ends those of the jobs that run, in `state`, and names the waiting jobs that start for it."""
    if without_a_pass(state) is not None:
        return []
    before = set(_starts(state, now))
    for job_id in job_ids:
        job = state.holding.get(job_id)
        if job is not None and isinstance(job.phase, Running) and not job.mirrored:
            _end(state, e.JobEnding(job.id, job.generation, Outcome("CANCELLED"), kill_now=True), now)
            _end(state, e.JobEnded(job.id, job.generation, now), now)
    return [job_id for job_id in _starts(state, now) if job_id not in before]


def _end(state: State, event: e.Event, now: float) -> None:
    apply(state, e.Recorded(state.seq + 1, now, "trial", event))


def _starts(state: State, now: float) -> list[int]:
    policy = replace(state.config.settings.policy, starts_max=EVERY_START)
    starts: list[int] = []
    for decision in plan(Snapshot(state, policy, now)).starts:
        parts = decision.starts if isinstance(decision, StartGang) else (decision,)
        starts += [part.job_id for part in parts if isinstance(part, Start)]
    return starts

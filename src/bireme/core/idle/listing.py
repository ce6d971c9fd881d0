"""Every running job with GPUs, as the policy for idle ones sees it: what `bireme idle` and `GET /v1/idle` show.

Called by the API with what the daemon's keeper has measured. Reads the state only, and asks the same functions that
decide (`rules`): who is said to be hit is who is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from bireme.core.idle.rules import consequence, exempt, rule_for, spared
from bireme.core.idle.shelves import NOTICES, policy_of
from bireme.core.idle.streaks import NOTHING_KNOWN, Measured
from bireme.core.idle.wording import comes
from bireme.core.jobs.due import limit_reached_at
from bireme.core.model.idling.policy import IdleAction, IdleRule
from bireme.core.model.jobs import Job, Running
from bireme.core.state.state import State
from bireme.core.telemetry.attribution import gpus_of

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A job that holds GPUs, as a line of `bireme idle` shows it."""

    job_id: int
    label: str
    name: str
    user: str
    account: str
    qos: str
    partition: str
    nodes: tuple[str, ...]
    gpus: int
    stage: str
    """`busy`, `unknown`, `exempt`, `unruled`; `idle`: not for long enough yet; `due`: it would be told now; `told`."""
    why: str = ""
    """Why it is not idle, not known, or exempt."""
    rule: str = ""
    since: float | None = None
    idle_s: float = 0.0
    gpus_idle: int = 0
    percent: float | None = None
    measure: str = ""
    memory_mib: int = 0
    wasted_gpu_hours: float = 0.0
    """By the idle ones, since they are idle."""
    action: str = ""
    """What the rule does about it: it is said in every mode, and done in `act` alone."""
    move_to: str = ""
    comes: str = ""
    instead: str = ""
    """Why it is not what the rule says first."""
    told_at: float | None = None
    hit_at: float | None = None
    """When that would be, if it stays idle."""
    wins_gpu_hours: float | None = None
    """What the pool would have of its GPUs from then until its time limit; None: it has none, or nothing is done."""


def listed(state: State, measured: Mapping[int, Measured], now: float) -> Iterator[Listed]:
    """Of every job that runs with GPUs."""
    for job in state.holding.values():
        if isinstance(job.phase, Running) and gpus_of(job.phase.allocation):
            yield _listed(state, job, job.phase, measured.get(job.id), now)


def _listed(state: State, job: Job, phase: Running, seen: Measured | None, now: float) -> Listed:
    rule = rule_for(policy_of(state), job)
    about = _about(job, phase, rule)
    if why := spared(job) or (exempt(rule, job) if rule is not None else ""):
        return replace(about, stage="exempt", why=why)
    if rule is None:
        return replace(about, stage="unruled", why="no rule is for it")
    if seen is None or seen.generation != job.generation or not seen.known:
        return replace(about, stage="unknown", why=seen.why if seen is not None else NOTHING_KNOWN)
    about = replace(about, percent=seen.percent, measure=seen.measure, gpus_idle=seen.gpus_idle)
    if seen.since is None:
        return replace(about, stage="busy", why=seen.why)
    return _idle(state, job, phase, rule, seen, seen.since, now, about)


def _about(job: Job, phase: Running, rule: IdleRule | None) -> Listed:
    spec, allocation = job.spec, phase.allocation
    return Listed(
        job_id=job.id,
        label=job.label,
        name=spec.name,
        user=spec.owner.user,
        account=spec.account,
        qos=spec.qos,
        partition=allocation.partition,
        nodes=allocation.node_names,
        gpus=gpus_of(allocation),
        stage="unknown",
        rule=rule.name if rule is not None else "",
    )


def _idle(
    state: State, job: Job, phase: Running, rule: IdleRule, seen: Measured, since: float, now: float, about: Listed
) -> Listed:
    notice, wanted = NOTICES.of(state).get(job.id), consequence(state, rule, job)
    idle_s = max(0.0, seen.at - since)
    hit_at = None
    if wanted.action is not IdleAction.NOTIFY:
        promised = notice.act_at if notice is not None else None
        hit_at = promised if promised is not None else max(now, since + rule.idle_s) + rule.grace_s
    return replace(
        about,
        stage="told" if notice is not None else "due" if idle_s >= rule.idle_s else "idle",
        since=since,
        idle_s=idle_s,
        memory_mib=seen.memory_mib,
        wasted_gpu_hours=seen.gpus_idle * idle_s / _HOUR_S,
        action=wanted.action.value,
        move_to=wanted.move_to,
        comes=comes(wanted.action, wanted.move_to),
        instead=wanted.instead,
        told_at=notice.given_at if notice is not None else None,
        hit_at=hit_at,
        wins_gpu_hours=_wins(state, job, phase, hit_at),
    )


def _wins(state: State, job: Job, phase: Running, hit_at: float | None) -> float | None:
    end = limit_reached_at(state, job, phase)
    if end is None or hit_at is None:
        return None
    return gpus_of(phase.allocation) * max(0.0, end - hit_at) / _HOUR_S

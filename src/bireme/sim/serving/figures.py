"""What a simulation of a service says: waiting times, replica-hours, cold starts, and what training beside it lost; as
numbers and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

import numpy as np

from bireme.core.model.serving.services import ServiceSpec
from bireme.core.scaling.targets import targets_of, with_default_target
from bireme.core.scaling.wording import counted
from bireme.sim.metrics import capacity
from bireme.sim.report.words import duration, number
from bireme.sim.serving.model import Conditions, Outcome
from bireme.sim.serving.pool import PoolOutcome, Setup
from bireme.sim.serving.traffic import HOUR_S, Traffic


def numbers_of(spec: ServiceSpec, traffic: Traffic, conditions: Conditions, outcome: Outcome) -> dict[str, Any]:
    """All figures, for --json and for `lines`."""
    waits = np.array(outcome.waits) if outcome.waits else np.zeros(1)
    hours = np.array(outcome.arrived_at or [0.0]) // HOUR_S
    return {
        "traffic": traffic.name,
        "seconds": traffic.length_s,
        "requests": len(traffic.at),
        "answered": len(outcome.waits),
        "refused": outcome.refused,
        "timed_out": outcome.timed_out,
        "cut_off": outcome.cut_off,
        "wait_s": {
            "mean": float(waits.mean()),
            **{f"p{part}": float(np.percentile(waits, part)) for part in (50, 95, 99)},
            "max": float(waits.max()),
        },
        "waited": int((waits > 0.0).sum()),
        "cold_starts": outcome.cold_starts,
        "replica_hours": outcome.replica_seconds / HOUR_S,
        "most_replicas": max((most for _, most in outcome.by_hour.values()), default=0),
        "busy": _busy(spec, outcome),
        "load_s": conditions.load_s,
        "changes": [
            {"at": change.at, "from": change.before, "to": change.after, "why": change.why}
            for change in outcome.changes
        ],
        "hours": [
            {
                "hour": hour,
                "requests": int(((traffic.at // HOUR_S) == hour).sum()),
                "replicas": seconds / HOUR_S,
                "most_replicas": most,
                "wait_p95_s": float(np.percentile(waits[hours == hour], 95)) if (hours == hour).any() else 0.0,
            }
            for hour, (seconds, most) in sorted(outcome.by_hour.items())
        ],
    }


def pool_numbers(setup: Setup, played: PoolOutcome) -> dict[str, Any]:
    """What a simulation on a cluster has besides: `cluster` and, if there is any, `training`."""
    unit, total = capacity(setup.config)
    cluster = {
        "name": setup.config.name,
        "nodes": len(setup.config.nodes),
        "unit": unit,
        "units": total,
        "policy": setup.policy.name,
        "replica_gpus": played.replica_gpus,
        "without_room_replica_hours": played.without_room_s / HOUR_S,
    }
    toll = played.toll
    if toll is None or setup.workload is None:
        return {"cluster": cluster}
    habits = setup.habits
    return {
        "cluster": cluster,
        "training": {
            "source": setup.workload.source,
            "jobs": toll.jobs,
            "left_out": len(played.problems) + len(setup.workload.problems),
            "checkpoint_s": habits.checkpoint_s if isfinite(habits.checkpoint_s) else None,
            "restart_s": habits.restart_s,
            "save_s": habits.save_s,
            "unit": toll.unit,
            "asked_hours": toll.asked_hours,
            "preemptions": toll.preemptions,
            "preempted_jobs": toll.preempted_jobs,
            "lost_hours": toll.lost_hours,
            "grace_hours": toll.grace_hours,
            "restart_hours": toll.restart_hours,
            "wasted_hours": toll.wasted_hours,
            "unfinished": toll.unfinished,
            "end_delay_s": toll.end_delay_s,
            "job_delay_s": {"mean": toll.mean_delay_s, "max": toll.max_delay_s},
        },
    }


def _busy(spec: ServiceSpec, outcome: Outcome) -> float | None:
    """The part of all that the replicas could have worked on, that they did; None: they have no limit."""
    most = spec.routing.max_concurrency
    if most is None or not outcome.replica_seconds:
        return None
    return outcome.busy_seconds / (outcome.replica_seconds * most)


def lines(spec: ServiceSpec, found: dict[str, Any], *, changes: bool) -> Iterator[str]:
    """The figures for people."""
    wait, policy = found["wait_s"], spec.scaling
    targets = targets_of(with_default_target(policy, spec.routing.max_concurrency))
    asked = ", ".join(f"{target.value:g} {counted(target)}" for target in targets)
    yield f"{found['traffic']}: {number(found['requests'])} requests in {duration(found['seconds'])}"
    yield (
        f"{policy.replicas_min} to {policy.replicas_max} replicas, one for each {asked}; "
        f"each loads for {duration(found['load_s'])}"
    )
    if spec.routing.max_concurrency is None:
        yield "Without --max-concurrency a replica takes every request at once: only loading makes any wait."
    yield from _about_cluster(found)
    yield ""
    parts = ", ".join(f"{name} {_short(wait[name])}" for name in ("mean", "p50", "p95", "p99"))
    yield f"  waiting     {parts}, at most {_short(wait['max'])}; {number(found['waited'])} requests waited"
    refused, late, cut_off = (number(found[name]) for name in ("refused", "timed_out", "cut_off"))
    yield f"  not served  {refused} refused, {late} timed out, {cut_off} cut off"
    busy = "" if found["busy"] is None else f", busy for {found['busy']:.0%} of what they could do"
    yield f"  replicas    {found['replica_hours']:.1f} replica-hours, at most {found['most_replicas']}{busy}"
    yield f"  from none   {found['cold_starts']} cold starts; {len(found['changes'])} changes of the number wanted"
    yield from _about_training(found)
    yield ""
    yield "  hour   requests   replicas   most   wait p95"
    for row in found["hours"]:
        yield (
            f"  {row['hour']:4}   {number(row['requests']):>8}   {row['replicas']:8.2f}   {row['most_replicas']:4}   "
            f"{_short(row['wait_p95_s']):>8}"
        )
    if changes:
        yield ""
        for change in found["changes"]:
            yield f"  {_clock(change['at'])}  {change['from']} -> {change['why']}"


def _about_cluster(found: dict[str, Any]) -> Iterator[str]:
    cluster = found.get("cluster")
    if cluster is None:
        return
    size = f"{cluster['nodes']} nodes with {number(cluster['units'])} {cluster['unit']}s"
    gpus = cluster["replica_gpus"]
    held = f"{number(gpus)} GPU{'' if gpus == 1 else 's'}"
    yield f"on {cluster['name']} ({cluster['policy']}): {size}; a replica holds {held}"
    if cluster["unit"] == "GPU" and not cluster["replica_gpus"]:
        yield "Replicas ask for no GPU, so that no training makes way for one: say --gpus=1."
    training = found.get("training")
    if training is not None:
        often = training["checkpoint_s"]
        yield (
            f"beside {training['source']}: {number(training['jobs'])} jobs; "
            + (f"a checkpoint every {duration(often)}" if often is not None else "no checkpoints")
            + (f" and within {duration(training['save_s'])} when told to make way" if training["save_s"] else "")
            + f"; {duration(training['restart_s'])} to come back"
        )


def _about_training(found: dict[str, Any]) -> Iterator[str]:
    if "cluster" in found:
        yield f"  room        {found['cluster']['without_room_replica_hours']:.2f} replica-hours waited for room"
    training = found.get("training")
    if training is None:
        return
    unit = training["unit"]
    yield (
        f"  training    {number(training['preemptions'])} preemptions of {number(training['preempted_jobs'])} jobs; "
        f"{training['wasted_hours']:.2f} {unit}-hours wasted: {training['lost_hours']:.2f} since the last checkpoint, "
        f"{training['grace_hours']:.2f} making way, {training['restart_hours']:.2f} coming back"
    )
    late = training["job_delay_s"]
    yield (
        f"  its end     {_later(training['end_delay_s'])} than without the service; a job {_later(late['mean'])} on "
        f"average, {_later(late['max'])} at most"
    )
    if training["unfinished"]:
        left = number(training["unfinished"])
        yield f"  unfinished  {left} jobs did not do all of their work (time limit, or not requeued)"
    if training["left_out"]:
        yield f"  left out    {number(training['left_out'])} rows or jobs of the training"


def _later(seconds: float) -> str:
    return f"{duration(abs(seconds))} {'earlier' if seconds < 0 else 'later'}"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1.0 else duration(seconds)


def _clock(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86_400)
    return f"{f'day {days + 1} ' if days else ''}{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"

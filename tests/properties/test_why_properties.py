"""What `bireme why` says is what the planner does: a trial of an unchanged job, and suggestions that are followed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.api.routes.orders import read_order
from bireme.commands.scontrol.update import job_change
from bireme.core.model.jobs import ArrayWaiting
from bireme.core.model.refusals import Refusal
from bireme.core.plan.decisions import Preempt, Start, StartGang
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.trial import EVERY_START, try_jobs
from bireme.core.why.answers import Certainty
from bireme.core.why.sooner import find_sooner
from bireme.core.why.waiting import explain_waiting
from bireme.testing.scenario import Scenario, caller_named

HOUR = 3600
JOBS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "nodes": st.integers(1, 3),
            "cpus": st.integers(1, 4),
            "gpus_per_node": st.integers(1, 4),
            "time_s": st.sampled_from([HOUR, 2 * HOUR, 5 * HOUR]),
            "exclusive": st.booleans(),
            "array": st.sampled_from(["1-3", "1-4%2"]),
            "hold": st.booleans(),
            "partition": st.sampled_from(["main", "side", "main,side"]),
        },
    ),
    min_size=1,
    max_size=8,
)


def crowd(jobs: list[dict[str, Any]], settled: int) -> Scenario:
    """Some of the jobs came before the others, which the planner has not seen yet."""
    world = Scenario("3x4:h100", partitions={"main": {}, "side": {"nodes": "n[2-3]", "priority_tier": 2}})
    for number, options in enumerate(jobs):
        with suppress(Refusal):
            world.submit(f"j{number}", **options)
        if number < settled:
            world.settle()
    return world


@settings(max_examples=100, deadline=None)
@given(JOBS, st.integers(0, 8))
def test_a_trial_of_an_unchanged_job_is_what_a_full_pass_decides(jobs: list[dict[str, Any]], settled: int) -> None:
    world = crowd(jobs, settled)
    policy = replace(world.state.config.settings.policy, starts_max=EVERY_START)
    whole = plan(Snapshot(world.state, policy, world.now))
    starts: dict[int, Start] = {}
    for decision in whole.starts:
        for start in () if isinstance(decision, Preempt) else _starts(decision):
            starts.setdefault(start.job_id, start)
    for job in list(world.state.pending.values()):
        trial = try_jobs(world.state, [job], world.now)
        if job.id in starts:
            assert (trial.starts_now, trial.shares) == (True, starts[job.id].shares)
        else:
            assert trial.start == whole.verdicts[job.id].expected_start
            assert trial.verdict == whole.verdicts[job.id]
    world.state.validate()


def _starts(decision: Start | StartGang) -> tuple[Start, ...]:
    return decision.starts if isinstance(decision, StartGang) else (decision,)


@settings(max_examples=100, deadline=None)
@given(JOBS, st.data())
def test_whatever_is_suggested_comes_true(jobs: list[dict[str, Any]], data: st.DataObject) -> None:
    world = crowd(jobs, 0)
    world.settle()
    waiting = [job for job in world.state.pending.values() if not isinstance(job.array, ArrayWaiting)]
    if not waiting:
        return
    job = data.draw(st.sampled_from(waiting))
    answer, trial = explain_waiting(world.state, job, world.now)
    assert answer.expected.start is not None or answer.expected.certainty not in (Certainty.NOW, Certainty.SLOT)
    found = [each for each in find_sooner(world.state, job, caller_named("alice"), trial, world.now) if each]
    doable = [each for each in found if each.starts_now and each.command.startswith("scontrol update")]
    if not doable:
        return
    suggestion = data.draw(st.sampled_from(doable))
    label = world.labels[job.id]
    words = [word.split("=", 1) for word in suggestion.command.split()[2:] if not word.startswith("JobId")]
    changes: dict[str, Any] = {}
    for key, value in words:
        changes |= job_change(key, value)
    world.update(label, **read_order("update", {"changes": changes}, world.now)[1].changes)
    world.settle()
    assert world.described()[label].startswith("runs "), suggestion

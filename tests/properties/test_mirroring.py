"""Another scheduler's queue, mirrored: whatever it shows, in whatever order, the state stays sound and follows it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.core.jobs.keys import KEYS
from bireme.core.jobs.mirroring import missing_from, take_standings
from bireme.core.jobs.ranking import top
from bireme.core.lifecycle.apply import apply
from bireme.core.lifecycle.due import due
from bireme.core.lifecycle.intake import interpret
from bireme.core.lifecycle.outstanding import outstanding
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, PrioritySettings, Settings
from bireme.core.model.jobs import (
    Ending,
    Finished,
    JobSpec,
    Outcome,
    Owner,
    Pending,
    Phase,
    Running,
    Starting,
    Suspended,
)
from bireme.core.model.policy import Policy, Preemption
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.model.refusals import Caller
from bireme.core.model.reservations import Reservation, ReservationFlag
from bireme.core.model.resources import Allocation, Device, GresPool, GresShare, NodeShare
from bireme.core.model.sightings import Sighting, Standing
from bireme.core.plan.decisions import Preempt, accept
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.state.state import State
from bireme.testing.books import book_change

GPUS = GresPool("gpu", "a100", 2, (Device(0, "a100"), Device(1, "a100")))
NODES = tuple(
    NodeConfig(name=f"n{number}", cpus=4, cores_per_socket=2, threads_per_core=2, memory_mib=1000, gres=(GPUS,))
    for number in (1, 2)
)
CONFIG = ClusterConfig(nodes=NODES, partitions=(PartitionConfig(name="main", nodes=("n1", "n2"), default=True),))
SPEC = JobSpec(owner=Owner(uid=7, gid=7, user="ann"), partitions=("main",), time_limit_s=60, time_limit_given=True)

URGENT = replace(
    CONFIG,
    partitions=(*CONFIG.partitions, PartitionConfig(name="urgent", nodes=("n1", "n2"), priority_tier=9)),
    settings=Settings(
        policy=Policy(preemption=Preemption("partition", "CANCEL")),
        accounting_enforce=("associations", "limits"),
        priority=PrioritySettings(multifactor=True),
    ),
)
ROOT = Caller(uid=0, gid=0, user="root", admin=True)

shares = st.builds(
    NodeShare,
    st.sampled_from(["n1", "n2", "elsewhere"]),
    st.integers(1, 6),
    st.integers(0, 2000),
    st.lists(st.integers(0, 7), max_size=6, unique=True).map(tuple),
    st.sampled_from([(), (GresShare("gpu", None, 1, (1,)),), (GresShare("gpu", "a100", 2, (0, 1)),)]),
)


@st.composite
def sightings(draw: st.DrawFn) -> Sighting:
    job_id, restarts = draw(st.integers(1, 5)), draw(st.integers(0, 2))
    held = draw(st.lists(shares, min_size=1, max_size=2, unique_by=lambda share: share.node))
    allocation = Allocation(job_id, restarts + 1, "main", tuple(held), draw(st.booleans()))
    at = draw(st.floats(900, 1000))
    outcome = Outcome(draw(st.sampled_from(["COMPLETED", "FAILED"])))
    phases: list[Phase] = [
        Pending(at, at),
        Starting(allocation, at),
        Running(allocation, at),
        Suspended(allocation, at, 0.0, at),
        Ending(allocation, at, at, outcome),
        Finished(outcome, at, at, allocation),
        Finished(outcome, at),
    ]
    return Sighting(job_id=job_id, spec=SPEC, submitted_at=at, phase=draw(st.sampled_from(phases)), restarts=restarts)


def fresh() -> State:
    state = State()
    apply(state, e.Recorded(1, 0.0, "test", e.ClusterConfigured(CONFIG)))
    return state


def see(state: State, seen: Sighting, now: float = 1000.0) -> list[e.Event]:
    events = interpret(state, o.JobSeen(seen, now), now)
    for event in events:
        assert not apply(state, e.Recorded(state.seq + 1, now, "engine", event)), "nothing is commanded"
    return events


@settings(max_examples=200, deadline=None)
@given(st.lists(sightings(), max_size=12))
def test_the_mirror_follows_and_stays_sound(shown: list[Sighting]) -> None:
    state, events = fresh(), []
    for seen in shown:
        events += see(state, seen)
        state.validate()
        assert type(state.jobs[seen.job_id].phase) is type(seen.phase)
        assert see(state, seen) == [], "seen twice it changes nothing"
    assert outstanding(state) == []
    over_time = [event for event in due(state, 1e6) if not isinstance(event, e.JobForgotten)]
    assert over_time == [], "its time limits are the other scheduler's affair"
    again = fresh()
    for event in events:
        apply(again, e.Recorded(again.seq + 1, 1000.0, "replay", event))
    assert again.jobs == state.jobs


RESERVED = replace(SPEC, reservation="maint", account="physics", deadline_at=950.0, begin_at=940.0)
FLAGS = [(), (ReservationFlag.REPLACE,), (ReservationFlag.PURGE_COMP,), (ReservationFlag.NO_HOLD_JOBS_AFTER,)]


@settings(max_examples=200, deadline=None)
@given(st.lists(sightings(), max_size=6), st.sampled_from(FLAGS), st.sampled_from([990.0, 1e7]))
def test_nothing_is_decided_about_another_schedulers_job(
    shown: list[Sighting], flags: tuple[ReservationFlag, ...], ends_at: float
) -> None:
    """Neither by time nor by the planner nor by `scontrol top`, whatever of ours has the same name, user or nodes."""
    state = fresh()
    maint = Reservation(name="maint", begin=900.0, end=ends_at, nodes=("n1",), users=("ann",), flags=flags)
    limits: dict[str, Any] = {"physics": {"grp_jobs_accrue": 0}}
    ours = replace(SPEC, account="physics", partitions=("urgent",))
    for event in (
        e.ClusterConfigured(URGENT),
        *(e.NodeRegistered(node.name, 900.0) for node in NODES),
        book_change(state.accounts, limits, {"ann": {"account": "physics"}}),
        e.ReservationSet(maint),
        e.JobSubmitted(77, ours, 5, 900.0, ()),
        e.JobSubmitted(78, replace(RESERVED, reservation="", deadline_at=None), 6, 900.0, ()),
    ):
        apply(state, e.Recorded(state.seq + 1, 900.0, "test", event))
    for seen in shown:
        see(state, replace(seen, spec=RESERVED))
    theirs = {job.id for job in state.jobs.values() if job.mirrored}
    take_standings(state, [Standing(job_id, 42) for job_id in sorted(theirs)])
    decided = [*due(state, 1e6), *top(state, ROOT, [state.jobs[78]])]
    plan_of = plan(Snapshot(state, URGENT.settings.policy, 1e6))
    decided += [event for decision in plan_of.starts for event in accept(state, decision)]
    assert not [
        each for each in decided if getattr(each, "job_id", 0) in theirs and not isinstance(each, e.JobForgotten)
    ]
    victims = {victim.job_id for each in plan_of.starts if isinstance(each, Preempt) for victim in each.victims}
    assert not victims & theirs


@given(sightings(), st.integers(1, 10))
def test_the_counts_stay_where_the_numbers_are_taken(seen: Sighting, cpus: int) -> None:
    state = fresh()
    holder = Allocation(9, 1, "main", (NodeShare("n1", cpus, 0, tuple(range(min(cpus, 4)))),))
    see(state, Sighting(job_id=9, spec=SPEC, submitted_at=0.0, phase=Running(holder, 0.0)))
    see(state, seen)
    mine, theirs = state.jobs[seen.job_id].allocation, getattr(seen.phase, "allocation", None)
    assert (mine is None) == (theirs is None)
    if mine is not None and theirs is not None:
        assert [(share.node, share.cpus, share.memory_mib) for share in mine.shares] == [
            (share.node, share.cpus, share.memory_mib) for share in theirs.shares
        ]


def test_a_job_that_runs_after_all_takes_what_is_left() -> None:
    """What it held before it was said to have ended is another's by now."""
    state = fresh()
    held = Allocation(5, 1, "main", (NodeShare("n2", 1, 0, (0,)),))
    see(state, Sighting(job_id=5, spec=SPEC, submitted_at=0.0, phase=Finished(Outcome("FAILED"), 990.0, 900.0, held)))
    other = replace(held, job_id=1)
    see(state, Sighting(job_id=1, spec=SPEC, submitted_at=0.0, phase=Running(other, 995.0)))
    see(state, Sighting(job_id=5, spec=SPEC, submitted_at=0.0, phase=Running(held, 900.0)))
    state.validate()
    assert [state.jobs[job].held.shares[0].cpu_ids for job in (1, 5)] == [(0,), (1,)]


def test_what_the_queue_no_longer_lists_is_asked_after_and_standings_are_taken() -> None:
    state = fresh()
    see(state, Sighting(job_id=1, spec=SPEC, submitted_at=0.0, phase=Pending(0.0, 0.0)))
    see(state, Sighting(job_id=2, spec=SPEC, submitted_at=0.0, phase=Pending(0.0, 0.0)))
    assert [job.id for job in missing_from(state, frozenset({2}))] == [1]
    assert missing_from(state, None) == []
    before = copy.deepcopy(state.jobs)
    take_standings(state, [Standing(1, 42, (reason(ReasonKind.PRIORITY),), 5000.0), Standing(99, 1)])
    assert (state.jobs[1].priority, state.verdicts[1].expected_start) == (42, 5000.0)
    assert state.jobs[1].phase == before[1].phase


def test_the_script_that_was_submitted_is_not_forgotten_when_the_queue_does_not_show_it() -> None:
    state = fresh()
    submitted = replace(SPEC, script="a blob", environment="another", argv=("x",))
    see(state, Sighting(job_id=1, spec=submitted, submitted_at=0.0, phase=Pending(0.0, 0.0), key="k"))
    see(state, Sighting(job_id=1, spec=replace(SPEC, name="renamed"), submitted_at=0.0, phase=Pending(0.0, 0.0)))
    spec = state.jobs[1].spec
    assert (spec.name, spec.script, spec.environment, spec.argv) == ("renamed", "a blob", "another", ("x",))
    assert KEYS.of(state) == {"k": 1}


def test_a_job_that_ended_long_ago_is_only_history() -> None:
    state = fresh()
    old = Sighting(job_id=1, spec=SPEC, submitted_at=0.0, phase=Finished(Outcome("COMPLETED"), 10.0))
    assert see(state, old, now=1e6) == []
    assert state.jobs == {}

"""The rules can fail: each bug that is planted is found by its rule, in the world that is known to find it soon.

`make soak-detectors` counts how many worlds each needs. The same worlds, played without a bug, break nothing
(`test_worlds.py` plays them).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.simulation.planted import PLANTED, Planted, found
from tests.simulation.test_worlds import FENCES, IDLE, LOSSES, SEEDS, SERVICES

from bireme.core.accounts import charging
from bireme.core.faults.fences import kind as fence_kind
from bireme.core.idle import judging
from bireme.core.kinds.kind import Interpreter
from bireme.core.lifecycle.registry import INTERPRETERS
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Job, Outcome, Running
from bireme.core.model.nodes import Health, Node
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.placement.table import NodeTable
from bireme.core.plan import consider
from bireme.core.plan.decisions import Preempt
from bireme.core.plan.queue import Entry
from bireme.core.plan.work import Pass
from bireme.core.state.state import State
from bireme.engines.simulated.agents import Behaviour
from bireme.runtime.kernel import Group
from bireme.sim.faults.daemon import Daemon
from bireme.sim.faults.draw import BEGIN, Act, Story, draw
from bireme.sim.faults.fencing import draw_with_fences
from bireme.sim.faults.idling import draw_with_idle
from bireme.sim.faults.play import Failed
from bireme.sim.faults.soak import play, shrink
from bireme.testing.worlds import build_cluster


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Planted) -> None:
    seen = found(planted, [planted.seed] if planted.seed else range(1, 13), wishes=bool(planted.seed))
    assert seen is not None, f"nobody noticed in world {planted.seed}: {planted.what}"
    assert re.search(planted.words, str(seen[1]))


def test_the_worlds_that_find_bugs_are_played_without_them_too() -> None:
    assert {planted.seed for planted in PLANTED if not planted.loss and not planted.services} <= {0, *SEEDS}
    assert {planted.seed for planted in PLANTED if planted.services} <= set(SERVICES)
    assert {planted.seed for planted in PLANTED if planted.loss} <= set(LOSSES)
    assert len(PLANTED) >= 25
    assert len({planted.name for planted in PLANTED}) == len(PLANTED)


def _unwarned(state: State, seen: o.IdlenessSeen, now: float) -> list[e.Event]:
    job = state.holding.get(seen.job_id)
    if job is None or job.generation != seen.generation or not isinstance(job.phase, Running) or seen.since is None:
        return []
    why = reason(ReasonKind.IDLE_GPUS, rule="world")
    return [e.JobEnding(job.id, job.generation, Outcome("CANCELLED", reason=why))]


def _impatient(state: State, seen: o.IdlenessSeen, now: float) -> list[e.Event]:
    return judging.seen(state, replace(seen, at=now + 1_000), now + 1_000)


def _play_all() -> None:
    for seed in IDLE:
        play(draw_with_idle(seed))


@pytest.mark.parametrize(
    ("bug", "words"),
    [(_unwarned, "nobody had told its owner"), (_impatient, "before the grace of its notice was over")],
)
def test_an_end_for_idleness_that_nobody_was_told_of_is_found(
    monkeypatch: pytest.MonkeyPatch, bug: Interpreter, words: str
) -> None:
    monkeypatch.setitem(INTERPRETERS, o.IdlenessSeen, bug)
    with pytest.raises(Failed, match=words):
        _play_all()


def _play_fenced() -> None:
    for seed in FENCES:
        play(draw_with_fences(seed))


def _what_ends_there_comes_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeTable, "share_in_service", lambda self, share: share)
    patch.setattr(NodeTable, "in_service", lambda self, allocation: allocation)


def _only_said(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fence_kind, "_shut", lambda state, name: None)


def _not_drained(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Node, "schedulable", property(lambda node: node.health is Health.UP))


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (_only_said, "which was fenced before"),
        (_what_ends_there_comes_back, r"gpu \[.*are taken"),
        (_not_drained, "a node that takes no jobs"),
    ],
)
def test_a_start_on_what_is_fenced_is_found(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None], words: str
) -> None:
    bug(monkeypatch)
    with pytest.raises(Failed, match=words):
        _play_fenced()


def test_who_makes_room_only_in_a_full_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rare: two worlds of the first hundred draw it, so it is not among those that `make soak-detectors` counts."""
    good = consider.victims_for

    def not_again(work: Pass, job: Job, partition: PartitionConfig, entry: Entry) -> Preempt | None:
        return None if job.id in work.known else good(work, job, partition, entry)

    monkeypatch.setattr(consider, "victims_for", not_again)
    with pytest.raises(Failed, match="whole queue starts whom small passes did not: Preempt"):
        play(draw(95))


def test_a_failure_is_made_smaller_and_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charging, "STOPS", (e.JobSuspended, e.JobLaunchFailed))
    story = draw(1)
    with pytest.raises(Failed, match="CPU-seconds") as failure:
        play(story)
    smaller, again = shrink(story, failure.value, seconds=10.0)
    assert again.rule == failure.value.rule
    assert len(smaller.acts) < len(story.acts)


LONG = {"nodes": 1, "cpus": 1, "time_s": 1_800, "comment": str(Behaviour(run=5_000.0))}
SUBMIT = Act(0, BEGIN, "submit", {"name": "j0", "user": "alice", "jobs": [LONG]})
ASKS = {
    c.SuspendJob: [Act(1, BEGIN + 1_100, "suspend", {"job": 0})],
    c.ResumeJob: [Act(1, BEGIN + 1_100, "suspend", {"job": 0})],
    c.TerminateStep: [
        Act(1, BEGIN + 1_000, "step", {"job": 0, "behaviour": str(Behaviour(run=5_000.0)), "time_limit_s": None}),
        Act(2, BEGIN + 1_100, "end_step", {"job": 0}),
    ],
}


@pytest.mark.parametrize(
    ("lost", "words"),
    [(c.ResumeJob, "stopped: True"), (c.SuspendJob, "stopped: False"), (c.TerminateStep, "was to be ended")],
)
def test_an_order_that_gets_lost(lost: type[c.Command], words: str) -> None:
    """In a world of one job; without the sabotage it is as it should be."""

    def sabotage(daemon: Daemon) -> None:
        commands = daemon.kernel.commands

        def fewer(group: Group) -> list[c.Command]:
            return [each for each in commands(group) if not isinstance(each, lost)]

        daemon.kernel.commands = fewer  # type: ignore[method-assign]

    story = Story(0, build_cluster("1x4"), {"maths": {}, "physics": {}}, (SUBMIT, *ASKS[lost]))
    play(story)
    with pytest.raises(Failed, match=words):
        play(story, sabotage=sabotage)

"""The rules can fail: a kernel, an engine or a store that is broken on purpose is found out within a few worlds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bireme.core.lifecycle import charging, intake
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.nodes import Health, Node
from bireme.core.placement.occupancy import Occupancy
from bireme.engines.crew.engine import CrewEngine
from bireme.engines.crew.gangs import Farewell, Gang, Next
from bireme.engines.simulated.agents import Behaviour, Run, SimulatedAgent
from bireme.runtime.kernel import Group, Kernel
from bireme.sim.faults.daemon import Daemon
from bireme.sim.faults.draw import BEGIN, Act, Story, draw
from bireme.sim.faults.play import Failed, Sabotage
from bireme.sim.faults.soak import play, shrink
from bireme.testing.worlds import build_cluster

WORLDS = 12


def found_out(sabotage: Sabotage | None = None) -> Failed:
    """The first rule that is broken."""
    for seed in range(1, WORLDS + 1):
        try:
            play(draw(seed), sabotage=sabotage)
        except Failed as failure:
            return failure
    raise AssertionError(f"{WORLDS} worlds went by, and nobody noticed")


def test_devices_given_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Occupancy, "hold", lambda self, allocation: None)
    monkeypatch.setattr(Occupancy, "release", lambda self, allocation: None)
    assert "held twice" in str(found_out())


def test_a_gang_whose_script_does_not_wait_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(gang: Gang, node: str) -> Next:
        gang.unprepared.discard(node)
        first, gang.batch_ordered = not gang.batch_ordered, True
        return Next.START_BATCH if first and gang.has_batch else Next.WAIT if gang.has_batch else Next.LAUNCHED

    monkeypatch.setattr(Gang, "prepared", hasty)
    assert "before" in str(found_out())


def test_a_node_that_starts_what_it_started_already(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(agent: SimulatedAgent, run: Run, order: dict[str, Any]) -> None:
        if run.ready and not run.ending:
            agent._begin_script(run)

    def says_it_twice(daemon: Daemon) -> None:
        commands = daemon.kernel.commands
        daemon.kernel.commands = lambda group: commands(group) * 2  # type: ignore[method-assign]

    monkeypatch.setattr(SimulatedAgent, "_said_again", again)
    assert "ran twice" in str(found_out(says_it_twice))


def test_acknowledgements_that_get_lost() -> None:
    def sabotage(daemon: Daemon) -> None:
        daemon.crew.acknowledge = lambda job_id, generation: None  # type: ignore[method-assign]

    def each_time(daemon: Daemon) -> None:
        start = daemon.start

        def started(*arguments: Any) -> None:
            start(*arguments)
            sabotage(daemon)

        daemon.start = started  # type: ignore[method-assign]

    assert "still holds" in str(found_out(each_time))


def test_orders_to_end_a_job_that_get_lost() -> None:
    def sabotage(daemon: Daemon) -> None:
        commands = daemon.kernel.commands

        def fewer(group: Group) -> list[c.Command]:
            return [each for each in commands(group) if not isinstance(each, c.TerminateJob)]

        daemon.kernel.commands = fewer  # type: ignore[method-assign]

    assert "never finished" in str(found_out(sabotage))


def test_jobs_that_go_where_a_cluster_lets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "schedulable", property(lambda node: node.health is Health.UP and not node.leftovers))
    assert "that its cluster had closed" in str(found_out())


def test_a_node_that_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = intake._node_closed
    monkeypatch.setattr(intake, "_node_closed", lambda state, seen: told(state, seen) if seen.why else [])
    assert "its cluster has opened it" in str(found_out())


def test_a_node_that_was_given_up_and_is_thought_to_be_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrewEngine, "_said_goodbye", lambda crew, key, farewell, at: o.JobCleared(*key, at))
    assert "is still on" in str(found_out())


def test_a_node_that_is_given_up_although_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Farewell, "over", lambda farewell, deaf: True)
    assert "which answered" in str(found_out())


def test_a_charge_that_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charging, "STOPS", (e.JobSuspended, e.JobLaunchFailed))
    assert "CPU-seconds" in str(found_out())


def test_an_event_that_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Kernel.commit

    def forgetful(kernel: Kernel, group: Group) -> None:
        kept: Sequence[e.Recorded] = [each for each in group.events if not isinstance(each.event, e.JobHeld)]
        commit(kernel, Group(events=list(kept), history=group.history))

    monkeypatch.setattr(Kernel, "commit", forgetful)
    assert "the journal gives another state" in str(found_out())


def test_a_failure_is_made_smaller_and_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charging, "STOPS", (e.JobSuspended, e.JobLaunchFailed))
    failure = found_out()
    story = draw(failure.seed)
    smaller, again = shrink(story, failure, seconds=10.0)
    assert again.rule == failure.rule
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

"""After events were lost: the nodes are asked before anything starts, and what they know does not run again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.core.jobs.submission import submit
from bireme.core.lifecycle.due import next_due
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import Finished, Owner, Pending, Running, Starting
from bireme.core.model.reasons import ReasonKind
from bireme.core.model.refusals import Caller
from bireme.core.model.resources import ExitStatus
from bireme.ports import JournalError
from bireme.runtime.kernel import Group, Kernel, Request
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore
from bireme.testing.worlds import build_cluster, build_spec

NOW = 1_000.0
ANN = Owner(uid=1000, gid=1000, user="ann")
LOST = e.EventsLost(5, 11, next_job_id=20, starts=7)


class World:
    """A kernel that lost what came after the submission of its first jobs."""

    def __init__(self, store: SqliteStore, *jobs: dict[str, Any], started: bool = False) -> None:
        self.store = store
        self.kernel = Kernel(store, rows_of)
        config = build_cluster("2x8", settings=Settings(memory_is_consumable=False, slurmd_timeout_s=300))
        self.kernel.commit(self.kernel.configure(config, NOW))
        for number, options in enumerate(jobs):
            self.submit(build_spec(f"job{number}", options, ANN))
        if started:
            self.turn(*(o.NodeAnswered(node, "agent", (), NOW) for node in ("n1", "n2")))
        else:
            self.kernel.commit(self.kernel.turn(NOW, time_passed=False, may_plan=False))
        store.append([(NOW, "operator recover", LOST)])
        self.kernel = Kernel(store, rows_of)

    def submit(self, spec: Any) -> None:
        caller = Caller(ANN.uid, ANN.gid, ANN.user)
        decide = lambda state, now: submit(state, caller, [spec], now)  # noqa: E731
        self.kernel.requests.append(Request("ann submit", decide, lambda events, error: None))

    def turn(self, *seen: o.Observation, now: float = NOW + 1) -> Group:
        self.kernel.observations.extend(seen)
        group = self.kernel.turn(now, time_passed=False)
        self.kernel.commit(group)
        self.kernel.settle(group)
        return group

    def hear(self, node: str, *holds: tuple[int, int]) -> Group:
        return self.turn(o.NodeAnswered(node, "agent", holds, NOW + 1))

    def phase(self, job_id: int) -> type:
        return type(self.kernel.state.jobs[job_id].phase)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(str(tmp_path / "journal.db"), durable=False)
    yield opened
    opened.close()


def launches(group: Group) -> list[tuple[int, int]]:
    return [(each.job.id, each.allocation.generation) for each in group.commands if isinstance(each, c.LaunchJob)]


def test_nothing_starts_before_every_node_was_heard(store: SqliteStore) -> None:
    world = World(store, {})
    assert launches(world.hear("n1")) == []
    verdict = world.kernel.state.verdicts[1]
    assert verdict.reasons[0].kind is ReasonKind.SYSTEM_FAILURE
    assert launches(world.hear("n2")) == [(1, 8)], "a generation that none of the lost starts can have had"
    assert world.kernel.state.loss is None


def test_a_node_that_keeps_silent_is_given_up(store: SqliteStore) -> None:
    world = World(store, {})
    world.hear("n1")
    due_at = next_due(world.kernel.state, NOW + 2)
    assert due_at == NOW + 301, "counted from the first turn"
    group = world.turn(now=due_at)
    assert group.events[0].event == e.LossSettled(("n2",))
    assert launches(group) == [(1, 8)]


@pytest.mark.parametrize("away", ["since the loss", "while it was open"])
def test_nobody_is_given_up_for_what_they_could_not_say_while_no_daemon_was_there(
    store: SqliteStore, away: str
) -> None:
    """`bireme store recover` in the evening, `bireme up` in the morning: what a node knows still counts."""
    world, morning = World(store, {}), NOW + 50_000
    if away == "while it was open":
        world.hear("n2")
        world.kernel = Kernel(store, rows_of)
    group = world.turn(now=morning)
    assert (group.events, launches(group)) == ([], [])
    assert next_due(world.kernel.state, morning) == morning + 300
    world.turn(o.NodeAnswered("n1", "agent", ((1, 1),), morning + 5), now=morning + 5)
    world.turn(o.BatchFinished(1, 1, ExitStatus(), NOW + 9, cleared=True), now=morning + 5)
    assert world.phase(1) is Finished, "it ended within what was lost, and does not run again"


def test_a_journal_that_cannot_be_written_does_not_begin_the_patience_anew(store: SqliteStore) -> None:
    world = World(store, {})
    world.turn()
    world.kernel.rollback(world.kernel.turn(NOW + 200, time_passed=False), JournalError("the disk is full"))
    world.kernel.turn(NOW + 201, time_passed=False)
    assert next_due(world.kernel.state, NOW + 201) == NOW + 301


def test_a_restart_in_between_goes_on_asking(store: SqliteStore) -> None:
    world = World(store, {})
    world.hear("n1")
    store.write_snapshot(world.kernel.state.seq, world.kernel.state)
    world.kernel = Kernel(store, rows_of)
    assert launches(world.turn()) == []
    assert launches(world.hear("n2")) == [(1, 8)]


def test_a_start_that_was_lost_is_ended_before_the_job_starts_again(store: SqliteStore) -> None:
    world = World(store, {})
    world.hear("n2")
    group = world.hear("n1", (1, 1))
    assert c.TerminateJob(1, 1, ("n1",), 0, given_up=("n1",)) in group.commands
    assert launches(group) == []
    killed = o.BatchFinished(1, 1, ExitStatus(signal=9), NOW + 2, ordered=True)
    assert launches(world.turn(killed)) == []
    assert launches(world.turn(o.JobCleared(1, 1, NOW + 2))) == [(1, 8)]
    told = [type(each.event).__name__ for each in store.story(1)]
    assert told == ["JobSubmitted", "LeftoverFound", "LeftoverCleared", "JobAllocated"]


def test_a_job_that_may_not_be_requeued_ends_with_its_lost_start(store: SqliteStore) -> None:
    world = World(store, {"requeue": False})
    world.hear("n2")
    world.hear("n1", (1, 1))
    world.turn(o.BatchFinished(1, 1, ExitStatus(signal=9), NOW + 2, ordered=True))
    world.turn(o.JobCleared(1, 1, NOW + 2))
    phase = world.kernel.state.jobs[1].phase
    assert isinstance(phase, Finished)
    assert phase.outcome.state == "NODE_FAIL"


@pytest.mark.parametrize(("code", "state"), [(0, "COMPLETED"), (3, "FAILED")])
def test_a_job_that_a_node_saw_to_its_end_does_not_run_again(store: SqliteStore, code: int, state: str) -> None:
    world = World(store, {})
    world.hear("n2")
    world.hear("n1", (1, 1))
    group = world.turn(o.BatchFinished(1, 1, ExitStatus(code=code), NOW - 9, cleared=True))
    assert [row.whole["state"] for row in group.history] == [state]
    assert launches(world.turn(o.JobCleared(1, 1, NOW + 2))) == []
    phase = world.kernel.state.jobs[1].phase
    assert isinstance(phase, Finished)
    assert phase.outcome.state == state


@pytest.mark.parametrize("ids", [(7, 8), (7, 1), (1, 7)])
def test_an_array_task_that_a_node_saw_to_its_end_does_not_run_again(store: SqliteStore, ids: tuple[int, int]) -> None:
    """Its very number was lost: the node knows which task it was. The last that starts has its array's number."""
    world = World(store, {"array": "0-1"})
    world.hear("n2")
    world.hear("n1", (ids[0], 1), (ids[1], 1))
    for task, job_id in enumerate(ids):
        seen = o.BatchFinished(job_id, 1, ExitStatus(), NOW - 9, cleared=True, label=f"1_{task}")
        assert [row.whole["array_task_id"] for row in world.turn(seen).history] == [task]
    assert launches(world.turn(*(o.JobCleared(job_id, 1, NOW + 2) for job_id in ids))) == []
    assert world.kernel.state.pending == {}
    assert sorted(world.kernel.state.arrays[1].succeeded) == [0, 1]
    world.kernel.state.validate()


def test_an_array_task_that_still_ran_is_ended_and_starts_again(store: SqliteStore) -> None:
    world = World(store, {"array": "0-1"})
    world.hear("n2")
    world.hear("n1", (7, 1))
    killed = o.BatchFinished(7, 1, ExitStatus(signal=9), NOW + 2, ordered=True, label="1_0")
    assert launches(world.turn(killed)) == []
    assert len(launches(world.turn(o.JobCleared(7, 1, NOW + 2)))) == 2


def test_a_job_whose_end_was_lost_ends_as_its_node_says(store: SqliteStore) -> None:
    world = World(store, {}, started=True)
    assert world.phase(1) is Starting
    world.hear("n2")
    world.hear("n1", (1, 1))
    world.turn(o.JobLaunched(1, 1, NOW + 1), o.BatchFinished(1, 1, ExitStatus(), NOW + 1, cleared=True))
    assert world.phase(1) is Finished


def test_a_job_that_runs_as_the_journal_says_runs_on(store: SqliteStore) -> None:
    world = World(store, {}, started=True)
    world.hear("n2")
    group = world.hear("n1", (1, 1))
    assert group.commands == []
    world.turn(o.JobLaunched(1, 1, NOW + 1))
    assert world.phase(1) is Running


def test_a_job_whose_submission_was_lost_is_ended_and_its_id_not_given_again(store: SqliteStore) -> None:
    world = World(store)
    world.hear("n2")
    group = world.hear("n1", (25, 1))
    assert c.TerminateJob(25, 1, ("n1",), 0, given_up=("n1",)) in group.commands
    world.turn(o.JobCleared(25, 1, NOW + 2))
    world.submit(build_spec("later", {}, ANN))
    world.turn()
    assert sorted(world.kernel.state.jobs) == [26]


def test_ids_go_on_behind_those_that_were_lost(store: SqliteStore) -> None:
    world = World(store, {})
    world.submit(build_spec("later", {}, ANN))
    world.turn()
    assert sorted(world.kernel.state.jobs) == [1, 20]
    assert world.phase(20) is Pending


class Earlier(World):
    """A home that went back to an earlier day: the journal is whole, and knows nothing of what came after."""

    def __init__(self, store: SqliteStore, *jobs: dict[str, Any]) -> None:
        self.store = store
        self.kernel = Kernel(store, rows_of)
        config = build_cluster("2x8", settings=Settings(memory_is_consumable=False, slurmd_timeout_s=300))
        self.kernel.commit(self.kernel.configure(config, NOW))
        for number, options in enumerate(jobs):
            self.submit(build_spec(f"job{number}", options, ANN))
        self.turn()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("options", [{"requeue": False}, {"array": "0-2", "requeue": False}], ids=["job", "array"])
def test_the_end_of_another_job_of_that_id_is_not_a_new_jobs_end(
    store: SqliteStore, options: dict[str, Any], restarted: bool, ordered: bool
) -> None:
    """Submitted before any node answered, it has an id that was given before; its time comes when all were heard."""
    world = Earlier(store, options)
    world.turn(o.NodeAnswered("n1", "agent", (), NOW + 2, past=((1, 1),)), now=NOW + 2)
    assert world.kernel.state.loss is not None
    if restarted:
        world.kernel = Kernel(store, rows_of)
    label = "1_0" if "array" in options else ""
    world.turn(o.BatchFinished(1, 1, ExitStatus(), NOW + 3, ordered=ordered, label=label), now=NOW + 3)
    assert world.phase(1) is Pending
    assert list(world.kernel.state.jobs) == [1], "no task of it was taken for over"
    heard = [o.NodeAnswered(node, "agent", (), NOW + 4) for node in ("n1", "n2")]
    assert launches(world.turn(*heard, now=NOW + 4)), "it starts, when every node was heard"

"""The runtime on a real event loop: it goes on when the clock jumps and while it writes snapshots, and says when it
cannot begin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import ANY

import pytest

from bireme.core.jobs.requests import Target, cancel, update
from bireme.core.jobs.submission import submit
from bireme.core.model import observations as o
from bireme.core.model.cluster import Settings
from bireme.core.model.events import ClusterConfigured, Event, EventsLost, JobHeld, JobReleased, NodeLost
from bireme.core.model.jobs import Owner, Running
from bireme.core.model.observations import JobLaunched, NodeAnswered
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.model.resources import ExitStatus
from bireme.core.model.serving.services import Health
from bireme.core.services.requests import deploy
from bireme.core.services.routing_table import routing_table
from bireme.core.services.situation import situation
from bireme.core.services.wording import service_sentence
from bireme.core.state.state import State
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.engine import Script, SimulatedEngine
from bireme.ports import HistoryQuery, HistoryRow, JournalError, Report
from bireme.runtime import service
from bireme.runtime.kernel import Group
from bireme.runtime.service import Runtime
from bireme.slurm.records.steps import rows_of
from bireme.store.inspection import inspect
from bireme.store.journal import SqliteStore
from bireme.testing.worlds import build_cluster, build_service, build_spec

ALICE = Caller(uid=1001, gid=1001, user="alice", admin=False)
CONFIG = build_cluster("1x8", settings=Settings(memory_is_consumable=False))


class JumpingClock:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        self.at += 0.001
        return self.at


def engine_that_holds_jobs() -> SimulatedEngine:
    return SimulatedEngine(VirtualClock(1_000_000.0), lambda job, allocation: Script())


async def submitted(runtime: Runtime, name: str) -> int:
    spec = build_spec(name, {"cpus": 1}, Owner(uid=1001, gid=1001, user="alice"))
    return await runtime.submit(ALICE, [spec])


async def until(runtime: Runtime, good: Callable[[State], bool], timeout_s: float) -> bool:
    """Waits until the state is as it should be, looked at after every group. False: time ran out."""
    changed = asyncio.Event()
    leave = runtime.subscribe(lambda events: changed.set())
    try:
        async with asyncio.timeout(timeout_s):
            while not good(runtime.state):
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return False
    finally:
        leave()
    return True


@pytest.mark.parametrize("jump_s", [-3_600.0, 3_600.0])
def test_jobs_start_after_the_clock_jumped(tmp_path: Path, jump_s: float) -> None:
    async def scenario() -> None:
        clock = JumpingClock()
        runtime = Runtime(
            SqliteStore(str(tmp_path / "journal.db"), durable=False), engine_that_holds_jobs(), clock, rows_of
        )
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        first = await submitted(runtime, "first")
        assert await until(runtime, lambda state: first in state.holding, 10.0)
        clock.at += jump_s
        second = await submitted(runtime, "second")
        assert await until(runtime, lambda state: second in state.holding, 10.0), "the planner stood still"
        await runtime.stop()

    asyncio.run(scenario())


def test_what_a_change_makes_overdue_is_done_though_nothing_else_happens(tmp_path: Path) -> None:
    """A limit that is lowered: the signal that was to come before it is due at once, and nobody else wakes the loop."""

    async def scenario() -> None:
        clock = JumpingClock()
        runtime = Runtime(
            SqliteStore(str(tmp_path / "journal.db"), durable=False), engine_that_holds_jobs(), clock, rows_of
        )
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        spec = build_spec(
            "job", {"cpus": 1, "time_s": 6000, "signal": "USR1@600"}, Owner(uid=1001, gid=1001, user="alice")
        )
        job = await runtime.submit(ALICE, [spec])
        assert await until(runtime, lambda state: isinstance(state.jobs[job].phase, Running), 10.0)

        def lower(state: State, now: float) -> Sequence[Event]:
            return update(state, ALICE, Target(job), {"time_limit_s": 601}, now)

        clock.at += 10.0
        await runtime.do("test", lower)
        warned = await until(runtime, lambda state: getattr(state.jobs[job].phase, "warned", False), 10.0)
        assert warned, "it slept until the limit itself"
        await runtime.stop()

    asyncio.run(scenario())


def test_what_came_due_while_others_were_served_is_done(tmp_path: Path) -> None:
    """Its time comes between two looks at the clock, and somebody asks something just then: it is not overlooked."""

    async def scenario() -> None:
        clock = JumpingClock()
        runtime = Runtime(
            SqliteStore(str(tmp_path / "journal.db"), durable=False), engine_that_holds_jobs(), clock, rows_of
        )
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        spec = build_spec("job", {"cpus": 1, "time_s": 600}, Owner(uid=1001, gid=1001, user="alice"))
        job = await runtime.submit(ALICE, [spec])
        assert await until(runtime, lambda state: isinstance(state.jobs[job].phase, Running), 10.0)
        await runtime.do("test", lambda state, now: [])
        runtime._due_after = time.monotonic() + 1.0  # time-driven work was just looked at
        runtime._next_wake_s()
        runtime._ask_after = 0.0
        clock.at += 601.0
        await runtime.do("test", lambda state, now: [])
        ended = await until(runtime, lambda state: job not in state.holding, 10.0)
        assert ended, "nobody looked at the clock again"
        await runtime.stop()

    asyncio.run(scenario())


def test_a_daemon_that_starts_long_after_a_loss_hears_the_nodes_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, clock = SqliteStore(str(tmp_path / "journal.db"), durable=False), JumpingClock()
        store.append([(0.0, "daemon", ClusterConfigured(CONFIG)), (1.0, "operator recover", EventsLost(2, 9, 10, 8))])
        engine = SilentEngine(VirtualClock(clock.at), lambda job, allocation: Script())
        runtime = Runtime(store, engine, clock, rows_of)
        await runtime.start(CONFIG)
        job = await submitted(runtime, "job")
        assert runtime.state.loss is not None, "no node had the time to say a word"
        runtime.report([NodeAnswered("n1", "agent", (), clock.now())])
        assert await until(runtime, lambda state: job in state.holding, 10.0)
        await runtime.stop()

    asyncio.run(scenario())


def test_what_a_failed_turn_had_made_of_the_state_is_not_written_down_at_the_end(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.db")

    async def scenario() -> None:
        store = SqliteStore(path)
        runtime = Runtime(store, engine_that_holds_jobs(), JumpingClock(), rows_of)
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        job = await submitted(runtime, "job")
        failed = asyncio.Event()
        runtime.on_failure = lambda error: failed.set()
        runtime.kernel._on_breach = None  # what nobody hears of ends the run
        asking = asyncio.create_task(runtime.do("test", lambda state, now: [JobHeld(job, "user"), JobReleased(99)]))
        await failed.wait()
        asking.cancel()
        await runtime.stop()
        store.close()

    asyncio.run(scenario())
    assert inspect(path).sound
    SqliteStore(path).close()


class SilentEngine(SimulatedEngine):
    """Its nodes say nothing by themselves."""

    async def start(self, report: Report) -> None:
        await super().start(lambda seen: None)


def test_a_job_can_end_though_what_its_record_shares_with_others_rotted(tmp_path: Path) -> None:
    async def cancelled(damage: str) -> None:
        store = SqliteStore(str(tmp_path / "journal.db"), durable=False)
        store._writer.execute(damage)
        runtime = Runtime(store, engine_that_holds_jobs(), JumpingClock(), rows_of)
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        job = await submitted(runtime, "job")
        await runtime.do("test", lambda state, now: cancel(state, ALICE, Target(job)))
        assert await until(runtime, lambda state: job not in state.holding, 10.0)
        assert runtime.failure is None
        await runtime.stop()
        assert store.sound_and_damaged(HistoryQuery(jobs=((job, None),)))[1] == []
        store.close()

    asyncio.run(cancelled("DELETE FROM shapes"))
    asyncio.run(cancelled("UPDATE shapes SET record = x'00'"))


class FullDisk(SqliteStore):
    def append(self, events: Sequence[tuple[float, str, Event]], history: Sequence[HistoryRow] = ()) -> int:
        raise JournalError("no space left")


def test_a_daemon_whose_configuration_cannot_be_stored_does_not_come_up_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bireme.runtime.service.RETRY_AFTER_S", 0.0)

    async def scenario() -> None:
        engine = engine_that_holds_jobs()
        runtime = Runtime(FullDisk(str(tmp_path / "journal.db"), durable=False), engine, JumpingClock(), rows_of)
        with pytest.raises(JournalError):
            await runtime.start(CONFIG)

    asyncio.run(scenario())


class SometimesFull(SqliteStore):
    is_full = False

    def append(self, events: Sequence[tuple[float, str, Event]], history: Sequence[HistoryRow] = ()) -> int:
        if self.is_full:
            raise JournalError("no space left")
        return super().append(events, history)


@pytest.mark.parametrize("how", ["ended", "unready"])
def test_a_replica_that_is_gone_takes_no_requests_though_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("bireme.runtime.service.RETRY_AFTER_S", 0.01)

    def endpoints(state: State) -> int:
        (routed,) = routing_table(state)
        return len(routed.endpoints)

    async def scenario() -> None:
        store = SometimesFull(str(tmp_path / "journal.db"), durable=False)
        runtime = Runtime(store, engine_that_holds_jobs(), JumpingClock(), rows_of)
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        spec = build_service("chat", "1", {}, Owner(uid=1001, gid=1001, user="alice"))
        await runtime.do("test", lambda state, now: deploy(state, ALICE, spec, now))
        assert await until(runtime, lambda state: any(isinstance(x.phase, Running) for x in state.jobs.values()), 10.0)
        (job,) = runtime.state.jobs.values()
        about = (job.id, job.generation)
        runtime.report([o.ReplicaProbed(*about, Health.READY, "", 0.0, "127.0.0.1")])
        assert await until(runtime, lambda state: endpoints(state) == 1, 10.0)

        told = asyncio.Event()
        runtime.watch_journal(told.set)
        store.is_full = True
        unwell = o.ReplicaProbed(*about, Health.UNREADY, "no answer", 0.0)
        runtime.report([o.BatchFinished(*about, ExitStatus(1), 0.0, cleared=True) if how == "ended" else unwell])
        async with asyncio.timeout(10.0):
            await told.wait()
        state = runtime.state
        assert runtime.unwritable == "no space left"
        assert endpoints(state) == 0
        seen = situation(state, state.services["chat"], 0.0)
        assert seen.ready == 0
        what = "has ended" if how == "ended" else "does not take requests (no answer)"
        assert [service_sentence(each) for each in seen.reasons] == [
            f"Replica 1 (job 1) {what}, and the journal cannot be written: none takes its place yet."
        ]
        assert len(state.jobs) == 1, "nothing happens that is not on disk"

        store.is_full = False
        if how == "ended":
            assert await until(runtime, lambda state: len(state.jobs) == 2, 10.0), "the next replica"
        async with asyncio.timeout(10.0):
            while runtime.unwritable:
                told.clear()
                await told.wait()
        assert not runtime.state.serving.unwritten
        await runtime.stop()
        store.close()

    asyncio.run(scenario())


def test_snapshots_are_written_while_the_cluster_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bireme.runtime.service.SNAPSHOT_EVERY_EVENTS", 3)

    async def scenario() -> None:
        store = SqliteStore(str(tmp_path / "journal.db"), durable=False)
        runtime = Runtime(store, engine_that_holds_jobs(), JumpingClock(), rows_of)
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        for number in range(8):
            await submitted(runtime, f"job{number}")
        for _ in range(500):
            if (found := store.latest_snapshot()) is not None:
                break
            await asyncio.sleep(0.01)
        assert found is not None
        assert 0 < found[0] <= runtime.state.seq
        await runtime.stop()
        assert store.latest_snapshot() == (runtime.state.seq, ANY)

    asyncio.run(scenario())


def test_who_asked_for_much_has_the_answer_before_the_snapshot_that_is_due_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bireme.runtime.service.SNAPSHOT_EVERY_EVENTS", 5)
    monkeypatch.setattr("bireme.runtime.service.ANSWERING_S", 0.1)

    async def scenario() -> None:
        store = SqliteStore(str(tmp_path / "journal.db"), durable=False)
        runtime = Runtime(store, engine_that_holds_jobs(), JumpingClock(), rows_of)
        order: list[str] = []
        taken, take = asyncio.Event(), store.snapshot_writer

        def noted(seq: int, state: State) -> Callable[[], None]:
            order.append("snapshot")
            taken.set()
            return take(seq, state)

        monkeypatch.setattr(store, "snapshot_writer", noted)
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        spec = build_spec("job", {"cpus": 1}, Owner(uid=1001, gid=1001, user="alice"))
        await runtime.do_all("much", [lambda state, now: submit(state, ALICE, [spec], now)] * 9)
        order.append("answer")
        await asyncio.wait_for(taken.wait(), 60.0)  # though nobody asks for anything any more
        await runtime.stop()
        store.close()
        assert order[:2] == ["answer", "snapshot"]

    asyncio.run(scenario())


def test_who_asks_has_the_answer_before_the_pass_that_it_calls_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        runtime = Runtime(
            SqliteStore(str(tmp_path / "journal.db"), durable=False), engine_that_holds_jobs(), JumpingClock(), rows_of
        )
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        order: list[str] = []
        plan = runtime.kernel.plan

        def noted(group: Group, now: float) -> None:
            if runtime.state.pending:
                order.append("pass")
            plan(group, now)

        monkeypatch.setattr(runtime.kernel, "plan", noted)
        job = await submitted(runtime, "job")
        order.append("answer")
        assert await until(runtime, lambda state: job in state.holding, 60.0)
        await runtime.stop()
        assert order[:2] == ["answer", "pass"]

    asyncio.run(scenario())


def test_whoever_submits_one_job_after_another_has_them_planned_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that started nothing rests for a while; one that did does not, nor what was not called for."""
    monkeypatch.setattr(service, "REST_S", 3600.0)

    async def scenario() -> None:
        runtime = Runtime(
            SqliteStore(str(tmp_path / "journal.db"), durable=False), engine_that_holds_jobs(), JumpingClock(), rows_of
        )
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        for name in ("fills", "the", "node", "with", "eight", "jobs", "at", "last"):
            job = await submitted(runtime, name)
            assert await until(runtime, lambda state, job=job: job in state.holding, 60.0), "they start at once"
        passed, plan = asyncio.Event(), runtime.kernel.plan
        passes: list[int] = []

        def noted(group: Group, now: float) -> None:
            if runtime.kernel.replan:
                passes.append(len(runtime.state.pending))
                passed.set()
            plan(group, now)

        monkeypatch.setattr(runtime.kernel, "plan", noted)
        await submitted(runtime, "waits")
        await passed.wait()
        for _ in range(5):
            await submitted(runtime, "waits too")
        await runtime.settled()
        await runtime.stop()
        assert passes == [1]

    asyncio.run(scenario())


def test_in_a_stream_of_reports_what_comes_first_is_no_group_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit would hold up all that comes behind it. A stream that pauses is not waited for."""
    monkeypatch.setattr(service, "GATHER_S", 3600.0)
    monkeypatch.setattr(service, "PAUSE_S", 0.2)

    async def scenario() -> None:
        runtime = Runtime(
            SqliteStore(str(tmp_path / "journal.db"), durable=False), engine_that_holds_jobs(), JumpingClock(), rows_of
        )
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        await runtime.settled()
        seen: list[int] = []
        turned, turn = asyncio.Event(), runtime.kernel.turn

        def noted(now: float, *, time_passed: bool, may_plan: bool = True) -> Group:
            if runtime.kernel.observations:
                seen.append(len(runtime.kernel.observations))
                turned.set()
            return turn(now, time_passed=time_passed, may_plan=may_plan)

        monkeypatch.setattr(runtime.kernel, "turn", noted)
        answered = JobLaunched(17, 1, 1_000_000.0)  # of a job that nobody knows
        runtime.report([answered] * service.STREAM_OBSERVATIONS)
        await turned.wait()
        await asyncio.sleep(0)
        turned.clear()
        runtime.report([answered])
        asyncio.get_running_loop().call_later(0.01, runtime.report, [answered] * 2)
        await turned.wait()
        await runtime.stop()
        assert seen == [service.STREAM_OBSERVATIONS, 3]

    asyncio.run(scenario())


class CountingStore(SqliteStore):
    groups: list[int]

    def append(self, events: Sequence[tuple[float, str, Event]], history: Sequence[HistoryRow] = ()) -> int:
        self.groups.append(len(events))
        return super().append(events, history)


def test_what_is_asked_of_many_jobs_is_one_commit_and_each_has_its_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = CountingStore(str(tmp_path / "journal.db"), durable=False)
        store.groups = []
        runtime = Runtime(store, engine_that_holds_jobs(), JumpingClock(), rows_of)
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        jobs = [await submitted(runtime, f"job{number}") for number in range(30)]
        assert await until(runtime, lambda state: jobs[3] in state.holding, 60.0), "it is asked of twice below"
        wishes = [*jobs, 999, jobs[3]]
        store.groups.clear()
        answers = await runtime.do_all(
            "alice", [lambda state, _, job=job: cancel(state, ALICE, Target(job)) for job in wishes]
        )
        assert max(store.groups) >= len(jobs), "one commit for all of them"
        assert [isinstance(answer, Refusal) for answer in answers] == [*[False] * 30, True, False]
        store.append = lambda events, history=(): fail()  # type: ignore[method-assign, assignment, misc]
        with pytest.raises(JournalError):
            await runtime.do_all("alice", [lambda state, now: [NodeLost("n1", "gone")]])
        del store.append  # type: ignore[method-assign]
        await runtime.stop()

    def fail() -> int:
        raise JournalError("the disk is full")

    asyncio.run(scenario())


def test_a_fault_in_deciding_one_of_many_wishes_is_that_ones_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(state: State, now: float) -> Sequence[Event]:
        raise KeyError("a bug")

    async def scenario() -> None:
        store = SqliteStore(str(tmp_path / "journal.db"), durable=False)
        runtime = Runtime(store, engine_that_holds_jobs(), JumpingClock(), rows_of)
        runtime.engine.reconfigure(CONFIG)
        await runtime.start(CONFIG)
        job = await submitted(runtime, "job")
        bad, good = await runtime.do_all("alice", [faulty, lambda state, _: cancel(state, ALICE, Target(job))])
        assert isinstance(bad, Refusal)
        assert "the daemon's log says more" in bad.hint
        assert not isinstance(good, Refusal)
        assert len(good) == 1
        await runtime.stop()
        store.close()

    asyncio.run(scenario())
    assert "KeyError: 'a bug'" in caplog.text

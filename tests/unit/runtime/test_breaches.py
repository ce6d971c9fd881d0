"""An event that could not be applied is left out with what made it, and all else of the turn happens; where nobody
hears of it, it ends the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bireme.core.explain.wording import sentence
from bireme.core.jobs.requests import Target, release
from bireme.core.jobs.states import job_reasons
from bireme.core.jobs.submission import submit
from bireme.core.lifecycle.registry import PROGRAMME
from bireme.core.model import events as e
from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import Ending, Owner, Pending, Running, Starting
from bireme.core.model.observations import JobLaunched, NodeAnswered
from bireme.core.model.reasons import ReasonKind
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.state.state import State
from bireme.runtime.breaches import BreachError
from bireme.runtime.kernel import Kernel, Request, load
from bireme.runtime.stories import IllegalTransitionError
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore
from bireme.testing.worlds import build_cluster, build_spec

NOW = 1_000_000.0
ALICE = Caller(uid=1001, gid=1001, user="alice")
ROOT = Caller(uid=0, gid=0, user="root", admin=True)
OWNER = Owner(uid=1001, gid=1001, user="alice")
CONFIG = build_cluster("2x8", settings=Settings(memory_is_consumable=False))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(str(tmp_path / "journal.db"))
    yield opened
    opened.close()


class Daemon:
    """A kernel whose breaches are heard, as the daemon's are."""

    def __init__(self, store: SqliteStore, *, strict: bool = False) -> None:
        self.store = store
        self.heard: list[BreachError] = []
        self.answers: list[Sequence[e.Recorded] | Exception] = []
        self.kernel = Kernel(store, rows_of, on_breach=None if strict else self.heard.append)
        self.kernel.commit(self.kernel.configure(CONFIG, NOW))
        self.kernel.observations.extend(NodeAnswered(node.name, "test", (), NOW) for node in CONFIG.nodes)
        self.turn()

    @property
    def state(self) -> State:
        return self.kernel.state

    def ask(self, decide: Callable[[State, float], list[e.Event]]) -> None:
        self.kernel.requests.append(Request("test", decide, lambda events, error: self.answers.append(error or events)))

    def submit(self, name: str = "job", **options: Any) -> None:
        spec = build_spec(name, {"cpus": 1, **options}, OWNER)
        self.ask(lambda state, now: submit(state, ALICE, [spec], now))

    def submit_what_no_rule_would_admit(self) -> None:
        """A heterogeneous array, which an earlier Bireme took, and which no table lets start."""
        spec = build_spec("odd", {"cpus": 1, "array": "1-2"}, OWNER)

        def decide(state: State, now: float) -> list[e.Event]:
            submitted = submit(state, ALICE, [spec], now)[0]
            assert isinstance(submitted, e.JobSubmitted)
            first, leader = submitted, submitted.job_id
            return [
                e.JobSubmitted(
                    leader + offset, first.spec, first.priority, first.eligible_at, first.reasons, leader, ""
                )
                for offset in range(2)
            ]

        self.ask(decide)

    def turn(self, now: float = NOW, *, time_passed: bool = False) -> None:
        group = self.kernel.turn(now, time_passed=time_passed)
        self.kernel.commit(group)
        self.kernel.settle(group)

    def phase(self, job_id: int) -> type:
        return type(self.state.jobs[job_id].phase)


def failing_for(monkeypatch: pytest.MonkeyPatch, event: type[e.Event], name: str, error: Exception) -> None:
    """The handler of this event changes the state and then fails, for jobs of this name."""
    whole = PROGRAMME[event].handler

    def handler(state: State, happened: Any, at: float) -> Any:
        commands = whole(state, happened, at)
        if state.jobs[happened.job_id].spec.name == name:
            raise error
        return commands

    monkeypatch.setitem(PROGRAMME, event, PROGRAMME[event]._replace(handler=handler))


def test_a_start_that_the_table_refuses_is_left_out_and_its_jobs_are_held_with_the_reason(store: SqliteStore) -> None:
    daemon = Daemon(store)
    daemon.submit_what_no_rule_would_admit()
    daemon.submit("other")
    daemon.turn()
    assert daemon.phase(3) is Starting, "the rest of the turn goes on"
    assert [len(answer) for answer in daemon.answers if not isinstance(answer, Exception)] == [2, 1]
    for job_id in (1, 2):
        job = daemon.state.jobs[job_id]
        assert isinstance(job.phase, Pending)
        assert job.phase.held_by == "admin"
        daemon.turn(NOW + 100, time_passed=True)
        (why,) = job_reasons(daemon.state, job)
        assert why.kind is ReasonKind.SYSTEM_FAILURE
        assert "JobAllocated" in sentence(why)
        assert "scontrol release" in sentence(why)
    assert len(daemon.heard) == 1
    assert "its story:" in str(daemon.heard[0].error)
    assert [type(each.event) for each in store.story(1)] == [e.JobSubmitted, e.JobHeld]

    following = Daemon(store)
    following.turn(NOW + 200, time_passed=True)
    assert not following.heard, "nor does the next daemon meet it"
    for job_id in (1, 2):
        following.ask(lambda state, now, job_id=job_id: release(state, ROOT, Target(job_id)))  # type: ignore[misc]
    following.turn(NOW + 300, time_passed=True)
    assert len(following.heard) == 1, "whoever releases it lets it be tried again"
    assert following.state.jobs[1].phase.held_by == "admin"  # type: ignore[union-attr]


def test_where_nobody_hears_of_it_the_run_ends_with_the_story(store: SqliteStore) -> None:
    daemon = Daemon(store, strict=True)
    daemon.submit_what_no_rule_would_admit()
    with pytest.raises(IllegalTransitionError, match=r"JobAllocated may not happen to it(.|\n)*its story:"):
        daemon.turn()


def test_a_wish_that_cannot_be_applied_is_refused_and_the_others_have_their_answers_in_order(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(store)
    failing_for(monkeypatch, e.JobSubmitted, "odd", KeyError("a bug"))
    daemon.submit()
    daemon.submit("odd")
    daemon.ask(lambda state, now: [e.JobReleased(99)])
    daemon.submit()
    daemon.turn()
    first, second, third, last = daemon.answers
    assert isinstance(second, Refusal)
    assert isinstance(third, Refusal)
    assert "internal error" in second.hint
    assert [type(each) for each in (first, last)] == [list, list]
    assert [job.spec.name for job in daemon.state.jobs.values()] == ["job", "job"]
    assert len(daemon.heard) == 2
    assert daemon.state.seq == store.last_seq == load(store).seq


def test_a_report_that_cannot_be_applied_is_dropped(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(store)
    daemon.submit("odd")
    daemon.submit()
    daemon.turn()
    failing_for(monkeypatch, e.JobStarted, "odd", AssertionError("a bug"))
    daemon.kernel.observations.extend(JobLaunched(job_id, 1, NOW) for job_id in (1, 2))
    daemon.turn()
    assert (daemon.phase(1), daemon.phase(2)) == (Starting, Running)
    assert len(daemon.heard) == 1
    assert not daemon.kernel.observations
    assert daemon.state.seq == store.last_seq


def test_what_time_wants_and_cannot_have_is_left_out_once_and_for_all(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(store)
    daemon.submit("odd", time_s=60)
    daemon.submit(time_s=60)
    daemon.turn()
    daemon.kernel.observations.extend(JobLaunched(job_id, 1, NOW) for job_id in (1, 2))
    daemon.turn()
    failing_for(monkeypatch, e.JobEnding, "odd", AssertionError("a bug"))
    for later in (1_000, 2_000):
        daemon.turn(NOW + later, time_passed=True)
    assert (daemon.phase(1), daemon.phase(2)) == (Running, Ending)
    assert len(daemon.heard) == 1


def test_what_breaks_whatever_is_left_out_ends_the_run(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(store)
    monkeypatch.setattr("bireme.runtime.kernel.settled", lambda state, now: [e.JobReleased(state.seq + 1_000)])
    monkeypatch.setattr(daemon.kernel, "_left_out", daemon.kernel._left_out)
    monkeypatch.setattr(type(daemon.kernel._left_out), "without", lambda self, events: events)
    with pytest.raises(BreachError):
        daemon.turn()

"""Small passes leave nobody waiting whom a full pass would start, whatever people and operators do in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.jobs.submission import submit
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.cluster import PartitionState, Settings
from bireme.core.model.jobs import Ending, Owner, Starting
from bireme.core.model.policy import Policy
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.model.resources import SUCCESS
from bireme.core.nodes.operators import update_nodes, update_partition
from bireme.core.reservations.orders import ReservationOrder, create_reservation, delete_reservation
from bireme.core.state.state import State
from bireme.runtime.kernel import Kernel, Request
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore
from bireme.testing.books import book_change
from bireme.testing.worlds import build_cluster, build_spec

NOW = 1_000_000.0
ROOT = Caller(uid=0, gid=0, user="root", admin=True)
ALICE = Caller(uid=1001, gid=1001, user="alice")
OWNER = Owner(uid=1001, gid=1001, user="alice", group="", groups=())
TURNS_MOST = 40

asks = st.fixed_dictionaries(
    {"cpus": st.sampled_from([1, 2, 4]), "time_s": st.sampled_from([60, 600, 3_600, 7_200])},
    optional={
        "nodes": st.integers(1, 2),
        "array": st.sampled_from(["0-5", "0-5%2"]),
        "begin_in": st.sampled_from([5, 50]),
        "licenses": st.just("seat"),
        "partition": st.sampled_from(["side", "main,side"]),
        "reservation": st.just("room"),
    },
)
which = st.integers(0, 11)
acts = st.one_of(
    st.tuples(st.just("submit"), asks),
    st.tuples(st.just("submit"), asks),
    st.tuples(st.sampled_from(["hold", "release", "cancel", "requeue", "suspend", "resume", "end"]), which),
    st.tuples(st.sampled_from(["hold", "cancel"]), which),
    st.tuples(st.sampled_from(["hold_task", "cancel_task"]), which),
    st.tuples(st.just("limit"), st.tuples(which, st.sampled_from([60, 600, 7_200]))),
    st.tuples(st.just("node"), st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from(["DRAIN", "RESUME"]))),
    st.tuples(st.just("partition"), st.sampled_from(["UP", "DOWN"])),
    st.tuples(st.just("reserve"), st.sampled_from([0, 100])),
    st.tuples(st.just("unreserve"), st.none()),
    st.tuples(st.just("accounts"), st.sampled_from([None, 1, 3])),
)
policies = st.builds(
    Policy,
    backfill=st.booleans(),
    bookings_max=st.sampled_from([2, 5, 100]),
    bookings_per_user=st.sampled_from([None, 2]),
    interval_s=st.sampled_from([0.0, 30.0]),
    resolution_s=st.sampled_from([0.0, 60.0]),
)
pauses = st.sampled_from([0.1, 1.5, 7.0, 40.0])


class Cluster:
    """A kernel whose jobs start and end as soon as they are told to. Nothing is committed: the journal stays empty."""

    def __init__(self, journal: SqliteStore, size: str, policy: Policy) -> None:
        self.now = NOW
        self.kernel = Kernel(journal, rows_of)
        rules = Settings(
            memory_is_consumable=False, policy=policy, licenses="seat:2", accounting_enforce=("associations", "limits")
        )
        config = build_cluster(size, {"main": {}, "side": {}}, rules)
        self.kernel.configure(config, NOW)
        self.kernel.observations.extend(o.NodeAnswered(node.name, "test", (), NOW) for node in config.nodes)
        self._accounts("", None)
        self.rest()

    def ask(self, decide: Callable[[State, float], list[e.Event]]) -> None:
        def allowed(state: State, at: float) -> list[e.Event]:
            with suppress(Refusal):
                return decide(state, at)
            return []

        self.kernel.requests.append(Request("somebody", allowed, lambda events, error: _raise(error)))

    def does(self, word: str, about: Any) -> None:
        getattr(self, f"_{word}", self._asks_for)(word, about)

    def rest(self) -> None:
        """Turns until nothing is left to be done, also what is owed for later."""
        for _ in range(TURNS_MOST):
            self._nodes_obey()
            self.kernel.turn(self.now, time_passed=True)
            if not (self.kernel.replan or self.kernel.has_input or self._busy()):
                if self.kernel.full_pass_at == float("inf"):
                    return
                self.now = max(self.now, self.kernel.full_pass_at)
        raise AssertionError("it never comes to rest")

    def _busy(self) -> bool:
        return any(isinstance(job.phase, Starting | Ending) for job in self.kernel.state.holding.values())

    def _nodes_obey(self) -> None:
        for job in self.kernel.state.holding.values():
            if isinstance(job.phase, Starting):
                self.kernel.observations.append(o.JobLaunched(job.id, job.generation, self.now))
            if isinstance(job.phase, Ending):
                self.kernel.observations.append(o.JobCleared(job.id, job.generation, self.now))

    # -- what people do ------------------------------------------------------------------------------------------------

    def _submit(self, word: str, asked: dict[str, Any]) -> None:
        options = dict(asked)
        if begin_in := options.pop("begin_in", None):
            options["begin_at"] = self.now + begin_in
        spec = build_spec("job", options, OWNER)
        self.ask(lambda state, at: submit(state, ALICE, [spec], at))

    def _chosen(self, place: int) -> int:
        known = sorted(self.kernel.state.jobs)
        return known[place % len(known)] if known else 1

    def _asks_for(self, word: str, place: int) -> None:
        job = self._chosen(place)
        self.ask(lambda state, at: getattr(requests, word)(state, ROOT, Target(job)))

    def _hold_task(self, word: str, place: int) -> None:
        job = self._chosen(place)
        self.ask(lambda state, at: requests.hold(state, ROOT, Target(job, place % 6)))

    def _cancel_task(self, word: str, place: int) -> None:
        job = self._chosen(place)
        self.ask(lambda state, at: requests.cancel(state, ROOT, Target(job, place % 6)))

    def _limit(self, word: str, about: tuple[int, int]) -> None:
        job, limit = self._chosen(about[0]), {"time_limit_s": about[1]}
        self.ask(lambda state, at: requests.update(state, ROOT, Target(job), limit, at))

    def _end(self, word: str, place: int) -> None:
        holding = sorted(self.kernel.state.holding)
        if holding:
            job = self.kernel.state.jobs[holding[place % len(holding)]]
            over = o.BatchFinished(job.id, job.generation, SUCCESS, self.now, cleared=True)
            self.kernel.observations.append(over)

    def _node(self, word: str, about: tuple[str, str]) -> None:
        self.ask(lambda state, at: update_nodes(state, ROOT, [about[0]], about[1], "why"))

    def _partition(self, word: str, about: str) -> None:
        self.ask(lambda state, at: update_partition(state, ROOT, "side", {"state": PartitionState(about)}))

    def _reserve(self, word: str, begin_in: int) -> None:
        order = ReservationOrder(begin=self.now + begin_in, duration_s=900, nodes=("n1",), users=("alice",))
        self.ask(lambda state, at: create_reservation(state, ROOT, "room", order, at))

    def _unreserve(self, word: str, about: None) -> None:
        self.ask(lambda state, at: delete_reservation(state, ROOT, "room"))

    def _accounts(self, word: str, most: int | None) -> None:
        accounts, users = {"physics": {"grp_jobs": most}}, {"alice": {"account": "physics"}}
        self.ask(lambda state, at: [book_change(state.accounts, accounts, users)])


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    store = SqliteStore(str(tmp_path_factory.mktemp("passes") / "journal.db"), durable=False)
    yield store
    store.close()


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


BIG = {"cpus": 8, "nodes": 2, "time_s": 3_600}
HELD_BEHIND_A_LONG_ONE = [
    (("submit", {"cpus": 8, "time_s": 7_200}), 0.1),
    (("submit", BIG), 0.1),
    (("submit", {"cpus": 8, "time_s": 18_000}), 40.0),
    (("hold", 1), 40.0),
]


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(["2x8", "4x4", "2x4"]),
    policy=policies,
    story=st.lists(st.tuples(acts, pauses), min_size=4, max_size=18),
)
@example(size="2x8", policy=Policy(), story=HELD_BEHIND_A_LONG_ONE)
@example(size="2x8", policy=Policy(backfill=False), story=HELD_BEHIND_A_LONG_ONE)
def test_small_passes_leave_nobody_waiting_whom_a_full_one_would_start(
    journal: SqliteStore, size: str, policy: Policy, story: list[tuple[tuple[str, Any], float]]
) -> None:
    cluster = Cluster(journal, size, policy)
    for (word, about), pause_s in story:
        cluster.does(word, about)
        cluster.rest()
        cluster.now += pause_s
        cluster.rest()
        found = cluster.kernel.overlooked(cluster.now)
        assert not found, f"after {word} {about} a full pass starts {found}"

"""How the kernel spreads planning over turns: passes that are ended early, full passes only after enough changed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target, cancel, hold, resume, suspend
from bireme.core.jobs.submission import submit
from bireme.core.model import events as e
from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import Owner, Pending, Running, Suspended
from bireme.core.model.observations import BatchFinished, JobLaunched, NodeAnswered, NodeClosed
from bireme.core.model.policy import Policy
from bireme.core.model.refusals import Caller
from bireme.core.model.resources import SUCCESS
from bireme.core.state.state import State
from bireme.runtime.kernel import Kernel, Request
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore
from bireme.testing.worlds import build_cluster, build_spec

NOW = 1_000_000.0
ALICE = Caller(uid=1001, gid=1001, user="alice")
ROOT = Caller(uid=0, gid=0, user="root", admin=True)
OWNER = Owner(uid=1001, gid=1001, user="alice")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(str(tmp_path / "journal.db"))
    yield opened
    opened.close()


def kernel_with(store: SqliteStore, cluster: str, policy: Policy | None = None, **options: Any) -> Kernel:
    kernel = Kernel(store, rows_of, **options)
    settings = Settings(memory_is_consumable=False, policy=policy or Policy())
    config = build_cluster(cluster, settings=settings)
    kernel.commit(kernel.configure(config, NOW))
    kernel.observations.extend(NodeAnswered(node.name, "test", (), NOW) for node in config.nodes)
    turn(kernel, NOW)
    return kernel


def turn(kernel: Kernel, now: float) -> None:
    group = kernel.turn(now, time_passed=False)
    kernel.commit(group)
    kernel.settle(group)


def queue(kernel: Kernel, *jobs: dict[str, Any]) -> None:
    def answered(_: Any, error: Exception | None) -> None:
        assert error is None

    for number, options in enumerate(jobs):
        spec = build_spec(f"job{number}", options, OWNER)
        kernel.requests.append(Request("test", lambda state, at, spec=spec: submit(state, ALICE, [spec], at), answered))


def test_a_suspended_job_goes_on_when_its_cpus_come_free_though_nobody_else_waits(store: SqliteStore) -> None:
    kernel = kernel_with(store, "1x4")
    queue(kernel, {"cpus": 1})
    turn(kernel, NOW)
    kernel.observations.append(JobLaunched(1, 1, NOW))
    kernel.requests.append(Request("test", lambda state, at: suspend(state, ROOT, Target(1)), lambda *_: None))
    turn(kernel, NOW + 1)
    queue(kernel, {"cpus": 4})
    turn(kernel, NOW + 2)
    kernel.requests.append(Request("test", lambda state, at: resume(state, ROOT, Target(1)), lambda *_: None))
    turn(kernel, NOW + 3)
    assert isinstance(kernel.state.jobs[1].phase, Suspended), "its CPUs are taken"
    end(kernel, 2, NOW + 4)
    turn(kernel, NOW + 4)
    turn(kernel, NOW + 5)
    assert isinstance(kernel.state.jobs[1].phase, Running)


def waiting(kernel: Kernel) -> list[int]:
    return [job.id for job in kernel.state.jobs.values() if isinstance(job.phase, Pending)]


def end(kernel: Kernel, job_id: int, now: float) -> None:
    job = kernel.state.jobs[job_id]
    kernel.observations.append(JobLaunched(job_id, job.generation, now))
    kernel.observations.append(BatchFinished(job_id, job.generation, SUCCESS, now, cleared=True))


def three_looks() -> Any:
    """Asked before every look but the first."""
    looks = iter(range(1_000))
    return lambda: next(looks) >= 2


def in_short_passes(kernel: Kernel, most: int) -> None:
    """Until nothing is left to look at."""
    for _ in range(most):
        kernel.enough = three_looks()
        turn(kernel, NOW)
        if not kernel.replan:
            return
    raise AssertionError(f"after {most} passes there is still somebody to look at")


def test_no_pass_is_so_short_that_it_looks_at_nobody(store: SqliteStore) -> None:
    kernel = kernel_with(store, "1x8")
    queue(kernel, *[{"cpus": 1}] * 2)
    kernel.enough = lambda: True
    for left in ([2], []):
        turn(kernel, NOW)
        assert waiting(kernel) == left


def test_a_pass_that_is_ended_early_goes_on_where_it_was(store: SqliteStore) -> None:
    kernel = kernel_with(store, "1x8")
    queue(kernel, *[{"cpus": 1}] * 8)
    for left in ([4, 5, 6, 7, 8], [7, 8], []):
        kernel.enough = three_looks()
        turn(kernel, NOW)
        assert waiting(kernel) == left
        assert kernel.replan == bool(left)


def test_nobody_overtakes_those_that_were_not_reached(store: SqliteStore) -> None:
    kernel = kernel_with(store, "1x5")
    queue(kernel, *[{"cpus": 1}] * 5)
    kernel.enough = three_looks()
    turn(kernel, NOW)
    assert waiting(kernel) == [4, 5]
    queue(kernel, {"cpus": 2})
    kernel.enough = three_looks()
    turn(kernel, NOW)
    kernel.enough = None
    turn(kernel, NOW)
    assert waiting(kernel) == [6], "it came last, and its two CPUs were for those before it"


def test_without_a_budget_the_same_input_gives_the_same_plan(tmp_path: Path) -> None:
    starts = []
    for name in ("one", "two"):
        store = SqliteStore(str(tmp_path / name))
        kernel = kernel_with(store, "2x8:h100")
        queue(kernel, *({"gpus_per_node": 1 + number % 3, "time_s": 600} for number in range(12)))
        turn(kernel, NOW)
        starts.append({job.id: job.allocation for job in kernel.state.jobs.values()})
        store.close()
    assert starts[0] == starts[1]


def test_those_before_a_blocked_line_start_when_something_comes_free(store: SqliteStore) -> None:
    """More jobs wait than get slots; what ends between two full passes is not left idle."""
    kernel = kernel_with(store, "1x4", Policy(bookings_max=2, interval_s=1_000, many=0))
    queue(kernel, *[{"cpus": 4, "time_s": 600}] * 6)
    turn(kernel, NOW)
    assert waiting(kernel) == [2, 3, 4, 5, 6]
    end(kernel, 1, NOW + 5)
    turn(kernel, NOW + 5)
    assert waiting(kernel) == [3, 4, 5, 6]


def reasons(kernel: Kernel) -> dict[int, str]:
    return {job_id: kernel.state.verdicts[job_id].reasons[0].kind.value for job_id in waiting(kernel)}


def test_who_comes_behind_one_that_waits_for_resources_waits_for_its_turn(store: SqliteStore) -> None:
    """Each came in a pass of its own, and none of these was a full one; when the first leaves, the next is first."""
    kernel = kernel_with(store, "4x4", Policy(interval_s=1_000, many=0), changes_per_job=1_000.0)
    queue(kernel, {"nodes": 2, "exclusive": True, "time_s": 1_800})
    turn(kernel, NOW)
    for job in ({"nodes": 3, "exclusive": True, "time_s": 600}, {"cpus": 4, "nodes": 4, "time_s": 3_600}, {"nodes": 4}):
        queue(kernel, job)
        turn(kernel, NOW)
    assert reasons(kernel) == {2: "Resources", 3: "Priority", 4: "Priority"}
    kernel.requests.append(Request("test", lambda state, _: cancel(state, ALICE, Target(2)), lambda *_: None))
    turn(kernel, NOW)
    assert reasons(kernel) == {3: "Resources", 4: "Priority"}


@pytest.mark.parametrize(("by_user", "said"), [(False, "JobHeldAdmin"), (True, "JobHeldUser")])
def test_who_is_held_while_waiting_for_something_else_says_so(store: SqliteStore, by_user: bool, said: str) -> None:
    """A job with a begin time, and one task of an array: the next pass tells, and that of the release again."""
    root = Caller(uid=0, gid=0, user="root", admin=True)
    kernel = kernel_with(store, "1x4", Policy(interval_s=1_000, many=0), changes_per_job=1_000.0)
    queue(kernel, {"begin_at": NOW + 3_600}, {"array": "1-3", "begin_at": NOW + 3_600})
    turn(kernel, NOW)
    assert set(reasons(kernel).values()) == {"BeginTime"}
    for target in (Target(1), Target(2, task_id=2)):
        kernel.requests.append(
            Request("test", lambda state, at, whose=target: hold(state, root, whose, as_user=by_user), lambda *_: None)
        )
        turn(kernel, NOW)
    told = reasons(kernel)
    assert told.pop(1) == said
    assert sorted(told.values()) == sorted(["BeginTime", said])


def test_a_full_pass_waits_until_enough_has_changed(store: SqliteStore) -> None:
    kernel = kernel_with(store, "1x4", Policy(bookings_max=2, interval_s=1), changes_per_job=3.0)
    queue(kernel, *[{"cpus": 4, "time_s": 600}] * 6)
    turn(kernel, NOW)
    first = [kernel.state.verdicts[job_id].expected_start for job_id in (2, 3)]
    end(kernel, 1, NOW + 60)
    turn(kernel, NOW + 60)
    assert kernel.state.verdicts[3].expected_start == first[1], "its slot is the one of the first pass"
    kernel.changes_per_job = 0.0
    kernel.replan = True
    turn(kernel, NOW + 120)
    assert kernel.state.verdicts[3].expected_start == NOW + 660, "when the one that started at NOW + 60 ends"


def test_those_that_wait_for_something_else_than_room_do_not_keep_a_pass_from_the_queues_end(
    store: SqliteStore,
) -> None:
    """Every pass would look at them again: when they alone are more than a pass may look at, it never got further."""
    kernel = kernel_with(store, "2x4")
    queue(kernel, {"nodes": 1, "exclusive": True}, *[{"nodes": 2, "time_s": 600, "time_min_s": 60}] * 9, {"cpus": 1})
    in_short_passes(kernel, 12)
    assert waiting(kernel) == list(range(2, 11)), "the last one has its place"


def test_a_queue_that_waits_for_a_node_is_not_looked_at_again_and_again(store: SqliteStore) -> None:
    kernel = kernel_with(store, "2x4")
    queue(kernel, *[{"nodes": 2}] * 9)
    kernel.observations.append(NodeClosed("n2", "cordoned", NOW))
    in_short_passes(kernel, 12)
    assert {kernel.state.verdicts[job_id].reasons[0].kind.value for job_id in waiting(kernel)} == {"ReqNodeNotAvail"}
    looks: list[int] = []
    kernel.enough = lambda: bool(looks.append(1))
    queue(kernel, {"nodes": 2})
    turn(kernel, NOW)
    assert len(looks) <= 1


def test_what_fails_while_it_is_decided_is_told_and_changes_nothing(tmp_path: Path) -> None:
    """One user's request that nobody thought of does not end the run for all the others."""
    store = SqliteStore(str(tmp_path / "decided.db"))
    kernel = Kernel(store, rows_of)
    told: list[Exception | None] = []

    def fails(state: State, now: float) -> list[e.Event]:
        raise ZeroDivisionError("nobody thought of it")

    for decide in (fails, lambda state, now: [e.ClusterConfigured(build_cluster("1x8"))]):
        kernel.requests.append(Request("test", decide, lambda _, error: told.append(error)))
    group = kernel.turn(1.0, time_passed=True)
    kernel.commit(group)
    kernel.settle(group)
    store.close()
    assert [type(error) for error in told] == [ZeroDivisionError, type(None)]
    assert [type(recorded.event) for recorded in group.events] == [e.ClusterConfigured]


H = 3_600
A_BIG_ONE_AND_A_LONG_ONE = (
    {"cpus": 8, "time_s": 2 * H},
    {"nodes": 2, "cpus": 8, "time_s": H},
    {"cpus": 8, "time_s": 5 * H},
)
"""On two nodes: the first runs, the second waits for it, and the third would be in the second's way."""


def ask(kernel: Kernel, request: Any, job: int) -> None:
    def answered(_: Any, error: Exception | None) -> None:
        assert error is None

    kernel.requests.append(Request("test", lambda state, at: request(state, ALICE, Target(job)), answered))


@pytest.mark.parametrize("backfill", [True, False])
@pytest.mark.parametrize("request_of", [requests.hold, requests.cancel])
def test_whoever_waits_behind_a_job_goes_on_when_it_is_held_or_gone(
    store: SqliteStore, backfill: bool, request_of: Any
) -> None:
    kernel = kernel_with(store, "2x8", Policy(backfill=backfill))
    queue(kernel, *A_BIG_ONE_AND_A_LONG_ONE)
    turn(kernel, NOW + 1)
    assert waiting(kernel) == [2, 3]
    ask(kernel, request_of, 2)
    turn(kernel, NOW + 1.4)
    assert waiting(kernel) == ([2] if request_of is requests.hold else [])


def test_a_held_job_says_so_at_once(store: SqliteStore) -> None:
    kernel = kernel_with(store, "2x8")
    queue(kernel, *A_BIG_ONE_AND_A_LONG_ONE)
    turn(kernel, NOW + 1)
    ask(kernel, requests.hold, 2)
    turn(kernel, NOW + 1.4)
    assert kernel.state.verdicts[2].reasons[0].kind.value == "JobHeldUser"


def test_a_full_pass_is_owed_for_what_small_ones_do_not_see(store: SqliteStore) -> None:
    """Who is released behind a job that blocks its line stands before it, and is looked at though nothing happens."""
    kernel = kernel_with(store, "2x8", Policy(backfill=False))
    queue(kernel, {"cpus": 8, "time_s": 2 * H}, {"cpus": 8, "time_s": H}, {"nodes": 2, "cpus": 8, "time_s": H})
    ask(kernel, requests.hold, 2)
    turn(kernel, NOW + 1)
    assert waiting(kernel) == [2, 3]
    ask(kernel, requests.release, 2)
    turn(kernel, NOW + 1.4)
    assert kernel.full_pass_at == NOW + 2
    turned = kernel.turn(kernel.full_pass_at, time_passed=True)
    kernel.commit(turned)
    assert waiting(kernel) == [3]
    assert kernel.full_pass_at == math.inf

"""When the kernel weighs the queue: every period, after what changes the measure, and again after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bireme.core.jobs.submission import submit
from bireme.core.model import events as e
from bireme.core.model.accounts import Qos
from bireme.core.model.cluster import ClusterConfig, PrioritySettings, Settings
from bireme.core.model.jobs import Owner
from bireme.core.model.refusals import Caller
from bireme.runtime.kernel import Kernel, Request
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore
from bireme.testing.worlds import build_cluster, build_spec

NOW = 1_000_000.0
ALICE = Caller(uid=1001, gid=1001, user="alice")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(str(tmp_path / "journal.db"))
    yield opened
    opened.close()


def config(**weights: Any) -> ClusterConfig:
    priority = PrioritySettings(multifactor=True, calc_period_s=60, **weights)
    return build_cluster("1x8", settings=Settings(priority=priority, memory_is_consumable=False))


def kernel_with(store: SqliteStore, configured: ClusterConfig) -> Kernel:
    kernel = Kernel(store, rows_of)
    kernel.commit(kernel.configure(configured, NOW))
    return kernel


def ask(kernel: Kernel, decide: Any, now: float) -> None:
    failures: list[Exception | None] = []
    kernel.requests.append(Request("test", decide, lambda _, error: failures.append(error)))
    group = kernel.turn(now, time_passed=True)
    kernel.commit(group)
    kernel.settle(group)
    assert failures == [None]


def submit_one(kernel: Kernel, now: float, **options: Any) -> int:
    spec = build_spec("job", options, Owner(uid=1001, gid=1001, user="alice"))
    ask(kernel, lambda state, at: submit(state, ALICE, [spec], at), now)
    return kernel.state.next_job_id - 1


def test_it_weighs_every_period_and_not_in_between(store: SqliteStore) -> None:
    kernel = kernel_with(store, config(weight_age=1000, max_age_s=1000))
    job = kernel.state.jobs[submit_one(kernel, NOW)]  # no node has answered yet: it waits
    seen = []
    for seconds in (30, 59, 60, 90, 120):
        kernel.turn(NOW + seconds, time_passed=False)
        seen.append((job.priority, kernel.rank_at - NOW))
    assert seen == [(1, 60), (1, 60), (60, 120), (60, 120), (120, 180)]


def test_it_weighs_at_once_when_the_measure_changes(store: SqliteStore) -> None:
    kernel = kernel_with(store, config(weight_qos=1000))
    job = kernel.state.jobs[submit_one(kernel, NOW)]
    kernel.turn(NOW, time_passed=False)
    assert job.priority == 1
    change = e.AccountsChanged(qos=(Qos(id=1, name="normal", priority=10),))
    ask(kernel, lambda *_: [change], NOW + 1)
    assert job.priority == 1000
    kernel.commit(kernel.configure(config(weight_qos=500), NOW + 2))
    kernel.turn(NOW + 2, time_passed=False)
    assert job.priority == 500


def test_after_a_restart_priorities_are_made_again(store: SqliteStore) -> None:
    configured = config(weight_age=1000, max_age_s=1000)
    kernel = kernel_with(store, configured)
    number = submit_one(kernel, NOW)
    kernel.turn(NOW + 500, time_passed=False)
    again = Kernel(store, rows_of)
    assert again.state.jobs[number].priority == 1  # what the journal knows is the priority at the submission
    assert not again.configure(configured, NOW + 500).events
    again.turn(NOW + 500, time_passed=False)
    assert again.state.jobs[number].priority == kernel.state.jobs[number].priority == 500


def test_basic_priorities_are_never_due(store: SqliteStore) -> None:
    basic = replace(config(), settings=Settings(memory_is_consumable=False))
    kernel = kernel_with(store, basic)
    job = kernel.state.jobs[submit_one(kernel, NOW)]
    before = job.priority
    kernel.turn(NOW + 10_000, time_passed=True)
    assert (job.priority, kernel.rank_at) == (before, float("inf"))

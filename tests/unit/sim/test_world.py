"""The kernel on a virtual clock with the simulated engine: starts, limits, requeues, restarts, and the journal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.jobs.submission import submit
from bireme.core.model import events as e
from bireme.core.model.jobs import Finished, Owner, Pending, Running
from bireme.core.model.refusals import Caller
from bireme.core.model.resources import ExitStatus
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.engine import Script, SimulatedEngine
from bireme.ports import JournalError
from bireme.runtime.kernel import load
from bireme.sim.world import World
from bireme.store.journal import SqliteStore
from bireme.store.snapshots import encode_state
from bireme.testing.worlds import build_cluster, build_spec

ALICE = Caller(uid=1001, gid=1001, user="alice", admin=False)
START = 1_000_000.0


class Bench:
    """A world on four GPUs, and the scripts of its jobs by name."""

    def __init__(self, folder: Path, cluster: str = "2x2:h100") -> None:
        self.store = SqliteStore(str(folder / "journal.db"), durable=False)
        self.clock = VirtualClock(START)
        self.scripts: dict[str, Script] = {}
        self.engine = SimulatedEngine(self.clock, lambda job, _: self.scripts[job.spec.name])
        self.config = build_cluster(cluster)
        self.world = World(self.store, self.engine, self.clock)
        self.world.start(self.config)

    def submit(self, name: str, script: Script, after_s: float = 0.0, **options: Any) -> None:
        self.scripts[name] = script
        spec = build_spec(name, options, Owner(uid=1001, gid=1001, user="alice"))
        decide: Callable[..., list[e.Event]] = lambda state, now: submit(state, ALICE, [spec], now)  # noqa: E731
        self.clock.call_at(START + after_s, lambda: self.world.ask("alice submit", decide, lambda *_: None))

    def phase(self, name: str) -> Any:
        return next(job.phase for job in self.world.state.jobs.values() if job.spec.name == name)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_jobs_run_as_long_as_their_scripts_say(bench: Bench) -> None:
    bench.submit("first", Script(run_s=100.0), gpus=4, nodes=2, time_s=600)
    bench.submit("second", Script(run_s=50.0, status=ExitStatus(3)), after_s=10.0, gpus=1, time_s=600)
    bench.world.run(START + 390)
    first, second = bench.phase("first"), bench.phase("second")
    assert isinstance(first, Finished)
    assert (first.started_at, first.ended_at, first.outcome.state) == (START, START + 100, "COMPLETED")
    assert (second.started_at, second.ended_at, second.outcome.state) == (START + 100, START + 150, "FAILED")


def test_the_world_ends_when_nothing_is_left_to_happen(bench: Bench) -> None:
    bench.submit("job", Script(run_s=100.0), time_s=600)
    bench.world.run()
    assert bench.world.now == START + 100


def test_jobs_that_ended_long_ago_are_forgotten_on_the_way(bench: Bench) -> None:
    bench.submit("job", Script(run_s=100.0), time_s=600)
    bench.submit("later", Script(run_s=100.0), after_s=1000.0, time_s=600)
    bench.world.run()
    assert [job.spec.name for job in bench.world.state.jobs.values()] == ["later"]


def test_a_time_limit_ends_a_script_that_would_run_on(bench: Bench) -> None:
    bench.submit("long", Script(run_s=10_000.0), time_s=60)
    bench.submit("stubborn", Script(run_s=10_000.0, term_s=500.0), time_s=60)
    bench.world.run(START + 200)
    assert bench.phase("long").ended_at == START + 60
    assert bench.phase("stubborn").ended_at == START + 60 + 30, "KillWait later it is killed"
    assert {bench.phase(name).outcome.state for name in ("long", "stubborn")} == {"TIMEOUT"}


def test_a_lost_node_brings_its_job_back_to_the_queue(bench: Bench) -> None:
    bench.submit("gang", Script(run_s=1000.0), nodes=2, gpus=4, time_s=6000)
    bench.clock.call_at(START + 100, lambda: bench.engine.lose("n2"))
    bench.clock.call_at(START + 700, lambda: bench.engine.answer("n2"))
    bench.world.run(START + 450)
    assert isinstance(bench.phase("gang"), Pending), "SlurmdTimeout after the node went"
    bench.world.run(START + 800)
    phase = bench.phase("gang")
    assert isinstance(phase, Running)
    assert phase.started_at == START + 700


def test_a_refused_launch_is_tried_again(bench: Bench) -> None:
    bench.submit("job", Script(refused="no such user"), time_s=600)
    bench.world.run(START + 1)
    bench.scripts["job"] = Script(run_s=10.0)
    bench.world.run(START + 100)
    assert bench.phase("job").outcome.state == "COMPLETED"


def test_the_journal_gives_the_same_state_again(bench: Bench) -> None:
    for number in range(20):
        bench.submit(f"job{number}", Script(run_s=30.0 + number), after_s=7.0 * number, gpus=1, time_s=600)
    bench.world.run(START + 90)
    assert encode_state(load(bench.store)) == encode_state(bench.world.state)


def test_a_world_goes_on_after_a_restart(bench: Bench) -> None:
    """Scripts run on without the daemon; a second world hears how they ended."""
    bench.submit("job", Script(run_s=100.0), time_s=600)
    bench.world.run(START + 10)
    bench.clock.advance(START + 200)
    second = World(bench.store, bench.engine, bench.clock)
    second.start(bench.config)
    second.run(START + 210)
    (job,) = second.state.jobs.values()
    assert isinstance(job.phase, Finished)
    assert job.phase.ended_at == START + 100
    assert job.generation == 1


def test_a_group_that_cannot_be_stored_did_not_happen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    append, failures = bench.store.append, [1, 2, 3]

    def full(*arguments: Any) -> int:
        if failures:
            failures.pop()
            raise JournalError("disk full")
        return append(*arguments)

    bench.submit("job", Script(run_s=100.0), time_s=600)
    bench.world.run(START)
    monkeypatch.setattr(bench.store, "append", full)
    bench.world.run(START + 150)
    assert bench.phase("job").ended_at == START + 100
    assert not failures


def test_suspended_time_does_not_count_as_run_time(bench: Bench) -> None:
    root = Caller(uid=0, gid=0, user="root", admin=True)
    bench.submit("job", Script(run_s=100.0), time_s=600)
    for after_s, request in ((20.0, requests.suspend), (50.0, requests.resume)):
        decide = lambda state, now, request=request: request(state, root, Target(1))  # noqa: E731
        ask = lambda decide=decide: bench.world.ask("root", decide, lambda *_: None)  # noqa: E731
        bench.clock.call_at(START + after_s, ask)
    bench.world.run(START + 390)
    assert bench.phase("job").ended_at == START + 130

"""Thousands of short jobs one after the other leave nothing behind in memory once they are forgotten."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest

from bireme.core.calendar import releases
from bireme.core.jobs.submission import submit
from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import Owner
from bireme.core.model.refusals import Caller
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.engine import Script, SimulatedEngine
from bireme.sim.world import World
from bireme.store.journal import SqliteStore
from bireme.testing.worlds import build_cluster, build_spec

ALICE = Caller(uid=1001, gid=1001, user="alice")
FEW = 40
"""So many more of a kind are chance: jobs that are not forgotten yet, lists that are cut when they are long."""


def run_jobs(world: World, count: int) -> None:
    spec = build_spec("short", {"cpus": 1}, Owner(uid=1001, gid=1001, user="alice"))
    refused: list[Exception] = []
    for _ in range(count):
        world.ask(
            "alice submit",
            lambda state, now: submit(state, ALICE, [spec], now),
            lambda _, error: refused.append(error) if error else None,
        )
        world.run(until=world.now + 0.5)
    assert not refused
    world.run(until=world.now + 30.0)


def own_objects() -> Counter[str]:
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    named = ((str(kind.__module__), kind.__name__) for kind in kinds)  # of some it is no text
    return Counter(f"{module}.{name}" for module, name in named if module.startswith("bireme."))


def sizes(world: World) -> dict[str, int]:
    """Of everything that the state, the engine and the kernel keep in collections."""
    found = {}
    for thing in (world.state, world.state.timetable, world.engine, world.kernel):
        names = getattr(thing, "__slots__", None) or vars(thing)
        held = ((name, getattr(thing, name)) for name in names)
        found |= {f"{type(thing).__name__}.{name}": len(each) for name, each in held if hasattr(each, "__len__")}
    return found


def test_nothing_grows_with_the_jobs_that_have_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "_TAIL_MOST", FEW // 4)
    clock = VirtualClock(1_000_000.0)
    engine = SimulatedEngine(clock, lambda job, allocation: Script(run_s=0.1))
    store = SqliteStore(str(tmp_path / "journal.db"), durable=False)
    world = World(store, engine, clock)
    world.start(build_cluster("1x8", settings=Settings(memory_is_consumable=False, min_job_age_s=5)))
    run_jobs(world, 150)
    objects, lengths = own_objects(), sizes(world)
    run_jobs(world, 450)
    grown = {kind: count for kind, count in (own_objects() - objects).items() if count > FEW}
    longer = {name: size for name, size in sizes(world).items() if size - lengths.get(name, 0) > FEW}
    assert (grown, longer) == ({}, {})
    store.close()

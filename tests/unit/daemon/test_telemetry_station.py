"""Telemetry as the daemon has it: what is not well with it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.support.gatherers import gatherers_of
from tests.support.telemetry_door import Cluster, Peer

from bireme.core.telemetry.subjects import Subject
from bireme.daemon.paths import Paths
from bireme.daemon.telemetry.process import GathererPlan
from bireme.daemon.telemetry.station import Station
from bireme.gather import messages as m
from bireme.ports import NewestRound, Sampled
from bireme.store.series.store import SqliteSeries


def no_gatherer() -> GathererPlan | None:
    return None


def station_at(folder: Path, cluster: Cluster, plan: Callable[[], GathererPlan | None] = no_gatherer) -> Station:
    return Station(
        cluster,
        lambda: SqliteSeries(str(folder / "series.db"), clock=cluster.clock.now),
        lambda: 10.0,
        str(folder / "door"),
        plan,
        lambda: (str(folder), ""),
        None,  # type: ignore[arg-type]  # nobody calls from outside
        lambda _: (),
    )


def test_a_gatherer_that_tells_nothing_more_is_told_of(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = Cluster()
        station = station_at(tmp_path, cluster)
        await station.begin()
        peer = Peer(*await asyncio.open_unix_connection(str(tmp_path / "door")))
        peer.say(m.Hello(id="g", machine="here"))
        await peer.hear()
        now = cluster.clock.now()
        frame = m.Frame(about="node", node="here", ids=["here"], columns={"node_load": [1.0]})
        peer.say(m.Round(no=1, at=now - 2.0, sent=now, interval_s=10.0, frames=[frame]))
        while not station.newest_rounds():
            await asyncio.sleep(0)
        assert (station.newest_rounds(), station.problem) == ([NewestRound("here", now - 2.0, is_late=False)], "")
        cluster.world.now = now + 51.0  # it is still connected: it hangs, or was stopped
        assert station.newest_rounds() == [NewestRound("here", now - 2.0, is_late=True)]
        assert "tells nothing new" in station.problem
        await station.close(end=False)

    asyncio.run(story())


def test_a_gatherer_that_was_started_a_moment_ago_ends_with_the_jobs(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path))
    paths.create()

    async def story() -> None:
        station = station_at(tmp_path, Cluster(), lambda: GathererPlan.of(paths, "here"))
        await station.begin()
        while not gatherers_of(paths.home):
            await asyncio.sleep(0)
        await station.close(end=True)

    asyncio.run(story())
    assert gatherers_of(paths.home) == []


def test_nodes_that_told_before_a_restart_are_expected_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = Cluster()
        (node,) = cluster.state.nodes
        now = cluster.clock.now()
        before = SqliteSeries(str(tmp_path / "series.db"))
        for no, (name, at) in enumerate(((node, now - 600.0), ("long-ago", now - 90_000.0)), 1):
            subject = Subject("node", name, name)
            before.append(f"{name}/f", no, [Sampled(at, 10.0, (subject,), {"node_load": np.array([1.0])})])
        before.close()
        station = station_at(tmp_path, cluster)
        await station.begin()
        await station.keeper.writable.wait()
        assert (station.newest_rounds(), station.keeper.lately) == ([NewestRound(node, None, is_late=False)], {node})
        cluster.world.now = now + 51.0
        assert station.newest_rounds() == [NewestRound(node, None, is_late=True)]
        await station.close(end=False)

    asyncio.run(story())


def test_a_damaged_file_is_told_for_as_long_as_the_daemon_runs(tmp_path: Path) -> None:
    (tmp_path / "series.db").write_bytes(b"x" * 4096)

    async def story() -> str:
        station = station_at(tmp_path, Cluster())
        await station.begin()
        await station.keeper.writable.wait()
        problem = station.problem
        await station.close(end=False)
        return problem

    assert "set aside as" in asyncio.run(story())

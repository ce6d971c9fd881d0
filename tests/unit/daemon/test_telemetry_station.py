"""Telemetry as the daemon has it: what is not well with it is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.telemetry_door import Cluster

from bireme.daemon.telemetry.station import Station
from bireme.store.series.store import SqliteSeries


def test_a_damaged_file_is_told_for_as_long_as_the_daemon_runs(tmp_path: Path) -> None:
    series = tmp_path / "series.db"
    series.write_bytes(b"x" * 4096)

    async def story() -> str:
        station = Station(
            Cluster(),
            lambda: SqliteSeries(str(series)),
            lambda: 10.0,
            str(tmp_path / "door"),
            lambda: None,
            lambda: (str(tmp_path), ""),
            None,  # type: ignore[arg-type]  # nobody calls from outside
            lambda _: (),
        )
        await station.begin()
        await station.keeper.writable.wait()
        problem = station.problem
        await station.close(end=False)
        return problem

    assert "set aside as" in asyncio.run(story())

"""A process that writes series is killed: what it said was kept is there, once, and the next one goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.samples import T0, Teller, means

from bireme.store.series.inspection import inspect
from bireme.store.series.store import SqliteSeries

WRITER = """
import sys
from tests.support.samples import T0, Teller
from bireme.store.series.store import SqliteSeries

series = SqliteSeries(sys.argv[1])
teller = Teller(series)
teller.no = series.flush().get("g1", 0)
while True:
    teller.tell_values(T0 + 10 * teller.no, [float(teller.no % 500)])
    if teller.no % 3 == 0:
        print(series.flush()["g1"], flush=True)
    if teller.no % 60 == 0:
        series.thin_out(T0 + 10 * teller.no)
"""
"""Tells round n as the value n - 1, ten seconds after the one before; flushes, compacts and thins out, without end."""


@pytest.mark.parametrize("flushes", [1, 15, 160])
def test_what_was_flushed_outlives_a_kill(tmp_path: Path, flushes: int) -> None:
    path = str(tmp_path / "series.db")
    kept = 0
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, path],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[3],
        ) as writer:
            assert writer.stdout is not None
            for _ in range(flushes):
                kept = int(writer.stdout.readline())
            writer.kill()
        assert inspect(path) == []
    series = SqliteSeries(path)
    last = series.flush()["g1"]
    assert last >= kept
    told = [float(no % 500) for no in range(last)]
    assert means(series, T0, T0 + 10 * last) == told
    Teller(series, "g2").tell_values(T0 + 10 * last, [7.0])
    assert means(series, T0, T0 + 10 * last + 10) == [*told, 7.0]
    assert series.problem == ""
    series.close()

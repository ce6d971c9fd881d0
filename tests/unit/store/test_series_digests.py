"""Digests in the store of series: reckoned from what is there, kept, replaced, thinned out, and damaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.support.samples import DAY, GPU, T0, Teller, sampled, task

from bireme.core.telemetry.digest import Digest, GpuDigest, Level, Spread, StepDigest
from bireme.ports import Holding
from bireme.store.series import digests
from bireme.store.series.inspection import inspect
from bireme.store.series.store import SqliteSeries

SPREAD = Spread(1.0, "n1", 0, 2.0, "n2", 1, 3.0, 2)
DIGEST = Digest(
    7,
    1,
    T0,
    T0 + 60.0,
    gpus=(GpuDigest("n1", "GPU-a", False, 60.0, 50.0, "gpu_util", Level(40.0, 90.0), 5.0, energy_j=1200.0),),
    steps=(StepDigest(-5, {"cpu_s": SPREAD}),),
    cpus=Level(1.5, 2.0),
)


def opened(folder: Path) -> SqliteSeries:
    return SqliteSeries(str(folder / "series.db"), clock=lambda: T0 + 100.0)


def test_a_digest_comes_back_as_it_was_kept_also_after_a_restart(tmp_path: Path) -> None:
    series = opened(tmp_path)
    series.keep_digests([DIGEST, replace(DIGEST, generation=2), replace(DIGEST, job_id=8)])
    assert {(one.job_id, one.generation) for one in series.digests([7])} == {(7, 1), (7, 2)}
    assert series.digested_until() is None, "not before it is on disk"
    series.flush()
    assert series.digested_until() == T0 + 60.0
    series.close()
    again = opened(tmp_path)
    assert DIGEST in again.digests({7, 9})
    assert again.digests([9]) == []
    again.close()


def test_digests_are_kept_deflated_and_those_of_before_are_still_read() -> None:
    eight = replace(DIGEST, gpus=DIGEST.gpus * 8)
    before = msgspec.msgpack.encode(eight)
    assert len(digests.encode(eight)) < len(before) / 4
    assert digests.decode(digests.encode(eight)) == digests.decode(before) == eight
    with pytest.raises(digests.DigestError):
        digests.decode(digests.encode(eight)[:-9])


def test_reports_of_many_read_digests_without_their_steps(tmp_path: Path) -> None:
    series = opened(tmp_path)
    series.keep_digests([DIGEST])
    series.flush()
    assert series.digests([7], steps=False) == [replace(DIGEST, steps=())]
    series.close()


def test_one_that_is_made_anew_takes_the_place_of_the_first(tmp_path: Path) -> None:
    series = opened(tmp_path)
    series.keep_digests([DIGEST])
    series.flush()
    later = replace(DIGEST, cpus=Level(9.0, 9.0))
    series.keep_digests([later])
    assert series.digests([7]) == [later]
    series.flush()
    assert series.digests([7]) == [later]
    series.close()


def test_a_digest_is_reckoned_from_what_the_start_had_and_when(tmp_path: Path) -> None:
    series = opened(tmp_path)
    teller = Teller(series)
    script = task("7.1.-5.0")
    for at in range(0, 100, 10):
        util = 80.0 if 20 <= at < 60 else 3.0
        teller.tell(
            sampled(T0 + at, GPU, gpu_util=util, gpu_energy=200.0),
            sampled(T0 + at, (script, task("7.2.-5.0")), cpu_user=(1.0, 50.0), memory=(100.0, 9000.0)),
        )
    series.hold([Holding(7, 1, "n1", GPU.id, False, T0 + 20.0, T0 + 60.0)])
    made = series.digest(7, 1, T0 + 20.0, T0 + 60.0)
    (gpu,) = made.gpus
    assert (gpu.held_s, gpu.measured_s, gpu.use, gpu.energy_j) == (40.0, 40.0, Level(80.0, 80.0), 8000.0)
    (step,) = made.steps
    assert (step.step, step.figures["cpu_s"].total, step.figures["memory_mib"].most) == (-5, 40.0, 100.0)
    assert made.node_memory_peak_mib == 100.0
    assert made.measured
    assert series.digest(7, 1, T0 + 21.0, T0 + 29.0).gpus, "also before anything of it was measured"
    assert not series.digest(99, 1, T0, T0 + 60.0).measured
    series.close()


def test_old_ones_are_dropped_by_what_is_to_be_kept(tmp_path: Path) -> None:
    series = opened(tmp_path)
    series.keep_digests([DIGEST, replace(DIGEST, job_id=8, end=T0 + 2000 * DAY)])
    series.flush()
    for day in range(1825, 1829):  # a clock that jumps is not believed for more than a day at once
        series.thin_out(T0 + day * DAY)
    assert [one.job_id for one in series.digests([7, 8])] == [8]
    series.close()


def test_one_that_is_damaged_is_named_and_passed_over(tmp_path: Path) -> None:
    series = opened(tmp_path)
    series.keep_digests([DIGEST, replace(DIGEST, generation=2)])
    series.close()
    path = str(tmp_path / "series.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE digests SET data = x'00' WHERE generation = 1")
        connection.commit()
    assert inspect(path) == ["digests 7 in the series is not what was written"]
    again = opened(tmp_path)
    assert [one.generation for one in again.digests([7])] == [2]
    assert "the digest of job 7" in again.problem
    again.close()


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x93\x01\x02\x03"])
def test_bytes_that_are_no_digest_are_told_apart(data: bytes) -> None:
    with pytest.raises(digests.DigestError):
        digests.decode(data)

"""How much was used, added up, and what would have been enough: each rule given, and not given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bireme.core.telemetry import advice as a
from bireme.core.telemetry.digest import Digest, GpuDigest, Level, Spread, StepDigest
from bireme.core.telemetry.efficiency import Efficiency, Had, Sum, Tally, efficiency

HOUR = 3600.0
HAD = Had(
    job_id=7, generation=1, user="ann", account="physics", state="COMPLETED", start=0.0, end=5 * HOUR,
    elapsed_s=5 * HOUR, limit_s=48 * HOUR, waited_s=60.0, nodes=1, cpus=8, memory_mib=65_536, gpus=8, cpu_s=4 * HOUR,
    rss_mib=4096.0,
)  # fmt: skip


def gpu(no: int, mean: float, peak: float, **more: Any) -> GpuDigest:
    given = {"held_s": 5 * HOUR, "measured_s": 5 * HOUR, "by": "gpu_sm_active", "idle_s": 0.0, **more}
    return GpuDigest("n1", f"GPU-{no}", False, use=Level(mean, peak), **given)


def digest(*gpus: GpuDigest, **more: Any) -> Digest:
    return Digest(7, 1, 0.0, 5 * HOUR, gpus=gpus, **more)


def kinds(made: Digest | None, had: Had = HAD, alike: tuple[float, ...] = ()) -> dict[str, str]:
    return {each.kind: each.text for each in a.advice(had, made, efficiency(had, made), alike)}


def test_used_unused_and_unmeasured_add_up_to_what_was_held() -> None:
    used = efficiency(HAD, digest(*(gpu(no, 50.0, 90.0) for no in range(6)), gpu(6, 0.0, 0.0), unmeasured(7)))
    assert used.gpu_held_s == 40 * HOUR
    assert (used.gpu_used_s, used.gpu_unused_s, used.gpu_unmeasured_s) == (15 * HOUR, 20 * HOUR, 5 * HOUR)
    assert (used.gpus_measured, used.gpus_never_used) == (7, 1)
    assert used.gpu_use == pytest.approx(100 * 15 / 35)


def unmeasured(no: int) -> GpuDigest:
    return GpuDigest("n1", f"GPU-{no}", False, 5 * HOUR)


def test_without_a_digest_nothing_is_known_of_gpus() -> None:
    used = efficiency(HAD, None)
    assert (used.gpu_use, used.tensor, used.energy_j) == (None, None, None)
    assert used.gpu_unmeasured_s == used.gpu_held_s
    assert (used.memory_peak_mib, used.memory_estimated) == (4096.0, True)
    assert used.cpu_use == pytest.approx(10.0)


def test_of_a_run_that_goes_on_what_its_tasks_were_seen_using_counts() -> None:
    seen = Spread(9.0, "n1", 0, 9.0, "n1", 0, 9.0, 1)
    used = efficiency(replace(HAD, end=None, cpu_s=None), digest(steps=(StepDigest(-5, {"cpu_s": seen}),)))
    assert used.cpu_used_s == 9.0


def test_advice_names_gpus_that_were_never_used() -> None:
    made = digest(*(gpu(no, 60.0, 99.0) for no in range(6)), gpu(6, 0.0, 0.2), gpu(7, 0.0, 0.0))
    assert kinds(made)["unused_gpus"] == "2 of 8 GPUs were never used: 6 would have been enough"
    assert "unused_gpus" not in kinds(digest(*(gpu(no, 60.0, 99.0) for no in range(8))))


def test_a_gpu_whose_figures_are_missing_was_not_idle() -> None:
    assert "unused_gpus" not in kinds(digest(unmeasured(0), unmeasured(1)))
    assert "unused_gpus" not in kinds(digest(gpu(0, 0.0, 0.0, measured_s=2 * HOUR))), "measured for less than half"


def test_advice_on_idle_time() -> None:
    made = kinds(digest(gpu(0, 40.0, 99.0, idle_s=2 * HOUR)))
    assert made["idle_gpus"] == "the GPU stood idle for 02:00:00 of 05:00:00"
    assert "idle_gpus" not in kinds(digest(gpu(0, 40.0, 99.0, idle_s=HOUR)))


def test_advice_on_low_use_says_when_a_part_of_a_gpu_may_do() -> None:
    small = gpu(0, 5.0, 30.0, memory_mib=Level(1000.0, 2048.0), memory_total_mib=81_920.0)
    assert kinds(digest(small))["low_use"] == (
        "1 of 8 GPUs was used to 5.0% on average, with at most 2.0 of 80 GiB of its memory in use: a part of a GPU "
        "(a MIG instance, shards) may do"
    )
    full = replace(small, memory_mib=Level(70_000.0, 80_000.0))
    assert kinds(digest(full))["low_use"] == "1 of 8 GPUs was used to 5.0% on average"
    assert "low_use" not in kinds(digest(gpu(0, 15.0, 30.0)))


def test_advice_on_kernels_that_wait() -> None:
    made = kinds(digest(gpu(0, 2.0, 30.0, util=Level(99.0, 100.0))))
    assert made["spinning"].startswith(
        "kernels ran 99% of the time on 1 of 8 GPUs and kept 2.0% of the multiprocessors"
    )
    assert "spinning" not in kinds(digest(gpu(0, 50.0, 90.0, util=Level(99.0, 100.0))))
    by_util = gpu(0, 2.0, 30.0, by="gpu_util", util=Level(99.0, 100.0))
    assert "spinning" not in kinds(digest(by_util)), "nothing tells how busy the multiprocessors were"


def test_advice_on_memory() -> None:
    made = kinds(digest(node_memory_peak_mib=6000.0))
    assert made["less_memory"] == "64.0 GiB of memory on each node, at most 5.9 GiB in use: --mem=7424M would do"
    assert "at most 36 MiB in use: --mem=256M" in kinds(digest(node_memory_peak_mib=36.0))["less_memory"]
    assert "less_memory" not in kinds(digest(node_memory_peak_mib=40_000.0))
    assert "less_memory" not in kinds(digest()), "accounting's sum of peaks is no measure of it"


def test_advice_on_cpus() -> None:
    text = "8 CPUs, 1.0 busy on average and never more than 2.5: 3 would do"
    assert kinds(digest(cpus=Level(1.0, 2.5)))["fewer_cpus"] == text
    each_has_one = StepDigest(0, {"cpu_s": Spread(1.0, "n1", 0, 2.0, "n1", 7, 12.0, 8)})
    assert "fewer_cpus" not in kinds(digest(cpus=Level(1.0, 2.5), steps=(each_has_one,)))
    assert "fewer_cpus" not in kinds(digest(cpus=Level(1.0, 7.0)))


def test_advice_on_the_time_limit() -> None:
    assert kinds(None)["shorter_limit"] == "limit 2-00:00:00, it took 05:00:00: --time=06:00:00 would do"
    assert kinds(None, alike=(7 * HOUR, 2 * HOUR))["shorter_limit"] == (
        "limit 2-00:00:00, the longest of 3 runs took 07:00:00: --time=09:00:00 would do"
    )
    assert "shorter_limit" not in kinds(None, alike=(30 * HOUR,))
    assert "shorter_limit" not in kinds(None, replace(HAD, state="FAILED")), "what failed may take longer"
    assert "shorter_limit" not in kinds(None, replace(HAD, limit_s=None))


def test_nothing_is_advised_of_a_short_run() -> None:
    assert kinds(digest(gpu(0, 0.0, 0.0)), replace(HAD, elapsed_s=30.0)) == {}


def test_a_tally_lists_the_worst_first_and_counts_what_is_not_measured() -> None:
    tally = Tally(0.0, 86_400.0, 2)
    for job_id, user, used_s in ((1, "ann", 9.0), (2, "bob", 2.0), (3, "bob", 10.0)):
        had = replace(HAD, job_id=job_id, user=user)
        tally.add(had, Efficiency(gpu_held_s=10.0, gpu_measured_s=10.0, gpu_used_s=used_s), measured=True)
    tally.add(replace(HAD, job_id=4, user="eve", end=90_000.0), Efficiency(gpu_held_s=10.0), measured=False)
    assert list(tally.by_user()) == ["bob", "ann", "eve"]
    assert [had.job_id for had, _, _ in tally.worst()] == [2, 1]
    assert (tally.total.starts, tally.total.measured, tally.total.gpu_unmeasured_s) == (4, 3, 10.0)
    assert list(tally.by_period()) == [0.0, 86_400.0]
    assert Sum().gpu_use is None

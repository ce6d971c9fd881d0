"""Digests of starts: what curves come to, by hand-made ones."""

from __future__ import annotations

import numpy as np
import pytest

from bireme.core.telemetry import digest as d
from bireme.core.telemetry.curves import Curve
from bireme.core.telemetry.subjects import Subject

NAN = float("nan")


def curve(metric: str, *values: float, start: float = 0.0, step_s: float = 10.0) -> Curve:
    column = np.array(values, dtype=np.float64)
    return Curve(Subject("gpu", "n1", "GPU-a"), metric, start, step_s, column, column, column + 1.0)


def test_a_mean_counts_each_step_by_how_much_of_it_the_job_had() -> None:
    found = d.level(curve("gpu_util", 0.0, 50.0, 100.0), 5.0, 25.0)
    assert found == d.Level(mean=(0 * 5 + 50 * 10 + 100 * 5) / 20, peak=101.0)


def test_nothing_from_outside_the_time_is_in_a_digest() -> None:
    found = d.level(curve("gpu_util", 99.0, 7.0, 99.0), 10.0, 20.0)
    assert found == d.Level(7.0, 8.0)


def test_what_was_not_measured_is_none_and_not_zero() -> None:
    assert d.level(curve("gpu_util", NAN, NAN), 0.0, 20.0) is None
    assert d.level(None, 0.0, 20.0) is None
    assert d.total(curve("gpu_energy", NAN), 0.0, 10.0) is None
    gpu = d.whole_gpu("n1", "GPU-a", 0.0, 20.0, {})
    assert (gpu.use, gpu.idle_s, gpu.energy_j, gpu.memory_mib, gpu.tensor) == (None, None, None, None, None)
    assert (gpu.measured_s, gpu.never_used) == (0.0, False)


def test_real_use_is_of_the_best_metric_that_was_measured() -> None:
    both = {"gpu_util": curve("gpu_util", 100.0, 100.0), "gpu_sm_active": curve("gpu_sm_active", 4.0, 8.0)}
    gpu = d.whole_gpu("n1", "GPU-a", 0.0, 20.0, both)
    assert (gpu.by, gpu.use, gpu.util) == ("gpu_sm_active", d.Level(6.0, 9.0), d.Level(100.0, 101.0))
    gpu = d.whole_gpu("n1", "GPU-a", 0.0, 20.0, {**both, "gpu_sm_active": curve("gpu_sm_active", NAN, NAN)})
    assert gpu.by == "gpu_util"


def test_idle_time_is_measured_time_without_use() -> None:
    gpu = d.whole_gpu("n1", "GPU-a", 0.0, 40.0, {"gpu_util": curve("gpu_util", 0.0, 0.5, NAN, 90.0)})
    assert (gpu.held_s, gpu.measured_s, gpu.idle_s, gpu.never_used) == (40.0, 30.0, 20.0, False)


def test_energy_is_power_over_the_measured_time() -> None:
    gpu = d.whole_gpu("n1", "GPU-a", 0.0, 30.0, {"gpu_energy": curve("gpu_energy", 100.0, NAN, 300.0)})
    assert gpu.energy_j == 4000.0
    gpu = d.whole_gpu("n1", "GPU-a", 0.0, 10.0, {"gpu_power": curve("gpu_power", 50.0)})
    assert gpu.energy_j == 500.0


def test_of_a_shared_gpu_only_what_its_own_tasks_did_counts() -> None:
    uses = [{"use_gpu_util": curve("use_gpu_util", 10.0, NAN)}, {"use_gpu_util": curve("use_gpu_util", 20.0, 30.0)}]
    gpu = d.shared_gpu("n1", "GPU-a", 0.0, 20.0, uses)
    assert gpu.shared
    assert gpu.use is not None
    assert gpu.use.mean == 30.0
    assert gpu.energy_j is None


def test_a_spread_names_whose_the_least_and_the_most_were() -> None:
    found = d.spread([("n1", 0, 5.0), ("n2", 1, 9.0), ("n2", 2, None)])
    assert found == d.Spread(5.0, "n1", 0, 9.0, "n2", 1, 14.0, 2)
    assert found.mean == 7.0
    assert d.spread([("n1", 0, None)]) is None


def test_a_step_has_figures_of_its_tasks() -> None:
    tasks = {
        (0, "n1", 0): {"cpu_user": curve("cpu_user", 1.0, 1.0), "memory": curve("memory", 10.0, 20.0)},
        (0, "n2", 1): {"cpu_user": curve("cpu_user", 0.5, 0.5), "cpu_system": curve("cpu_system", 0.1, 0.1)},
        (-5, "n1", 0): {"io_read": curve("io_read", 3.0, 3.0)},
    }
    script, step = d.step_digests(tasks, {}, {}, 0.0, 20.0)
    assert (script.step, set(script.figures)) == (-5, {"read_kib"})
    assert script.figures["read_kib"].total == 60.0
    assert step.figures["cpu_s"].most == 20.0
    assert step.figures["cpu_s"].least == pytest.approx(12.0)
    assert (step.figures["memory_mib"].most, step.figures["memory_mib"].tasks) == (21.0, 1)
    assert "gpu_util" not in step.figures


READ = curve("io_read", 1.0, 1.0, 2.0, 2.0, 5.0)


@pytest.mark.parametrize(
    ("totals", "used"),
    [
        ((), 110.0),
        ((NAN,) * 5, 110.0),
        ((3.0, NAN, NAN, NAN, 70.0), 70.0),
        ((3.0, 10.0, NAN, NAN, NAN), 10.0 + 20 + 20 + 50),
        ((3.0, 40.0, NAN, 30.0, 50.0), 40.0 + 20 + (50 - 30)),
    ],
    ids=["no total", "none measured", "until its end", "it runs on", "a gatherer that began anew knows of less"],
)
def test_a_total_counts_before_rates_do(totals: tuple[float, ...], used: float) -> None:
    column = np.array(totals)
    told = {"io_read_total": Curve(READ.subject, "io_read_total", 0.0, 10.0, column, column, column)} if totals else {}
    assert d.in_all({"io_read": READ, **told}, "io_read_total", 0.0, 50.0) == used


def test_a_gpu_that_one_task_alone_was_on_is_that_tasks() -> None:
    present = {"use_gpu_memory": curve("use_gpu_memory", 100.0, 100.0, NAN)}
    gpus = {
        "GPU-a": {"gpu_util": curve("gpu_util", 80.0, 60.0, 5.0), "gpu_energy": curve("gpu_energy", 10.0, 10.0, 9.0)}
    }
    (step,) = d.step_digests({}, {(0, "n1", 3): {"GPU-a": present}}, gpus, 0.0, 30.0)
    assert step.figures["gpu_util"].most == 70.0
    assert step.figures["gpu_util"].most_task == 3
    assert step.figures["energy_j"].total == 200.0
    assert step.figures["energy_j"].most_task == -1


def test_two_tasks_on_one_gpu_get_nothing_by_guess_and_its_energy_once() -> None:
    present = {"use_gpu_memory": curve("use_gpu_memory", 100.0, 100.0)}
    uses = {(0, "n1", task): {"GPU-a": present} for task in (0, 1)}
    gpus = {"GPU-a": {"gpu_util": curve("gpu_util", 80.0, 60.0), "gpu_energy": curve("gpu_energy", 10.0, 10.0)}}
    (step,) = d.step_digests({}, uses, gpus, 0.0, 20.0)
    assert "gpu_util" not in step.figures
    assert step.figures["gpu_memory_mib"].tasks == 2
    assert step.figures["energy_j"].total == 200.0


def test_curves_with_other_steps_are_not_added() -> None:
    assert d.summed([curve("memory", 1.0), curve("memory", 1.0, 2.0)]) is None
    assert d.summed([]) is None

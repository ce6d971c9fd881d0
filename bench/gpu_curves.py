"""Made-up figures of GPUs that look like real ones: what `bench.telemetry` writes and `bench.series_codecs` compares.

A node's GPUs train together for hours, with epochs (a dip where the model is evaluated, another where it is saved), and
idle in between. Use, power and clocks jitter, temperatures follow the power slowly, traffic is noise of seven digits,
memory moves seldom, errors and widths nearly never; one GPU in eight is of a model without NVLink and GPM's counters,
and now and then a GPU does not answer for some samples. Every metric of the list is there: none is left out because it
compresses badly.

Invariant: the same seed makes the same curves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bireme.core.telemetry.metrics import about

Curves = dict[str, NDArray[np.float64]]
"""By metric: a row for each GPU, a column for each sample. NaN: not measured."""

CONSTANT = {
    "gpu_memory_reserved": 613.0,
    "gpu_power_limit": 700.0,
    "gpu_memory_clock": 2619.0,
    "gpu_pcie_width": 16.0,
    "gpu_pcie_generation": 5.0,
    "gpu_answers": 1.0,
}
PROFILED = ("gpu_engine_active", "gpu_sm_active", "gpu_sm_occupancy", "gpu_tensor_active", "gpu_dram_active",
            "gpu_fp64_active", "gpu_fp32_active", "gpu_fp16_active", "gpu_pcie_sent", "gpu_pcie_received",
            "gpu_nvlink_sent", "gpu_nvlink_received")  # fmt: skip
MEMORY_MIB = 143_771.0
WITHOUT_COUNTERS = 8
"""One GPU of so many is of a model without GPM and NVLink."""


def node_curves(gpus: int, samples: int, step_s: float, seed: int) -> Curves:
    """Of the GPUs of one node, which work for the same jobs."""
    draw = np.random.default_rng(seed)
    busy, phase = _work(draw, samples, step_s)
    found = {metric.name: np.zeros((gpus, samples)) for metric in about("gpu")}
    for gpu in range(gpus):
        for name, values in _gpu(draw, busy, phase).items():
            found[name][gpu] = values
        if (seed * gpus + gpu) % WITHOUT_COUNTERS == 0:
            for name in PROFILED:
                found[name][gpu] = np.nan
    for metric in about("gpu"):
        found[metric.name] = np.round(found[metric.name] / metric.grain) * metric.grain
    return _with_holes(draw, found)


def _work(draw: np.random.Generator, samples: int, step_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each sample whether a job runs, and how hard it works (1: training; less: evaluating, saving, waiting)."""
    busy, phase = np.zeros(samples), np.ones(samples)
    at = 0
    while at < samples:
        at += int(draw.exponential(1800) / step_s)
        length = int(draw.uniform(1, 10) * 3600 / step_s)
        busy[at : at + length] = 1
        epoch = max(10, int(draw.uniform(600, 5400) / step_s))
        since = np.arange(samples) - at
        inside = (since >= 0) & (since < length)
        phase[inside & (since % epoch > 0.95 * epoch)] = 0.6
        phase[inside & (since % epoch == 0)] = 0.1
        at += length
    return busy, phase


def _gpu(draw: np.random.Generator, busy: NDArray[np.float64], phase: NDArray[np.float64]) -> Curves:
    samples = len(busy)
    work = busy * phase

    def noise(scale: float) -> NDArray[np.float64]:
        return draw.normal(0, scale, samples)

    def share(most: float, jitter: float) -> NDArray[np.float64]:
        return np.where(busy > 0, np.clip(most * phase + noise(jitter), 0, 100), 0.0)

    tensor = draw.uniform(20, 55)
    power = np.where(busy > 0, 120 + 540 * work * draw.uniform(0.85, 1) + noise(12), 72 + noise(0.4))
    used = np.where(busy > 0, draw.uniform(0.5, 0.95) * MEMORY_MIB + 64 * np.floor(np.cumsum(busy) / 900), 4.0)
    temperature = 30 + _slowly(power, 12) / 18
    traffic = draw.lognormal(0, 0.25, samples) * work
    rare = draw.random(samples) < 1e-5
    return {
        **{name: np.full(samples, value) for name, value in CONSTANT.items()},
        "gpu_util": share(99, 1.2),
        "gpu_copy_util": share(45, 3),
        "gpu_engine_active": share(98, 0.8),
        "gpu_sm_active": share(88, 2.5),
        "gpu_sm_occupancy": share(38, 1.5),
        "gpu_tensor_active": share(tensor, 2),
        "gpu_dram_active": share(42, 2),
        "gpu_fp32_active": share(8, 0.8),
        "gpu_fp16_active": share(4, 0.5),
        "gpu_memory_used": used,
        "gpu_memory_free": MEMORY_MIB - 613 - used,
        "gpu_power": power,
        "gpu_energy": power + noise(3),
        "gpu_power_peak": power + np.abs(noise(9)) * busy,
        "gpu_memory_peak": used + 64 * (draw.random(samples) < 0.01),
        "gpu_temperature_peak": temperature + (draw.random(samples) < 0.2),
        "gpu_temperature": temperature,
        "gpu_memory_temperature": temperature + 9,
        "gpu_sm_clock": np.where(busy > 0, 1980 - 15 * draw.poisson(0.6, samples), 345.0),
        "gpu_throttle": np.where(busy > 0, np.where(power > 640, 4.0, 0.0), 1.0),
        "gpu_ecc_corrected": rare * 0.1,
        "gpu_pcie_replays": rare[::-1] * 0.1,
        "gpu_pcie_sent": 900_000 * traffic,
        "gpu_pcie_received": 1_400_000 * traffic[::-1] * work,
        "gpu_nvlink_sent": 90_000_000 * traffic,
        "gpu_nvlink_received": 90_000_000 * draw.lognormal(0, 0.02, samples) * traffic,
        "gpu_processes": np.where(busy > 0, 1.0, 0.0),
    }


def _slowly(values: NDArray[np.float64], samples: int) -> NDArray[np.float64]:
    """A moving mean."""
    summed = np.cumsum(np.concatenate([np.full(samples, values[0]), values]))
    return (summed[samples:] - summed[:-samples]) / samples


def _with_holes(draw: np.random.Generator, curves: Curves) -> Curves:
    """Now and then a GPU does not answer: all but `gpu_answers` is missing."""
    gpus, samples = curves["gpu_util"].shape
    for gpu in range(gpus):
        for at in np.nonzero(draw.random(samples) < 1 / 4000)[0]:
            span = slice(at, at + int(draw.integers(1, 6)))
            for name, values in curves.items():
                values[gpu, span] = 0.0 if name == "gpu_answers" else np.nan
    return curves

"""Real use of an NVIDIA GPU by GPM: Hopper and later count in hardware, and two samples say what was between them.

One `Pair` for each GPU or MIG instance, kept by `nvidia`. A sample is taken in every round; figures are those of the
time since the round before, so the first round has none. Nothing is switched on for it on the card.

Invariant: `read` is called by one thread at a time, that of the card.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bireme.gather.gpus.nvidia_questions import GPM
from bireme.gather.gpus.source import Values


def is_supported(nvml: Any, handle: Any) -> bool:
    """Whether the card and the driver have it. Raises NVMLError where the driver does not know the question."""
    return bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)


class Pair:
    """The latest two samples of one device."""

    def __init__(self, nvml: Any, take: Callable[[Any], object]) -> None:
        """`take` fills a sample: of a GPU or of one of its instances."""
        self._nvml = nvml
        self._take = take
        self._before, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._has_one = False
        self._metrics = [
            (metric, getattr(nvml, name), factor) for metric, (name, factor) in GPM.items() if hasattr(nvml, name)
        ]
        self._asked = nvml.c_nvmlGpmMetricsGet_t()  # large: made once

    def read(self) -> Values:
        """What was between the last call and this one. Raises NVMLError."""
        self._take(self._now)
        self._before, self._now = self._now, self._before
        if not self._has_one:
            self._has_one = True
            return {}
        return self._between()

    def _between(self) -> Values:
        asked = self._asked
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(self._metrics)
        asked.sample1, asked.sample2 = self._now, self._before  # swapped by `read`: the older is the first
        for place, (_, number, _) in enumerate(self._metrics):
            asked.metrics[place].metricId = number
        self._nvml.nvmlGpmMetricsGet(asked)
        answers = [asked.metrics[place] for place in range(len(self._metrics))]
        found = {
            metric: answer.value * factor
            for (metric, _, factor), answer in zip(self._metrics, answers, strict=True)
            if answer.nvmlReturn == self._nvml.NVML_SUCCESS
        }
        self._metrics = [row for row in self._metrics if row[0] in found] or self._metrics
        # Two samples that are too near to each other have no share of anything: the driver says NaN.
        return {metric: value for metric, value in found.items() if math.isfinite(value)}

    def free(self) -> None:
        """Gives both samples back."""
        self._nvml.nvmlGpmSampleFree(self._before)
        self._nvml.nvmlGpmSampleFree(self._now)

"""The list of metrics holds what is said of it."""

from __future__ import annotations

import re

from bireme.core.telemetry.metrics import BY_NAME, METRICS


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(METRICS)
    exported = [metric.prometheus for metric in METRICS if metric.prometheus]
    assert len(set(exported)) == len(exported)


def test_names_are_prometheus_names() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name), metric
        assert not metric.prometheus or re.fullmatch(r"DCGM_FI_[A-Z0-9_]+|bireme_[a-z0-9_]+", metric.prometheus), metric


def test_everything_has_a_meaning_and_a_source() -> None:
    assert all(metric.meaning and metric.source and metric.grain > 0 for metric in METRICS)


def test_only_counters_wrap() -> None:
    assert all(metric.kind == "counter" for metric in METRICS if metric.wraps_at or metric.per_second != 1.0)

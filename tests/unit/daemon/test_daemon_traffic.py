"""Curves of what services were asked, from the router's counters."""

from __future__ import annotations

from typing import Any

from bireme.daemon.router.traffic import KEPT, STEP_S, Traffic, quantile
from bireme.router.messages import BUCKETS_S, Counts, Load, ServiceLoad

SLOTS = len(BUCKETS_S) + 1


def load(arrived: int, *, took_s: float = 0.02, failed: int = 0, name: str = "chat") -> Load:
    """So many requests since the epoch, each of this length."""
    upto = tuple(arrived if bound >= took_s else 0 for bound in BUCKETS_S)
    counts = Counts(requests=(0, arrived - failed, 0, 0, failed), latency=(*upto, arrived))
    told = ServiceLoad(name=name, arrived=arrived, in_flight=3, counts=counts)
    return Load(serial=1, at=0.0, seconds=1.0, services=(told,))


class At:
    def __init__(self) -> None:
        self.now = 1000.0
        self.traffic = Traffic(lambda: self.now)

    def hear(self, told: Load, after_s: float = STEP_S) -> None:
        self.now += after_s
        self.traffic.load(told)

    def curves(self, name: str = "chat") -> dict[str, list[Any]]:
        return {each["metric"]: each["mean"] for each in self.traffic.told(name)["curves"]}


def test_what_was_counted_before_is_nobodys_traffic_of_now() -> None:
    at = At()
    at.hear(load(1000))
    at.hear(load(1050, failed=10))
    curves = at.curves()
    assert curves["requests"] == [0.0, 5.0]
    assert curves["errors"] == [0.0, 1.0]
    assert curves["latency_p50"][0] is None
    assert 0.01 < curves["latency_p50"][1] <= curves["latency_p99"][1] <= 0.025


def test_a_service_that_came_later_counts_from_nothing() -> None:
    at = At()
    at.hear(Load(serial=1, at=0.0, seconds=1.0))
    at.hear(load(20))
    assert at.curves()["requests"] == [0.0, 2.0]


def test_a_new_router_counts_from_nothing() -> None:
    at = At()
    at.hear(load(500))
    at.hear(load(30))
    assert at.curves()["requests"] == [0.0, 3.0]


def test_silence_is_no_requests_and_the_oldest_goes() -> None:
    at = At()
    at.hear(load(0))
    at.hear(load(10))
    at.now += STEP_S * 3
    assert at.curves()["requests"] == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert at.curves()["in_flight"] == [3.0, 3.0, 0.0, 0.0, 0.0]
    at.now += STEP_S * KEPT
    assert len(at.curves()["requests"]) == KEPT
    assert set(at.curves()["requests"]) == {0.0}


def test_the_last_minute_is_told_in_one_figure_each() -> None:
    at = At()
    at.hear(load(1000))
    assert at.traffic.lately("other") == {}
    at.hear(load(1060, failed=6))
    at.now += STEP_S
    lately = at.traffic.lately("chat")
    assert (lately["requests_s"], lately["errors_s"]) == (1.0, 0.1)
    assert 0.01 < lately["latency_p99_s"] <= 0.025
    at.now += 6 * STEP_S
    assert at.traffic.lately("chat") == {"requests_s": 0.0, "errors_s": 0.0, "latency_p99_s": None}


def test_a_service_that_is_gone_is_forgotten() -> None:
    at = At()
    at.hear(load(10))
    assert at.traffic.told("chat")
    at.hear(load(10, name="other"))
    assert at.traffic.told("chat") == {}


def test_quantiles_lie_within_their_bucket() -> None:
    slots = [0] * SLOTS
    assert quantile(slots, 0.5) is None
    slots[2] = 10
    assert quantile(slots, 0.5) == (BUCKETS_S[1] + BUCKETS_S[2]) / 2
    slots[-1] = 90
    assert quantile(slots, 0.99) == BUCKETS_S[-1], "the last has no end"

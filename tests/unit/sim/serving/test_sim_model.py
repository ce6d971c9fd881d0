"""The model behind `bireme sim serve`: replicas that load and work, requests that wait, and the real autoscaler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget, Shift
from bireme.core.model.serving.services import Routing, ServiceSpec
from bireme.sim.serving.model import Conditions, Outcome, Unsimulated, simulate
from bireme.sim.serving.traffic import Traffic

OWNER = Owner(uid=1000, gid=1000, user="ann")


def service(lower: int, upper: int, slots: int | None = 4, **scaling: Any) -> ServiceSpec:
    return ServiceSpec(
        name="chat",
        job=JobSpec(owner=OWNER, name="chat"),
        scaling=Scaling(replicas_min=lower, replicas_max=upper, **scaling),
        routing=Routing(max_concurrency=slots, queue_limit=50, queue_timeout_s=120.0),
        drain_s=30.0,
    )


def requests(*at: float, work_s: float = 1.0, length_s: float | None = None) -> Traffic:
    length = length_s if length_s is not None else (at[-1] + 1.0 if at else 1.0)
    return Traffic("a test", np.array(at, dtype=np.float64), np.full(len(at), work_s), length)


def steady(rate: float, seconds: int, work_s: float = 1.0) -> Traffic:
    return requests(*np.arange(0.0, seconds, 1.0 / rate).tolist(), work_s=work_s, length_s=float(seconds))


def all_of(outcome: Outcome) -> int:
    return len(outcome.waits) + outcome.refused + outcome.timed_out


def test_enough_replicas_let_nobody_wait() -> None:
    outcome = simulate(service(2, 2), steady(4.0, 600), Conditions())
    assert max(outcome.waits) == 0.0
    assert outcome.replica_seconds == pytest.approx(2 * 600, abs=5)
    assert not outcome.changes


def test_a_request_to_a_service_without_replicas_waits_for_the_first_to_load() -> None:
    outcome = simulate(service(0, 2), requests(10.25), Conditions(load_s=40.0))
    assert outcome.waits == [40.0]
    assert outcome.cold_starts == 1
    assert [(change.at, change.after) for change in outcome.changes] == [(10.25, 1)]


def test_without_requests_it_sleeps_again() -> None:
    outcome = simulate(service(0, 2), requests(10.0, length_s=1000.0), Conditions(load_s=40.0))
    assert [change.after for change in outcome.changes] == [1, 0]
    assert outcome.changes[-1].at == pytest.approx(10.0 + 40.0 + 1.0 + 300.0, abs=2.0)
    assert outcome.changes[-1].why == "no replicas: no request for 300 s."


def test_requests_wait_in_order_while_all_are_busy() -> None:
    outcome = simulate(service(1, 1, slots=1), requests(0.0, 0.1, 0.2, work_s=2.0), Conditions())
    assert outcome.waits == pytest.approx([0.0, 1.9, 3.8])


def test_a_full_queue_refuses_and_a_long_wait_is_given_up() -> None:
    outcome = simulate(service(1, 1, slots=1), requests(*[0.0] * 60, work_s=100.0), Conditions())
    assert outcome.refused == 9
    assert outcome.timed_out == 49
    assert len(outcome.waits) == 2


def test_a_load_that_grows_gets_more_replicas_and_one_that_ends_gives_them_back() -> None:
    traffic = requests(*np.arange(100.0, 700.0, 0.1).tolist(), length_s=3000.0)
    outcome = simulate(service(1, 8), traffic, Conditions(load_s=10.0))
    assert max(change.after for change in outcome.changes) >= 4
    assert outcome.changes[-1].after == 1
    assert all_of(outcome) == 6000


def test_a_shift_brings_replicas_before_the_requests_come() -> None:
    policy = service(0, 4, shifts=(Shift((0,), 60, replicas_min=3), Shift((0,), 120, replicas_min=0)))
    monday = 1_799_625_600.0
    outcome = simulate(policy, requests(3700.0, length_s=4000.0), Conditions(load_s=40.0, begins_at=monday))
    assert outcome.waits == [0.0]
    assert (outcome.changes[0].at, outcome.changes[0].after) == (3600.0, 3)


def test_a_metric_of_waiting_requests_is_the_queue() -> None:
    policy = service(1, 4, targets=(ScalingTarget(Measure.METRIC, 2.0, "vllm:num_requests_waiting"),))
    outcome = simulate(policy, steady(8.0, 300), Conditions(load_s=5.0))
    assert outcome.changes


def test_a_query_cannot_be_simulated() -> None:
    with pytest.raises(Unsimulated, match="--query up: the simulator has no figures for it"):
        simulate(service(0, 1, targets=(ScalingTarget(Measure.QUERY, 1.0, "up"),)), requests(0.0), Conditions())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.0, 400.0), min_size=1, max_size=120),
    st.floats(0.01, 90.0),
    st.integers(0, 2),
    st.integers(1, 5),
    st.sampled_from([None, 1, 4]),
)
def test_every_request_is_accounted_for_once(
    at: list[float], work_s: float, lower: int, slots: int, most: int | None
) -> None:
    spec = service(lower, max(lower, 3), slots=most, down_delay_s=5.0, idle_s=10.0)
    traffic = requests(*sorted(at), work_s=work_s, length_s=500.0)
    outcome = simulate(spec, traffic, Conditions(load_s=float(slots)))
    assert all_of(outcome) == len(at)
    assert outcome.cut_off <= len(outcome.waits)
    assert all(wait >= 0.0 for wait in outcome.waits)
    assert all(0 <= change.after <= 3 for change in outcome.changes)

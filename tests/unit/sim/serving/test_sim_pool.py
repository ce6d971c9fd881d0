"""A service and training in one pool, played on the real planner: cases whose figures can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bireme.core.model.jobs import JobSpec, Owner, ResourceRequest
from bireme.core.model.serving.scaling import Scaling
from bireme.core.model.serving.services import Routing, ServiceSpec
from bireme.sim.clusters import read_cluster
from bireme.sim.policies import find_policy
from bireme.sim.serving.model import Conditions, Unsimulated
from bireme.sim.serving.pool import PoolOutcome, Setup, simulate_in_pool
from bireme.sim.serving.traffic import Traffic
from bireme.sim.serving.training import Habits, Toll
from bireme.sim.specs import ladder_limit
from bireme.sim.workloads.reading import read_workload
from bireme.sim.workloads.trace import BadTraceError, TraceJob, Workload
from bireme.slurm.conf.altered import with_keys
from bireme.slurm.gres import parse_gpus

BEGINS = Conditions(load_s=60.0, begins_at=1_800_000_000.0 // 86_400 * 86_400)
NEVER_SAVES = Habits(checkpoint_s=3600.0, restart_s=120.0)


def service(lower: int, upper: int, gpus: int = 1, **scaling: Any) -> ServiceSpec:
    owner = Owner(uid=1000, gid=1000, user="ann")
    return ServiceSpec(
        name="chat",
        job=JobSpec(
            owner=owner, name="chat", resources=ResourceRequest(gres_per_job=parse_gpus(str(gpus)) if gpus else ())
        ),
        scaling=Scaling(replicas_min=lower, replicas_max=upper, **scaling),
        routing=Routing(max_concurrency=1),
        drain_s=30.0,
    )


def requests(*at: float, work_s: float = 10.0, length_s: float = 20_000.0) -> Traffic:
    return Traffic("a test", np.array(at, dtype=np.float64), np.full(len(at), work_s), length_s)


def played(
    spec: ServiceSpec,
    traffic: Traffic,
    cluster: str = "1x2:h100",
    training: str | Workload = "",
    habits: Habits = NEVER_SAVES,
    keys: dict[str, str] | None = None,
    **options: Any,
) -> PoolOutcome:
    workload = training if isinstance(training, Workload) else read_workload(training) if training else None
    setup = Setup(
        config=with_keys(read_cluster(cluster), keys or {}),
        policy=find_policy("as-configured"),
        workload=workload,
        rule=ladder_limit,
        habits=habits,
        **options,
    )
    return simulate_in_pool(spec, traffic, BEGINS, setup)


def toll_and_end(outcome: PoolOutcome) -> tuple[Toll, float]:
    """What training lost, and when the service gave its GPUs back."""
    assert outcome.toll is not None
    (woken, slept) = outcome.requests.changes
    assert (woken.at, woken.after, slept.after) == (9000.0, 1, 0)
    return outcome.toll, slept.at


def test_training_makes_way_for_one_request_loses_what_it_had_not_saved_and_comes_back() -> None:
    """Four hours on both GPUs; a request after two and a half. Two hours are on disk, half an hour is done again."""
    outcome = played(service(0, 1), requests(9000.0), training="jobs:1x2 for 4h")
    toll, slept = toll_and_end(outcome)
    assert outcome.requests.waits == pytest.approx([60.0])
    assert outcome.requests.cold_starts == 1
    assert slept == pytest.approx(9000 + 60 + 10 + 300, abs=3.0)
    assert outcome.requests.replica_seconds == pytest.approx(slept - 9000.0)
    assert (toll.preemptions, toll.preempted_jobs, toll.unfinished) == (1, 1, 0)
    assert toll.lost_hours == pytest.approx(2 * 1800 / 3600)
    assert toll.grace_hours == 0.0
    assert toll.restart_hours == pytest.approx(2 * 120 / 3600)
    assert toll.asked_hours == pytest.approx(8.0)
    assert toll.end_delay_s == pytest.approx(slept + 120 + (4 - 2) * 3600 - 4 * 3600, abs=0.01)
    assert toll.mean_delay_s == toll.max_delay_s == toll.end_delay_s


def test_training_that_saves_when_it_is_told_loses_nothing_but_lets_the_request_wait() -> None:
    outcome = played(
        service(0, 1), requests(9000.0), training="jobs:1x2 for 4h", habits=Habits(3600.0, 120.0, save_s=20.0)
    )
    toll, slept = toll_and_end(outcome)
    assert outcome.requests.waits == pytest.approx([20.0 + 60.0])
    assert toll.lost_hours == 0.0
    assert toll.grace_hours == pytest.approx(2 * 20 / 3600)
    assert toll.end_delay_s == pytest.approx(slept + 120 + (14_400 - 9000) - 14_400, abs=0.01)


def test_training_that_takes_longer_to_save_than_its_grace_is_killed_and_has_saved_nothing() -> None:
    """KillWait is 30 s."""
    outcome = played(
        service(0, 1), requests(9000.0), training="jobs:1x2 for 4h", habits=Habits(3600.0, 120.0, save_s=45.0)
    )
    toll, _ = toll_and_end(outcome)
    assert outcome.requests.waits == pytest.approx([30.0 + 60.0])
    assert (toll.lost_hours, toll.grace_hours) == (pytest.approx(1.0), pytest.approx(2 * 30 / 3600))


def test_training_without_checkpoints_begins_again() -> None:
    outcome = played(
        service(0, 1), requests(9000.0), training="jobs:1x2 for 4h", habits=Habits(float("inf"), restart_s=0.0)
    )
    toll, slept = toll_and_end(outcome)
    assert toll.lost_hours == pytest.approx(2 * 9000 / 3600)
    assert toll.end_delay_s == pytest.approx(slept, abs=0.01)


def test_a_service_that_finds_room_costs_training_nothing() -> None:
    outcome = played(service(0, 1), requests(9000.0), training="jobs:1x1 for 4h")
    toll, _ = toll_and_end(outcome)
    assert (toll.preemptions, toll.wasted_hours, toll.end_delay_s) == (0, 0.0, 0.0)


def test_only_as_much_training_as_is_needed_makes_way() -> None:
    """Of two jobs with one GPU each, one goes; the other runs on."""
    outcome = played(service(0, 1), requests(9000.0), training="jobs:2x1 for 4h")
    toll, _ = toll_and_end(outcome)
    assert (toll.preemptions, toll.preempted_jobs) == (1, 1)
    assert toll.mean_delay_s == pytest.approx(toll.max_delay_s / 2)


def test_training_that_is_suspended_goes_on_where_it_was() -> None:
    """Of CPUs: a job that is suspended keeps its GPUs."""
    keys = {"PreemptType": "preempt/qos", "PreemptMode": "SUSPEND,GANG"}
    on_cpus = Workload(source="cpus", jobs=(TraceJob(submit=0.0, run_s=14_400.0, cpus=2),))
    outcome = played(service(0, 1, gpus=0), requests(9000.0), "1x2", on_cpus, keys=keys)
    toll, slept = toll_and_end(outcome)
    assert (toll.preemptions, toll.wasted_hours) == (1, 0.0)
    assert toll.end_delay_s == pytest.approx(slept - 9000.0, abs=0.01)


def test_replicas_for_which_there_is_no_room_wait_for_it_and_are_counted() -> None:
    outcome = played(service(1, 2), requests(*[100.0] * 4, work_s=150.0), cluster="1x1:h100")
    assert outcome.requests.waits == pytest.approx([0.0, 150.0, 300.0, 450.0])
    assert outcome.requests.replica_seconds == pytest.approx(20_000.0, abs=1.0)
    assert outcome.without_room_s == pytest.approx(outcome.requests.changes[1].at - outcome.requests.changes[0].at)
    assert outcome.toll is None


def test_requests_in_flight_are_answered_before_a_replica_goes() -> None:
    outcome = played(service(0, 2, down_delay_s=0.0), requests(0.0, 0.5, 100.0, work_s=30.0))
    assert outcome.requests.cut_off == 0
    assert len(outcome.requests.waits) == 3


def test_the_same_is_played_twice_alike() -> None:
    drawn = "generate:jobs=40 seed=3 days=0.1 sizes=1:3,2:1 hours=1"
    traffic = requests(*np.arange(9000.0, 12_000.0, 20.0).tolist(), work_s=60.0)
    one, two = (played(service(0, 4), traffic, cluster="2x2:h100", training=drawn) for _ in range(2))
    assert one == two
    assert one.toll is not None
    assert one.toll.preemptions > 0
    assert one.toll.unfinished == 0
    assert one.without_room_s == 0.0, "a replica waits for nobody whom it may preempt, however long the queue"


def test_a_cluster_that_is_too_small_is_told() -> None:
    with pytest.raises(Unsimulated, match="2 of the 3 replicas that the service has at least find room"):
        played(service(3, 4), requests(10.0))
    with pytest.raises(Unsimulated, match="this cluster does not take the service"):
        played(service(0, 1, gpus=4), requests(10.0))
    with pytest.raises(BadTraceError, match="can never run it"):
        played(service(0, 1), requests(10.0), training="jobs:1x64 for 1h")
    outcome = played(service(0, 1), requests(10.0), training="jobs:1x64 for 1h, 1x1 for 1h", skip_bad=True)
    assert (len(outcome.problems), outcome.toll.jobs if outcome.toll else 0) == (1, 1)

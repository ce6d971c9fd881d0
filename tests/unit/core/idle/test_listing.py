"""What `bireme idle` shows of each job, and who would start: by the functions that decide."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.idle.listing import Listed, listed
from bireme.core.idle.streaks import Measured
from bireme.core.idle.wording import spoken
from bireme.core.model.idling.policy import IdleAction
from bireme.core.why.freed import started_if_ended
from bireme.testing.scenario import Scenario

HOUR = 3600.0


def world(mode: str = "dry-run", **rule: Any) -> Scenario:
    made = Scenario("1x8:h100")
    made.idle_policy(mode, **{"idle_s": 7200, "grace_s": 1800, "action": IdleAction.REQUEUE, **rule})
    made.submit("lazy", gpus=8, time_limit_s=int(10 * HOUR), time_limit_given=True)
    made.submit("next", gpus=4, time_limit_s=int(HOUR), time_limit_given=True)
    made.expect(lazy="runs n1", next="waits Resources")
    made.wait(3 * HOUR)
    return made


def row(made: Scenario, **facts: Any) -> Listed:
    job = made.job("lazy")
    about = {"at": made.now, "known": True, "gpus": 8, "gpus_idle": 8, "measure": "gpu_util", "why": ""}
    seen = Measured(job_id=job.id, generation=job.generation, **{**about, **facts})
    (found,) = listed(made.state, {job.id: seen}, made.now)
    return found


def test_who_would_be_hit_when_and_what_it_wins() -> None:
    made = world()
    found = row(made, since=made.now - 2 * HOUR)
    assert (found.stage, found.action, found.gpus_idle) == ("due", "requeue", 8)
    assert found.hit_at == made.now + 1800
    assert found.wasted_gpu_hours == 16.0
    assert found.wins_gpu_hours == 8 * 6.5


def test_one_that_is_idle_for_a_short_time_is_hit_later() -> None:
    made = world()
    found = row(made, since=made.now - HOUR)
    assert (found.stage, found.hit_at) == ("idle", made.now + HOUR + 1800)


@pytest.mark.parametrize(
    ("facts", "stage"),
    [({"known": False, "why": "no figure"}, "unknown"), ({"since": None, "why": "97%"}, "busy")],
)
def test_who_is_busy_or_not_known_is_not_hit(facts: dict[str, Any], stage: str) -> None:
    found = row(world(), **facts)
    assert (found.stage, found.hit_at, found.why) == (stage, None, facts["why"])


def test_what_was_measured_of_an_earlier_start_is_not_known_of_this_one() -> None:
    made = world()
    job = made.job("lazy")
    old = Measured(job_id=job.id, generation=job.generation - 1, gpus=8, known=True, at=made.now, since=0.0)
    (found,) = listed(made.state, {job.id: old}, made.now)
    assert found.stage == "unknown"


def test_a_job_without_a_rule_is_said_to_have_none() -> None:
    assert row(world(partitions=("elsewhere",))).stage == "unruled"


def test_who_would_start_is_planned() -> None:
    made = world()
    assert started_if_ended(made.replayed(), [made.id_of("lazy")], made.now) == [made.id_of("next")]
    assert started_if_ended(made.replayed(), [], made.now) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7200, "2 hours"), (5400, "1 hour 30 minutes"), (45, "45 seconds"), (0, "0 seconds"), (90_061, "1 day 1 hour")],
)
def test_times_are_spoken(seconds: float, text: str) -> None:
    assert spoken(seconds) == text

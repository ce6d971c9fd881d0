"""A shorter time limit as a report tells of it: planned, in a copy of the queue, for a job that waits."""

from __future__ import annotations

from bireme.api.routes.reports import _tried, _waiting_like
from bireme.testing.scenario import Scenario

HOUR = 3600


def before_a_gap() -> Scenario:
    """n2 is free until the large job's slot, two hours from now, and a job of five hours does not fit before it."""
    world = Scenario("2x8")
    world.submit("long", cpus=8, time_s=2 * HOUR)
    world.submit("large", nodes=2, cpus=8, time_s=HOUR)
    world.submit("train", cpus=8, time_s=5 * HOUR)
    world.expect({"long": "runs n1", "large": "waits Resources", "train": "waits Priority"})
    return world


def tried(world: Scenario, enough_s: int) -> dict[str, object]:
    return _tried(world.state, world.job("train").id, enough_s, world.now)


def test_a_limit_that_fits_a_gap_says_how_much_sooner() -> None:
    world = before_a_gap()
    found = tried(world, HOUR)
    assert (found["start"], found["start_with"]) == (world.now + 3 * HOUR, world.now)
    assert str(found["text"]).endswith("would start now, 3 h 0 min sooner")
    world.expect({})


def test_a_limit_that_does_not_is_said_to_change_nothing() -> None:
    assert str(tried(before_a_gap(), 4 * HOUR)["text"]).endswith("would start no sooner with it")


def test_the_one_that_waits_is_of_the_same_owner_name_and_partition_and_asks_for_more() -> None:
    world = before_a_gap()
    train = world.job("train")
    like = {"user_id": train.spec.owner.uid, "name": train.spec.name, "partition": train.spec.partitions[0]}
    assert _waiting_like(world.state, like, HOUR) is train
    assert _waiting_like(world.state, like, 6 * HOUR) is None, "it has no longer limit"
    for other in ({"user_id": -1}, {"name": "else"}, {"partition": "else"}):
        assert _waiting_like(world.state, like | other, HOUR) is None

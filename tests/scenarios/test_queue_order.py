"""Who goes first, and who waits behind whom."""

from dataclasses import replace

from bireme.core.jobs.ranking import FIRST_PRIORITY
from bireme.core.model.cluster import Settings
from bireme.core.model.policy import Policy
from bireme.core.model.refusals import Why
from bireme.core.plan.queue import in_order
from bireme.testing.scenario import Scenario


def test_jobs_start_in_the_order_in_which_they_came() -> None:
    world = Scenario("1x8")
    for label in ("first", "second", "third"):
        world.submit(label, cpus=8)
    world.expect(first="runs n1", second="waits Resources", third="waits Priority")
    world.finish("first")
    world.expect(first="COMPLETED", second="runs n1", third="waits Resources")


def test_a_higher_priority_goes_first() -> None:
    world = Scenario("1x8")
    world.submit("low", cpus=8, priority=10, user="root")
    world.submit("high", cpus=8, priority=20, user="root")
    world.expect(high="runs n1", low="waits Resources")


def test_the_basic_priority_counts_down_and_nice_lowers_it() -> None:
    world = Scenario("1x8")
    world.submit("one")
    world.submit("two", nice=100)
    world.submit("three")
    assert [job.priority for job in world.state.jobs.values()] == [
        FIRST_PRIORITY,
        FIRST_PRIORITY - 101,
        FIRST_PRIORITY - 2,
    ]


def test_a_higher_tier_goes_before_any_priority_of_a_lower_one() -> None:
    world = Scenario("1x8", partitions={"main": {}, "urgent": {"priority_tier": 10}})
    world.submit("rich", cpus=8, priority=4_000_000, user="root")
    world.submit("urgent", cpus=8, priority=1, partition="urgent", user="root")
    world.expect(urgent="runs n1", rich="waits Resources")


def test_a_job_that_does_not_fit_blocks_only_its_own_partition() -> None:
    strict = Settings(policy=Policy(backfill=False), memory_is_consumable=False)
    world = Scenario("2x8", partitions={"a": {"nodes": "n1"}, "b": {"nodes": "n2"}}, settings=strict)
    world.submit("big", cpus=6)
    world.submit("wide", cpus=4)
    world.submit("small", cpus=1)
    world.submit("other", cpus=1, partition="b")
    world.expect(big="runs n1", wide="waits Resources", small="waits Priority", other="runs n2")


def test_a_job_with_two_partitions_stands_in_each_by_its_tier() -> None:
    partitions = {"slow": {}, "fast": {"nodes": "n1", "priority_tier": 10}}
    world = Scenario("2x8", partitions=partitions)
    world.submit("plain", cpus=8)
    world.submit("both", cpus=8, partition="slow,fast")
    world.expect(both="runs n1", plain="runs n2")
    assert world.job("both").phase.allocation.partition == "fast", "its tier lets it go first there, and only there"


def test_a_high_tier_elsewhere_does_not_help_a_job_in_a_low_partition() -> None:
    partitions = {"slow": {"nodes": "n1"}, "fast": {"nodes": "n2", "priority_tier": 10}}
    world = Scenario("2x8", partitions=partitions)
    world.submit("filler", cpus=8, partition="fast", time_s=3600)
    world.submit("first", cpus=8, time_s=3600)
    world.submit("both", cpus=8, partition="slow,fast", time_s=600)
    world.expect(filler="runs n2", first="runs n1", both="waits Resources,Resources")


def test_a_job_of_a_reservation_is_looked_at_before_all_others() -> None:
    world = Scenario("1x8", partitions={"main": {}, "urgent": {"priority_tier": 10}})
    queue = [world.submit(label, hold=True, partition=name) for label, name in (("a", "main"), ("b", "urgent"))]
    assert [job.id for job in in_order(world.state, world.state.pending.values())] == queue[::-1]
    world.job("a").spec = replace(world.job("a").spec, reservation="exam")
    assert [job.id for job in in_order(world.state, world.state.pending.values())] == queue


def test_a_job_with_two_partitions_runs_in_the_one_that_has_room() -> None:
    world = Scenario("2x8", partitions={"a": {"nodes": "n1"}, "b": {"nodes": "n2"}})
    world.submit("big", cpus=8)
    world.submit("either", cpus=8, partition="a,b")
    world.expect(big="runs n1", either="runs n2")


def test_a_raised_priority_moves_a_waiting_job_up() -> None:
    world = Scenario("1x8")
    world.submit("running", cpus=8)
    world.submit("one", cpus=8)
    world.submit("two", cpus=8)
    world.expect(running="runs n1", one="waits Resources", two="waits Priority")
    with world.refused(Why.ACCESS_DENIED):
        world.update("two", priority=4_294_967_000)
    world.update("two", priority=4_294_967_000, user="root")
    world.expect(one="waits Priority", two="waits Resources")


def test_the_same_submission_sent_twice_is_one_job() -> None:
    world = Scenario("1x8")
    first = world.submit("job", key="retry-1")
    assert world.submit("job", key="retry-1") == first
    world.expect(job="runs n1")


def test_at_most_so_many_starts_in_a_pass_still_start_all() -> None:
    world = Scenario("1x8")
    world.submit("many", array="0-7")
    world.expect({f"many_{task}": "runs n1" for task in range(8)})

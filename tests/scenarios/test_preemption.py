"""Preemption: the cheapest jobs that suffice make way, none needlessly, and come back when they may."""

from bireme.core.model.cluster import Settings
from bireme.core.model.policy import Policy, Preemption
from bireme.testing.scenario import Scenario

TIERS = {"low": {"priority_tier": 1}, "high": {"priority_tier": 10}}


def world_with(mode: str = "REQUEUE", exempt_s: int = 0, cluster: str = "2x8:h100", **low: object) -> Scenario:
    rules = Preemption("partition", mode, exempt_s=exempt_s)
    settings = Settings(policy=Policy(preemption=rules), memory_is_consumable=False)
    return Scenario(cluster, partitions={"low": {**TIERS["low"], **low}, "high": TIERS["high"]}, settings=settings)


def test_a_higher_tier_sends_lower_jobs_back_to_the_queue() -> None:
    world = world_with()
    world.submit("first", gpus=8)
    world.submit("second", gpus=8)
    world.expect(first="runs n1", second="runs n2")
    world.submit("urgent", gpus=8, partition="high")
    world.expect(second="waits Resources", urgent="runs n2")
    world.finish("urgent")
    world.expect(urgent="COMPLETED", second="runs n2")


def test_cancel_ends_them_for_good() -> None:
    world = world_with("CANCEL")
    world.submit("low", gpus=8)
    world.submit("also", gpus=8)
    world.expect(low="runs n1", also="runs n2")
    world.submit("urgent", gpus=8, partition="high")
    world.expect(also="PREEMPTED", urgent="runs n2")


def test_a_job_that_may_not_be_requeued_is_cancelled() -> None:
    world = world_with(cluster="1x8:h100")
    world.submit("fixed", gpus=8, requeue=False)
    world.expect(fixed="runs n1")
    world.submit("urgent", gpus=1, partition="high")
    world.expect(fixed="PREEMPTED", urgent="runs n1")


def test_nobody_is_ended_where_room_is_left() -> None:
    world = world_with()
    world.submit("low", gpus=8)
    world.expect(low="runs n1")
    world.submit("urgent", gpus=8, partition="high")
    world.expect(urgent="runs n2")


def test_nobody_is_ended_where_it_would_not_help() -> None:
    world = world_with()
    world.submit("peer", gpus=1, partition="high", on="n1")
    world.submit("low", gpus=7)
    world.expect(peer="runs n1", low="runs n1")
    world.submit("wide", nodes=2, gpus_per_node=8, partition="high")
    world.expect(wide="waits Resources")


def test_the_job_that_loses_least_work_goes() -> None:
    world = world_with()
    world.submit("old", gpus=8)
    world.settle()
    world.wait(3600)
    world.submit("young", gpus=8)
    world.expect(old="runs n1", young="runs n2")
    world.wait(60)
    world.submit("urgent", gpus=4, partition="high")
    world.expect(young="waits Resources", urgent="runs n2")


def test_only_as_many_go_as_are_needed() -> None:
    world = world_with(cluster="1x8:h100")
    for number in range(8):
        world.submit(f"small{number}", gpus=1)
    world.settle()
    world.expect({f"small{number}": "runs n1" for number in range(8)})
    world.submit("urgent", gpus=3, partition="high")
    world.settle()
    waiting = [label for label, text in world.described().items() if text.startswith("waits")]
    assert len(waiting) == 3
    assert world.described()["urgent"] == "runs n1"


def test_a_whole_gang_makes_way_for_a_gang() -> None:
    world = world_with()
    world.submit("gang", nodes=2, gpus_per_node=8)
    world.expect(gang="runs n[1-2]")
    world.submit("urgent", nodes=2, gpus_per_node=8, partition="high")
    world.expect(gang="waits Resources", urgent="runs n[1-2]")


def test_a_job_that_has_just_begun_is_let_be_for_the_exempt_time() -> None:
    world = world_with(exempt_s=600, cluster="1x8:h100")
    world.submit("low", gpus=8)
    world.expect(low="runs n1")
    world.submit("urgent", gpus=8, partition="high")
    world.expect(urgent="waits Resources")
    world.wait(601)
    world.expect(low="waits Resources", urgent="runs n1")


def test_a_partition_may_keep_its_jobs() -> None:
    world = world_with(cluster="1x8:h100", preempt_mode="OFF")
    world.submit("low", gpus=8)
    world.expect(low="runs n1")
    world.submit("urgent", gpus=8, partition="high")
    world.expect(urgent="waits Resources")


def test_equals_do_not_preempt_each_other() -> None:
    world = world_with(cluster="1x8:h100")
    world.submit("one", gpus=8, partition="high")
    world.expect(one="runs n1")
    world.submit("two", gpus=8, partition="high")
    world.expect(two="waits Resources")

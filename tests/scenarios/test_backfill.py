"""Backfill: jobs fill gaps, and delay nobody before them."""

from itertools import pairwise
from typing import Any

from bireme.core.model.cluster import Settings
from bireme.core.model.policy import Policy
from bireme.core.state.state import State
from bireme.testing.books import book_change
from bireme.testing.scenario import Scenario

HOUR = 3600


def expected(world: Scenario, label: str) -> float | None:
    """Seconds from now until the slot of a waiting job."""
    state: State = world.state
    job_id = next(number for number, name in world.labels.items() if name == label)
    at = state.verdicts[job_id].expected_start
    return None if at is None else at - world.now


def test_a_short_job_fills_the_gap_before_a_large_one() -> None:
    world = Scenario("2x8")
    world.submit("long", cpus=8, time_s=2 * HOUR)
    world.submit("large", nodes=2, cpus=8, time_s=HOUR)
    world.submit("short", cpus=8, time_s=2 * HOUR)
    world.submit("too long", cpus=8, time_s=3 * HOUR)
    world.expect({"long": "runs n1", "large": "waits Resources", "short": "runs n2", "too long": "waits Priority"})
    assert expected(world, "large") == 2 * HOUR
    assert expected(world, "too long") == 3 * HOUR


def test_gpus_of_the_whole_job_get_a_slot_and_nobody_behind_overtakes_it() -> None:
    """--gpus=8 on one node: the calendar looks at single nodes, and what is free there now says nothing."""
    world = Scenario("1x8:h100")
    world.submit("first", gpus=4, time_s=HOUR)
    world.submit("second", gpus=4, time_s=2 * HOUR)
    world.submit("all", gpus=8, time_s=HOUR)
    world.submit("long", gpus=4, time_s=3 * HOUR)
    world.expect(first="runs n1", second="runs n1", all="waits Resources", long="waits Priority")
    assert expected(world, "all") == 2 * HOUR
    world.finish("first")
    world.expect(first="COMPLETED")
    assert expected(world, "long") == 3 * HOUR


def waiting_for_a_gap() -> Scenario:
    """n2 is free until the large job's slot, two hours from now."""
    world = Scenario("2x8")
    world.submit("long", cpus=8, time_s=2 * HOUR)
    world.submit("large", nodes=2, cpus=8, time_s=HOUR)
    world.expect({"long": "runs n1", "large": "waits Resources"})
    return world


def test_a_job_with_a_least_time_takes_a_gap_with_the_longest_limit_it_can_have() -> None:
    world = waiting_for_a_gap()
    world.submit("flexible", cpus=8, time_s=5 * HOUR, time_min_s=HOUR)
    world.expect(flexible="runs n2")
    assert world.job("flexible").spec.time_limit_s == 2 * HOUR
    assert expected(world, "large") == 2 * HOUR
    world.wait(2 * HOUR + 1)
    assert world.described()["large"] == "runs n[1-2]"


def test_a_gap_below_the_least_time_is_left_alone() -> None:
    world = waiting_for_a_gap()
    world.submit("flexible", cpus=8, time_s=5 * HOUR, time_min_s=2 * HOUR + 60)
    world.expect(flexible="waits Priority")
    assert world.job("flexible").spec.time_limit_s == 5 * HOUR


def test_a_job_that_fits_keeps_the_limit_it_asked_for() -> None:
    world = Scenario("1x8")
    world.submit("flexible", cpus=8, time_s=5 * HOUR, time_min_s=HOUR)
    world.expect(flexible="runs n1")
    assert world.job("flexible").spec.time_limit_s == 5 * HOUR


def test_tasks_of_an_array_are_shortened_one_by_one() -> None:
    world = waiting_for_a_gap()
    world.submit("array", array="1-2", cpus=8, time_s=5 * HOUR, time_min_s=HOUR)
    world.settle()
    limits = {job.spec.time_limit_s for job in world.state.jobs.values() if job.spec.name == "array"}
    assert limits == {2 * HOUR, 5 * HOUR}


def test_slots_are_booked_by_count_not_by_whole_nodes() -> None:
    world = Scenario("1x8")
    world.submit("running", cpus=6, time_s=2 * HOUR)
    world.submit("next", cpus=6, time_s=HOUR)
    world.submit("beside both", cpus=2, time_s=9 * HOUR)
    world.expect({"running": "runs n1", "next": "waits Resources", "beside both": "runs n1"})


def test_gpus_promised_to_a_gang_are_not_taken_by_a_long_job() -> None:
    world = Scenario("2x8:h100")
    world.submit("half", gpus=4, time_s=HOUR)
    world.submit("gang", nodes=2, gpus_per_node=8, time_s=HOUR)
    world.submit("short", gpus=4, time_s=HOUR)
    world.submit("long", gpus=1, time_s=2 * HOUR)
    world.expect({"half": "runs n1", "gang": "waits Resources", "short": "runs n1", "long": "waits Priority"})
    assert expected(world, "gang") == HOUR


def test_an_unlimited_job_never_frees_anything_so_nothing_is_promised() -> None:
    world = Scenario("1x8")
    world.submit("endless", cpus=8)
    world.submit("waiting", cpus=8, time_s=HOUR)
    world.expect(endless="runs n1", waiting="waits Resources")
    assert expected(world, "waiting") is None


def test_a_job_beyond_the_tested_ones_does_not_overtake() -> None:
    world = Scenario("1x8", settings=Settings(policy=Policy(bookings_max=1), memory_is_consumable=False))
    world.submit("running", cpus=6, time_s=2 * HOUR)
    world.submit("first", cpus=8, time_s=HOUR)
    world.submit("second", cpus=8, time_s=HOUR)
    world.submit("small", cpus=1, time_s=HOUR)
    world.expect(running="runs n1", first="waits Resources", second="waits Priority", small="waits Priority")


def test_the_slots_follow_an_early_end() -> None:
    world = Scenario("1x8")
    world.submit("running", cpus=8, time_s=2 * HOUR)
    world.submit("next", cpus=8, time_s=HOUR)
    world.submit("last", cpus=8, time_s=HOUR)
    world.expect(running="runs n1", next="waits Resources", last="waits Priority")
    assert expected(world, "last") == 3 * HOUR
    world.finish("running")
    world.expect(running="COMPLETED", next="runs n1", last="waits Resources")
    assert expected(world, "last") == HOUR


def test_a_gang_takes_the_tightest_place() -> None:
    world = Scenario("8x8:h100", leaves=["n[1-4]", "n[5-8]"])
    world.submit("one", nodes=1, gpus_per_node=8)
    world.submit("four", nodes=4, gpus_per_node=8)
    world.submit("three", nodes=3, gpus_per_node=8)
    world.expect(one="runs n1", four="runs n[5-8]", three="runs n[2-4]")


def test_a_job_insists_on_few_switches_for_a_while() -> None:
    world = Scenario("4x8:h100", leaves=["n[1-2]", "n[3-4]"])
    world.submit("here", on="n1", gpus=8, time_s=HOUR)
    world.submit("there", on="n3", gpus=8, time_s=HOUR)
    world.submit("close", nodes=2, gpus_per_node=8, switches=1, switches_wait_s=200, time_s=HOUR)
    world.expect(here="runs n1", there="runs n3", close="waits Resources")
    world.wait(201)
    world.expect(close="runs n[2,4]")


def test_nobody_insists_on_few_switches_for_longer_than_max_switch_wait() -> None:
    settings = Settings(policy=Policy(switches_wait_most_s=100))
    world = Scenario("4x8:h100", leaves=["n[1-2]", "n[3-4]"], settings=settings)
    world.submit("here", on="n1", gpus=8, time_s=HOUR)
    world.submit("there", on="n3", gpus=8, time_s=HOUR)
    world.submit("close", nodes=2, gpus_per_node=8, switches=1, switches_wait_s=600, time_s=HOUR)
    world.expect(here="runs n1", there="runs n3", close="waits Resources")
    world.wait(101)
    world.expect(close="runs n[2,4]")


def backfilling(cluster: str = "2x8", **policy: Any) -> Scenario:
    partitions = {"main": {"nodes": "n[1-2]"}, "side": {"nodes": "n[1-2]"}}
    settings = Settings(policy=Policy(**policy), memory_is_consumable=False)
    return Scenario(cluster, partitions=partitions, settings=settings)


def test_who_has_not_waited_long_enough_holds_nothing_back() -> None:
    """bf_min_age_reserve."""
    world = backfilling(reserves_after_s=600.0)
    world.submit("long", cpus=8, time_s=2 * HOUR)
    world.submit("large", nodes=2, cpus=8, time_s=HOUR)
    world.submit("longer", cpus=8, time_s=3 * HOUR)
    world.expect({"long": "runs n1", "large": "waits Resources", "longer": "runs n2"})
    world.wait(601)
    world.finish("longer")
    world.submit("next", cpus=8, time_s=3 * HOUR)
    world.settle()
    assert world.described()["next"] == "waits Priority"


def test_who_has_too_little_priority_holds_nothing_back() -> None:
    """bf_min_prio_reserve."""
    world = backfilling(reserves_from_priority=2**40)
    world.submit("long", cpus=8, time_s=2 * HOUR)
    world.submit("large", nodes=2, cpus=8, time_s=HOUR)
    world.submit("longer", cpus=8, time_s=3 * HOUR)
    world.expect({"long": "runs n1", "large": "waits Resources", "longer": "runs n2"})


def test_only_the_first_of_a_partition_hold_something_back() -> None:
    """bf_job_part_count_reserve."""
    world = backfilling("2x8", reserves_in_partition=1)
    world.submit("long", cpus=8, time_s=HOUR, on="n1")
    world.submit("first", cpus=8, time_s=HOUR, on="n1")
    world.submit("second", nodes=2, cpus=8, time_s=HOUR)
    world.submit("third", cpus=8, time_s=9 * HOUR, on="n2")
    world.expect(long="runs n1", first="waits Resources", second="waits Priority", third="runs n2")
    assert expected(world, "second") is None


def test_slots_of_a_user_in_a_partition_are_counted() -> None:
    """bf_max_job_user_part: the second has none there, and one elsewhere."""
    world = backfilling("2x8", bookings_per_user_in_partition=1)
    world.submit("long", nodes=2, cpus=8, time_s=HOUR)
    world.submit("first", nodes=2, cpus=8, time_s=HOUR)
    world.submit("second", nodes=2, cpus=8, time_s=HOUR)
    world.submit("elsewhere", nodes=2, cpus=8, time_s=HOUR, partition="side")
    world.settle()
    assert [expected(world, label) for label in ("first", "second", "elsewhere")] == [HOUR, None, 2 * HOUR]


def test_slots_of_an_association_are_counted() -> None:
    """bf_max_job_assoc: of one user, each account has its own."""
    world = backfilling("2x8", bookings_per_association=1)
    world.record([book_change(world.state.accounts, {"a": {}, "b": {}}, {"alice": {"account": "a"}})])
    world.submit("long", nodes=2, cpus=8, time_s=HOUR, account="a")
    world.submit("first", nodes=2, cpus=8, time_s=HOUR, account="a")
    world.submit("second", nodes=2, cpus=8, time_s=HOUR, account="a", partition="side")
    world.submit("other", nodes=2, cpus=8, time_s=HOUR, account="b", user="bob")
    world.settle()
    assert [expected(world, label) for label in ("first", "second", "other")] == [HOUR, None, 2 * HOUR]


def test_with_one_slot_a_job_the_first_that_is_found_stays() -> None:
    """bf_one_resv_per_job: the earlier one in its other partition is not taken."""
    for one_slot, begins in ((False, HOUR), (True, 2 * HOUR)):
        partitions = {"a": {"nodes": "n1"}, "b": {"nodes": "n2"}}
        settings = Settings(policy=Policy(one_slot_per_job=one_slot), memory_is_consumable=False)
        world = Scenario("2x8", partitions=partitions, settings=settings)
        world.submit("slow", cpus=8, time_s=2 * HOUR, partition="a")
        world.submit("fast", cpus=8, time_s=HOUR, partition="b")
        world.submit("either", cpus=8, time_s=HOUR, partitions=("a", "b"))
        world.settle()
        assert expected(world, "either") == begins


def test_a_job_at_its_associations_limit_stops_those_behind_it() -> None:
    """assoc_limit_stop."""
    for stops, later in ((False, "runs n1"), (True, "waits Priority")):
        enforce = ("associations", "limits")
        policy = Policy(stops_at_association_limits=stops)
        settings = Settings(policy=policy, memory_is_consumable=False, accounting_enforce=enforce)
        world = Scenario("2x8", settings=settings)
        accounts = {"small": {"grp_tres": {"cpu": 4}}, "large": {}}
        members = {"alice": {"account": "small"}, "bob": {"account": "large"}}
        world.record([book_change(world.state.accounts, accounts, members)])
        world.submit("runs", cpus=4)
        world.submit("limited", cpus=4)
        world.submit("later", cpus=4, user="bob")
        world.expect(runs="runs n1", limited="waits AssocGrpCpuLimit", later=later)


def after_small_passes(world: Scenario, ended: str) -> dict[str, str]:
    """What becomes of the jobs when one ends and no full pass is made."""
    before = world.outlook
    world.finish(ended)
    for _ in range(2):
        world._pass()
        world.deliver()
    assert world.outlook is before, "a full pass was made"
    return world.described()


def test_a_line_goes_on_when_a_job_with_a_slot_has_started() -> None:
    """One slot in each partition: the next gets it as soon as it is free again, and not with the next full pass."""
    world = Scenario("1x8", settings=Settings(policy=Policy(bookings_per_partition=1)))
    names = ("first", "second", "third", "fourth", "fifth")
    for name in names:
        world.submit(name, cpus=8, time_s=HOUR)
    world.settle()
    assert [expected(world, name) for name in names[1:]] == [HOUR, None, None, None]
    for name, following in pairwise(names):
        seen = after_small_passes(world, name)
        assert seen[following] == "runs n1"
        waiting = [expected(world, other) for other in names if seen[other].startswith("waits")]
        assert waiting[:1] == [HOUR][: len(waiting)]


def test_without_backfill_the_next_follows_the_one_it_waited_for() -> None:
    world = Scenario("2x8", settings=Settings(policy=Policy(backfill=False)))
    world.submit("first", nodes=2, cpus=8, time_s=HOUR)
    for name in ("second", "third", "fourth"):
        world.submit(name, cpus=8, time_s=HOUR)
    world.settle()
    seen = after_small_passes(world, "first")
    assert (seen["second"], seen["third"], seen["fourth"]) == ("runs n1", "runs n2", "waits Resources")
    assert after_small_passes(world, "second")["fourth"] == "runs n1"

"""Backfill: jobs fill gaps, and delay nobody before them."""

from bireme.core.lifecycle.state import State
from bireme.core.model.cluster import Settings
from bireme.core.model.policy import Policy
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
    world.submit("close", nodes=2, gpus_per_node=8, switches=1, switches_wait_s=600, time_s=HOUR)
    world.expect(here="runs n1", there="runs n3", close="waits Resources")
    world.wait(601)
    world.expect(close="runs n[2,4]")

"""Arrays: one record for all waiting tasks, a record of its own for each that starts."""

from bireme.testing.scenario import Scenario


def test_a_throttle_lets_so_many_tasks_run_at_once() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-4%2")
    world.expect({"a_0": "runs n1", "a_1": "runs n1", "a_[2-4]": "waits JobArrayTaskLimit"})
    world.finish("a_0")
    world.expect({"a_0": "COMPLETED", "a_2": "runs n1", "a_[3-4]": "waits JobArrayTaskLimit"})


def test_the_last_task_keeps_the_id_of_the_array() -> None:
    world = Scenario("1x8")
    array_id = world.submit("a", array="1-3")
    world.expect(a_1="runs n1", a_2="runs n1", a_3="runs n1")
    assert [world.job(f"a_{task}").id for task in (1, 2, 3)] == [array_id + 1, array_id + 2, array_id]


def test_tasks_that_do_not_fit_stay_in_the_record() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-9", cpus=4)
    world.expect({"a_0": "runs n1", "a_1": "runs n1", "a_[2-9]": "waits Resources"})


def test_one_waiting_task_is_cancelled_alone() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-3%1")
    world.expect({"a_0": "runs n1", "a_[1-3]": "waits JobArrayTaskLimit"})
    world.cancel("a_2")
    world.expect({"a_2": "CANCELLED", "a_[1,3]": "waits JobArrayTaskLimit"})


def test_an_array_is_cancelled_as_a_whole() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-3%1")
    world.expect({"a_0": "runs n1", "a_[1-3]": "waits JobArrayTaskLimit"})
    world.cancel("a")
    world.expect({"a_0": "CANCELLED", "a_[1-3]": "CANCELLED"})


def test_a_wider_throttle_starts_more_at_once() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-3%1")
    world.expect({"a_0": "runs n1", "a_[1-3]": "waits JobArrayTaskLimit"})
    world.update("a", array_throttle=3)
    world.expect({"a_1": "runs n1", "a_2": "runs n1", "a_[3]": "waits JobArrayTaskLimit"})
    world.update("a", array_throttle=0)
    world.expect({"a_3": "runs n1"})


def test_a_held_task_leaves_the_others_free() -> None:
    world = Scenario("1x8")
    world.submit("block", cpus=8)
    world.submit("a", array="0-2")
    world.expect({"block": "runs n1", "a_[0-2]": "waits Resources"})
    world.hold("a_1")
    world.expect({"a_1": "waits JobHeldUser", "a_[0,2]": "waits Resources"})
    world.finish("block")
    world.expect({"block": "COMPLETED", "a_0": "runs n1", "a_2": "runs n1"})
    world.release("a_1")
    world.expect({"a_1": "runs n1"})


def test_a_task_that_is_requeued_counts_against_the_throttle_again() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-1%1")
    world.expect({"a_0": "runs n1", "a_[1]": "waits JobArrayTaskLimit"})
    world.requeue("a_0")
    world.expect(a_0="waits JobArrayTaskLimit", a_1="runs n1")
    world.finish("a_1")
    world.expect(a_1="COMPLETED", a_0="runs n1")

"""Arrays: one record for all waiting tasks, a record of its own for each that starts."""

from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import Dependencies, Dependency, DependencyKind
from bireme.core.model.refusals import Why
from bireme.store.snapshots import decode_state, encode_state, pack
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


def test_many_waiting_tasks_are_cancelled_by_one_event_however_many() -> None:
    world = Scenario("1x8")
    world.submit("block", cpus=8)
    world.submit("a", array="0-999")
    world.expect({"block": "runs n1", "a_[0-999]": "waits Resources"})
    before = len(world.journal)
    world.cancel("a_[10-599]")
    world.expect({"a_[10-599]": "CANCELLED", "a_[0-9,600-999]": "waits Resources"})
    assert [type(each.event).__name__ for each in world.journal[before:]] == ["ArrayPartSplit", "JobCancelled"]
    world.cancel("a_[0-9,600-999]")
    world.expect({"a_[0-9,600-999]": "CANCELLED"})
    assert len(world.journal) == before + 3


def test_of_named_tasks_those_that_run_and_those_that_wait_are_cancelled() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-9%2")
    world.expect({"a_0": "runs n1", "a_1": "runs n1", "a_[2-9]": "waits JobArrayTaskLimit"})
    world.cancel("a_[1-4]")
    world.expect({"a_1": "CANCELLED", "a_[2-4]": "CANCELLED", "a_5": "runs n1", "a_[6-9]": "waits JobArrayTaskLimit"})
    with world.refused(Why.ALREADY_DONE):
        world.cancel("a_[1-4]")
    with world.refused(Why.ALREADY_DONE):
        world.cancel("a_3")
    with world.refused(Why.INVALID_JOB_ID):
        world.cancel("a_[10-999]")
    with world.refused(Why.ACCESS_DENIED):
        world.cancel("a_[5-6]", user="bob")


def test_a_part_that_was_cancelled_counts_for_whoever_depends_on_its_tasks() -> None:
    world = Scenario("1x8")
    array = world.submit("a", array="0-3%1")
    one = DependencyKind.AFTER_ANY
    world.submit("after_two", dependencies=Dependencies((Dependency(one, array, 2),)))
    world.submit("after_all", dependencies=Dependencies((Dependency(one, array),)))
    world.submit("not_ok", dependencies=Dependencies((Dependency(DependencyKind.AFTER_NOT_OK, array),)))
    waits = "waits Dependency"
    world.expect(
        {
            "a_0": "runs n1",
            "a_[1-3]": "waits JobArrayTaskLimit",
            "after_two": waits,
            "after_all": waits,
            "not_ok": waits,
        }
    )
    world.cancel("a_[1-2]")
    world.expect({"a_[1-2]": "CANCELLED", "a_[3]": "waits JobArrayTaskLimit", "after_two": "runs n1"})
    world.finish("a_0")
    world.expect({"a_0": "COMPLETED", "a_3": "runs n1"})
    world.finish("a_3")
    world.expect({"a_3": "COMPLETED", "after_all": "runs n1", "not_ok": "runs n1"})


def test_a_part_that_was_cancelled_is_forgotten_and_the_journal_gives_the_same_state() -> None:
    world = Scenario("1x8", settings=Settings(min_job_age_s=500, memory_is_consumable=False))
    world.submit("a", array="0-5%1")
    world.expect({"a_0": "runs n1", "a_[1-5]": "waits JobArrayTaskLimit"})
    world.cancel("a_[2-3]")
    world.expect({"a_[2-3]": "CANCELLED", "a_[1,4-5]": "waits JobArrayTaskLimit"})
    replayed = world.replayed()
    assert (replayed.jobs, replayed.array_tasks) == (world.state.jobs, world.state.array_tasks)
    copied = decode_state(pack(encode_state(world.state)))
    assert (copied.array_tasks, copied.array_members) == (world.state.array_tasks, world.state.array_members)
    world.wait(600)
    assert not any("2-3" in label for label in world.described())
    assert world.state.array_task(world.id_of("a"), 2) is None


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

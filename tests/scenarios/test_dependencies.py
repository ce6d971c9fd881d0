"""Jobs that wait for other jobs."""

import pytest

from bireme.core.model.cluster import Settings
from bireme.core.model.policy import Policy, Preemption
from bireme.core.model.refusals import Why
from bireme.slurm.dependencies import parse_dependencies
from bireme.testing.scenario import Scenario


def test_afterok_waits_for_success() -> None:
    world = Scenario("1x8")
    world.submit("first")
    world.submit("then", after="afterok:first")
    world.expect(first="runs n1", then="waits Dependency")
    world.finish("first")
    world.expect(first="COMPLETED", then="runs n1")


def test_afterok_of_a_failed_job_is_never_satisfied() -> None:
    world = Scenario("1x8")
    world.submit("first")
    world.submit("then", after="afterok:first")
    world.expect(first="runs n1", then="waits Dependency")
    world.finish("first", code=1)
    world.expect(first="FAILED 1:0", then="waits DependencyNeverSatisfied")


def test_a_cluster_that_kills_invalid_dependencies_cancels_it() -> None:
    world = Scenario("1x8", raw={"DependencyParameters": "kill_invalid_depend"})
    world.submit("first")
    world.submit("then", after="afterok:first")
    world.submit("stays", after="afterok:first", kill_on_invalid_dependency=False)
    world.finish_when_running("first", code=1)
    world.expect(first="FAILED 1:0", then="CANCELLED", stays="waits DependencyNeverSatisfied")


def test_a_job_may_ask_to_be_cancelled_itself() -> None:
    world = Scenario("1x8")
    world.submit("first")
    world.submit("then", after="afterok:first", kill_on_invalid_dependency=True)
    world.finish_when_running("first", code=1)
    world.expect(first="FAILED 1:0", then="CANCELLED")


def test_afternotok_waits_for_failure() -> None:
    world = Scenario("1x8")
    world.submit("first")
    world.submit("rescue", after="afternotok:first")
    world.expect(first="runs n1", rescue="waits Dependency")
    world.finish("first", code=1)
    world.expect(first="FAILED 1:0", rescue="runs n1")


def test_afterany_waits_for_any_end() -> None:
    world = Scenario("1x8")
    world.submit("first")
    world.submit("then", after="afterany:first")
    world.expect(first="runs n1", then="waits Dependency")
    world.cancel("first")
    world.expect(first="CANCELLED", then="runs n1")


def test_after_waits_for_the_start_and_a_delay_after_it() -> None:
    world = Scenario("1x8")
    world.submit("held", hold=True)
    world.submit("soon", after="after:held")
    world.submit("later", after="after:held+10")
    world.expect(held="waits JobHeldUser", soon="waits Dependency", later="waits Dependency")
    world.release("held")
    world.expect(held="runs n1", soon="runs n1")
    world.wait(599)
    world.expect()
    world.wait(1)
    world.expect(later="runs n1")


def test_after_is_also_satisfied_by_a_cancelled_job() -> None:
    world = Scenario("1x8")
    world.submit("held", hold=True)
    world.submit("then", after="after:held")
    world.expect(held="waits JobHeldUser", then="waits Dependency")
    world.cancel("held")
    world.expect(held="CANCELLED", then="runs n1")


def test_all_conditions_or_any_one_of_them() -> None:
    world = Scenario("1x8")
    world.submit("a")
    world.submit("b")
    world.submit("both", after="afterok:a,afterok:b")
    world.submit("either", after="afterok:a?afterok:b")
    world.expect(a="runs n1", b="runs n1", both="waits Dependency", either="waits Dependency")
    world.finish("a")
    world.expect(a="COMPLETED", either="runs n1")
    world.finish("b")
    world.expect(b="COMPLETED", both="runs n1")


def test_an_array_is_over_when_all_its_tasks_are() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-1")
    world.submit("then", after="afterok:a")
    world.expect(a_0="runs n1", a_1="runs n1", then="waits Dependency")
    world.finish("a_0")
    world.expect(a_0="COMPLETED")
    world.finish("a_1")
    world.expect(a_1="COMPLETED", then="runs n1")


def test_after_waits_until_every_task_of_an_array_has_begun() -> None:
    """A task that began and failed, or was started again, is still one task."""
    world = Scenario("1x8")
    world.submit("a", array="0-3%1", requeue=True)
    world.submit("then", after="after:a")
    world.submit("later", after="after:a+10")
    world.expect(
        {
            "a_0": "runs n1",
            "a_[1-3]": "waits JobArrayTaskLimit",
            "then": "waits Dependency",
            "later": "waits Dependency",
        }
    )
    world.finish("a_0", code=1)
    world.expect({"a_0": "FAILED 1:0", "a_1": "runs n1", "a_[2-3]": "waits JobArrayTaskLimit"})
    world.finish("a_1", code=1)
    world.expect({"a_1": "FAILED 1:0", "a_2": "runs n1", "a_[3]": "waits JobArrayTaskLimit"})
    world.finish("a_2")
    world.expect(a_2="COMPLETED", a_3="runs n1", then="runs n1")
    world.wait(599)
    world.expect()
    world.wait(1)
    world.expect(later="runs n1", a_0="gone", a_1="gone", a_2="gone")


def test_one_failed_task_fails_afterok_of_the_array() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-1")
    world.submit("then", after="afterok:a")
    world.submit("rescue", after="afternotok:a")
    world.expect(a_0="runs n1", a_1="runs n1", then="waits Dependency", rescue="waits Dependency")
    world.finish("a_0", code=2)
    world.expect(a_0="FAILED 2:0", then="waits DependencyNeverSatisfied")
    world.finish("a_1")
    world.expect(a_1="COMPLETED", rescue="runs n1")


def test_one_task_of_an_array_can_be_waited_for() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-3%1")
    world.submit("then", after="afterok:a_1")
    world.expect({"a_0": "runs n1", "a_[1-3]": "waits JobArrayTaskLimit", "then": "waits Dependency"})
    world.finish("a_0")
    world.expect({"a_0": "COMPLETED", "a_1": "runs n1", "a_[2-3]": "waits JobArrayTaskLimit"})
    world.finish("a_1")
    world.expect({"a_1": "COMPLETED", "a_2": "runs n1", "a_[3]": "waits JobArrayTaskLimit", "then": "runs n1"})


def test_aftercorr_pairs_the_tasks_of_two_arrays() -> None:
    world = Scenario("1x8")
    world.submit("a", array="0-2")
    world.submit("b", array="0-2", after="aftercorr:a")
    world.expect({"a_0": "runs n1", "a_1": "runs n1", "a_2": "runs n1", "b_[0-2]": "waits Dependency"})
    world.finish("a_1")
    world.expect({"a_1": "COMPLETED", "b_1": "runs n1", "b_[0,2]": "waits Dependency"})
    world.finish("a_0")
    world.expect({"a_0": "COMPLETED", "b_0": "runs n1", "b_[2]": "waits Dependency"})
    world.finish("a_2", code=1)
    world.expect({"a_2": "FAILED 1:0", "b_[2]": "waits DependencyNeverSatisfied"})


def test_a_singleton_waits_for_earlier_jobs_of_its_name_and_user() -> None:
    world = Scenario("1x8")
    world.submit("one", name="train")
    world.submit("two", name="train", after="singleton")
    world.submit("three", name="other", after="singleton")
    world.submit("four", name="train", after="singleton", user="bob")
    world.expect(one="runs n1", two="waits Dependency", three="runs n1", four="runs n1")
    world.finish("one", code=1)
    world.expect(one="FAILED 1:0", two="runs n1")


def test_a_requeued_singleton_waits_for_a_later_one_that_runs() -> None:
    world = Scenario("1x8")
    world.submit("one", name="train", after="singleton")
    world.submit("two", name="train", after="singleton")
    world.expect(one="runs n1", two="waits Dependency")
    world.finish("one")
    world.expect(one="COMPLETED", two="runs n1")
    world.requeue("one")
    world.expect(one="waits Dependency")
    world.finish("two")
    world.expect(one="runs n1", two="COMPLETED")


def test_tasks_of_an_array_and_components_of_a_job_are_no_twins_of_each_other() -> None:
    world = Scenario("1x8")
    world.submit("tasks", name="train", array="0-1", after="singleton")
    world.submit_het(
        "het", {"name": "train", "after": "singleton"}, {"name": "train", "after": "singleton"}, user="bob"
    )
    world.expect({"tasks_0": "runs n1", "tasks_1": "runs n1", "het": "runs n1", "het+1": "runs n1"})
    world.requeue("tasks_1")
    world.wait(10)
    world.expect({})
    assert world.job("tasks_1").restarts == 1


def test_a_finished_job_that_others_wait_for_is_remembered() -> None:
    world = Scenario("1x8")
    world.submit("a")
    world.submit("b")
    world.submit("both", after="afterok:a,afterok:b")
    world.expect(a="runs n1", b="runs n1", both="waits Dependency")
    world.finish("a", code=1)
    world.wait(3600)
    world.expect(a="FAILED 1:0", both="waits DependencyNeverSatisfied")


def test_a_requeued_dependency_must_end_again() -> None:
    world = Scenario("1x8")
    world.submit("first", cpus=8)
    world.submit("then", after="afterok:first")
    world.expect(first="runs n1", then="waits Dependency")
    world.requeue("first")
    world.expect()
    assert world.job("first").restarts == 1
    world.finish("first")
    world.expect(first="COMPLETED", then="runs n1")


def test_a_changed_dependency_counts_at_once() -> None:
    world = Scenario("1x8")
    world.submit("first")
    world.submit("then", after="afterok:first")
    world.expect(first="runs n1", then="waits Dependency")
    world.update("then", dependencies=parse_dependencies(""))
    world.expect(then="runs n1")


@pytest.mark.parametrize("text", ["afterok:99", "after:7+5"])
def test_a_dependency_on_a_job_that_never_was_is_refused(text: str) -> None:
    world = Scenario("1x8")
    with world.refused(Why.DEPENDENCY):
        world.submit("job", after=text)


def test_what_was_cancelled_while_it_waited_for_others_waits_for_them_again() -> None:
    world = Scenario("1x8")
    world.submit("first")
    world.submit("failed")
    world.submit("then", after="afterok:first")
    world.submit("never", after="afterok:failed", kill_on_invalid_dependency=True)
    world.finish_when_running("failed", code=1)
    world.cancel("then")
    world.expect(first="runs n1", failed="FAILED 1:0", then="CANCELLED", never="CANCELLED")
    world.requeue("then")
    world.requeue("never")
    world.expect(then="waits Dependency")
    world.finish("first")
    world.expect(first="COMPLETED", then="runs n1")


def test_a_dependency_that_was_met_stays_met_when_the_other_is_requeued() -> None:
    """Found by a fault world: the first starts, the second may start and preempts it, the first waits, and so on."""
    rules = Settings(policy=Policy(preemption=Preemption("partition", "REQUEUE")), memory_is_consumable=False)
    tiers = {"low": {"priority_tier": 1}, "high": {"priority_tier": 10}}
    world = Scenario("1x8", partitions=tiers, settings=rules)
    world.submit("first", exclusive=True)
    world.submit("second", exclusive=True, partition="high", after="after:first")
    world.settle()
    world.expect(first="waits Resources", second="runs n1")
    world.finish("second")
    world.expect(second="COMPLETED", first="runs n1")

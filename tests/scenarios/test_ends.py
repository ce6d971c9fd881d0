"""How jobs end, and how they come back."""

import pytest

from bireme.core.jobs import requests
from bireme.core.jobs.states import job_state
from bireme.core.model import observations as o
from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import JobKind, Running
from bireme.core.model.refusals import Why
from bireme.core.model.resources import ExitStatus
from bireme.testing.scenario import Scenario

FLAT = {"memory_is_consumable": False}


@pytest.mark.parametrize(
    ("end", "word"),
    [
        ({}, "COMPLETED"),
        ({"code": 3}, "FAILED 3:0"),
        ({"signal": 11}, "FAILED 0:11"),
        ({"signal": 9, "out_of_memory": True}, "OUT_OF_MEMORY 0:9"),
    ],
)
def test_the_script_decides_the_outcome(end: dict[str, int], word: str) -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.settle()
    world.finish("job", **end)
    world.expect(job=word)


def test_a_waiting_job_is_cancelled_at_once() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    world.cancel("job")
    world.expect(job="CANCELLED")
    with world.refused(Why.ALREADY_DONE):
        world.cancel("job")


def test_a_cancelled_job_holds_its_nodes_until_they_are_clear() -> None:
    world = Scenario("1x8")
    world.submit("job", cpus=8)
    world.submit("next")
    world.expect(job="runs n1", next="waits Resources")
    world.engine.obeys = False
    world.cancel("job")
    world.expect(job="ends CANCELLED")
    world.engine.obeys = True
    world.engine.send(world.engine.commands[-1:])
    world.deliver()
    world.expect(job="CANCELLED", next="runs n1")


def test_a_job_cancelled_while_it_starts_never_runs() -> None:
    world = Scenario("1x8")
    world.engine.obeys = False
    world.submit("job")
    world.expect(job="starts n1")
    world.cancel("job")
    world.expect(job="ends CANCELLED")


def test_a_requeued_job_runs_again_under_its_id() -> None:
    world = Scenario("1x8")
    world.submit("job", cpus=8)
    world.submit("next", cpus=8)
    world.expect(job="runs n1", next="waits Resources")
    world.requeue("job")
    world.expect()
    assert (world.job("job").restarts, world.job("job").generation) == (1, 2)


def test_a_finished_job_can_be_requeued() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.finish_when_running("job", code=1)
    world.expect(job="FAILED 1:0")
    world.requeue("job")
    world.expect(job="runs n1")
    assert world.job("job").restarts == 1


def test_requeued_and_held() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.settle()
    world.requeue("job", held=True)
    world.expect(job="waits job_requeued_in_held_state")
    world.release("job")
    world.expect(job="runs n1")


def test_no_requeue_is_refused() -> None:
    world = Scenario("1x8")
    world.submit("job", requeue=False)
    world.settle()
    with world.refused(Why.DISABLED):
        world.requeue("job")


def test_a_cancelled_job_does_not_come_back_from_its_requeue() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.settle()
    world.engine.obeys = False
    world.requeue("job")
    world.expect(job="ends REQUEUED")
    world.engine.obeys = True
    world.cancel("job")
    world.expect(job="CANCELLED")


def test_requeue_exit_codes_bring_a_job_back() -> None:
    world = Scenario("1x8", settings=Settings(requeue_exit=(75,), **FLAT))
    world.submit("job")
    world.finish_when_running("job", code=75)
    world.expect(job="runs n1")
    assert world.job("job").restarts == 1
    world.finish("job", code=74)
    world.expect(job="FAILED 74:0")


def test_a_script_that_asks_to_be_requeued_for_ever_is_slowed_down() -> None:
    world = Scenario("1x8", settings=Settings(requeue_exit=(75,), **FLAT))
    world.submit("job")
    waits = []
    for _ in range(9):
        world.finish_when_running("job", code=75)
        began = world.now
        while not isinstance(world.job("job").phase, Running):
            world.wait(1)
        waits.append(world.now - began)
    assert waits == [1, 1, 3, 7, 15, 31, 63, 120, 120]  # the first is `wait`'s own second


def test_requeue_exit_hold_brings_it_back_held() -> None:
    world = Scenario("1x8", settings=Settings(requeue_exit_hold=(76,), **FLAT))
    world.submit("job")
    world.finish_when_running("job", code=76)
    world.expect(job="waits job_requeued_in_special_exit_state")
    assert job_state(world.job("job")) == "SPECIAL_EXIT"
    world.release("job")
    world.expect(job="runs n1")


def test_a_refused_launch_is_tried_again_later_and_later() -> None:
    world = Scenario("1x8")
    job = world.submit("job")
    world.engine.refuses[job] = "no such user on n1"
    world.expect(job="waits JobLaunchFailure")
    world.wait(4)
    assert world.job("job").launch_failures == 1
    world.wait(1)
    assert world.job("job").launch_failures == 2
    del world.engine.refuses[job]
    world.wait(10)
    world.expect(job="runs n1")
    assert world.job("job").launch_failures == 0


def test_after_too_many_refused_launches_it_is_held() -> None:
    world = Scenario("1x8", settings=Settings(max_batch_requeue=2, **FLAT))
    job = world.submit("job")
    world.engine.refuses[job] = "prolog failed"
    world.wait(1000)
    world.expect(job="waits launch_failed_requeued_held")
    assert world.job("job").launch_failures == 3
    del world.engine.refuses[job]
    world.release("job")
    world.expect(job="runs n1")


def test_a_refused_launch_does_not_stop_the_others() -> None:
    world = Scenario("1x8")
    job = world.submit("job", cpus=8)
    world.submit("next", cpus=8)
    world.engine.refuses[job] = "disk full"
    world.expect(job="waits JobLaunchFailure", next="runs n1")


def test_a_node_that_can_start_nothing_is_drained_and_eats_no_queue() -> None:
    world = Scenario("2x8")
    world.engine.obeys = False
    world.submit("job", cpus=8)
    world.expect(job="starts n1")
    why = "n1: Resource temporarily unavailable"
    world.report(o.JobRefused(1, 1, why, world.now, short_on=("n1",)))
    world.submit("next", cpus=8)
    assert world.state.nodes["n1"].drained
    assert world.state.nodes["n1"].note is not None
    assert world.state.nodes["n1"].note.text == f"Launch failed: {why}"
    world.expect(job="waits JobLaunchFailure", next="starts n2")
    world.wait(1000)
    assert world.job("job").launch_failures == 1, "it is not tried there again and again"


def test_an_allocation_ends_when_its_holder_says_so() -> None:
    world = Scenario("1x8")
    world.submit("shell", kind=JobKind.INTERACTIVE)
    world.submit("bad", kind=JobKind.INTERACTIVE)
    world.expect(shell="runs n1", bad="runs n1")
    world.ask(requests.complete, "shell", ExitStatus(0))
    world.ask(requests.complete, "bad", ExitStatus(2))
    world.expect(shell="COMPLETED", bad="FAILED 2:0")


def test_an_allocation_given_up_while_it_waits_is_cancelled() -> None:
    world = Scenario("1x8")
    world.submit("block", cpus=8)
    world.submit("shell", kind=JobKind.INTERACTIVE)
    world.expect(block="runs n1", shell="waits Resources")
    world.ask(requests.complete, "shell", ExitStatus(0))
    world.expect(shell="CANCELLED")


def test_a_late_report_about_an_old_start_changes_nothing() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.settle()
    world.requeue("job")
    world.expect(job="runs n1")
    job = world.job("job")
    world.report(o.BatchFinished(job.id, job.generation - 1, ExitStatus(1), world.now, cleared=True))
    world.expect()


def test_a_script_that_ends_before_its_start_was_reported() -> None:
    world = Scenario("1x8")
    world.engine.obeys = False
    world.submit("job")
    world.expect(job="starts n1")
    world.finish("job")
    world.expect(job="COMPLETED")


@pytest.mark.parametrize("first", ["cancel", "limit"])
def test_the_first_reason_to_end_is_the_one_that_counts(first: str) -> None:
    world = Scenario("1x8")
    world.submit("job", time_s=60)
    world.settle()
    world.engine.obeys = False
    if first == "cancel":
        world.cancel("job")
        world.wait(60)
        world.expect(job="ends CANCELLED")
    else:
        world.wait(60)
        world.cancel("job")
        world.expect(job="ends TIMEOUT")


def test_what_cannot_be_killed_drains_its_node_and_keeps_what_it_has() -> None:
    """As Slurm's UnkillableStepTimeout, except that nobody gets its CPUs: not even when the node is resumed."""
    world = Scenario("1x8")
    world.submit("job", cpus=8)
    world.submit("next")
    world.expect(job="runs n1", next="waits Resources")
    world.engine.obeys = False
    world.cancel("job")
    world.expect(job="ends CANCELLED")
    job = world.job("job")
    world.report(o.JobUnkillable(job.id, job.generation, "n1", "job 1: pids 77", world.now))
    world.expect(next="waits ReqNodeNotAvail")
    node = world.state.nodes["n1"]
    assert (node.drained, node.note.text if node.note else "") == (True, "Kill task failed (job 1: pids 77)")
    world.report(o.JobCleared(job.id, job.generation, world.now))
    world.expect(job="CANCELLED")

"""Holds, begin times, deadlines, time limits, suspension, forgetting."""

from bireme.core.jobs import requests
from bireme.core.jobs.states import job_reasons
from bireme.core.lifecycle.due import next_due
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import Running
from bireme.core.model.reasons import ReasonKind
from bireme.core.model.refusals import Why
from bireme.core.model.resources import GresRequest
from bireme.testing.scenario import Scenario

FLAT = {"memory_is_consumable": False}


def signals(world: Scenario) -> list[tuple[int, str]]:
    return [(sent.signal, sent.scope) for sent in world.engine.commands if isinstance(sent, c.SignalJob)]


def grace_periods(world: Scenario) -> list[int]:
    return [sent.grace_s for sent in world.engine.commands if isinstance(sent, c.TerminateJob)]


def test_a_held_job_waits_until_its_owner_releases_it() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    world.expect(job="waits JobHeldUser")
    world.release("job")
    world.expect(job="runs n1")


def test_an_operators_hold_is_not_the_owners_to_release() -> None:
    world = Scenario("1x8")
    world.submit("block", cpus=8)
    world.submit("job")
    world.expect(block="runs n1", job="waits Resources")
    world.hold("job", user="root")
    world.expect(job="waits JobHeldAdmin")
    with world.refused(Why.ACCESS_DENIED):
        world.release("job")
    world.release("job", user="root")
    world.expect(job="waits Resources")


def test_a_held_job_does_not_block_those_behind_it() -> None:
    world = Scenario("1x8")
    world.submit("held", cpus=8, hold=True)
    world.submit("next", cpus=8)
    world.expect(held="waits JobHeldUser", next="runs n1")


def test_a_priority_of_zero_holds_and_another_lets_go() -> None:
    world = Scenario("1x8")
    world.submit("block", cpus=8)
    world.submit("job")
    world.expect(block="runs n1", job="waits Resources")
    world.update("job", priority=0)
    world.expect(job="waits JobHeldUser")
    world.update("job", priority=5, user="root")
    world.expect(job="waits Resources")


def test_a_job_that_is_held_while_it_runs_goes_on_and_is_held_when_it_is_queued_again() -> None:
    world = Scenario("1x8")
    world.submit("job", requeue=True)
    world.expect(job="runs n1")
    world.hold("job", user="root")
    world.expect()
    assert [why.kind for why in job_reasons(world.state, world.job("job"))] == [ReasonKind.JOB_HELD_ADMIN]
    with world.refused(Why.ACCESS_DENIED):
        world.release("job")
    world.requeue("job")
    world.expect(job="waits JobHeldAdmin")
    world.release("job", user="root")
    world.expect(job="runs n1")


def test_a_job_that_was_held_while_it_ran_and_released_comes_back_free() -> None:
    world = Scenario("1x8")
    world.submit("job", requeue=True)
    world.expect(job="runs n1")
    world.update("job", priority=0)
    with world.refused(Why.JOB_HELD):
        world.update("job", priority=5, user="root")
    world.release("job")
    world.requeue("job")
    world.settle()
    assert world.job("job").restarts == 1
    world.expect()


def test_a_job_whose_node_fails_comes_back_held_if_it_was_held_while_it_ran() -> None:
    world = Scenario("2x8")
    world.submit("job", requeue=True)
    world.expect(job="runs n1")
    world.hold("job")
    world.node("n1", "DOWN")
    world.expect(job="waits JobHeldUser")


def test_a_job_that_is_over_is_neither_held_nor_released() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.expect(job="runs n1")
    world.finish("job")
    for attempt in (world.hold, world.release):
        with world.refused(Why.JOB_FINISHED):
            attempt("job")


def test_another_users_job_is_not_mine_to_touch() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    for attempt in (world.cancel, world.hold, world.release, world.requeue):
        with world.refused(Why.ACCESS_DENIED):
            attempt("job", user="bob")
    with world.refused(Why.ACCESS_DENIED):
        world.update("job", user="bob", name="mine")
    world.expect(job="waits JobHeldUser")


def test_a_job_does_not_start_before_its_begin_time() -> None:
    world = Scenario("1x8")
    world.submit("later", begin_at=world.now + 100)
    world.expect(later="waits BeginTime")
    world.wait(99)
    world.expect()
    world.wait(1)
    world.expect(later="runs n1")


def test_a_waiting_job_ends_at_its_deadline() -> None:
    world = Scenario("1x8")
    world.submit("block", cpus=8)
    world.submit("job", deadline_at=world.now + 60)
    world.expect(block="runs n1", job="waits Resources")
    world.wait(60)
    world.expect(job="DEADLINE")


def test_a_running_job_ends_at_its_deadline() -> None:
    world = Scenario("1x8")
    world.submit("job", deadline_at=world.now + 60)
    world.expect(job="runs n1")
    world.wait(60)
    world.expect(job="DEADLINE")


def test_a_job_ends_at_its_time_limit() -> None:
    world = Scenario("1x8")
    world.submit("job", time_s=600)
    world.expect(job="runs n1")
    world.wait(599)
    world.expect()
    world.wait(1)
    world.expect(job="TIMEOUT")


def test_the_partitions_default_and_maximum_are_limits_too() -> None:
    world = Scenario("1x8", partitions={"main": {"default_time_s": 60, "max_time_s": 300}, "most": {"max_time_s": 180}})
    world.submit("default")
    world.submit("maximum", partition="most")
    world.submit("own", time_s=120)
    world.expect(default="runs n1", maximum="runs n1", own="runs n1")
    world.wait(60)
    world.expect(default="TIMEOUT")
    world.wait(60)
    world.expect(own="TIMEOUT")
    world.wait(60)
    world.expect(maximum="TIMEOUT")


def test_over_time_limit_lets_a_job_run_on_for_a_while() -> None:
    world = Scenario("1x8", settings=Settings(over_time_limit_s=120, **FLAT))
    world.submit("job", time_s=60)
    world.expect(job="runs n1")
    world.wait(179)
    world.expect()
    world.wait(1)
    world.expect(job="TIMEOUT")


def test_the_warning_signal_comes_once_before_the_limit() -> None:
    world = Scenario("1x8")
    world.submit("job", time_s=600, signal="B:USR1@120")
    world.submit("steps", time_s=600, signal="USR2@60")
    world.expect(job="runs n1", steps="runs n1")
    world.wait(479)
    assert signals(world) == []
    world.wait(60)
    assert signals(world) == [(10, "batch")]
    world.wait(2)
    assert signals(world) == [(10, "batch"), (12, "steps")]


def test_the_limit_asks_first_and_kills_after_killwait() -> None:
    world = Scenario("1x8", settings=Settings(kill_wait_s=45, **FLAT))
    world.submit("job", time_s=60)
    world.expect(job="runs n1")
    world.engine.obeys = False
    world.wait(60)
    world.expect(job="ends TIMEOUT")
    assert grace_periods(world) == [45]
    world.wait(600)
    world.expect()
    assert grace_periods(world) == [45], "asked once; the rest is the agent's work"


def test_a_killed_job_is_not_asked_first() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.expect(job="runs n1")
    world.ask(requests.signal, "job", 9, "all")
    world.expect(job="CANCELLED")
    assert grace_periods(world) == [0]


def test_a_longer_limit_is_the_operators_to_give() -> None:
    world = Scenario("1x8")
    world.submit("job", time_s=600)
    world.expect(job="runs n1")
    with world.refused(Why.ACCESS_DENIED):
        world.update("job", time_limit_s=1200)
    world.update("job", time_limit_s=1200, user="root")
    world.wait(1199)
    world.expect()
    world.update("job", time_limit_s=300)
    world.expect(job="TIMEOUT")


def test_time_spent_suspended_does_not_count() -> None:
    world = Scenario("1x8")
    world.submit("job", time_s=600)
    world.expect(job="runs n1")
    world.wait(100)
    world.suspend("job")
    world.wait(5000)
    world.expect(job="suspended n1")
    world.suspend("job")  # twice is as good as once
    world.resume("job")
    world.wait(499)
    world.expect(job="runs n1")
    world.wait(1)
    world.expect(job="TIMEOUT")


def test_a_suspended_job_keeps_all_but_its_cpus() -> None:
    world = Scenario("1x8:h100", settings=Settings(memory_is_consumable=False))
    world.submit("job", cpus=8, gpus=8)
    world.submit("next", cpus=1)
    world.submit("needs_gpu", gpus=1)
    world.expect(job="runs n1", next="waits Resources", needs_gpu="waits Priority")
    world.suspend("job")
    world.expect(job="suspended n1", next="runs n1", needs_gpu="waits Resources")


def test_a_job_is_resumed_when_its_cpus_are_free_again() -> None:
    world = Scenario("1x8", settings=Settings(memory_is_consumable=False))
    world.submit("job", cpus=8)
    world.expect(job="runs n1")
    world.suspend("job")
    world.submit("next", cpus=2)
    world.expect(job="suspended n1", next="runs n1")
    world.resume("job")
    world.submit("latest", cpus=2)
    world.expect(latest="waits Resources")
    world.finish("next")
    world.expect(job="runs n1", next="COMPLETED")


def test_a_suspended_job_that_is_cancelled_gives_its_cpus_back_once() -> None:
    world = Scenario("1x8", settings=Settings(memory_is_consumable=False))
    world.submit("job", cpus=8)
    world.expect(job="runs n1")
    world.suspend("job")
    world.submit("next", cpus=8)
    world.expect(job="suspended n1", next="runs n1")
    world.cancel("job")
    world.submit("latest", cpus=1)
    world.expect(job="CANCELLED", latest="waits Resources")


def test_only_an_operator_suspends() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.expect(job="runs n1")
    with world.refused(Why.ACCESS_DENIED):
        world.ask(requests.suspend, "job")


def test_a_finished_job_is_forgotten_after_minjobage() -> None:
    world = Scenario("1x8", settings=Settings(min_job_age_s=100, **FLAT))
    world.submit("job")
    world.submit("stays")
    world.expect(job="runs n1", stays="runs n1")
    world.finish("job")
    world.wait(99)
    world.expect(job="COMPLETED")
    world.wait(1)
    world.expect(job="gone")


def test_with_a_minjobage_of_zero_nothing_is_forgotten() -> None:
    world = Scenario("1x8", settings=Settings(min_job_age_s=0, **FLAT))
    world.submit("job")
    world.finish_when_running("job")
    world.wait(1_000_000)
    world.expect(job="COMPLETED")


def test_whatever_is_due_happens_at_its_own_time() -> None:
    world = Scenario("2x8")
    start = world.now
    world.submit("limited", time_s=60)
    world.submit("dead", deadline_at=start + 70, time_min_s=60, time_s=6000)
    world.submit("stepped", on="n2", time_s=6000)
    world.submit("delayed", after="after:stepped+2")
    world.settle()
    step = world.step("stepped", time_limit_s=80)
    world.wait(3000)
    times = {world.labels[job.id]: job.phase for job in world.state.jobs.values()}
    assert isinstance(times["stepped"], Running)
    assert isinstance(times["delayed"], Running)
    assert times["delayed"].started_at == start + 120
    assert step.ended_at == start + 80
    ended = {world.labels[each.event.job_id]: each.at for each in world.journal if isinstance(each.event, e.JobEnded)}
    assert ended == {"limited": start + 60, "dead": start + 70}


def test_a_job_that_cannot_end_before_its_deadline_is_given_up() -> None:
    world = Scenario("1x8")
    world.submit("hopeless", deadline_at=world.now + 60, time_s=600)
    world.expect(hopeless="DEADLINE")
    world.submit("blocker", cpus=8, time_s=6000)
    world.submit("waits", deadline_at=world.now + 700, time_s=600, cpus=8)
    world.expect(blocker="runs n1", waits="waits Resources")
    world.wait(100)
    world.expect()
    world.wait(1)
    world.expect(waits="DEADLINE")


def test_a_waiting_job_is_neither_suspended_nor_resumed() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    for order in (world.suspend, world.resume):
        with world.refused(Why.JOB_PENDING):
            order("job")


def test_an_update_to_a_node_that_does_not_exist_is_refused() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    with world.refused(Why.INVALID_NODE_NAME):
        world.update("job", nodelist=("n9",))


def test_nothing_to_come_means_no_time_to_wake_at() -> None:
    world = Scenario("1x8", settings=Settings(over_time_limit_s=None, min_job_age_s=10, **FLAT))
    world.submit("over", time_s=60)
    world.submit("failed")
    world.submit("waits", after="afterok:failed")
    world.finish_when_running("failed", code=1)
    world.wait(600)
    assert next_due(world.state, world.now) is None, "neither a limit without end nor a job that is waited for"


def test_an_operators_hold_is_an_admins_even_of_the_own_job() -> None:
    world = Scenario("1x8")
    world.submit("own", user="root")
    world.submit("other")
    for label in ("own", "other"):
        world.hold(label, user="root")
    world.expect(own="waits JobHeldAdmin", other="waits JobHeldAdmin")
    with world.refused(Why.ACCESS_DENIED):
        world.release("other")
    world.ask(requests.hold, "other", as_user=True, user="root")
    world.expect(other="waits JobHeldUser")
    world.release("other")
    world.expect(other="runs n1")


def test_a_deadline_that_is_over_changes_nothing() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    for over in (0.0, world.now):
        with world.refused(Why.INVALID_TIME_VALUE):
            world.update("job", deadline_at=over)
    world.expect(job="waits JobHeldUser")
    assert world.job("job").spec.deadline_at is None
    world.update("job", deadline_at=world.now + 60)
    assert world.job("job").spec.deadline_at == world.now + 60


def test_more_cpus_are_not_more_tasks() -> None:
    world = Scenario("2x8")
    world.submit("job", tasks=2, hold=True)
    world.update("job", ntasks=6)
    world.update("job", cpus_min=8)
    asked = world.job("job").spec.resources
    assert (asked.ntasks, asked.cpus_min) == (6, 8)
    with world.refused(Why.BAD_TASK_COUNT):
        world.update("job", cpus_min=5)
    world.release("job")
    world.settle()
    allocation = world.job("job").allocation
    assert allocation is not None
    assert (allocation.cpus, sum(share.tasks for share in allocation.shares)) == (8, 6)


def test_gpus_of_each_node_must_be_those_of_the_job() -> None:
    world = Scenario("4x4:a100")
    world.submit("total", nodes=2, gpus=2, hold=True)
    world.submit("bytask", nodes=2, tasks=2, gpus_per_task=1, hold=True)
    for label in ("total", "bytask"):
        for count in (2, 3):
            with world.refused(Why.INVALID_GRES):
                world.update(label, gres_per_node=(GresRequest("gpu", None, count),))
        assert world.job(label).spec.resources.gres_per_node == ()
        world.update(label, gres_per_node=(GresRequest("gpu", None, 1),))
        with world.refused(Why.INVALID_NODE_COUNT):
            world.update(label, nodes_min=3, nodes_max=3)

"""Preemption: the cheapest jobs that suffice make way, none needlessly, and come back when they may."""

from dataclasses import replace

import pytest

from bireme.core.explain.wording import sentence
from bireme.core.model.cluster import Settings
from bireme.core.model.events import JobAllocated, JobEnding, JobSuspended
from bireme.core.model.observations import GuardSeen, JobCleared
from bireme.core.model.policy import Policy, Preemption
from bireme.core.model.refusals import Why
from bireme.core.plan.decisions import Preempt
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.work import look_anew
from bireme.core.why.running import explain_running
from bireme.testing.books import book_change
from bireme.testing.scenario import Scenario

TIERS = {"low": {"priority_tier": 1}, "high": {"priority_tier": 10}}


def world_with(mode: str = "REQUEUE", exempt_s: int = 0, cluster: str = "2x8:h100", **low: object) -> Scenario:
    rules = Preemption("partition", mode, exempt_s=exempt_s)
    settings = Settings(policy=Policy(preemption=rules), memory_is_consumable=False)
    return Scenario(cluster, partitions={"low": {**TIERS["low"], **low}, "high": TIERS["high"]}, settings=settings)


def test_whoever_gave_way_is_not_expedited() -> None:
    rules = Settings(policy=Policy(preemption=Preemption("partition", "REQUEUE")), memory_is_consumable=False)
    raw = {"SlurmctldParameters": "enable_expedited_requeue"}
    world = Scenario("1x8:h100", partitions=TIERS, settings=rules, raw=raw)
    world.submit("victim", gpus=8, expedite_requeue=True)
    world.expect(victim="runs n1")
    world.submit("urgent", gpus=8, partition="high")
    world.expect(urgent="runs n1", victim="waits Resources")


@pytest.mark.parametrize(
    ("rules", "victim"),
    [
        ({}, "small"),
        ({"lowest_first": True}, "lowest"),
        ({"youngest_first": True}, "youngest"),
    ],
)
def test_who_goes_first_is_the_cheapest_unless_the_policy_says_otherwise(rules: dict[str, bool], victim: str) -> None:
    """preempt_strict_order, preempt_youngest_first."""
    settings = Settings(
        policy=Policy(preemption=Preemption("partition", "CANCEL", **rules)), memory_is_consumable=False
    )
    world = Scenario("3x8:h100", partitions=TIERS, settings=settings)
    world.submit("small", gpus=8, cpus=1, on="n1")
    world.wait(10)
    world.submit("lowest", gpus=8, cpus=8, nice=100, on="n2")
    world.wait(1)
    world.submit("youngest", gpus=8, cpus=8, on="n3")
    world.settle()
    world.job("lowest").priority -= 100
    world.wait(1000)
    world.submit("urgent", gpus=8, partition="high")
    world.settle()
    assert [label for label in ("small", "lowest", "youngest") if world.described()[label] == "PREEMPTED"] == [victim]


def test_whoever_has_saved_its_work_goes_first() -> None:
    world = world_with()
    world.submit("old", gpus=8)
    world.wait(100)
    world.submit("young", gpus=8)
    world.wait(1000)
    world.checkpoint("old")
    assert explain_running(world.state, world.job("old")).checkpointed_at == world.now
    world.wait(10)
    world.submit("urgent", gpus=8, partition="high")
    world.expect(old="waits Resources", young="runs n2", urgent="runs n1")
    assert world.job("old").checkpointed_at is None
    with world.refused(Why.JOB_PENDING):
        world.checkpoint("old")


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


# -- SUSPEND ---------------------------------------------------------------------------------------------------------


def suspending(cluster: str = "1x8:h100", memory_mib: int = 0, **partitions: dict[str, object]) -> Scenario:
    rules = Preemption("partition", "SUSPEND")
    settings = Settings(policy=Policy(preemption=rules), memory_is_consumable=memory_mib > 0)
    return Scenario(cluster, partitions={**TIERS, **partitions}, settings=settings, memory_mib=memory_mib)


def test_victims_are_suspended_and_go_on_when_the_preemptor_ends() -> None:
    world = suspending()
    world.submit("low", cpus=8, time_s=600)
    world.expect(low="runs n1")
    world.wait(100)
    world.submit("urgent", cpus=4, partition="high", time_s=3600)
    world.expect(low="suspended n1", urgent="runs n1")
    world.wait(3000)
    world.expect()
    world.finish("urgent")
    world.expect(urgent="COMPLETED", low="runs n1")
    world.wait(499)
    world.expect(urgent="gone")
    world.wait(1)
    world.expect(low="TIMEOUT")


def test_an_outlook_cannot_follow_a_start_on_lent_cpus() -> None:
    """Who lent them goes on later than its calendar says: slots that count on that would keep others waiting."""
    world = suspending("2x8")
    world.submit("elsewhere", cpus=8, partition="high")
    world.submit("low", cpus=8)
    world.expect(elsewhere="runs n1", low="runs n2")
    world.submit("urgent", cpus=8, partition="high")
    world.expect(low="suspended n2", urgent="runs n2")
    outlook = look_anew(Snapshot(world.state, world.state.config.settings.policy, world.now))
    follows = {}
    for label in ("urgent", "elsewhere"):
        allocation = world.job(label).allocation
        assert allocation is not None
        follows[label] = outlook.note(world.state, JobAllocated(world.job(label).id, allocation), world.now)
    assert follows == {"urgent": False, "elsewhere": True}


def test_nobody_takes_the_place_of_a_suspended_job() -> None:
    world = suspending()
    world.submit("low", cpus=8)
    world.expect(low="runs n1")
    world.submit("urgent", cpus=4, partition="high")
    world.submit("newcomer", cpus=1)
    world.expect(low="suspended n1", urgent="runs n1", newcomer="waits Resources")
    world.submit("second", cpus=4, partition="high")
    world.expect(second="runs n1")
    world.finish("urgent")
    world.expect(urgent="COMPLETED")
    world.finish("second")
    world.expect(second="COMPLETED", low="runs n1")


def test_only_as_many_are_suspended_as_are_needed() -> None:
    world = suspending()
    for number in range(4):
        world.submit(f"small{number}", cpus=2)
    world.expect({f"small{number}": "runs n1" for number in range(4)})
    world.submit("urgent", cpus=3, partition="high")
    world.settle()
    assert sorted(text for text in world.described().values()) == ["runs n1"] * 3 + ["suspended n1"] * 2


def test_gpus_are_not_gained_by_suspending() -> None:
    world = suspending()
    world.submit("low", cpus=2, gpus=8)
    world.expect(low="runs n1")
    world.submit("urgent", gpus=1, partition="high")
    world.expect(urgent="waits Resources")


def test_memory_is_not_gained_by_suspending() -> None:
    total = 1000
    world = suspending("1x8", memory_mib=total)
    world.submit("low", cpus=8, mem=total * 3 // 4)
    world.expect(low="runs n1")
    world.submit("large", cpus=1, mem=total // 2, partition="high")
    world.expect(large="waits Resources")
    world.submit("small", cpus=1, mem=total // 4, partition="high")
    world.expect(low="suspended n1", small="runs n1")


def test_three_tiers_stop_and_go_on_in_order() -> None:
    world = suspending(mid={"priority_tier": 5})
    world.submit("low", cpus=8)
    world.expect(low="runs n1")
    world.submit("mid", cpus=8, partition="mid")
    world.expect(low="suspended n1", mid="runs n1")
    world.submit("high", cpus=8, partition="high")
    world.expect(mid="suspended n1", high="runs n1")
    world.finish("high")
    world.expect(high="COMPLETED", mid="runs n1")
    world.finish("mid")
    world.expect(mid="COMPLETED", low="runs n1")


def test_a_preemptor_that_waits_takes_the_cpus_before_the_victim_goes_on() -> None:
    world = suspending()
    world.submit("low", cpus=8)
    world.expect(low="runs n1")
    world.submit("first", cpus=8, partition="high")
    world.submit("second", cpus=8, partition="high")
    world.expect(low="suspended n1", first="runs n1", second="waits Resources")
    world.finish("first")
    world.expect(first="COMPLETED", second="runs n1")
    assert sum(isinstance(each.event, JobSuspended) for each in world.journal) == 1


def test_who_is_to_make_way_again_does_not_go_on_in_between() -> None:
    world = suspending("2x4", mid={"priority_tier": 5})
    world.submit("one", cpus=4, on="n1")
    world.submit("two", cpus=4, on="n2")
    world.expect(one="runs n1", two="runs n2")
    world.submit("mid", cpus=4, partition="mid", on="n2")
    world.submit("wide", nodes=2, cpus=4, partition="mid")
    world.expect(two="suspended n2", mid="runs n2", wide="waits Resources")
    world.finish("mid")
    world.expect(mid="COMPLETED", one="suspended n1", wide="runs n[1-2]")
    assert sum(isinstance(each.event, JobSuspended) for each in world.journal) == 2


def test_three_tiers_find_room_beside_those_that_wait() -> None:
    world = suspending("1x4", mid={"priority_tier": 5})
    for number in range(4):
        world.submit(f"low{number}", cpus=1)
    world.expect({f"low{number}": "runs n1" for number in range(4)})
    world.submit("mid", cpus=4, partition="mid")
    world.expect({f"low{number}": "suspended n1" for number in range(4)}, mid="runs n1")
    world.submit("high", cpus=1, partition="high")
    world.expect(mid="suspended n1", high="runs n1")


def test_an_operators_resume_of_a_preemptor_suspends_its_victim_again() -> None:
    world = suspending()
    world.submit("low", cpus=8)
    world.expect(low="runs n1")
    world.submit("urgent", cpus=8, partition="high")
    world.expect(low="suspended n1", urgent="runs n1")
    world.suspend("urgent")
    world.expect(urgent="suspended n1", low="runs n1")
    world.resume("urgent")
    world.expect(urgent="runs n1", low="suspended n1")


def test_an_exclusive_preemptor_runs_beside_what_is_suspended() -> None:
    world = suspending()
    world.submit("low", cpus=1)
    world.expect(low="runs n1")
    world.submit("whole", exclusive=True, partition="high")
    world.expect(low="suspended n1", whole="runs n1")
    world.finish("whole")
    world.expect(whole="COMPLETED", low="runs n1")


def test_those_behind_a_suspended_job_are_told_when_they_start() -> None:
    world = suspending()
    world.submit("low", cpus=8, time_s=3600)
    world.expect(low="runs n1")
    world.submit("urgent", cpus=8, partition="high", time_s=600)
    world.submit("newcomer", cpus=1, time_s=60)
    world.expect(low="suspended n1", urgent="runs n1", newcomer="waits Resources")
    expected = world.state.verdicts[world.id_of("newcomer")].expected_start
    assert expected is not None
    assert 4200 <= expected - world.now <= 4320


def test_a_lost_node_resumes_nobody() -> None:
    world = suspending()
    world.submit("low", cpus=8)
    world.expect(low="runs n1")
    world.submit("urgent", cpus=8, partition="high")
    world.expect(low="suspended n1", urgent="runs n1")
    world.lose("n1")
    world.cancel("urgent")
    world.settle()
    assert world.described()["low"] == "suspended n1"


# -- limits ----------------------------------------------------------------------------------------------------------


def limited_world() -> Scenario:
    """alice's jobs may hold eight GPUs together, bob's any number."""
    rules = Preemption("partition", "REQUEUE")
    enforce = ("associations", "limits")
    settings = Settings(policy=Policy(preemption=rules), memory_is_consumable=False, accounting_enforce=enforce)
    world = Scenario("2x8:h100", partitions=TIERS, settings=settings)
    accounts = {"small": {"grp_tres": {"gres/gpu": 8}}, "large": {}}
    members = {"alice": {"account": "small"}, "bob": {"account": "large"}}
    world.record([book_change(world.state.accounts, accounts, members)])
    return world


def test_two_preemptors_under_one_limit_do_not_both_evict() -> None:
    world = limited_world()
    world.submit("low1", user="bob", gpus=8)
    world.submit("low2", user="bob", gpus=8)
    world.expect(low1="runs n1", low2="runs n2")
    world.submit("one", gpus=8, partition="high")
    world.submit("two", gpus=8, partition="high")
    world.settle()
    states = world.described()
    assert states["one"].startswith("runs")
    assert states["two"] == "waits AssocGrpGRES"
    ended = [each.event for each in world.journal if isinstance(each.event, JobEnding)]
    assert len(ended) == 1, "somebody was ended for a job that a limit keeps from starting"


def test_a_job_for_which_others_are_leaving_has_its_limit_kept() -> None:
    """Meanwhile a smaller job of the same account would fit, and use up the limit."""
    world = limited_world()
    world.submit("low", user="bob", gpus=8, on="n1")
    world.submit("peer", user="bob", gpus=7, partition="high", on="n2")
    world.expect(low="runs n1", peer="runs n2")
    world.engine.obeys = False  # the victim takes its time
    world.submit("one", gpus=8, partition="high")
    world.settle()
    world.submit("two", gpus=1, partition="high")
    world.settle()
    assert world.described()["two"] == "waits AssocGrpGRES"


def test_who_may_preempt_stands_before_whom_it_may_preempt() -> None:
    rules = Settings(policy=Policy(preemption=Preemption("qos", "REQUEUE", exempt_s=3600)), memory_is_consumable=False)
    world = Scenario("1x8:h100", settings=rules)
    world.record([book_change(world.state.accounts, qos={"urgent": {"preempt": ("normal",)}, "normal": {}})])
    world.submit("first", gpus=8, qos="normal", time_s=600)
    world.expect(first="runs n1")
    world.submit("early", gpus=8, qos="normal")
    world.submit("urgent", gpus=8, qos="urgent", nice=1000)
    world.expect(early="waits Priority", urgent="waits Resources")
    world.finish("first")
    world.expect(first="COMPLETED", urgent="runs n1", early="waits Resources")


def test_tasks_suspended_on_the_same_cpus_go_on_one_after_the_other() -> None:
    """Found by a fault world: one request resumed both, on CPUs that only one can have."""
    world = Scenario("1x8:h100", settings=Settings(memory_is_consumable=False))
    world.submit("tasks", array="0-1", exclusive=True)
    world.expect({"tasks_0": "runs n1", "tasks_[1]": "waits Resources"})
    world.suspend("tasks_0")
    world.expect({"tasks_0": "suspended n1", "tasks_1": "runs n1"})
    world.suspend("tasks_1")
    world.expect({"tasks_1": "suspended n1"})
    world.resume("tasks")
    world.expect({"tasks_1": "runs n1"})
    world.finish("tasks_1")
    world.expect({"tasks_1": "COMPLETED", "tasks_0": "runs n1"})


def test_a_heterogeneous_job_makes_way_as_a_whole() -> None:
    """Found by a fault world: its leader went back to the queue, and the other component ran on alone."""
    world = world_with("CANCEL")
    world.submit_het("het", {"gpus": 8}, {"gpus": 1})
    world.expect({"het": "runs n1", "het+1": "runs n2"})
    world.submit("urgent", gpus=8, partition="high")
    world.expect({"urgent": "runs n1", "het": "PREEMPTED", "het+1": "PREEMPTED"})


def test_who_is_guarded_from_outside_is_passed_over_and_named() -> None:
    world = world_with()
    world.submit("first", gpus=8)
    world.submit("second", gpus=8)
    world.expect(first="runs n1", second="runs n2")
    for label in ("first", "second"):
        job = world.job(label)
        world.report(GuardSeen(job.id, job.generation, "disruption budget web", world.now))
    world.submit("urgent", gpus=8, partition="high")
    world.expect(urgent="waits Resources,Guarded")
    reasons = world.state.verdicts[world.id_of("urgent")].reasons
    assert "2 job(s) that would make way for it are kept by disruption budget web." in map(sentence, reasons)
    job = world.job("first")
    world.report(GuardSeen(job.id, job.generation, "", world.now))
    world.expect(first="waits Resources", urgent="runs n1")


def test_a_victim_that_turns_out_to_be_guarded_is_named_until_it_may_go() -> None:
    """The budget was heard of after the choice, and the cluster refuses to let the victim end."""
    world = world_with()
    world.submit("first", gpus=8)
    world.submit("second", gpus=8)
    world.expect(first="runs n1", second="runs n2")
    world.engine.obeys = False
    world.submit("urgent", gpus=8, partition="high")
    world.expect(second="ends PREEMPTED", urgent="waits Resources")
    job = world.job("second")
    world.report(GuardSeen(job.id, job.generation, "disruption budget web", world.now))
    world.expect(urgent="waits Resources,Guarded")
    world.report(JobCleared(job.id, job.generation, world.now))
    world.expect(second="waits Resources", urgent="starts n2")
    assert not world.job("second").guarded_by


def test_slots_of_those_behind_keep_nobody_from_making_room() -> None:
    """A small pass finds them in the calendar; a full one has given them none when it comes to who may preempt."""
    world = world_with(exempt_s=600)
    world.submit("long", gpus=8, time_s=36_000)
    world.submit("short", gpus=8, time_s=3_600)
    world.expect(long="runs n1", short="runs n2")
    world.submit("urgent", gpus=16, nodes=2, partition="high", time_s=3_600)
    world.submit("between", gpus=8, time_s=3_600)
    world.submit("far off", gpus=8, time_s=36_000)
    world.settle()
    policy = replace(world.state.config.settings.policy, backfill=True)
    full = plan(Snapshot(world.state, policy, world.now))
    slots = {world.labels[job_id]: slots[0].begin - world.now for job_id, slots in full.outlook.bookings.items()}
    assert full.starts == ()
    assert slots == {"between": 3_600, "urgent": 36_000, "far off": 39_600}
    small = plan(Snapshot(world.state, policy, world.now + 601), full.outlook)
    (made,) = small.starts
    assert isinstance(made, Preempt)
    assert {world.labels[victim.job_id] for victim in made.victims} == {"long", "short"}
    slots = {world.labels[job_id]: slots[0].begin - world.now for job_id, slots in small.outlook.bookings.items()}
    assert slots == {"urgent": 660, "between": 4_260, "far off": 39_600}
    assert {world.labels[job_id] for job_id in small.outlook.fresh} == {"between"}

"""Jobs that fail and are started again, or are not: by why they ended, what was tried, the rules and the mode."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.faults.healings import requests as healings
from bireme.core.faults.healings.shelves import HEALINGS
from bireme.core.faults.restarts.inquests import MOST_AT_ONCE
from bireme.core.faults.restarts.judging import most_for
from bireme.core.faults.restarts.kind import MOST_S
from bireme.core.faults.restarts.shelves import FORGIVEN, INQUESTS, KEPT_FROM
from bireme.core.jobs import requests
from bireme.core.jobs.states import base_state, job_state
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place
from bireme.core.model.healing.checkpoints import Checkpoint
from bireme.core.model.healing.healings import HealingAct, HealingLife
from bireme.core.model.healing.policy import HealingMode, HealingPolicy
from bireme.core.model.healing.restarts import RestartRule, Which
from bireme.core.model.jobs import Ending, Finished, Job
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.reservations.orders import ReservationOrder, create_reservation
from bireme.core.why.healed import explain_healed
from bireme.testing.scenario import Scenario, caller_named

ROOT = Caller(0, 0, "root", admin=True)


def world_with(cluster: str = "3x1:h100", mode: str = "act", **rule: Any) -> Scenario:
    world = Scenario(cluster)
    policy = HealingPolicy(mode=HealingMode(mode), restarts=(RestartRule(**rule),) if rule else ())
    world.record([e.HealingPolicySet(policy)])
    return world


def train(world: Scenario, label: str = "train", **options: Any) -> Job:
    asked = {"gpus": 1} if "gpus_per_node" not in options else {}
    world.submit(label, **{**asked, "heal": "restart", "requeue": None, **options})
    world.settle()
    return world.job(label)


def fails(world: Scenario, label: str = "train", cause: str = "gpu_fell_off_bus", code: int = 1, **more: Any) -> None:
    """Its script ends, and the daemon has looked into it."""
    world.settle()
    world.finish(label, code)
    looked(world, label, cause, **more)


def looked(world: Scenario, label: str, cause: str, **more: Any) -> None:
    job = world.job(label)
    said = {"is_hardware": cause.startswith("gpu_f"), "who": "platform" if cause.startswith("gpu_f") else "you"}
    said |= {"title": cause.replace("_", " "), "confidence": "high", "advice": "do that"}
    world.report(o.InquestHeld(job_id=job.id, generation=job.generation, at=world.now, cause=cause, **{**said, **more}))
    world.settle()


def acts(world: Scenario) -> dict[str, str]:
    return {f"{each.proposal.act.value} {each.id}": each.phase.value for each in HEALINGS.of(world.state).values()}


def reason_of(world: Scenario, number: int = 1) -> str:
    return HEALINGS.of(world.state)[number].proposal.reason


def test_a_job_whose_gpu_failed_starts_again_elsewhere_and_all_of_it_is_written_down() -> None:
    world = world_with()
    train(world)
    world.expect(train="runs n1")
    world.finish("train", 1)
    world.settle()
    assert world.described()["train"].startswith("completing") or isinstance(world.job("train").phase, Ending)
    looked(world, "train", "gpu_fell_off_bus")
    world.expect(train="runs n2")
    assert acts(world) == {"restart-job 1": "done"}
    assert reason_of(world) == "gpu fell off bus: started again, without n1."
    job = world.job("train")
    assert (job.restarts, [each.cause for each in job.tries], job.spec.resources.exclude) == (
        1,
        ["gpu_fell_off_bus"],
        ("n1",),
    )
    assert not INQUESTS.of(world.state)
    assert world.replayed().jobs == world.state.jobs


def test_a_job_whose_pod_was_taken_away_may_have_its_node_again_however_often() -> None:
    world = world_with()
    for restarts in range(3):
        job = train(world) if not restarts else world.job("train")
        assert world.described()["train"] == "runs n1"
        why = "the pod was evicted (EvictionByEvictionAPI)"
        world.report(o.JobVanished(job.id, job.generation, "n1", why, world.now))
        looked(world, "train", "pod_lost", who="platform", node="n1")
        assert reason_of(world, restarts + 1) == "pod lost: started again."
        world.now += 60
        world.settle()
    assert world.job("train").restarts == 3
    assert world.job("train").spec.resources.exclude == ()


@pytest.mark.parametrize(
    ("options", "rule", "restarts"),
    [
        ({"heal": ""}, {}, 0),
        ({"heal": "", "requeue": True}, {}, 1),
        ({"heal": "off", "requeue": True}, {}, 0),
        ({"heal": "restart", "requeue": False}, {}, 1),
        ({"heal": ""}, {"which": Which.ALL}, 1),
        ({"heal": "", "requeue": False}, {"which": Which.ALL}, 0),
        ({"heal": "restart"}, {"which": Which.NONE}, 0),
        ({"heal": "restart"}, {"partitions": ("elsewhere",), "which": Which.NONE}, 1),
    ],
)
def test_who_has_not_asked_is_not_started_again(options: dict[str, Any], rule: dict[str, Any], restarts: int) -> None:
    world = world_with(**rule)
    train(world, **options)
    fails(world)
    assert world.job("train").restarts == restarts


@pytest.mark.parametrize("cause", ["python_error", "index_out_of_range", "config_error", "driver_cuda_mismatch"])
def test_a_mistake_of_the_program_is_not_tried_again(cause: str) -> None:
    world = world_with()
    train(world)
    fails(world, cause=cause)
    world.expect(train="FAILED 1:0")
    assert acts(world) == {"stop-job 1": "done"}
    assert "The cause is" in reason_of(world)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("gpu_out_of_memory", "ran out of GPU memory, and would again"),
        ("host_out_of_memory", "--mem=48G"),
        ("time_limit", "--time=90"),
    ],
)
def test_what_a_setting_mends_is_told_and_not_tried_again(cause: str, said: str) -> None:
    world = world_with("3x1:h100")
    train(world, time_s=3600, memory_per_node_mib=32768)
    fails(world, cause=cause)
    world.expect(train="FAILED 1:0")
    assert acts(world) == {"tell 1": "done"}
    assert said in reason_of(world)


def test_the_same_cause_on_other_hardware_is_not_the_hardware() -> None:
    world = world_with("4x1:h100")
    train(world)
    fails(world)
    fails(world)
    world.expect(train="FAILED 1:0")
    assert acts(world) == {"restart-job 1": "done", "stop-job 2": "done"}
    assert "on n1, now on n2" in reason_of(world, 2)


def test_one_that_has_saved_work_in_between_got_somewhere() -> None:
    world = world_with("4x1:h100")
    train(world)
    fails(world)
    world.wait(60)
    job = world.job("train")
    world.report(o.CheckpointSeen(job.id, job.generation, Checkpoint(path="/c", saved_at=world.now), world.now))
    fails(world)
    world.expect(train="runs n3")


def test_what_nothing_explains_is_tried_once() -> None:
    world = world_with("3x1:h100")
    train(world)
    fails(world, cause="", confidence="none", title="", who="")
    assert world.job("train").restarts == 1
    world.wait(60)
    fails(world, cause="", confidence="none", title="", who="")
    world.expect(train="FAILED 1:0")


def test_budgets_and_back_off() -> None:
    world = world_with("9x1:h100", most=2, backoff_s=100)
    train(world)
    for number in range(2):
        world.wait(4000)  # long enough to have got somewhere
        fails(world)
        assert world.job("train").restarts == number + 1
        if number:
            world.expect(train="waits BeginTime")
            world.wait(200)
    world.wait(4000)
    fails(world)
    world.expect(train="FAILED 1:0")
    assert "2 times within 1 day" in reason_of(world, 3)


def test_lost_gpu_hours_are_a_budget_too() -> None:
    world = world_with("9x1:h100", lost_gpu_hours=2.5)
    train(world)
    for _ in range(3):
        world.wait(3600)
        fails(world)
    world.expect(train="FAILED 1:0")
    assert world.job("train").restarts == 2


def test_a_lost_node_is_what_slurm_makes_of_it_in_every_mode_and_another_node_where_bireme_acts() -> None:
    for mode in ("observe", "act"):
        world = world_with("2x1:h100", mode)
        train(world, requeue=True, heal="")
        world.lose("n1")
        world.wait(400)
        world.settle()
        looked(world, "train", "", confidence="none")
        assert world.job("train").restarts == 1, mode
        world.expect(train="runs n2")


@pytest.mark.parametrize("mode", ["observe", "suggest"])
def test_people_may_approve_what_was_not_done(mode: str) -> None:
    world = world_with("2x1:h100", mode)
    train(world)
    fails(world)
    world.expect(train="FAILED 1:0")
    assert acts(world) == {"restart-job 1": "observed" if mode == "observe" else "suggested"}
    world.record(healings.approve(world.state, ROOT, 1))
    world.settle()
    assert world.job("train").restarts == 1
    assert acts(world) == {"restart-job 1": "done"}


def test_a_restart_that_is_taken_back_is_a_job_that_is_cancelled() -> None:
    world = world_with("2x1:h100")
    train(world)
    fails(world)
    world.expect(train="runs n2")
    world.record(healings.undo(world.state, ROOT, 1))
    world.settle()
    world.expect(train="CANCELLED")
    assert acts(world) == {"restart-job 1": "undone"}


def test_nobody_waits_for_a_verdict_that_nobody_gives() -> None:
    world = world_with("2x1:h100")
    train(world)
    world.finish("train", 1)
    world.settle()
    assert isinstance(world.job("train").phase, Ending)
    world.wait(MOST_S + 1)
    world.settle()
    assert world.job("train").restarts == 1
    assert "Nothing explains its end" in reason_of(world)


def test_dependants_wait_for_the_verdict() -> None:
    world = world_with("3x1:h100")
    train(world)
    world.submit("cleaner", after="afternotok:train")
    world.settle()
    world.finish("train", 1)
    world.settle()
    assert "Dependency" in world.described()["cleaner"]
    looked(world, "train", "gpu_fell_off_bus")
    assert "Dependency" in world.described()["cleaner"]
    world.finish("train", 0)
    world.settle()
    assert world.described()["train"] == "COMPLETED"


def test_who_cancels_a_job_while_it_is_looked_into_has_cancelled_it() -> None:
    world = world_with("2x1:h100")
    train(world)
    world.finish("train", 1)
    world.settle()
    world.ask(requests.cancel, "train")
    world.settle()
    world.expect(train="CANCELLED")
    looked(world, "train", "gpu_fell_off_bus")
    assert acts(world) == {}


def test_tasks_of_arrays_and_components_of_one_job_come_back_together() -> None:
    world = world_with("4x1:h100")
    world.submit_het("both", {"gpus": 1, "heal": "restart"}, {"gpus": 1, "heal": "restart"})
    world.settle()
    world.finish("both", 1)
    looked(world, "both", "gpu_fell_off_bus", node="n1")
    assert [world.job(label).restarts for label in ("both", "both+1")] == [1, 1]


def test_where_there_is_no_other_place_the_same_one_is_better_than_none() -> None:
    world = world_with("1x1:h100")
    train(world)
    fails(world)
    world.expect(train="runs n1")
    assert world.job("train").spec.resources.exclude == ()


def test_a_job_that_hangs_is_ended_and_started_again() -> None:
    world = world_with("2x1:h100")
    job = train(world)
    world.trouble("hang", Place(job_id=job.id, generation=job.generation), cause="hang")
    world.settle()
    looked(world, "train", "hang")
    assert world.job("train").restarts == 1
    assert acts(world) == {"restart-job 1": "done"}
    (healing,) = HEALINGS.of(world.state).values()
    assert healing.proposal.findings == (1,)
    assert [mark.phase for mark in healing.trail] == [HealingLife.APPROVED, HealingLife.DONE]


def test_a_hang_of_a_job_that_nobody_asked_to_be_started_again_is_left_to_people() -> None:
    world = world_with("2x1:h100")
    job = train(world, heal="")
    world.trouble("hang", Place(job_id=job.id, generation=job.generation), cause="hang")
    world.settle()
    world.expect(train="runs n1")
    assert acts(world) == {}


def test_services_replicas_are_left_to_their_service() -> None:
    world = world_with("2x1:h100", which=Which.ALL)
    world.serve("chat", "1", gpus=1)
    world.settle()
    world.finish("chat/1", 1)
    world.settle()
    assert acts(world) == {}
    assert not [each for each in HEALINGS.of(world.state).values() if each.proposal.act is HealingAct.RESTART_JOB]


def test_a_flood_of_failures_is_not_looked_into_one_by_one() -> None:
    world = world_with("1x200")
    for number in range(MOST_AT_ONCE + 2):
        world.submit(f"j{number}", cpus=1, heal="restart")
    world.settle()
    for number in range(MOST_AT_ONCE + 2):
        world.finish(f"j{number}", 1)
    assert len(INQUESTS.of(world.state)) == MOST_AT_ONCE
    assert world.described()[f"j{MOST_AT_ONCE}"] == "FAILED 1:0"


def test_where_nobody_looks_nobody_waits() -> None:
    """A simulation, or a journal of before there were policies."""
    world = Scenario("1x1:h100")
    train(world)
    world.finish("train", 1)
    world.expect(train="FAILED 1:0")


# -- ended for a finding -----------------------------------------------------------------------------------------------


def test_a_job_that_was_ended_because_it_hung_ended_of_that_whatever_it_wrote_when_it_was_told_to_end() -> None:
    world = world_with("2x1:h100")
    job = train(world)
    place = Place(job_id=job.id, generation=job.generation)
    world.trouble("hang", place, cause="hang", title="The job hangs since 41 s: rank 1 stands in read")
    world.settle()
    looked(world, "train", "python_error", title="KeyboardInterrupt")
    assert (world.job("train").restarts, world.job("train").tries[0].cause) == (1, "hang")
    (healing,) = HEALINGS.of(world.state).values()
    assert healing.latest.text == "The job hangs since 41 s: rank 1 stands in read: started again."


SLOW_GPU = {"cause": "slow_gpu", "lasts": False, "gravity": Gravity.DEGRADED, "slower": 0.2}


def gang(world: Scenario, **options: Any) -> Job:
    return train(world, nodes=3, gpus_per_node=1, **options)


def test_a_gang_is_started_again_without_the_gpu_that_holds_it_up_when_that_is_worth_it() -> None:
    """Not when it is found, for all its work would be lost: when it has saved it."""
    world = world_with("4x1:h100")
    job = gang(world)
    world.expect(train="runs n[1-3]")
    world.wait(4 * 3600)
    world.trouble("straggler", Place(node="n2", gpu=0), title="GPU 0 holds up job 1", **SLOW_GPU)
    world.settle()
    assert acts(world) == {}
    (told,) = explain_healed(world.state, job, world.now)
    assert "costs about 00:48:00 of the 04:00:00 that may be ahead of it, to start it again 04:01:30" in told
    world.checkpoint("train")
    world.settle()
    assert "without n2" in HEALINGS.of(world.state)[1].proposal.title
    looked(world, "train", "", confidence="none")
    world.expect(train="runs n[1,3-4]")
    assert world.job("train").tries[0].cause == "slow_gpu"
    assert acts(world) == {"restart-job 1": "done"}


def test_one_that_was_started_again_as_often_as_it_may_is_not_ended_for_a_slow_gpu() -> None:
    world = world_with("4x1:h100", most=1)
    gang(world)
    fails(world, cause="nccl_timeout")
    assert world.job("train").restarts == 1
    world.wait(4 * 3600)
    world.trouble("straggler", Place(node="n2", gpu=0), **SLOW_GPU)
    world.checkpoint("train")
    world.settle()
    assert (world.job("train").restarts, acts(world)) == (1, {"restart-job 1": "done"})


@pytest.mark.parametrize(
    ("cluster", "mode", "ran_s", "options", "decided"),
    [
        ("4x1:h100", "act", 300, {}, {}),  # hardly anything is ahead
        ("3x1:h100", "act", 4 * 3600, {}, {}),  # no other place
        ("4x1:h100", "act", 4 * 3600, {"heal": ""}, {}),  # nobody asked
        ("4x1:h100", "act", 4 * 3600, {"time_s": 4 * 3600 + 400}, {}),  # its limit is near
        ("4x1:h100", "suggest", 4 * 3600, {}, {"restart-job 1": "suggested"}),
        ("4x1:h100", "observe", 4 * 3600, {}, {"restart-job 1": "observed"}),
    ],
)
def test_else_it_goes_on_as_it_is(
    cluster: str, mode: str, ran_s: int, options: dict[str, Any], decided: dict[str, str]
) -> None:
    world = world_with(cluster, mode)
    gang(world, **options)
    world.wait(ran_s)
    world.trouble("straggler", Place(node="n2", gpu=0), **SLOW_GPU)
    world.checkpoint("train")
    world.settle()
    assert acts(world) == decided
    assert world.described()["train"] == "runs n[1-3]"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("observe", "Would be done, but healing.mode is observe here: start job"),
        ("suggest", "Suggested (healing.mode is"),
    ],
)
def test_who_asks_why_is_told_what_would_have_been_done(mode: str, said: str) -> None:
    world = world_with("2x1:h100", mode)
    train(world)
    fails(world)
    (told,) = explain_healed(world.state, world.job("train"), world.now)
    assert told.startswith(said)
    assert "bireme healings approve 1" in told


# -- where it goes on --------------------------------------------------------------------------------------------------


def test_only_the_lost_node_of_a_gang_is_replaced_by_the_nearest_one() -> None:
    world = Scenario("9x1:h100", leaves=["n[1-3]", "n[4-6]", "n[7-9]"])
    world.healing_policy()
    world.submit("first", on="n1", cpus=1)
    gang(world)
    world.expect(first="runs n1", train="runs n[4-6]")
    fails(world, node="n5")
    world.expect(train="runs n[7-9]")  # two leaves instead of one would be slower than other nodes
    world = Scenario("9x1:h100", leaves=["n[1-4]", "n[5-9]"])
    world.healing_policy()
    gang(world)
    world.submit("other", on="n9", cpus=1)
    world.expect(train="runs n[1-3]", other="runs n9")
    fails(world, node="n2")
    world.expect(train="runs n[1,3-4]")


def test_a_job_on_one_node_goes_on_where_it_was_unless_that_is_the_cause() -> None:
    world = world_with("3x1:h100")
    world.submit("before", on="n1", cpus=1)
    train(world, exclusive=True)
    world.expect(before="runs n1", train="runs n2")
    world.finish("before")
    fails(world, cause="nccl_timeout")
    world.expect(before="COMPLETED")
    assert (world.described()["train"], world.job("train").restarts) == ("runs n2", 1)


def test_spare_nodes_are_kept_for_jobs_that_are_started_again() -> None:
    world = world_with("4x1:h100", spares="spares")
    asked = ReservationOrder(nodes=("n4",), begin=world.now, duration_s=365 * 86_400, users=("root",))
    world.record(create_reservation(world.state, ROOT, "spares", asked, world.now))
    gang(world)
    world.submit("other", gpus=1)
    world.expect(train="runs n[1-3]", other="waits Resources")
    fails(world, node="n2")
    assert world.described()["train"] == "runs n[1,3-4]"


# -- what it costs others ----------------------------------------------------------------------------------------------


def test_a_start_that_is_looked_into_ended_when_its_script_did() -> None:
    world = world_with("2x1:h100")
    train(world)
    world.wait(100)
    world.finish("train", 1)
    world.settle()
    ended_at = world.now
    world.wait(20)
    looked(world, "train", "python_error")
    phase = world.job("train").phase
    assert isinstance(phase, Finished)
    assert phase.ended_at == ended_at


def test_one_users_flood_keeps_nobody_else_from_being_looked_into() -> None:
    world = world_with("1x200")
    for number in range(MOST_AT_ONCE + 1):
        world.submit(f"j{number}", cpus=1, heal="restart")
    world.submit("other", cpus=1, heal="restart", user="bob")
    world.settle()
    for number in range(MOST_AT_ONCE + 1):
        world.finish(f"j{number}", 1)
    world.finish("other", 1)
    assert world.job("other").id in INQUESTS.of(world.state)


def test_a_restart_of_a_job_that_is_over_cannot_be_taken_back() -> None:
    world = world_with("2x1:h100")
    train(world)
    fails(world)
    world.finish("train", 0)
    world.settle()
    with pytest.raises(Refusal) as refused:
        healings.undo(world.state, ROOT, 1)
    assert "is over: nothing can be taken back" in refused.value.hint


# -- nodes that a restart is kept from -------------------------------------------------------------------------------


def excluded(world: Scenario) -> tuple[str, ...]:
    return world.job("train").spec.resources.exclude


def test_a_node_that_is_mended_is_not_kept_from_the_job_any_longer() -> None:
    """A gang that needs nearly all nodes would wait for ever for those that stand idle."""
    world = world_with("4x1:h100")
    train(world, nodes=2, gpus_per_node=1, exclude=("n4",))
    world.trouble("xid", Place(node="n1"))
    fails(world, node="n1")
    world.expect(train="runs n[2-3]")
    assert excluded(world) == ("n1", "n4")
    world.trouble_gone("xid", Place(node="n1"), mended=True)
    world.settle()
    assert excluded(world) == ("n4",), "and what its owner excluded stays so"
    world.wait(60)
    world.checkpoint("train")
    fails(world, node="n2")
    world.expect(train="runs n[1,3]")
    world.finish("train")
    world.settle()
    assert KEPT_FROM.of(world.state), "people may queue it again"
    world.trouble("xid", Place(node="n2"))
    world.trouble_gone("xid", Place(node="n2"), mended=True)
    world.record([e.JobRequeued(world.job("train").id)])
    world.settle()
    assert excluded(world) == ("n4",)
    assert not KEPT_FROM.of(world.state)
    assert not FORGIVEN.of(world.state)
    assert world.replayed().jobs == world.state.jobs


def test_nodes_that_are_mended_together_are_all_forgiven() -> None:
    world = world_with("4x1:h100")
    train(world)
    for node in ("n1", "n2"):
        world.trouble("xid", Place(node=node))
        fails(world, node=node)
        world.wait(60)
        world.checkpoint("train")
    assert excluded(world) == ("n1", "n2")
    for node in ("n1", "n2"):
        world.trouble_gone("xid", Place(node=node), mended=True)
    world.settle()
    assert excluded(world) == ()


def test_a_node_that_was_lost_may_be_had_again_when_it_is_back_and_one_that_others_speak_against_not() -> None:
    world = world_with("3x1:h100")
    train(world)
    fails(world, node="n1")
    assert excluded(world) == ("n1",)
    world.record([e.NodeRegistered("n1", world.now)])
    world.settle()
    assert excluded(world) == ("n1",), "a daemon that comes back hears this of all nodes"
    world.record([e.NodeUpdated("n1", 0, drained=True, note="look at it")])
    world.record([e.NodeUpdated("n1", 0, drained=False, note="")])
    world.settle()
    assert excluded(world) == (), "an operator says that it is well"


def test_the_owner_of_a_job_refuses_its_restart_and_only_the_start_that_it_brought_is_taken_back() -> None:
    world = world_with("3x1:h100", "suggest")
    train(world)
    fails(world)
    with pytest.raises(Refusal):
        healings.refuse(world.state, caller_named("bob"), 1)
    world.record(healings.refuse(world.state, caller_named("alice"), 1))
    assert acts(world) == {"restart-job 1": "refused"}
    with pytest.raises(Refusal):
        world.ask(healings.cancel, "train")
    world = world_with("4x1:h100")
    train(world)
    for cause in ("gpu_fell_off_bus", "nccl_timeout"):
        fails(world, cause=cause)
    with pytest.raises(Refusal) as refused:
        healings.undo(world.state, ROOT, 1)
    assert "healing 2 brought the job back since" in refused.value.hint
    world.record(healings.undo(world.state, ROOT, 2))


@pytest.mark.parametrize("mode", ["observe", "suggest"])
def test_a_restart_that_is_suggested_is_refused_by_whoever_cancels_the_job(mode: str) -> None:
    """It is over already: Slurm has nothing to say to that."""
    world = world_with("3x1:h100", mode)
    train(world)
    fails(world)
    with pytest.raises(Refusal):
        world.ask(healings.cancel, "train", user="bob")
    world.ask(healings.cancel, "train")
    assert acts(world) == {"restart-job 1": "refused"}
    with pytest.raises(Refusal):
        healings.approve(world.state, ROOT, 1)


def test_a_large_job_is_started_again_as_often_as_its_hardware_may_fail() -> None:
    """RSC-1's rate brings 13 failures a day to 2,000 nodes; a small job has what the rule says."""
    rule, day_s = RestartRule(), 86_400
    assert [most_for(rule, nodes) for nodes in (1, 8, 16, 256, 2_000)] == [5, 5, 6, 10, 28]
    assert most_for(RestartRule(within_s=7 * day_s), 2_000) > 7 * 13
    assert most_for(RestartRule(most=0), 2_000) == 0


def test_what_is_said_of_a_lost_node_is_what_is_done() -> None:
    """Slurm's own rule brings it back where Bireme would not."""
    world = world_with("3x1:h100", most=0)
    train(world, requeue=True, heal="")
    world.lose("n1")
    world.wait(400)
    world.settle()
    looked(world, "train", "", confidence="none")
    assert world.job("train").restarts == 1
    assert acts(world) == {"restart-job 1": "done"}
    assert "as Slurm has it after a lost node" in reason_of(world)


# -- what programs say of a GPU that breaks --------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu", "restarts"), [(0, 1), (1, 0)])
def test_a_cuda_error_is_the_programs_own_unless_its_own_gpu_broke(gpu: int, restarts: int) -> None:
    world = world_with("2x2:h100")
    train(world)
    world.trouble("xid", Place(node="n1", gpu=gpu), cause="gpu_fell_off_bus")
    fails(world, cause="illegal_memory_access")
    assert world.job("train").restarts == restarts


def test_who_polls_the_accounting_does_not_take_a_job_for_failed_that_may_come_back() -> None:
    world = world_with("2x1:h100")
    train(world)
    world.finish("train", 1)
    world.settle()
    assert (job_state(world.job("train")), base_state(world.job("train").phase)) == ("COMPLETING", "RUNNING")
    looked(world, "train", "python_error")
    assert base_state(world.job("train").phase) == "FAILED"

"""Heterogeneous jobs: all components or none."""

import pytest

from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.model import events as e
from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import Outcome
from bireme.core.model.policy import Policy
from bireme.core.model.refusals import Why
from bireme.core.model.steps import StepSpec
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.steps.creation import Part, create_spanning_step
from bireme.core.why.answers import Certainty
from bireme.core.why.sooner import find_sooner
from bireme.core.why.waiting import explain_waiting
from bireme.testing.scenario import Scenario, caller_named


def test_all_components_start_together_or_none_does() -> None:
    world = Scenario("1x8+1x8:h100")
    world.submit("block", on="n2", cpus=8)
    world.submit_het("het", {"cpus": 4}, {"gpus": 8})
    world.expect({"block": "runs n2", "het": "waits Resources", "het+1": "waits Resources"})
    world.finish("block")
    world.expect({"block": "COMPLETED", "het": "runs n1", "het+1": "runs n2"})


def test_components_get_nodes_of_their_own_where_there_are_enough() -> None:
    world = Scenario("3x8")
    world.submit_het("het", {"cpus": 1}, {"cpus": 1})
    world.submit_het("small", {"cpus": 8}, {"cpus": 2}, {"cpus": 3})
    world.expect({"het": "runs n1", "het+1": "runs n2", "small": "runs n3", "small+1": "runs n1", "small+2": "runs n2"})


def test_components_share_a_node_where_there_is_only_one() -> None:
    world = Scenario("1x8")
    world.submit_het("het", {"cpus": 1}, {"cpus": 2})
    world.submit("next", cpus=1)
    world.expect({"het": "runs n1", "het+1": "runs n1", "next": "runs n1"})


@pytest.mark.parametrize("place", [0, 1])
def test_no_component_may_be_an_array(place: int) -> None:
    world = Scenario("2x8")
    components: list[dict[str, object]] = [{"cpus": 1}, {"cpus": 1}]
    components[place]["array"] = "1-2"
    with world.refused(Why.INVALID_ARRAY):
        world.submit_het("het", *components)
    world.expect({})


def test_the_components_end_with_their_leader() -> None:
    world = Scenario("2x8")
    world.submit_het("het", {"cpus": 8}, {"cpus": 8})
    world.expect({"het": "runs n1", "het+1": "runs n2"})
    world.finish("het")
    world.expect({"het": "COMPLETED", "het+1": "COMPLETED"})


def test_a_heterogeneous_job_is_cancelled_as_a_whole() -> None:
    world = Scenario("2x8")
    world.submit_het("het", {"cpus": 8}, {"cpus": 8})
    world.settle()
    world.cancel("het")
    world.expect({"het": "CANCELLED", "het+1": "CANCELLED"})


def test_a_held_component_holds_all_of_it() -> None:
    world = Scenario("2x8")
    world.submit_het("het", {"cpus": 8, "hold": True}, {"cpus": 8})
    world.expect({"het": "waits JobHeldUser", "het+1": "waits JobHeldUser"})


def test_nothing_of_it_is_kept_back_while_it_waits() -> None:
    world = Scenario("2x8", partitions={"main": {}, "side": {"nodes": "n1"}})
    world.submit("block", on="n2", cpus=8)
    world.submit_het("het", {"cpus": 8}, {"cpus": 8})
    world.submit("aside", cpus=8, partition="side")
    world.expect({"block": "runs n2", "het": "waits Resources", "het+1": "waits Resources", "aside": "runs n1"})


def test_behind_others_all_components_say_so() -> None:
    world = Scenario("2x8")
    world.submit("block", nodes=2, tasks=16)
    world.submit("next", cpus=8)
    world.submit_het("het", {"cpus": 8}, {"cpus": 8})
    world.expect(
        {"block": "runs n[1-2]", "next": "waits Resources", "het": "waits Priority", "het+1": "waits Priority"}
    )


def test_a_waiting_component_is_not_cancelled_alone() -> None:
    world = Scenario("2x8")
    leader = world.submit_het("het", {"cpus": 8, "hold": True}, {"cpus": 8})
    with world.refused(Why.NOT_WHOLE_HET_JOB):
        world.record(requests.cancel(world.state, caller_named("alice"), Target(leader, het_offset=1)))


@pytest.mark.parametrize("word", ["whole_hetjob", "whole_pack"])
def test_what_is_asked_of_one_component_may_mean_all_of_them(word: str) -> None:
    world = Scenario("2x8", raw={"SchedulerParameters": word})
    leader = world.submit_het("het", {"cpus": 8}, {"cpus": 8})
    second, alice = Target(leader, het_offset=1), caller_named("alice")
    world.record(requests.hold(world.state, alice, second))
    assert [job.phase.held_by for job in world.state.pending.values()] == ["user", "user"]
    world.record(requests.release(world.state, alice, second))
    world.expect({"het": "runs n1", "het+1": "runs n2"})
    world.record(requests.cancel(world.state, alice, second))
    world.expect({"het": "CANCELLED", "het+1": "CANCELLED"})


def test_a_lost_component_brings_all_of_them_back() -> None:
    world = Scenario("3x8")
    world.submit_het("het", {"cpus": 8}, {"cpus": 8})
    world.expect({"het": "runs n1", "het+1": "runs n2"})
    world.node("n2", "DOWN")
    world.expect({"het+1": "runs n3"})
    assert [job.restarts for job in world.state.jobs.values()] == [1, 1]


def test_a_component_that_cannot_be_started_takes_back_the_others() -> None:
    world = Scenario("2x8")
    leader = world.submit_het("het", {"cpus": 8}, {"cpus": 8})
    world.engine.refuses[leader + 1] = "no such user"
    world.expect({"het": "waits JobLaunchFailure", "het+1": "waits JobLaunchFailure"})
    del world.engine.refuses[leader + 1]
    world.wait(5)
    world.expect({"het": "runs n1", "het+1": "runs n2"})


def test_a_component_over_before_its_time_comes_back_with_the_others() -> None:
    world = Scenario("2x8")
    world.submit_het("het", {"cpus": 8}, {"cpus": 8, "time_s": 60})
    world.wait(60)
    world.expect({"het": "runs n1", "het+1": "TIMEOUT"})
    world.requeue("het")
    world.expect({"het+1": "runs n2"})


def test_one_deadline_ends_all_that_wait() -> None:
    world = Scenario("2x8")
    world.submit("block", nodes=2, tasks=16)
    world.submit_het("het", {"cpus": 8}, {"cpus": 8, "deadline_at": world.now + 60})
    world.expect({"block": "runs n[1-2]", "het": "waits Resources", "het+1": "waits Resources"})
    world.wait(60)
    world.expect({"het": "DEADLINE", "het+1": "DEADLINE"})


def test_a_gang_that_does_not_fit_leaves_no_trace_for_others_of_its_shape():
    world = Scenario("1x8")
    world.submit_het("gang", {"cpus": 6}, {"cpus": 4})
    world.submit("other", cpus=4)
    decided = plan(Snapshot(world.state, world.state.config.settings.policy, world.now))
    assert [start.job_id for start in decided.starts] == [world.id_of("other")]


def test_the_components_get_slots_that_begin_together() -> None:
    world = Scenario("1x8+1x8:h100")
    world.submit("short", on="n1", cpus=8, time_s=600)
    world.submit("long", on="n2", cpus=8, time_s=3600)
    world.submit_het("het", {"cpus": 4, "time_s": 600}, {"gpus": 8, "time_s": 600})
    world.submit("fills", cpus=8, on="n1", time_s=2400)
    world.submit("delays", cpus=8, on="n1", time_s=7200)
    world.settle()
    slots = {label: world.state.verdicts[world.job(label).id].expected_start for label in ("het", "het+1")}
    assert slots == {"het": world.now + 3600, "het+1": world.now + 3600}
    fills, delays = (world.state.verdicts[world.job(label).id].expected_start for label in ("fills", "delays"))
    assert fills == world.now + 600, "it is gone before the components need the node"
    assert delays == world.now + 4200, "it would still be there"


def test_a_component_whose_node_is_free_does_not_start_before_the_others() -> None:
    world = Scenario("2x8", partitions={"main": {}, "side": {"nodes": "n1"}})
    world.submit("block", on="n2", cpus=8, time_s=600)
    world.submit_het("het", {"cpus": 8, "time_s": 600}, {"cpus": 8, "time_s": 600})
    world.submit("brief", cpus=8, partition="side", time_s=600)
    world.submit("lasting", cpus=8, partition="side", time_s=7200)
    world.expect(
        {
            "block": "runs n2",
            "het": "waits Resources",
            "het+1": "waits Resources",
            "brief": "runs n1",
            "lasting": "waits Resources",
        }
    )
    world.finish("block")
    world.finish("brief")
    world.expect({"block": "COMPLETED", "brief": "COMPLETED", "het": "runs n1", "het+1": "runs n2"})


def test_a_heterogeneous_job_is_told_what_would_start_it_sooner() -> None:
    world = Scenario("2x8")
    world.submit("block", on="n1", cpus=8, time_s=1800)
    world.submit("next", nodes=2, tasks=16, time_s=3600)
    world.submit_het("het", {"cpus": 4, "time_s": 1200}, {"cpus": 8, "time_s": 1200})
    world.settle()
    job = world.job("het+1")
    answer, trial = explain_waiting(world.state, job, world.now)
    assert (answer.expected.start, answer.expected.certainty) == (world.now + 5400, Certainty.SLOT)
    found = [each for each in find_sooner(world.state, job, caller_named("alice"), trial, world.now) if each]
    fewer = [each for each in found if "4 CPUs" in each.what]
    assert fewer, f"with 4 CPUs both components fit on n2: {found}"
    assert fewer[0].starts_now


def test_nothing_is_said_of_a_component_that_is_over_while_the_others_wait() -> None:
    """Found by a fault world: the daemon stopped on a verdict about a job that did not wait."""
    rules = Settings(policy=Policy(bookings_max=0), memory_is_consumable=False)
    world = Scenario("1x8", settings=rules)
    world.submit("busy", cpus=1)
    world.submit_het("pair", {"cpus": 1}, {"cpus": 1})
    world.settle()
    world.finish("pair+1")
    world.submit("wide", cpus=8, partition="main", priority=4_294_967_000, user="root")
    leader = world.job("pair")
    world.record([e.JobEnding(leader.id, leader.generation, Outcome("PREEMPTED"), requeue=True)])
    assert world.described()["pair+1"] == "COMPLETED"
    decided = plan(Snapshot(world.state, rules.policy, world.now))
    assert decided.verdicts.keys() <= world.state.pending.keys()


def spanning(leader: int, *specs: StepSpec) -> list[Part]:
    """A part of the step in each component, in their order."""
    return [(Target(leader, het_offset=offset), spec) for offset, spec in enumerate(specs)]


def test_a_step_over_components_has_one_number_and_counts_its_tasks_on() -> None:
    world = Scenario("3x8")
    leader = world.submit_het("het", {"cpus": 2}, {"cpus": 8, "nodes": 2})
    world.expect({"het": "runs n1", "het+1": "runs n[2-3]"})
    world.step("het+1", ntasks=1)
    world.finish_step("het+1", 0)  # so this component's next number is 1, the leader's still 0
    asked = spanning(leader, StepSpec(ntasks=2), StepSpec(ntasks=3, nodes_min=2))
    world.record(create_spanning_step(world.state, caller_named("alice"), asked))
    parts = [world.job("het").steps[1], world.job("het+1").steps[1]]
    assert [(part.first_task, part.ntasks, part.first_node) for part in parts] == [(0, 2, 0), (2, 3, 1)]
    whole = parts[1].spec.het
    assert whole is not None
    assert (whole.leader, whole.nodes, whole.node_of_task) == (leader, ("n1", "n2", "n3"), (0, 0, 1, 1, 2))
    assert (whole.tasks_per_node, whole.held) == ([2, 2, 1], (("n1", 2), ("n2", 8), ("n3", 8)))
    assert world.replayed().jobs[leader].steps[1].spec == parts[0].spec


def test_a_step_over_components_begins_in_all_of_them_or_in_none() -> None:
    world = Scenario("2x8")
    leader = world.submit_het("het", {"cpus": 8}, {"cpus": 8})
    world.expect({"het": "runs n1", "het+1": "runs n2"})
    world.step("het+1", ntasks=1)
    alice, both = caller_named("alice"), spanning(leader, StepSpec(ntasks=1), StepSpec(ntasks=1))
    with world.refused(Why.NODES_BUSY):
        world.record(create_spanning_step(world.state, alice, both))
    with world.refused(Why.INVALID_JOB_ID):  # twice in one component
        world.record(create_spanning_step(world.state, alice, [both[0], both[0]]))

"""Nodes that go, drain, return; partitions that close."""

from dataclasses import replace

from bireme.core.lifecycle.due import departures
from bireme.core.lifecycle.refusals import Why
from bireme.core.lifecycle.states import node_base_state, node_flags
from bireme.core.model.cluster import PartitionState, Settings
from bireme.core.model.events import ClusterConfigured
from bireme.core.model.jobs import JobKind
from bireme.testing.scenario import Scenario

FLAT = {"memory_is_consumable": False}


def node_state(world: Scenario, name: str) -> str:
    node = world.state.nodes[name]
    return "+".join([node_base_state(world.state, node), *node_flags(world.state, node)])


def test_a_drained_node_finishes_what_it_has_and_takes_nothing_new() -> None:
    world = Scenario("1x8")
    world.submit("old")
    world.expect(old="runs n1")
    world.node("n1", "DRAIN")
    world.submit("new")
    world.expect(new="waits ReqNodeNotAvail")
    assert node_state(world, "n1") == "MIXED+DRAIN"
    world.finish("old")
    world.expect(old="COMPLETED")
    assert node_state(world, "n1") == "IDLE+DRAIN"
    world.node("n1", "RESUME")
    world.expect(new="runs n1")
    assert node_state(world, "n1") == "MIXED"


def test_a_job_that_needs_a_drained_node_does_not_block_the_others() -> None:
    world = Scenario("2x8")
    world.node("n1", "DRAIN")
    world.submit("there", on="n1")
    world.submit("anywhere")
    world.expect(there="waits ReqNodeNotAvail", anywhere="runs n2")


def test_a_node_set_down_ends_its_jobs_and_they_run_elsewhere() -> None:
    world = Scenario("2x8")
    world.submit("job", cpus=8)
    world.expect(job="runs n1")
    world.node("n1", "DOWN")
    world.expect(job="runs n2")
    assert world.job("job").restarts == 1
    assert node_state(world, "n1") == "DOWN"


def test_a_job_that_may_not_be_requeued_fails_with_its_node() -> None:
    world = Scenario("2x8")
    world.submit("job", requeue=False)
    world.submit("shell", kind=JobKind.INTERACTIVE)
    world.expect(job="runs n1", shell="runs n1")
    world.node("n1", "DOWN")
    world.expect(job="NODE_FAIL", shell="NODE_FAIL")


def test_a_silent_node_keeps_its_jobs_until_slurmdtimeout() -> None:
    world = Scenario("2x8", settings=Settings(slurmd_timeout_s=300, **FLAT))
    world.submit("job", cpus=8)
    world.expect(job="runs n1")
    world.lose("n1")
    world.wait(299)
    world.expect()
    assert node_state(world, "n1") == "DOWN+NOT_RESPONDING"
    world.wait(1)
    world.expect(job="runs n2")


def test_a_node_that_comes_back_in_time_has_lost_nothing() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.expect(job="runs n1")
    world.lose("n1")
    world.submit("new")
    world.expect(new="waits ReqNodeNotAvail")
    world.wait(100)
    world.comes_back("n1")
    world.wait(1000)
    world.expect(new="runs n1")
    assert world.job("job").restarts == 0


def test_a_node_whose_agent_forgot_its_jobs_has_lost_them() -> None:
    world = Scenario("1x8")
    world.submit("job", requeue=False)
    world.submit("again")
    world.expect(job="runs n1", again="runs n1")
    world.lose("n1")
    world.comes_back("n1", knows=False)
    world.expect(job="NODE_FAIL")
    assert world.job("again").restarts == 1


def test_a_gang_ends_when_one_of_its_nodes_is_lost() -> None:
    world = Scenario("3x8")
    world.submit("gang", nodes=2, requeue=False)
    world.expect(gang="runs n[1-2]")
    world.node("n2", "DOWN")
    world.expect(gang="NODE_FAIL")


def test_taking_a_node_out_needs_a_reason_and_an_operator() -> None:
    world = Scenario("1x8")
    with world.refused(Why.NOT_SUPPORTED):
        world.node("n1", "DRAIN", reason=None)
    with world.refused(Why.INVALID_NODE_NAME):
        world.node("n9", "DRAIN")
    with world.refused(Why.NOT_SUPPORTED):
        world.node("n1", "PURPLE")


def test_a_partition_that_is_down_accepts_and_does_not_start() -> None:
    world = Scenario("1x8")
    world.partition("main", state=PartitionState.DOWN)
    world.submit("job")
    world.expect(job="waits PartitionDown")
    world.partition("main", state=PartitionState.UP)
    world.expect(job="runs n1")


def test_a_draining_partition_starts_what_is_queued_and_accepts_nothing() -> None:
    world = Scenario("1x8")
    world.submit("block", cpus=8)
    world.submit("queued")
    world.expect(block="runs n1", queued="waits Resources")
    world.partition("main", state=PartitionState.DRAIN)
    with world.refused(Why.PARTITION_NOT_AVAILABLE):
        world.submit("new")
    world.finish("block")
    world.expect(block="COMPLETED", queued="runs n1")


def test_an_inactive_partition_does_neither() -> None:
    world = Scenario("1x8")
    world.submit("held", hold=True)
    world.partition("main", state=PartitionState.INACTIVE)
    world.release("held")
    world.expect(held="waits PartitionInactive")
    with world.refused(Why.PARTITION_NOT_AVAILABLE):
        world.submit("new")


def test_a_job_over_the_partitions_limits_waits_and_says_so() -> None:
    world = Scenario("4x8", partitions={"main": {"max_time_s": 600, "max_nodes": 2}})
    world.submit("long", time_s=1200)
    world.submit("wide", nodes=3)
    world.submit("both", nodes=3, time_s=1200)
    world.submit("fine", nodes=2, time_s=600)
    world.expect(
        long="waits PartitionTimeLimit",
        wide="waits PartitionNodeLimit",
        both="waits PartitionTimeLimit,PartitionNodeLimit",
        fine="runs n[1-2]",
    )


def test_a_wider_limit_lets_it_go() -> None:
    world = Scenario("1x8", partitions={"main": {"max_time_s": 600}})
    world.submit("long", time_s=1200)
    world.expect(long="waits PartitionTimeLimit")
    world.partition("main", max_time_s=None)
    world.expect(long="runs n1")


def test_a_reconfiguration_may_take_away_what_a_job_holds() -> None:
    world = Scenario("1x8:h100")
    world.submit("all", gpus=8)
    world.expect(all="runs n1")
    smaller = replace(world.state.config.nodes[0], gres=())
    world.record([ClusterConfigured(replace(world.state.config, nodes=(smaller,)))])
    world.finish("all")
    world.expect(all="COMPLETED")


def test_a_node_that_leaves_the_configuration_takes_its_jobs_along() -> None:
    world = Scenario("2x8")
    world.submit("stays", cpus=8)
    world.submit("goes", cpus=8, requeue=False)
    world.expect(stays="runs n1", goes="runs n2")
    world.record([ClusterConfigured(replace(world.state.config, nodes=world.state.config.nodes[:1]))])
    world.record(departures(world.state))
    world.expect(goes="NODE_FAIL")

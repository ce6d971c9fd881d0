"""Nodes that go, drain, return; partitions that close."""

from dataclasses import replace

from bireme.core.jobs.due import departures
from bireme.core.jobs.states import node_base_state, node_flags
from bireme.core.lifecycle.outstanding import outstanding
from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.cluster import PartitionState, Settings
from bireme.core.model.events import ClusterConfigured
from bireme.core.model.jobs import JobKind
from bireme.core.model.nodes import Note
from bireme.core.model.refusals import Why
from bireme.core.model.resources import GresShare, NodeShare
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


EXPEDITED = {"SlurmctldParameters": "enable_expedited_requeue"}


def test_an_expedited_requeue_stands_before_all_others() -> None:
    world = Scenario("2x8", raw=EXPEDITED)
    world.submit("job", cpus=8, expedite_requeue=True, time_s=3600)
    world.submit("other", cpus=8, time_s=600)
    world.submit("earlier", cpus=8, time_s=600)
    world.expect(job="runs n1", other="runs n2", earlier="waits Resources")
    world.node("n1", "DOWN")
    world.expect(job="waits Resources", earlier="waits Priority")
    world.finish("other")
    world.expect(other="COMPLETED", job="runs n2", earlier="waits Resources")


def test_without_the_clusters_leave_no_requeue_is_expedited() -> None:
    world = Scenario("2x8")
    with world.refused(Why.NOT_SUPPORTED):
        world.submit("job", expedite_requeue=True)


def test_a_job_that_may_not_be_requeued_fails_with_its_node() -> None:
    world = Scenario("2x8")
    world.submit("job", requeue=False)
    world.submit("shell", kind=JobKind.INTERACTIVE)
    world.expect(job="runs n1", shell="runs n1")
    world.node("n1", "DOWN")
    world.expect(job="NODE_FAIL", shell="NODE_FAIL")


def test_a_silent_node_keeps_its_jobs_until_slurmdtimeout() -> None:
    """Counted from when it fell silent: for how long it was well before gives nothing away."""
    world = Scenario("2x8", settings=Settings(slurmd_timeout_s=300, **FLAT))
    world.wait(1000)
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


def test_a_job_that_names_a_node_waits_for_that_one_when_it_has_left() -> None:
    world = Scenario("3x8")
    world.node("n2", "DRAIN")
    world.submit("named", nodes=1, nodelist=("n2",))
    world.submit("among", nodes=2, nodelist=("n1", "n2"))
    world.expect(named="waits ReqNodeNotAvail", among="waits ReqNodeNotAvail")
    whole = world.state.config
    world.record([ClusterConfigured(replace(whole, nodes=(whole.nodes[0], whole.nodes[2])))])
    world.expect()
    for label in ("named", "among"):
        assert world.state.verdicts[world.id_of(label)].reasons[0].fact("unavailable") == "n2"
    world.record([ClusterConfigured(whole)])
    world.report(o.NodeAnswered("n2", "agent", (), world.now))
    world.expect(named="runs n2", among="runs n[1-2]")


def test_a_node_that_its_cluster_closed_takes_no_jobs_until_that_opens_it() -> None:
    """A cordon is first a mark and then a taint: the words change under way, and the node is open once none is left."""
    world = Scenario("1x8")
    for why in ("cordoned", "tainted node.kubernetes.io/unschedulable:NoSchedule"):
        world.report(o.NodeClosed("n1", why, world.now))
        assert node_state(world, "n1") == "IDLE+DRAIN"
        assert world.state.nodes["n1"].out_because == Note(why, 0, world.now)
    world.submit("job")
    world.expect(job="waits ReqNodeNotAvail")
    world.node("n1", "RESUME")  # it is not the operator's to open
    world.expect()
    world.report(o.NodeClosed("n1", "", world.now))
    world.expect(job="runs n1")
    assert world.replayed().nodes == world.state.nodes


def test_a_node_that_its_cluster_opens_again_stays_drained_for_its_operator() -> None:
    world = Scenario("1x8")
    world.report(o.NodeClosed("n1", "cordoned", world.now))
    world.node("n1", "DRAIN")
    world.report(o.NodeClosed("n1", "", world.now))
    world.submit("job")
    world.expect(job="waits ReqNodeNotAvail")
    world.node("n1", "RESUME")
    world.expect(job="runs n1")


# -- what is left on a node, found by fault worlds ---------------------------------------------------------------------


def test_a_node_back_from_the_dead_gets_nothing_before_it_is_clear() -> None:
    """It still runs a start that was given up long ago: its GPUs would be in use twice."""
    world = Scenario("1x8")
    world.engine.obeys = False
    world.report(o.NodeAnswered("n1", "agent", ((99, 3),), world.now))
    assert world.engine.commands[-1] == c.TerminateJob(99, 3, ("n1",), 0, given_up=("n1",))
    assert node_state(world, "n1") == "IDLE+COMPLETING"
    world.submit("new")
    world.expect(new="waits ReqNodeNotAvail")
    world.report(o.JobCleared(99, 3, world.now))
    world.expect(new="starts n1")
    assert world.replayed().nodes == world.state.nodes


def test_a_refused_start_keeps_nodes_that_did_not_answer_out_until_they_are_clear() -> None:
    world = Scenario("2x8")
    world.engine.obeys = False
    world.submit("gang", nodes=2, exclusive=True)
    world.expect(gang="starts n[1-2]")
    world.report(o.JobRefused(1, 1, "no answer from n2", world.now, uncleared_on=("n2",)))
    world.submit("other", nodes=2, exclusive=True)
    world.submit("small")
    world.expect(gang="waits JobLaunchFailure", other="waits ReqNodeNotAvail", small="starts n1")
    world.report(o.JobCleared(1, 1, world.now))
    assert not world.state.nodes["n2"].leftovers


def test_what_is_left_is_ended_again_after_a_restart() -> None:
    world = Scenario("1x8")
    world.engine.obeys = False
    world.report(o.NodeAnswered("n1", "agent", ((99, 3),), world.now))
    assert outstanding(world.replayed()) == [c.TerminateJob(99, 3, ("n1",), 0, given_up=("n1",))]


def test_all_nodes_where_something_is_left_are_named_together() -> None:
    """Found by a fault world: a new daemon named them one by one, and of the first was told that the rest is clear."""
    world = Scenario("2x8")
    world.engine.obeys = False
    for node in ("n2", "n1"):
        world.report(o.NodeAnswered(node, "agent", ((99, 3),), world.now))
    both = c.TerminateJob(99, 3, ("n1", "n2"), 0, given_up=("n1", "n2"))
    assert world.engine.commands[-1] == both
    assert outstanding(world.replayed()) == [both]


def lost_gang() -> Scenario:
    """A gang on n1 and n2; n2 has been out of reach for SlurmdTimeout, and n1 is clear."""
    world = Scenario("3x8", settings=Settings(slurmd_timeout_s=300, **FLAT))
    world.submit("gang", nodes=2, cpus=8)
    world.expect(gang="runs n[1-2]")
    world.engine.obeys = False
    world.report(o.NodeSilent("n2", "no answer", world.now))
    world.wait(300)
    world.expect(gang="ends NODE_FAIL")
    assert world.engine.commands[-1].given_up == ("n2",)
    world.report(o.JobCleared(1, 1, world.now, uncleared_on=("n2",)))
    return world


def test_a_gang_that_lost_a_node_leaves_the_others_at_once_and_starts_again() -> None:
    world = lost_gang()
    world.expect(gang="starts n[1,3]")
    assert world.job("gang").restarts == 1
    assert world.state.nodes["n2"].leftovers == {(1, 1)}
    assert world.replayed().nodes == world.state.nodes


def test_the_lost_node_comes_back_and_is_used_when_the_old_start_is_gone() -> None:
    world = lost_gang()
    world.submit("next", cpus=8)
    world.expect(gang="starts n[1,3]", next="waits Resources")
    world.report(o.NodeAnswered("n2", "agent", ((1, 1),), world.now))
    world.expect()
    assert world.engine.commands[-1] == c.TerminateJob(1, 1, ("n2",), 0, given_up=("n2",))
    world.report(o.JobCleared(1, 1, world.now, uncleared_on=("n2",)))  # said twice
    world.expect()
    world.report(o.JobCleared(1, 1, world.now))
    world.expect(next="starts n2")
    assert world.job("gang").generation == 2


def test_of_several_lost_nodes_each_is_used_when_it_is_clear() -> None:
    world = lost_gang()
    world.report(o.NodeAnswered("n3", "agent", ((1, 1),), world.now))
    assert world.state.nodes["n3"].leftovers == {(1, 1)}
    world.report(o.JobCleared(1, 1, world.now, uncleared_on=("n2",)))
    assert (world.state.nodes["n2"].leftovers, world.state.nodes["n3"].leftovers) == ({(1, 1)}, frozenset())
    assert world.replayed().nodes == world.state.nodes


def test_a_job_that_was_ending_already_does_not_wait_for_a_lost_node_either() -> None:
    world = Scenario("2x8", settings=Settings(slurmd_timeout_s=300, **FLAT))
    world.submit("gang", nodes=2, cpus=8)
    world.expect(gang="runs n[1-2]")
    world.engine.obeys = False
    world.report(o.NodeSilent("n2", "no answer", world.now))
    world.cancel("gang")
    world.expect(gang="ends CANCELLED")
    world.wait(300)
    assert world.engine.commands[-1].given_up == ("n2",)
    world.report(o.NodeAnswered("n2", "agent", ((1, 1),), world.now))
    assert world.job("gang").phase.given_up == (), "it answers: it is waited for"
    world.report(o.JobCleared(1, 1, world.now))
    world.expect(gang="CANCELLED")


def test_a_node_that_is_set_down_is_not_waited_for_while_it_does_not_answer() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.expect(job="runs n1")
    world.engine.obeys = False
    world.node("n1", "DOWN")
    assert world.engine.commands[-1].given_up == ("n1",)
    world.report(o.JobCleared(1, 1, world.now, uncleared_on=("n1",)))
    world.expect(job="waits ReqNodeNotAvail")


def others(world: Scenario, node: str, cpus: int = 0, gpus: int = 0, memory_mib: int = 0) -> None:
    gres = (GresShare("gpu", "h100", gpus),) if gpus else ()
    world.outbox.append(o.OthersSeen(NodeShare(node, cpus, memory_mib, gres=gres, tasks=0), world.now))
    world.deliver()


def test_what_others_run_on_a_node_is_used_until_they_leave() -> None:
    world = Scenario("1x8:h100")
    others(world, "n1", cpus=2, gpus=6)
    assert node_state(world, "n1") == "MIXED"
    world.submit("small", gpus=2)
    world.submit("large", gpus=8)
    world.expect(small="runs n1", large="waits Resources")
    assert world.job("small").allocation.shares[0].gres_indices("gpu") == (6, 7)
    world.finish("small")
    world.expect(small="COMPLETED")
    others(world, "n1")
    world.expect(large="runs n1")


def test_others_may_take_more_than_there_is_and_jobs_that_run_stay() -> None:
    world = Scenario("1x8:h100")
    world.submit("job", cpus=6, gpus=6)
    world.expect(job="runs n1")
    others(world, "n1", cpus=6, gpus=6, memory_mib=10**9)
    world.submit("next", cpus=1)
    world.expect(next="waits Resources")
    world.record([ClusterConfigured(replace(world.state.config, name="renamed"))])
    world.finish("job")
    world.expect(job="COMPLETED", next="runs n1")


def test_a_start_whose_script_may_run_where_nobody_answers_is_not_started_again_before_that_is_over() -> None:
    world = Scenario("3x8")
    world.engine.obeys = False
    world.submit("gang", nodes=2, exclusive=True)
    world.expect(gang="starts n[1-2]")
    world.report(o.JobRefused(1, 1, "no answer from n1", world.now, uncleared_on=("n1",)))
    world.expect(gang="ends REQUEUED")
    assert world.engine.commands[-1] == c.TerminateJob(1, 1, ("n1", "n2"), 0, "JOB REQUEUE")
    world.report(o.JobCleared(1, 1, world.now))
    world.expect(gang="starts n[1-2]")

"""Services whose replicas are jobs in a queue of the engine's own: asked for, seen, and ended there."""

from __future__ import annotations

from bireme.core.lifecycle.outstanding import outstanding
from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.jobs import Finished, Job, Outcome, Pending, Phase, Running
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.model.sightings import Sighting
from bireme.core.services import requests as services
from bireme.testing.scenario import Scenario


def asked(world: Scenario) -> list[c.Command]:
    """What the engine was told about replicas."""
    return [each for each in world.engine.commands if isinstance(each, c.SubmitReplica | c.EndReplica)]


def take(world: Scenario, replica: int, job_id: int) -> None:
    """The queue takes it: its job is seen there, then its number is said."""
    command = next(each for each in asked(world) if isinstance(each, c.SubmitReplica) and each.replica == replica)
    see(world, job_id, Pending(world.now), command)
    world.report(o.ReplicaSubmitted("chat", replica, world.now, job_id))


def see(world: Scenario, job_id: int, phase: Phase, command: c.SubmitReplica | None = None) -> Job:
    spec = command.spec if command is not None else world.state.jobs[job_id].spec
    world.labels.setdefault(job_id, f"job {job_id}")
    world.report(
        o.JobSeen(Sighting(job_id=job_id, spec=spec, submitted_at=world.now, phase=phase), world.now),
    )
    return world.state.jobs[job_id]


def running(world: Scenario, job_id: int) -> Running:
    share = NodeShare("n1", 1, 0, (0,), ())
    return Running(Allocation(job_id, 1, "main", (share,)), started_at=world.now)


def test_a_replica_exists_before_it_has_a_job_and_is_asked_for_again_after_a_restart() -> None:
    world = Scenario("1x8")
    world.serve("chat", "1", elsewhere=True)
    world.expect(chat="0/1 r0 rolling r1 [1 ordered]")
    (command,) = asked(world)
    assert isinstance(command, c.SubmitReplica)
    assert command.spec.replica is not None
    assert (command.spec.replica.number, command.spec.requeue) == (1, False)
    assert outstanding(world.state) == outstanding(world.replayed()) == [command]
    take(world, 1, 70)
    world.expect({"chat": "0/1 r0 rolling r1 [1 waiting]", "chat/1": "waits None"})
    assert outstanding(world.state) == []
    world.report(o.ReplicaSubmitted("chat", 1, world.now, 71))
    world.expect()


def test_it_is_asked_for_with_the_qos_of_services_unless_it_names_one() -> None:
    world = Scenario("1x8")
    world.serve("chat", "1", elsewhere=True)
    world.serve("own", "1", elsewhere=True, qos="gold")
    world.settle()
    by_name = {each.service: each for each in asked(world) if isinstance(each, c.SubmitReplica)}
    assert (by_name["chat"].spec.qos, by_name["chat"].qos_if_there) == ("", "service")
    assert (by_name["own"].spec.qos, by_name["own"].qos_if_there) == ("gold", "")


def test_a_refusal_of_that_queue_is_said_and_tried_again_later() -> None:
    world = Scenario("1x8")
    world.serve("chat", "1", elsewhere=True)
    world.settle()
    world.report(o.ReplicaSubmitted("chat", 1, world.now, refused="Invalid account"))
    world.expect(chat="0/1 r0 rolling r1")
    backed_off = world.state.services["chat"].revisions[1].backed_off
    assert backed_off is not None
    assert backed_off.why == "no replica could be submitted: Invalid account"
    world.wait(11)
    world.expect(chat="0/1 r0 rolling r1 [2 ordered]")


def test_it_is_probed_ended_and_replaced_as_one_of_our_own() -> None:
    world = Scenario("1x8")
    world.serve("chat", "1", elsewhere=True)
    world.settle()
    take(world, 1, 70)
    job = see(world, 70, running(world, 70))
    world.report(o.ReplicaProbed(70, job.generation, o.Health.READY, "", world.now))
    world.expect({"chat": "1/1 r1", "chat/1": "runs n1"})
    see(world, 70, Finished(Outcome("NODE_FAIL"), world.now, world.now))
    world.expect({"chat": "0/1 r1 [2 ordered]", "chat/1": "NODE_FAIL"})
    take(world, 2, 71)
    world.serving(services.stop, "chat")
    world.settle()
    end = asked(world)[-1]
    assert isinstance(end, c.EndReplica)
    assert (end.replica, end.job_id, end.owner.user) == (2, 71, "alice")
    assert outstanding(world.state) == [end]
    see(world, 71, Finished(Outcome("CANCELLED"), world.now))
    world.settle()
    assert not world.state.services


def test_one_that_is_not_wanted_any_more_is_ended_when_its_number_is_known() -> None:
    world = Scenario("1x8")
    world.serve("chat", "1", elsewhere=True)
    world.settle()
    world.serving(services.scale, "chat", 0)
    world.settle()
    assert len(asked(world)) == 1
    take(world, 1, 70)
    world.settle()
    assert isinstance(asked(world)[-1], c.EndReplica)

"""Services: replicas are jobs that are added, replaced, drained and ended until what is there is what is wanted."""

from __future__ import annotations

import itertools

import pytest

from bireme.core.explain.wording import sentence
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.cluster import PartitionState, Settings
from bireme.core.model.refusals import Why
from bireme.core.model.resources import ExitStatus
from bireme.core.model.serving.reasons import ServiceReason, service_reason
from bireme.core.model.serving.reasons import ServiceReasonKind as K
from bireme.core.services import requests as services
from bireme.core.services.awaited import Awaited, awaited
from bireme.core.services.wording import service_sentence
from bireme.testing.scenario import Scenario


def served(cluster: str = "1x16", replicas: str = "2", **options: object) -> Scenario:
    """A service `chat` whose replicas are all ready."""
    world = Scenario(cluster)
    world.serve("chat", replicas, **options)
    world.settle()
    world.probes("chat")
    world.settle()
    world.shown = world.described()
    return world


def test_a_service_starts_its_replicas_and_serves_when_they_are_ready() -> None:
    world = Scenario("1x16")
    world.serve("chat", "2", cpus=4)
    world.expect(
        {"chat": "0/2 r0 rolling r1 [1 loading] [2 loading]", "chat/1": "runs n1", "chat/2": "runs n1"},
    )
    world.probes("chat/1")
    world.expect(chat="1/2 r0 rolling r1 [2 loading]")
    world.probes("chat/2")
    world.expect(chat="2/2 r1")


def test_every_replica_has_a_port_of_its_own_and_none_is_used_again_at_once() -> None:
    world = served(replicas="3")
    world.finish("chat/2", 1)
    world.settle()
    assert [each.port for each in world.state.services["chat"].replicas.values()] == [30000, 30002, 30003]


def test_a_replica_that_ends_is_replaced_at_once() -> None:
    world = served()
    world.finish("chat/1", 7)
    world.expect({"chat": "1/2 r1 [3 loading]", "chat/1": "FAILED 7:0", "chat/3": "runs n1"})
    assert world.state.services["chat"].crashes[0].why == "it ended by itself with exit code 7"


def test_scancel_of_a_replica_replaces_it() -> None:
    world = served()
    world.cancel("chat/2")
    world.expect({"chat": "1/2 r1 [3 loading]", "chat/2": "CANCELLED", "chat/3": "runs n1"})
    assert not world.state.services["chat"].crashes


def test_scaling_up_adds_and_scaling_down_drains_until_requests_are_answered() -> None:
    world = served("2x8", cpus=8)
    world.serving(services.scale, "chat", 1)
    world.expect(chat="1/1 r1 [2 draining]")
    world.drained("chat/2")
    world.expect({"chat": "1/1 r1", "chat/2": "CANCELLED"})
    world.serving(services.scale, "chat", 3)
    world.expect(
        {"chat": "1/3 r1 [3 loading] [4 waiting]", "chat/3": "runs n2", "chat/4": "waits Resources"},
    )


def test_a_drained_replica_is_ended_after_its_time_whatever_is_in_flight() -> None:
    world = served(drain_s=30.0)
    world.serving(services.scale, "chat", 0)
    world.wait(29)
    world.expect(chat="0/0 r1 [1 draining] [2 draining]")
    world.wait(2)
    world.expect({"chat": "0/0 r1", "chat/1": "CANCELLED", "chat/2": "CANCELLED"})


def test_a_stopped_service_drains_and_is_gone() -> None:
    world = served()
    world.serving(services.stop, "chat")
    world.expect(chat="stopping 0/0 r1 [1 draining] [2 draining]")
    with world.refused(Why.SERVICE_STOPPING):
        world.serve("chat")
    world.wait(61)
    world.expect({"chat": "gone", "chat/1": "CANCELLED", "chat/2": "CANCELLED"})
    assert not world.state.serving.ports


def test_a_service_is_its_owners_and_the_operators() -> None:
    world = served()
    with world.refused(Why.ACCESS_DENIED):
        world.serving(services.scale, "chat", 1, user="bob")
    with world.refused(Why.ACCESS_DENIED):
        world.serve("chat", user="bob")
    with world.refused(Why.INVALID_SERVICE):
        world.serving(services.stop, "chatt")
    world.serving(services.scale, "chat", 1, user="root")


def test_what_could_never_run_is_refused_when_it_is_deployed() -> None:
    world = Scenario("1x8")
    with world.refused(Why.NODE_CONFIG_UNAVAILABLE):
        world.serve("chat", cpus=9)
    with world.refused(Why.INVALID_SERVICE_SPEC):
        world.serve("chat", "3-1")
    with world.refused(Why.INVALID_SERVICE_SPEC):
        world.serve("Chat")
    with world.refused(Why.INVALID_SERVICE_SPEC):
        world.serve("chat", array="0-3")


def test_a_replica_that_is_dead_by_its_probe_is_ended_and_replaced() -> None:
    world = served()
    world.probes("chat/1", health="unready", why="GET /health: 503")
    world.expect(chat="1/2 r1 [1 unready]")
    world.probes("chat/1", health="dead", why="GET /health: timed out")
    world.expect({"chat": "1/2 r1 [3 loading]", "chat/1": "CANCELLED", "chat/3": "runs n1"})


def test_replicas_that_were_ended_without_a_daemon_did_not_crash() -> None:
    """`bireme down --end-jobs` when the daemon is gone: their agents say that they were told to."""
    world = served()
    for label in ("chat/1", "chat/2"):
        job = world.job(label)
        world.engine.holds.pop((job.id, job.generation))
        status = ExitStatus(0, 9)
        world.report(o.BatchFinished(job.id, job.generation, status, world.now, cleared=True, ordered=True))
    world.expect(
        {"chat": "0/2 r1 [3 loading] [4 loading]", "chat/1": "CANCELLED 0:9", "chat/2": "CANCELLED 0:9"}
        | {"chat/3": "runs n1", "chat/4": "runs n1"}
    )
    assert not world.state.services["chat"].crashes
    assert world.state.services["chat"].revisions[1].backed_off is None


def test_a_crash_loop_is_held_back_longer_each_time() -> None:
    world = Scenario("1x8")
    world.serve("chat", "1", time_s=3600)
    begun = []
    for number in range(1, 9):
        while f"chat/{number}" not in world.labels.values():
            world.wait(1)
        begun.append(world.now)
        world.finish(f"chat/{number}", 1)
        world.settle()
    waits = [round(after - before) for before, after in itertools.pairwise(begun)]
    assert waits == [0, 10, 20, 40, 80, 160, 300]
    backed_off = world.state.services["chat"].revisions[1].backed_off
    assert backed_off is not None
    assert backed_off.why == "replica 8 crashed: it ended by itself with exit code 1"


def test_a_replica_whose_time_limit_nears_is_succeeded_before_it_ends() -> None:
    world = served(replicas="1", time_s=3600)
    world.wait(3600 - 130)
    world.expect()
    world.wait(15)
    world.expect({"chat": "1/1 r1 [2 loading]", "chat/2": "runs n1"})
    world.probes("chat/2")
    world.expect(chat="1/1 r1 [1 draining]")
    world.drained("chat/1")
    world.expect({"chat": "1/1 r1", "chat/1": "CANCELLED"})


def test_a_replica_without_room_for_a_successor_stays_until_its_limit() -> None:
    world = served("1x8", replicas="1", time_s=3600, cpus=8)
    world.wait(3600 - 100)
    world.expect({"chat": "1/1 r1 [2 waiting]", "chat/2": "waits Resources"})
    world.wait(105)
    world.expect({"chat": "0/1 r1 [2 loading]", "chat/1": "TIMEOUT", "chat/2": "runs n1"})


def test_replicas_spread_over_nodes_and_switches_when_that_costs_nothing() -> None:
    world = Scenario("4x8", leaves=("n[1-2]", "n[3-4]"))
    world.serve("chat", "4", cpus=2)
    world.settle()
    nodes = [world.described()[f"chat/{number}"] for number in range(1, 5)]
    assert nodes == ["runs n1", "runs n3", "runs n2", "runs n4"]
    world.submit("packs", cpus=2)
    world.submit("too", cpus=2)
    world.settle()
    assert [world.described()[label] for label in ("packs", "too")] == ["runs n1", "runs n1"]


def test_a_replica_does_not_break_up_a_node_of_gpus_for_the_sake_of_spreading() -> None:
    world = Scenario("2x8:h100")
    world.serve("chat", "2", gpus=1)
    world.settle()
    assert world.described()["chat/1"] == world.described()["chat/2"] == "runs n1"


def gone(world: Scenario) -> dict[int, str]:
    return {each.event.replica: each.event.why for each in world.journal if isinstance(each.event, e.ReplicaGone)}


def test_every_replica_that_is_gone_says_why() -> None:
    world = served("2x8", replicas="5")
    world.cancel("chat/1")
    world.finish("chat/2", signal=9)
    world.finish("chat/3", 4)
    world.probes("chat/4", health="dead", why="GET /health: timed out")
    world.settle()
    world.lose(world.described()["chat/5"].split()[1])
    world.wait(301)
    assert gone(world) == {
        1: "its job was cancelled",
        2: "it was ended by signal 9",
        3: "it ended by itself with exit code 4",
        4: "GET /health: timed out",
        5: "its node was lost",
    } | {number: why for number, why in gone(world).items() if number > 5}


def test_ports_that_are_all_in_use_are_said_with_the_setting() -> None:
    world = Scenario("1x8", settings=Settings(service_ports=(30000, 30001)))
    world.serve("chat", "3")
    world.settle()
    backed_off = world.state.services["chat"].revisions[1].backed_off
    assert backed_off is not None
    assert "all ports from 30000 to 30001; the setting services.ports says" in backed_off.why


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (service_reason(K.STOPPING, replicas=1), "It is being stopped; 1 replica is not gone yet."),
        (service_reason(K.STOPPING, replicas=2), "It is being stopped; 2 replicas are not gone yet."),
        (
            service_reason(K.BACKED_OFF, held=1, revision=2, why="no."),
            "Of revision 2, 1 replica is held back for a while: no.",
        ),
        (
            service_reason(K.ZERO, why="nobody wants it."),
            "It sleeps, and the next request wakes it: nobody wants it.",
        ),
    ],
)
def test_words_count_and_end_once(reason: ServiceReason, words: str) -> None:
    assert service_sentence(reason) == words


def busy(cluster: str, options: dict[str, int], **more: object) -> Scenario:
    """Nodes of eight GPUs of which somebody uses some."""
    world = Scenario(cluster, **more)
    for node, gpus in options.items():
        world.submit(f"on {node}", gpus=gpus, nodelist=(node,), user="bob")
    world.settle()
    return world


def places(world: Scenario, count: int) -> list[str]:
    return [world.described()[f"chat/{number}"].removeprefix("runs ") for number in range(1, count + 1)]


def test_replicas_with_gpus_spread_over_nodes_that_others_use_too() -> None:
    world = busy("4x8:h100", {"n1": 1, "n2": 1, "n3": 1})
    world.serve("chat", "4", gpus=1)
    world.settle()
    assert sorted(places(world, 3)) == ["n1", "n2", "n3"]
    assert places(world, 4)[3] in ("n1", "n2", "n3"), "n4 is left whole"


def test_replicas_with_gpus_spread_over_switches() -> None:
    world = busy("4x8:h100", {"n1": 1, "n2": 1, "n3": 1, "n4": 1}, leaves=("n[1-2]", "n[3-4]"))
    world.serve("chat", "4", gpus=1)
    world.settle()
    assert places(world, 4) == ["n1", "n3", "n2", "n4"]


def test_replicas_without_gpus_spread_over_nodes_that_have_some() -> None:
    world = Scenario("3x8:h100")
    world.serve("chat", "3", cpus=1)
    world.settle()
    assert sorted(places(world, 3)) == ["n1", "n2", "n3"]


def test_a_replica_leaves_the_gpus_together_that_others_ask_for() -> None:
    """Jobs of four GPUs are expected: a node that has just four left keeps them, though a replica is on the other."""
    world = busy("2x8:h100", {"n1": 2, "n2": 4})
    for number in range(20):
        world.submit(f"four {number}", gpus=4, hold=True, user="bob")
    world.serve("chat", "2", gpus=1)
    world.settle()
    assert places(world, 2) == ["n1", "n1"]


def test_replicas_that_ask_to_be_spread_open_nodes_of_gpus() -> None:
    world = Scenario("3x8:h100")
    world.serve("chat", "3", gpus=1, spread=True)
    world.settle()
    assert sorted(places(world, 3)) == ["n1", "n2", "n3"]


def test_a_service_outlives_a_hundred_replicas() -> None:
    world = served(replicas="1")
    for _ in range(100):
        world.cancel(f"chat/{max(world.state.services['chat'].replicas)}")
        world.settle()
    assert max(world.state.services["chat"].replicas) == 101


def test_what_is_refused_once_is_not_tried_for_every_replica() -> None:
    world = Scenario("1x8")
    world.serve("chat", "500")
    world.partition("main", state=PartitionState.INACTIVE.value)
    world.settle()
    service = world.state.services["chat"]
    refused = [each for each in world.journal if isinstance(each.event, e.RevisionBackedOff)]
    assert (len(service.replicas), len(refused)) == (0, 1)


def test_a_user_has_a_hundred_services_at_most() -> None:
    world = Scenario("1x8")
    for number in range(100):
        world.serve(f"s{number}", "0-1")
    with world.refused(Why.TOO_MANY_SERVICES):
        world.serve("one-more", "0-1")


def test_no_replica_is_put_where_an_agent_of_an_earlier_release_would_not_ask_it() -> None:
    world = Scenario("2x8")
    world.report(o.NodeAnswered("n1", "earlier", (), world.now, asks_replicas=False))
    world.serve("chat", "1", cpus=8)
    world.serve("talk", "1", cpus=8)
    world.submit("batch", cpus=8)
    world.settle()
    world.expect(
        {
            "chat": "0/1 r0 rolling r1 [1 loading]",
            "talk": "0/1 r0 rolling r1 [1 waiting]",
            "chat/1": "runs n2",
            "talk/1": "waits Resources",
            "batch": "runs n1",
        }
    )
    assert "not put on n1: the agent there is of an earlier release" in why(world, "talk/1")
    world.finish("batch", 0)
    world.expect(batch="COMPLETED")
    world.report(o.NodeAnswered("n1", "newest", (), world.now))
    world.expect({"talk": "0/1 r0 rolling r1 [1 loading]", "talk/1": "runs n1"})


def test_where_all_agents_are_of_an_earlier_release_a_replica_says_so() -> None:
    world = Scenario("1x8")
    world.report(o.NodeAnswered("n1", "earlier", (), world.now, asks_replicas=False))
    world.serve("chat", "1")
    world.expect({"chat": "0/1 r0 rolling r1 [1 waiting]", "chat/1": "waits ReqNodeNotAvail"})
    assert why(world, "chat/1").startswith("A service's replica is not put on n1: ")


def why(world: Scenario, label: str) -> str:
    """What the latest pass said of a job that waits."""
    return " ".join(sentence(reason) for reason in world.state.verdicts[world.id_of(label)].reasons)


def test_one_user_does_not_have_all_names() -> None:
    """Hosts and models of all of a user's services together; another's are that user's own."""
    world = Scenario("1x8")
    for number in range(8):
        world.serve(f"s{number}", "1", models=tuple(f"m{number}.{each}" for each in range(32)))
    world.serve("s0", "1", models=tuple(f"m0.{each}" for each in range(32)))
    with world.refused(Why.TOO_MANY_SERVICES):
        world.serve("more", "1", hosts=("more.example.org",))
    world.serve("more", "1", hosts=("more.example.org",), user="bob")


def test_whoever_sits_on_all_ports_does_not_have_replicas_come_and_go_without_a_pause() -> None:
    """The first taken port is another's chance at once; from the second on the next waits, ever longer."""
    world = Scenario("1x8")
    why = "port taken: a program of user 7 listens on 30000 at node n1"
    world.engine.refuses |= dict.fromkeys(range(1, 1000), why)
    world.serve("chat", "1")
    world.settle()
    chat = world.state.services["chat"]
    assert chat.next_replica == 3, "one, and the one in its place"
    world.wait(9)
    assert chat.next_replica == 3
    world.wait(1)
    assert chat.next_replica == 4
    assert awaited(chat, 1, (), world.now) == Awaited(False), "who waits for it goes on waiting: a port may be free"
    world.wait(20)
    assert why in awaited(chat, 1, (), world.now).failure, "four in a row"
    world.wait(3600)
    assert chat.next_replica < 25
    back_off = chat.revisions[1].backed_off
    assert back_off is not None
    assert "a program of user 7 listens on 30000" in back_off.why
    assert not chat.crashes
    world.engine.refuses.clear()
    world.wait(300)
    assert world.described()[f"chat/{chat.next_replica - 1}"] == "runs n1"

"""Where requests to services go, and what is told of services that have fewer replicas than wanted."""

from __future__ import annotations

from bireme.core.model.serving.services import ServiceKey
from bireme.core.services import requests as services
from bireme.core.services.routing_table import routing_table
from bireme.core.services.situation import situation
from bireme.core.services.wording import service_sentence
from bireme.testing.scenario import Scenario


def endpoints(world: Scenario) -> list[tuple[int, str, int, bool]]:
    (chat,) = routing_table(world.state)
    return [(each.replica, each.node, each.port, each.draining) for each in chat.endpoints]


def told(world: Scenario) -> list[str]:
    seen = situation(world.state, world.state.services["chat"], world.now)
    return [service_sentence(each) for each in seen.reasons]


def test_only_who_is_ready_or_drains_is_routed_to() -> None:
    world = Scenario("1x16")
    world.serve("chat", "2")
    world.settle()
    assert endpoints(world) == []
    world.probes("chat/2")
    assert endpoints(world) == [(2, "n1", 30001, False)]
    world.probes("chat/1")
    world.settle()
    world.probes("chat/1", health="unready", why="503")
    assert endpoints(world) == [(2, "n1", 30001, False)]
    world.serving(services.scale, "chat", 0)
    world.settle()
    assert endpoints(world) == [(1, "n1", 30000, True), (2, "n1", 30001, True)]
    world.wait(61)
    assert endpoints(world) == []


def test_a_canary_gets_its_part_of_the_requests_and_keys_are_in_the_table() -> None:
    world = Scenario("1x16")
    world.serve("chat", "2")
    world.probes("chat")
    world.settle()
    world.serve("chat", "2", canary=10)
    world.serving(services.add_key, "chat", ServiceKey(id="k1", digest="ab"), world.now)
    (chat,) = routing_table(world.state)
    assert chat.weights == ((1, 90.0), (2, 10.0))
    assert [(key.id, key.made_by) for key in chat.keys] == [("k1", "alice")]


def test_a_request_may_wait_for_a_service_at_zero_but_not_where_somebody_said_none() -> None:
    world = Scenario("1x16")
    world.serve("chat", "0-4")
    world.record(services.advised(world.state, "chat", 0, "nobody asked for 300 s"))
    world.settle()
    assert [(each.wakes, each.closed) for each in routing_table(world.state)] == [(True, "")]
    assert told(world) == ["It sleeps, and the next request wakes it: nobody asked for 300 s."]
    world.serving(services.scale, "chat", 0)
    (chat,) = routing_table(world.state)
    assert not chat.wakes
    assert chat.closed == "is scaled to 0 by hand: `bireme service scale chat 1` starts it again"
    said = "scaled to 0 by alice; `bireme service scale chat 1` starts it again (auto: as its load needs)"
    assert told(world) == [f"It takes no requests: {said}."]


def test_every_replica_that_is_not_ready_says_why() -> None:
    world = Scenario("1x2")
    world.serve("chat", "4")
    world.probes("chat/1")
    world.probes("chat/2", health="unready", why="GET /health: 503")
    world.settle()
    said = told(world)
    assert said[0] == "Replica 2 (job 2) does not take requests: GET /health: 503."
    assert said[1].startswith("Replica 3 (job 3) waits: ")
    world.finish("chat/1", 9)
    world.settle()
    world.finish("chat/3", 9)
    world.settle()
    assert "Of revision 1, 1 replica is held back for a while: replica 3 crashed: " in told(world)[0]


def test_what_the_autoscaler_says_counts_until_somebody_says_how_many() -> None:
    world = Scenario("1x16")
    world.serve("chat", "0-4")
    world.record(services.advised(world.state, "chat", 9, "load"))
    assert world.state.services["chat"].wanted == 4
    world.serving(services.scale, "chat", 2)
    assert services.advised(world.state, "chat", 3, "load") == []

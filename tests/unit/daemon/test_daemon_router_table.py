"""What the router is told, from the state of services: one sentence each."""

from __future__ import annotations

from bireme.core.model.serving.services import Routing, ServiceKey
from bireme.core.services import requests as services
from bireme.daemon.router.table import replica_named, services_of
from bireme.router import messages
from bireme.testing.scenario import Scenario

HERE = "127.0.1.1"


def served(replicas: str = "2", **options: object) -> Scenario:
    """A service `chat` whose replicas are all ready."""
    world = Scenario("2x8")
    world.serve("chat", replicas, **options)
    world.settle()
    world.probes("chat", address=HERE)
    world.settle()
    return world


def told(world: Scenario) -> messages.Service:
    (service,) = services_of(world.state, in_pods=False)
    return service


def replicas(world: Scenario) -> list[tuple[int, str]]:
    """(number, state) of those in the table."""
    found = []
    for each in told(world).replicas:
        named = replica_named(world.state, each.id)
        assert named is not None
        assert named[0] == "chat"
        found.append((named[1], each.state))
    return found


def test_a_service_without_ready_replicas_is_in_the_table_and_wakes() -> None:
    world = Scenario("2x8")
    world.serve("chat", "1")
    world.settle()
    assert told(world) == messages.Service(
        name="chat",
        uid=world.state.services["chat"].owner.uid,
        timeouts=messages.Timeouts(queue_s=Routing().queue_timeout_s, wake_s=Routing().queue_timeout_s),
    )
    assert told(world).wakes


def test_ready_replicas_are_told_with_their_address_port_and_revision() -> None:
    first, second = told(served()).replicas
    assert (first.host, first.port, first.revision, first.state) == (HERE, 30000, 1, "ready")
    assert (second.host, second.port) == (HERE, 30001)
    assert first.id != second.id


def test_as_whom_replicas_listen_is_told_but_not_of_those_in_pods() -> None:
    world = served("1")
    owner = world.state.services["chat"].owner.uid
    assert [each.uid for each in told(world).replicas] == [owner]
    (service,) = services_of(world.state, in_pods=True)
    assert (service.uid, [each.uid for each in service.replicas]) == (owner, [messages.ANYBODY])


def test_a_replica_that_is_unready_suspended_or_gone_is_not_told() -> None:
    world = served("3")
    world.probes("chat/1", health="unready", why="readiness probe: HTTP 503", address=HERE)
    world.settle()
    assert replicas(world) == [(2, "ready"), (3, "ready")]
    world.finish("chat/2", 1)
    world.settle()
    assert replicas(world) == [(3, "ready")]


def test_one_that_drains_is_told_as_draining_until_it_ends() -> None:
    world = served()
    world.serving(services.scale, "chat", 1)
    world.settle()
    assert replicas(world) == [(1, "ready"), (2, "draining")]
    world.drained("chat/2")
    world.settle()
    assert replicas(world) == [(1, "ready")]


def test_a_canary_has_its_part_of_the_requests() -> None:
    world = served(cpus=1)
    world.serve("chat", "2", cpus=1, canary_percent=10)
    world.settle()
    assert told(world).revision_weights == {1: 90.0, 2: 10.0}
    world.serving(services.promote, "chat")
    world.settle()
    assert told(world).revision_weights == {}


def test_a_service_that_is_stopped_wakes_for_nobody() -> None:
    world = served()
    world.serving(services.stop, "chat")
    world.settle()
    assert not told(world).wakes


def test_keys_are_told_by_their_hash() -> None:
    world = served()
    key = ServiceKey(id="k1", digest="ab" * 32, requests_per_minute=60, max_concurrency=4)
    world.serving(services.add_key, "chat", key, world.now)
    assert told(world).keys == (messages.Key(id="k1", sha256="ab" * 32, requests_per_minute=60, concurrency=4),)


def test_what_the_router_names_and_is_gone_is_nobody() -> None:
    world = served()
    assert replica_named(world.state, "9999.1") is None
    assert replica_named(world.state, "nonsense") is None

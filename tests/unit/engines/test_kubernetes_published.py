"""What Kubernetes is shown of a service: an address, exactly the replicas that are ready, and a route."""

from __future__ import annotations

from bireme.core.services import requests as services
from bireme.daemon.publishing import published
from bireme.engines.kubernetes.pods import CLUSTER_LABEL, PodRules
from bireme.engines.kubernetes.published import ParentGateway, Place, objects_of
from bireme.testing.scenario import Scenario

RULES = PodRules(cluster="galley", image="bireme", namespace="jobs", account_namespaces={"vision": "vision"})
SERVICES, SLICES = "/api/v1/namespaces/jobs/services", "/apis/discovery.k8s.io/v1/namespaces/jobs/endpointslices"
ROUTES = "/apis/gateway.networking.k8s.io/v1/namespaces/jobs/httproutes"


def a_service(name: str = "chat", **options: object) -> Scenario:
    world = Scenario("2x8")
    world.serve(name, "2", **options)
    world.probes(name, address="10.0.0.7")
    world.settle()
    return world


def places(world: Scenario, gateway: ParentGateway | None = None) -> set[Place]:
    return set(objects_of(published(world.state), RULES, gateway))


def test_a_slice_for_every_replica_that_is_ready_and_for_no_other() -> None:
    world = a_service()
    assert places(world) == {Place(SERVICES, "chat"), Place(SLICES, "chat-1"), Place(SLICES, "chat-2")}
    world.serving(services.scale, "chat", 1)
    world.settle()
    assert places(world) == {Place(SERVICES, "chat"), Place(SLICES, "chat-1")}, "the other one is drained"
    world.probes("chat/1", health="unready")
    world.settle()
    assert places(world) == {Place(SERVICES, "chat")}


def test_a_slice_says_where_and_whose() -> None:
    world = a_service()
    made = objects_of(published(world.state), RULES, None)[Place(SLICES, "chat-2")]
    port = world.state.services["chat"].replicas[2].port
    assert (made["addressType"], made["ports"][0]["port"], made["endpoints"][0]["addresses"]) == (
        "IPv4",
        port,
        ["10.0.0.7"],
    )
    assert made["endpoints"][0]["targetRef"]["name"] == f"galley-{world.id_of('chat/2')}-1-0"
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "chat"
    assert made["metadata"]["labels"][CLUSTER_LABEL] == "galley"


def test_a_name_that_begins_with_a_digit_gets_a_letter() -> None:
    assert Place(SERVICES, "s-7b") in places(a_service("7b"))


def test_with_a_gateway_a_route_leads_to_it_by_path_or_by_host_name() -> None:
    gateway = ParentGateway("infra", "public")
    by_path = objects_of(published(a_service().state), RULES, gateway)[Place(ROUTES, "chat")]["spec"]
    assert by_path["parentRefs"] == [{"namespace": "infra", "name": "public"}]
    assert by_path["rules"][0]["matches"] == [{"path": {"type": "PathPrefix", "value": "/chat"}}]
    world = a_service(hosts=("chat.example",))
    by_host = objects_of(published(world.state), RULES, gateway)[Place(ROUTES, "chat")]["spec"]
    assert by_host["hostnames"] == ["chat.example"]
    assert by_host["rules"][0]["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]


def test_services_in_another_scheduler_s_queue_are_not_this_cluster_s() -> None:
    world = a_service()
    world.state.services["chat"].elsewhere = True
    assert not places(world)

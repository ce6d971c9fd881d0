"""Services of Bireme as Kubernetes sees them: the objects that are to be there for a routing table. Pure.

A service is a `Service` without a selector, so that in-cluster clients need no router, and one `EndpointSlice` for each
replica that is ready: ports belong to a slice, and every replica has a port of its own. Where the cluster has a
Gateway, an `HTTPRoute` leads there by the same path and host names as Bireme's router. Who makes and removes them:
`publishing`.
Invariant: what is here names its cluster, and can be told by that from what others made.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bireme.core.services.routing_table import Endpoint
from bireme.engines.kubernetes.apiserver.api import Object
from bireme.engines.kubernetes.pods import CLUSTER_LABEL, PodRules, pod_name
from bireme.ports import PublishedService

SERVICE_LABEL = "bireme.dev/service"
MANAGER = "bireme.dev"
_PORT_NAME, _PORT = "http", 80
CORE, DISCOVERY, GATEWAY = "/api/v1", "/apis/discovery.k8s.io/v1", "/apis/gateway.networking.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object is found: the collection of its kind in a namespace, and its name."""

    collection: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.name}"


@dataclass(frozen=True, slots=True)
class ParentGateway:
    namespace: str
    name: str


def collections(namespaces: Iterable[str], *, routes: bool) -> list[str]:
    """All the collections in which there may be something of ours."""
    return [collection for namespace in sorted(namespaces) for collection in _collections(namespace, routes)]


def _collections(namespace: str, routes: bool) -> tuple[str, ...]:
    services, slices = f"{CORE}/namespaces/{namespace}/services", f"{DISCOVERY}/namespaces/{namespace}/endpointslices"
    return (services, slices, *((f"{GATEWAY}/namespaces/{namespace}/httproutes",) if routes else ()))


def in_order_of_removal(places: Iterable[Place]) -> list[Place]:
    """What leads to something goes before it: routes, then Services, then the addresses of replicas."""
    kinds = ("httproutes", "services", "endpointslices")
    return sorted(places, key=lambda place: kinds.index(place.collection.rpartition("/")[2]))


def objects_of(
    services: Iterable[PublishedService], rules: PodRules, gateway: ParentGateway | None
) -> dict[Place, Object]:
    """Everything that is to be there for these services."""
    return {
        place: body
        for service in services
        for place, body in _objects(service, rules, rules.namespace_of(service.job), gateway)
    }


def _objects(
    service: PublishedService, rules: PodRules, namespace: str, gateway: ParentGateway | None
) -> Iterator[tuple[Place, Object]]:
    services, slices, *routes = _collections(namespace, gateway is not None)
    name = object_name(service.routed.name)
    labels = {CLUSTER_LABEL: rules.cluster, SERVICE_LABEL: service.routed.name}
    yield Place(services, name), _service(name, namespace, labels)
    for endpoint in service.routed.endpoints:
        if endpoint.address and not endpoint.draining:
            body = _slice(name, namespace, labels, endpoint, rules)
            yield Place(slices, body["metadata"]["name"]), body
    if gateway is not None:
        yield Place(routes[0], name), _route(name, namespace, labels, service, gateway)


def object_name(service: str) -> str:
    """Names of Services begin with a letter."""
    return service if service[0].isalpha() else f"s-{service}"[:63].rstrip("-")


def _service(name: str, namespace: str, labels: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"ports": [{"name": _PORT_NAME, "port": _PORT, "protocol": "TCP"}]},
    }


def _slice(name: str, namespace: str, labels: dict[str, str], endpoint: Endpoint, rules: PodRules) -> Object:
    version = ipaddress.ip_address(endpoint.address).version
    pod = pod_name(rules, endpoint.job_id, endpoint.generation, 0)
    own = {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": MANAGER}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-{endpoint.replica}", "namespace": namespace, "labels": labels | own},
        "addressType": f"IPv{version}",
        "ports": [{"name": _PORT_NAME, "port": endpoint.port, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [endpoint.address],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": endpoint.node,
                "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod},
            }
        ],
    }


def _route(
    name: str, namespace: str, labels: dict[str, str], service: PublishedService, gateway: ParentGateway
) -> Object:
    """By its path as the router has it, which the replicas do not see; and by its host names, whole."""
    backend = [{"name": name, "port": _PORT}]
    stripped = {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}}
    hosts = list(service.routed.routing.hosts)
    by_path = {
        "matches": [{"path": {"type": "PathPrefix", "value": f"/{service.routed.name}"}}],
        "filters": [stripped],
        "backendRefs": backend,
    }
    whole = {"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "backendRefs": backend}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "parentRefs": [{"namespace": gateway.namespace, "name": gateway.name}],
            **({"hostnames": hosts} if hosts else {}),
            "rules": [whole if hosts else by_path],
        },
    }

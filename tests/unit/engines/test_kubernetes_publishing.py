"""A service's objects in a cluster whose other users remove and change them, and to which Gateways come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import permutations
from typing import Any, cast

import pytest

from bireme.daemon.publishing import published
from bireme.engines.kubernetes import publishing as module
from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi, Object
from bireme.engines.kubernetes.pods import PodRules
from bireme.engines.kubernetes.published import GATEWAY, Place, in_order_of_removal
from bireme.engines.kubernetes.publishing import Publishing
from bireme.testing.scenario import Scenario

RULES = PodRules(cluster="galley", image="bireme", namespace="jobs")
SLICE = "/apis/discovery.k8s.io/v1/namespaces/jobs/endpointslices/chat-1"
ROUTE = f"{GATEWAY}/namespaces/jobs/httproutes/chat"


class Objects:
    """An API server's objects, by path, with the words that it adds. Without `gateways` the Gateway API is missing."""

    def __init__(self) -> None:
        self.held: dict[str, Object] = {}
        self.gateways: list[Object] | None = None
        self.written: list[str] = []

    async def list(self, path: str, _: Mapping[str, str] | None = None) -> tuple[list[Object], str]:
        if path == f"{GATEWAY}/gateways":
            if self.gateways is None:
                raise ApiProblem("no such kind", status=404)
            return self.gateways, "1"
        return [
            {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
            for place, body in self.held.items()
            if place.rpartition("/")[0] == path
        ], "1"

    async def ask(self, method: str, path: str, body: Any = None, *, media: str = "") -> Object:
        self.written.append(method)
        if method == "DELETE":
            return self.held.pop(path)
        place = path if method == "PATCH" else f"{path}/{body['metadata']['name']}"
        self.held[place] = {**self.held.get(place, {}), **body, "status": {}}
        return self.held[place]


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


async def watched(monkeypatch: pytest.MonkeyPatch, story: Callable[[Objects], Any]) -> Objects:
    """Plays a story beside the one who keeps the objects of one replica, and looks at them all the time."""
    monkeypatch.setattr(module, "_LOOK_AGAIN_S", 0.005)
    world = Scenario("2x8")
    world.serve("chat", "1")
    world.probes("chat", address="10.0.0.7")
    world.settle()
    objects = Objects()
    keeper = Publishing(cast(KubernetesApi, objects), RULES)
    keeper.publish(published(world.state))
    task = asyncio.create_task(keeper.run())
    await until(lambda: SLICE in objects.held)
    await story(objects)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return objects


def test_what_somebody_removes_or_changes_is_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    async def somebody(objects: Objects) -> None:
        del objects.held[SLICE]
        await until(lambda: SLICE in objects.held)
        objects.held[SLICE]["endpoints"] = []
        await until(lambda: objects.held[SLICE]["endpoints"])

    asyncio.run(watched(monkeypatch, somebody))


def test_what_is_as_it_is_to_be_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def time_passes(objects: Objects) -> None:
        looks: list[int] = []
        counted = objects.list

        async def count(path: str, params: Mapping[str, str] | None = None) -> tuple[list[Object], str]:
            looks.append(1)
            return await counted(path, params)

        objects.list = count  # type: ignore[method-assign]
        await until(lambda: len(looks) > 9)

    assert asyncio.run(watched(monkeypatch, time_passes)).written == ["POST", "POST"], "the Service and its slice"


def test_a_gateway_that_comes_later_gets_its_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def installed(objects: Objects) -> None:
        objects.gateways = [{"metadata": {"namespace": "infra", "name": "public"}}]
        await until(lambda: ROUTE in objects.held)

    made = asyncio.run(watched(monkeypatch, installed)).held[ROUTE]
    assert made["spec"]["parentRefs"] == [{"namespace": "infra", "name": "public"}]


def test_what_leads_to_a_service_goes_before_the_service_and_that_before_its_replicas() -> None:
    kinds = [
        Place(f"/apis/any/namespaces/jobs/{kind}", "chat") for kind in ("services", "endpointslices", "httproutes")
    ]
    for order in permutations(kinds):
        removed = [place.collection.rpartition("/")[2] for place in in_order_of_removal(order)]
        assert removed == ["httproutes", "services", "endpointslices"]

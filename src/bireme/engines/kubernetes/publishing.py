"""Keeps the Kubernetes objects of services as they are to be: made, changed and removed as the routing table changes.

The engine makes it; the daemon tells the newest table through `ports.PublishesServices`. One task works off the
difference between what is to be there and what was made, and tries again while the API server does not answer. What an
earlier daemon left is found when it begins, and every minute it looks anew: what somebody removed or changed is put
right, and a Gateway that has come gets its routes. Not here: what the objects are (`published`).
Invariant: nothing is changed or removed that is not of this cluster's making.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi, Object
from bireme.engines.kubernetes.pods import CLUSTER_LABEL, PodRules
from bireme.engines.kubernetes.published import (
    GATEWAY,
    SERVICE_LABEL,
    ParentGateway,
    Place,
    collections,
    in_order_of_removal,
    objects_of,
)
from bireme.ports import PublishedService

log = logging.getLogger("bireme.engines.kubernetes")

_FIRST_PAUSE_S, _MOST_PAUSE_S = 1.0, 30.0
_LOOK_AGAIN_S = 60.0
_MERGE = "application/merge-patch+json"


class Publishing:
    """`gateway`: the Gateway that is to lead to services, as `namespace/name`; empty: the only one that there is."""

    def __init__(self, api: KubernetesApi, rules: PodRules, gateway: str = "") -> None:
        self._api, self._rules, self._asked_gateway = api, rules, gateway
        self._gateway: ParentGateway | None = None
        self._wanted: tuple[PublishedService, ...] | None = None
        self._made: dict[Place, Object] | None = None
        """What is there, as far as it was made by this cluster; None: it is to be looked at."""
        self._look_at = time.monotonic() + _LOOK_AGAIN_S
        self._refused: dict[Place, Object] = {}
        """What the API server does not take, as it was last tried."""
        self._changed = asyncio.Event()
        self.problem = ""

    def publish(self, services: Sequence[PublishedService]) -> None:
        self._wanted = tuple(services)
        self._changed.set()

    async def run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._called_for()
            try:
                await self._settle()
            except ApiProblem as problem:
                self._tell(str(problem))
                await asyncio.sleep(pause_s)
                pause_s = min(_MOST_PAUSE_S, 2 * pause_s)
                self._changed.set()
            else:
                pause_s = _FIRST_PAUSE_S

    async def _called_for(self) -> None:
        """Returns when something changed, or when it is time to look at what is there."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._look_at - time.monotonic())):
                await self._changed.wait()
        self._changed.clear()
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_AGAIN_S
        if self._wanted or self._made:
            self._made = None
            self._refused.clear()

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("services are not shown to the cluster: %s", problem)
        self.problem = problem

    async def _settle(self) -> None:
        if self._wanted is None or (self._made is None and not await self._looked()):
            return
        assert self._made is not None
        wanted = objects_of(self._wanted, self._rules, self._gateway)
        for place in in_order_of_removal(self._made.keys() - wanted.keys()):
            await self._remove(place)
        made = self._made
        wrong = {place: body for place, body in wanted.items() if not _says(made.get(place), _own_words(body))}
        problems = [await self._put(place, body) for place, body in wrong.items()]
        self._tell("; ".join(filter(None, problems)))

    async def _looked(self) -> bool:
        """Whether it is known what is there. A cluster without services need not have the rights for it."""
        try:
            self._gateway = await self._found_gateway()
            self._made = await self._found()
        except ApiProblem as problem:
            if problem.status != 403 or self._wanted:
                raise
            return False
        return True

    async def _found_gateway(self) -> ParentGateway | None:
        namespace, slash, name = self._asked_gateway.partition("/")
        if slash:
            return ParentGateway(namespace, name)
        try:
            found, _ = await self._api.list(f"{GATEWAY}/gateways")
        except ApiProblem as problem:
            if problem.status in (403, 404):  # the Gateway API is not installed, or not for us
                return None
            raise
        names = [ParentGateway(each["metadata"]["namespace"], each["metadata"]["name"]) for each in found]
        return names[0] if len(names) == 1 else None

    async def _found(self) -> dict[Place, Object]:
        """What is there already, as it is."""
        found: dict[Place, Object] = {}
        selector = {"labelSelector": f"{CLUSTER_LABEL}={self._rules.cluster},{SERVICE_LABEL}"}
        for collection in collections(self._rules.namespaces, routes=self._gateway is not None):
            objects, _ = await self._api.list(collection, selector)
            found.update((Place(collection, each["metadata"]["name"]), each) for each in objects)
        return found

    async def _remove(self, place: Place) -> None:
        assert self._made is not None
        try:
            await self._api.ask("DELETE", place.path)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
        del self._made[place]

    async def _put(self, place: Place, body: Object) -> str:
        """Makes or changes it; what the API server says against it, if it refuses that."""
        assert self._made is not None
        if self._refused.get(place) == body:
            return self.problem
        try:
            if place in self._made:
                await self._api.ask("PATCH", place.path, _changes(body), media=_MERGE)
            else:
                await self._make(place, body)
        except ApiProblem as problem:
            if problem.passing:
                raise
            self._refused[place] = body
            return f"{place.path}: {problem}"
        self._refused.pop(place, None)
        self._made[place] = body
        return ""

    async def _make(self, place: Place, body: Object) -> None:
        try:
            await self._api.ask("POST", place.collection, body)
        except ApiProblem as problem:
            if problem.status != 409 or problem.reason != "AlreadyExists":
                raise
            there = await self._api.ask("GET", place.path)
            if (there["metadata"].get("labels") or {}).get(CLUSTER_LABEL) != self._rules.cluster:
                said = "exists already and is not Bireme's: choose another name for the service, or remove it"
                raise ApiProblem(f"{place.name} {said}", status=409) from problem
            await self._api.ask("PATCH", place.path, _changes(body), media=_MERGE)


def _says(there: Any, wanted: Any) -> bool:
    """Whether an object says all that it is to say: the API server adds words of its own."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(_says(there.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(there, list) and len(there) == len(wanted) and all(map(_says, there, wanted))
    return bool(there == wanted)


def _own_words(body: Object) -> dict[str, Any]:
    """Without what objects in a list do not repeat."""
    return {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}


def _changes(body: Object) -> dict[str, Any]:
    """What may change of an object that is there: not the kind of its addresses."""
    return {key: value for key, value in body.items() if key != "addressType"}

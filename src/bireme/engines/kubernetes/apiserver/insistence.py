"""Requests that are made until the API server has answered: it may be away for a while, or lose an answer.

The engine makes and removes the objects of its jobs with these. Each is safe to repeat: what an earlier try has made is
found made. Not here: watching (`mirror`), what the objects are (`pods`).
Invariant: whoever is not wanted any more stops asking; a refusal is never asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from bireme.engines.kubernetes import pods
from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi, Object

log = logging.getLogger("bireme.engines.kubernetes")

_RETRY_S = 0.5
_MAX_RETRY_S = 10.0

Wanted = Callable[[], bool]
"""Whether it is still worth asking."""


class Insistence:
    def __init__(self, api: KubernetesApi, cluster: str) -> None:
        self._api = api
        self._cluster = cluster

    async def create(self, path: str, body: Object, wanted: Wanted) -> Object:
        """What already has this name was made by an earlier try, if it is this cluster's. Raises ApiProblem."""
        try:
            return await self._ask(wanted, "POST", path, body)
        except ApiProblem as problem:
            if problem.status != 409 or problem.reason != "AlreadyExists":
                raise
        there = f"{path}/{body['metadata']['name']}"
        found = await self._ask(wanted, "GET", there)
        if (found["metadata"].get("labels") or {}).get(pods.CLUSTER_LABEL) != self._cluster:
            raise ApiProblem(f"{there} exists already and is not of cluster {self._cluster}'s making")
        return found

    async def bind(self, pod: Mapping[str, Any], node: str, wanted: Wanted) -> None:
        """To the node; a binding whose answer was lost is found made at the next try. Raises ApiProblem."""
        if pod["spec"].get("nodeName") == node:
            return
        path = path_of(pod)
        try:
            await self._ask(wanted, "POST", f"{path}/binding", pods.binding(pod, node))
        except ApiProblem as problem:
            if problem.status != 409:
                raise
            there = await self._ask(wanted, "GET", path)
            if there["spec"].get("nodeName") != node:
                raise

    async def delete(self, path: str, params: Mapping[str, str] | None = None) -> bool:
        """Whether there was something to delete. Tries until it knows."""
        try:
            await self._ask(lambda: True, "DELETE", path, params=params)
        except ApiProblem as problem:
            if problem.status != 404:
                log.error("cannot delete %s: %s", path, problem)
            return problem.status != 404
        return True

    async def _ask(
        self,
        wanted: Wanted,
        method: str,
        path: str,
        body: Object | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Object:
        retry_s = _RETRY_S
        while True:
            try:
                return await self._api.ask(method, path, body, params=params)
            except ApiProblem as problem:
                if not problem.passing or not wanted():
                    raise
                log.warning("%s %s: %s", method, path, problem)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _MAX_RETRY_S)


def path_of(pod: Mapping[str, Any]) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

"""Says of others' pods what became of them: events, conditions of pods and of native groups. Nothing waits for it.

`scheduler.py` calls it. What the words are is `words`; what cannot be written is logged and let be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi
from bireme.engines.kubernetes.guests import words
from bireme.engines.kubernetes.guests.gangs import Group
from bireme.engines.kubernetes.guests.pods import gates_of

log = logging.getLogger("bireme.engines.kubernetes")

Object = Mapping[str, Any]


class Teller:
    def __init__(self, api: KubernetesApi, now: Callable[[], float]) -> None:
        self._api, self._now = api, now

    async def bound(self, pod: Object, node: str) -> None:
        await self._event(words.scheduled(pod, node, self._now()))

    async def waits(self, pods: Iterable[Object], group: Group | None, why: str) -> None:
        """All pods of a gang, and its native group, for the same reason."""
        for pod in pods:
            if gates_of(pod):
                continue
            await self._event(words.not_scheduled(pod, why, self._now()))
            await self._status(_path_of(pod), words.unschedulable(why, self._now()))
        if group is not None and group.kind == "PodGroup":
            await self._status(group.path, words.group_condition(why, self._now()))

    async def group_bound(self, namespace: str, name: str) -> None:
        path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{namespace}/podgroups/{name}"
        await self._status(path, words.group_condition("", self._now()))

    async def _event(self, event: Object) -> None:
        try:
            await self._api.ask("POST", f"/api/v1/namespaces/{event['metadata']['namespace']}/events", dict(event))
        except ApiProblem as problem:
            log.warning("an event could not be written: %s", problem)

    async def _status(self, path: str, body: dict[str, Any]) -> None:
        try:
            await self._api.ask("PATCH", f"{path}/status", body, media="application/strategic-merge-patch+json")
        except ApiProblem as problem:
            if problem.status != 404:
                log.warning("a condition could not be written: %s", problem)


def _path_of(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

"""A copy of one kind of object, kept by list and watch: what the cluster says, without asking twice.

The engine keeps one per kind (nodes, pods) and is told of every change. A watch that ends is resumed where it ended; a
version the server has forgotten (410) means listing again, and what vanished meanwhile is told as deleted. While the
server does not answer the copy stands still, and the wait between tries grows.

Invariant: the copy is what some moment of the cluster was, and every difference to the moment before was told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi, Object

log = logging.getLogger("bireme.engines.kubernetes")

_RETRY_S = 0.5
_MAX_RETRY_S = 30.0

Changed = Callable[[str, Object], None]
"""("ADDED" | "MODIFIED" | "DELETED", object)."""


class Mirror:
    def __init__(
        self, api: KubernetesApi, path: str, changed: Changed, params: Mapping[str, str] | None = None
    ) -> None:
        self.objects: dict[str, Object] = {}
        """By namespace/name (cluster-wide kinds: by name)."""
        self.complete = asyncio.Event()
        """Set once everything was listed."""
        self.problem = ""
        """Why it stands still; empty while it follows."""
        self._api = api
        self._path = path
        self._params = dict(params or {})
        self._changed = changed
        self._version = ""

    async def run(self) -> None:
        """Keeps the copy up to date until cancelled."""
        retry_s = _RETRY_S
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                retry_s = _RETRY_S
            except ApiProblem as problem:
                if problem.gone:
                    self._version = ""
                    continue
                if not self.problem:
                    log.warning("%s: %s", self._path, problem)
                self.problem = str(problem)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)

    async def _list(self) -> None:
        items, self._version = await self._api.list(self._path, self._params)
        self.problem = ""
        found = {key_of(item): item for item in items}
        for key in [key for key in self.objects if key not in found]:
            self._changed("DELETED", self.objects.pop(key))
        for key, item in found.items():
            self._put(key, item)
        self.complete.set()

    async def _follow(self) -> None:
        """Until the server ends the watch, which it does every few minutes."""
        async for kind, item in self._api.watch(self._path, self._version, self._params):
            self.problem = ""
            self._version = item["metadata"]["resourceVersion"]
            if kind == "BOOKMARK":
                continue
            key = key_of(item)
            if kind == "DELETED":
                if self.objects.pop(key, None) is not None:
                    self._changed("DELETED", item)
            else:
                self._put(key, item)

    def _put(self, key: str, item: Object) -> None:
        before = self.objects.get(key)
        if before is not None and before["metadata"]["uid"] != item["metadata"]["uid"]:
            self._changed("DELETED", before)  # another object of the same name: the old one's end was missed
            before = None
        self.objects[key] = item
        if before is None:
            self._changed("ADDED", item)
        elif before["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            self._changed("MODIFIED", item)


def key_of(item: Object) -> str:
    metadata = item["metadata"]
    namespace = metadata.get("namespace", "")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])

"""One daemon schedules a cluster: a Lease says which. Two that are started by mistake never both bind pods.

The engine takes it before anything else, keeps renewing it, and asks before it places anything (`confirm`). A daemon
that comes back (same home, so the same identity) takes its own Lease again at once; another one waits until it has run
out, and says whom it waits for.
Invariant: while `held` is true nobody else could have taken the Lease, as far as this machine's clock can tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Callable, Mapping

from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi, Object

log = logging.getLogger("bireme.engines.kubernetes")

DURATION_S = 30
_RENEW_S = 8.0
_RELEASE_S = 10.0
_GATHER_S = 1.0
"""What is to be written soon waits so long for more of it."""


class Lease:
    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        cluster: str,
        identity: str,
        notes: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`identity`: of this daemon, the same after a restart; a person should recognise it. `notes`: annotations that
        it is to carry."""
        self._api = api
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = f"bireme-{cluster}"
        self._namespace = namespace
        self._identity = identity
        self._notes = notes
        self._news = asyncio.Event()
        self._until = 0.0
        self._writing = asyncio.Lock()
        """One write at a time: two would be each other's conflict."""
        self.lost_to = ""
        """Who has it instead; empty while nobody has taken it."""

    @property
    def held(self) -> bool:
        return not self.lost_to and time.monotonic() < self._until

    async def note(self, name: str) -> str:
        """An annotation of the Lease as it is; empty if there is none."""
        found = await self._find()
        return str((found["metadata"].get("annotations") or {}).get(name, "")) if found is not None else ""

    def write_soon(self) -> None:
        """The notes have changed."""
        self._news.set()

    async def take(self) -> None:
        """Raises ApiProblem: somebody else has it, or it may not be written."""
        async with self._writing:
            await self._take()

    async def _take(self) -> None:
        asked = time.monotonic()
        found = await self._find()
        if found is None:
            await self._api.ask("POST", self._folder, self._body(None))
        else:
            holder = found["spec"].get("holderIdentity") or ""
            if holder not in ("", self._identity) and not _has_run_out(found):
                raise ApiProblem(
                    f"another daemon schedules this cluster: {holder} holds the Lease {self._namespace}/{self._name}; "
                    "end that one (bireme down), or give this one another ClusterName",
                    status=409,
                )
            await self._api.ask("PUT", f"{self._folder}/{self._name}", self._body(found))
        self._until = asked + DURATION_S

    async def confirm(self) -> None:
        """Before something is placed. A Lease that ran out (the machine slept, the server was away) is taken again.

        Raises ApiProblem: somebody else has it, or nobody can say.
        """
        if not self.lost_to and not self.held:
            async with self._writing:
                if not self.held:  # nor has anybody taken it again meanwhile
                    log.warning("the Lease of this cluster ran out: nothing is placed before it is taken again")
                    await self._take()
        if self.lost_to:
            raise ApiProblem(
                f"{self.lost_to} schedules this cluster now: this daemon starts nothing any more", status=409
            )

    async def keep(self) -> None:
        """Renews until cancelled, or until somebody else has it."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RENEW_S):
                    await self._news.wait()
                    await asyncio.sleep(_GATHER_S)
            self._news.clear()
            try:
                await self.take()
            except ApiProblem as problem:
                if problem.status == 409 and (holder := await self._other_holder()):
                    self.lost_to = holder
                    log.error("%s has taken the Lease of this cluster: no more jobs are started here", holder)
                    return
                log.warning("the Lease of this cluster could not be renewed: %s", problem)

    async def release(self) -> None:
        """Gives it back, so that whoever comes next need not wait; an API server that is silent is not waited for."""
        try:
            async with asyncio.timeout(_RELEASE_S), self._writing:
                await self._give_back()
        except (ApiProblem, TimeoutError) as problem:
            log.warning("the Lease of this cluster could not be given back: %s", problem or "no answer")

    async def _give_back(self) -> None:
        found = await self._find()
        if found is not None and found["spec"].get("holderIdentity") == self._identity:
            spec = {**found["spec"], "holderIdentity": ""}
            metadata = {**found["metadata"], "annotations": dict(self._notes())}
            await self._api.ask("PUT", f"{self._folder}/{self._name}", {**found, "metadata": metadata, "spec": spec})

    async def _other_holder(self) -> str:
        try:
            found = await self._find()
        except ApiProblem:
            return ""
        holder = str(found["spec"].get("holderIdentity") or "") if found is not None else ""
        return "" if holder == self._identity else holder

    async def _find(self) -> Object | None:
        try:
            return await self._api.ask("GET", f"{self._folder}/{self._name}")
        except ApiProblem as problem:
            if problem.status == 404:
                return None
            raise

    def _body(self, before: Object | None) -> Object:
        metadata: Object = {"name": self._name, "namespace": self._namespace, "annotations": dict(self._notes())}
        if before is not None:  # refused if somebody was quicker
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._identity, "leaseDurationSeconds": DURATION_S, "renewTime": now}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _has_run_out(lease: Object) -> bool:
    renewed = datetime.datetime.fromisoformat(lease["spec"].get("renewTime") or "1970-01-01T00:00:00+00:00")
    lasts_s = lease["spec"].get("leaseDurationSeconds") or DURATION_S
    return datetime.datetime.now(datetime.UTC) - renewed > datetime.timedelta(seconds=lasts_s)

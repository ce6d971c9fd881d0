"""The keepers of this room together: checkpoints are looked for, and ends that await their verdict looked into.

The daemon makes one, begins it when the API can answer, and closes it when it ends.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp

from bireme.api.asked_within import ask_within
from bireme.daemon.cluster import Cluster
from bireme.daemon.faults.restarts.inquests import InquestKeeper
from bireme.daemon.faults.restarts.saving import CheckpointKeeper


class Recovery:
    """`interval_s`: how often checkpoints are looked for."""

    def __init__(self, cluster: Cluster, app: ASGIApp, interval_s: Callable[[], float]) -> None:
        self._checkpoints = CheckpointKeeper(cluster, interval_s)
        self._inquests = InquestKeeper(
            cluster, lambda job, limit_s: ask_within(app, f"/v1/jobs/{job}/diagnosis", limit_s), self._checkpoints
        )

    def begin(self) -> None:
        self._checkpoints.begin()
        self._inquests.begin()

    async def close(self) -> None:
        await self._inquests.close()
        await self._checkpoints.close()

"""The keepers of this room together: checkpoints are looked for, and ends that await their verdict looked into.

The daemon makes one, begins it when the API can answer, and closes it when it ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.types import ASGIApp

from bireme.api.asked_within import ask_within
from bireme.daemon.faults.restarts.elsewhere import ForeignRestarts
from bireme.daemon.faults.restarts.inquests import InquestKeeper
from bireme.daemon.faults.restarts.saving import CheckpointKeeper
from bireme.runtime.service import Runtime


class Recovery:
    """`interval_s`: how often checkpoints are looked for."""

    def __init__(self, cluster: Runtime, app: ASGIApp, interval_s: Callable[[], float]) -> None:
        self._checkpoints = CheckpointKeeper(cluster, interval_s)

        def diagnose(job: str, limit_s: float) -> Awaitable[Mapping[str, Any]]:
            return ask_within(app, f"/v1/jobs/{job}/diagnosis", limit_s)

        self._inquests = InquestKeeper(cluster, diagnose, self._checkpoints)
        self._elsewhere = ForeignRestarts(cluster, diagnose)

    def begin(self) -> None:
        self._checkpoints.begin()
        self._inquests.begin()
        self._elsewhere.begin()

    async def close(self) -> None:
        await self._elsewhere.close()
        await self._inquests.close()
        await self._checkpoints.close()

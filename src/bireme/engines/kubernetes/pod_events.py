"""What the cluster itself complains of a pod: the newest warning among its events. Asked when a pod does not start.

A volume that cannot be mounted, or a sandbox that cannot be made, is written into no pod's status; only its events tell
it. Called by the engine for a start that takes too long. Not here: what a pod's own status says (`pods.trouble`).
Invariant: whoever may not read events, or gets no answer, starts no slower and hears nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi

log = logging.getLogger("bireme.engines.kubernetes")

Object = Mapping[str, Any]
_ANSWER_S = 5.0
_LONGEST = 500


async def complaint(api: KubernetesApi, pod: Object) -> str:
    """`REASON: MESSAGE`; empty: there is none, or it cannot be known."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/events"
    asked = {"fieldSelector": f"involvedObject.uid={metadata['uid']},type=Warning"}
    try:
        async with asyncio.timeout(_ANSWER_S):
            events, _ = await api.list(path, asked)
    except (ApiProblem, TimeoutError) as problem:
        log.warning("why pod %s does not start cannot be read: %s", metadata["name"], problem or "no answer")
        return ""
    return newest(events)


def newest(events: Iterable[Object]) -> str:
    """Of warnings about one pod."""
    latest = max(events, key=_time_of, default=None)
    if latest is None:
        return ""
    message = " ".join(str(latest.get("message") or "").split())
    return f"{latest.get('reason') or 'Warning'}: {message}"[:_LONGEST].rstrip(": ")


def _time_of(event: Object) -> str:
    """Kubernetes writes times so that they can be compared as texts; one that repeats itself has its last in another
    field than one that was told once."""
    times = (event.get("lastTimestamp"), (event.get("series") or {}).get("lastObservedTime"), event.get("eventTime"))
    return next((str(time) for time in times if time), str(event["metadata"].get("creationTimestamp") or ""))

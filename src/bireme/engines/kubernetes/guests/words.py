"""What Bireme says of somebody else's pods, as Kubernetes writes it: events, conditions, evictions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

from bireme.core.model.resources import SUCCESS, ExitStatus
from bireme.engines.kubernetes.pods import SCHEDULER

Object = Mapping[str, Any]

_MESSAGE_MOST = 1000
_KILLED = 128


def scheduled(pod: Object, node: str, now: float) -> dict[str, Any]:
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    return _event(pod, "Normal", "Scheduled", f"Successfully assigned {name} to {node}", now)


def not_scheduled(pod: Object, why: str, now: float) -> dict[str, Any]:
    return _event(pod, "Warning", "FailedScheduling", why, now)


def unschedulable(why: str, now: float) -> dict[str, Any]:
    """A pod's status as kube-scheduler leaves it when nothing fits."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": why[:_MESSAGE_MOST],
        "lastTransitionTime": _seconds(now),
    }
    return {"status": {"conditions": [condition]}}


def group_condition(why: str, now: float) -> dict[str, Any]:
    """A PodGroup's status as kube-scheduler leaves it. `why` empty: its pods have their nodes."""
    condition = {
        "type": "PodGroupScheduled",
        "status": "False" if why else "True",
        "reason": "Unschedulable" if why else "Scheduled",
        "message": why[:_MESSAGE_MOST],
        "lastTransitionTime": _seconds(now),
    }
    return {"status": {"conditions": [condition]}}


def eviction(namespace: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": namespace, "name": name}}


def exit_status(pod: Object | None) -> ExitStatus:
    """Of the first container that failed; a pod that is gone without a word is no failure of the job's own."""
    if pod is None or (pod.get("status") or {}).get("phase") != "Failed":
        return SUCCESS
    for container in pod["status"].get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        code = int(ended.get("exitCode", 0))
        if ended.get("reason") == "OOMKilled":
            return ExitStatus(signal=9, out_of_memory=True)
        if code > _KILLED:
            return ExitStatus(signal=code - _KILLED)
        if code:
            return ExitStatus(code=code)
    return ExitStatus(code=1)


def _event(pod: Object, kind: str, reason: str, message: str, now: float) -> dict[str, Any]:
    metadata = pod["metadata"]
    about = {"kind": "Pod", "apiVersion": "v1", "namespace": metadata["namespace"], "name": metadata["name"]}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{token_hex(8)}", "namespace": metadata["namespace"]},
        "involvedObject": {**about, "uid": metadata["uid"]},
        "type": kind,
        "reason": reason,
        "message": message[:_MESSAGE_MOST],
        "source": {"component": SCHEDULER},
        "reportingComponent": SCHEDULER,
        "firstTimestamp": _seconds(now),
        "lastTimestamp": _seconds(now),
        "count": 1,
    }


def _seconds(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""A service as a record: what `bireme services`, `bireme service show`, the SDK and the API tell.

`SERVICE_FIELDS` says what each field means; a test holds the records to it. What a replica's job says is taken from its
job record, so that the two never differ. Invariant: nothing of a key but its name and who made it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from bireme.core.model.serving.reasons import ServiceReason, ServiceReasonKind
from bireme.core.model.serving.services import Crash, Replica, Revision, RevisionLife, Service, ServiceKey, ServiceLife
from bireme.core.services.situation import ReplicaSituation, Situation, situation
from bireme.core.services.wording import service_sentence
from bireme.core.state.state import State
from bireme.slurm.records.jobs import job_record


class Standing(StrEnum):
    """How a service stands, in a word."""

    READY = "READY"
    ASLEEP = "ASLEEP"
    """It wants no replicas; the next request wakes it."""
    PAUSED = "PAUSED"
    """Somebody scaled it to none; no request wakes it."""
    WAITING = "WAITING"
    """Replicas that it lacks wait for room."""
    LOADING = "LOADING"
    UNREADY = "UNREADY"
    CRASHING = "CRASHING"
    """Replicas that it lacks are held back after crashes or refusals."""
    UPDATING = "UPDATING"
    CANARY = "CANARY"
    STOPPING = "STOPPING"


SERVICE_FIELDS = {
    "name": "what it is called",
    "user_name": "its owner",
    "user_id": "owner's uid",
    "account": "account of its replicas",
    "state": "how it stands, in a word: READY, ASLEEP, PAUSED, WAITING, LOADING, UNREADY, CRASHING, UPDATING, CANARY, "
    "STOPPING",
    "url": "its address; empty: there is no router",
    "wanted": "so many replicas it is to have",
    "wanted_why": "who or what said so",
    "scaling": "what the autoscaler says now: {wanted, why, cause, figures: [{counted, target, stable, burst, needs, "
    "missing}], next_change_at}; empty where the number does not change by itself",
    "fixed": "whether somebody said how many, so that the load does not",
    "replicas_min": "it has at least so many ...",
    "replicas_max": "... and at most so many",
    "ready": "replicas that take requests",
    "revision": "number of the revision that it is to have",
    "serving": "number of the revision that served last; 0: none has yet",
    "revisions": "[{number, phase, by, at, settled_at, why, replicas, ready, canary_percent}], the newest last",
    "replicas": "[{number, revision, job_id, job_state, node, port, state, health, since, made_at, why, "
    "draining_since, std_out, std_err}]",
    "reasons": "why it has fewer ready replicas than wanted, and what is of note: [{kind, text, replica, job_id, "
    "since, until}]",
    "crashes": "ends of late that nobody asked for, the newest last: [{replica, revision, job_id, at, exit_code, "
    "exit_signal, why}]",
    "keys": "how many keys it has; without one only this machine may send requests",
    "made_at": "when it was first made",
    "traffic": "what it was asked in the last minute: {requests_s, errors_s, latency_p99_s}; empty where nothing was "
    "heard of it",
}

_OF_JOB = ("state", "std_out", "std_err")


def service_record(
    state: State,
    service: Service,
    now: float,
    router_url: str,
    scaling: Mapping[str, Any],
    traffic: Mapping[str, Any],
) -> dict[str, Any]:
    """`scaling`: what the autoscaler says of it; `traffic`: what the router counted: neither is in the state."""
    seen, newest = situation(state, service, now), service.target
    return {
        "name": service.name,
        "user_name": service.owner.user,
        "user_id": service.owner.uid,
        "account": newest.spec.job.account,
        "state": standing(seen).value,
        "url": f"{router_url}/{service.name}/" if router_url else "",
        "wanted": seen.wanted,
        "wanted_why": seen.wanted_why,
        "scaling": dict(scaling),
        "fixed": seen.fixed,
        "replicas_min": newest.spec.scaling.replicas_min,
        "replicas_max": newest.spec.scaling.replicas_max,
        "ready": seen.ready,
        "revision": seen.target,
        "serving": seen.current,
        "revisions": [_revision(each, seen) for each in reversed(seen.revisions)],
        "replicas": [_replica(state, service.replicas[each.number], each, now) for each in seen.replicas],
        "reasons": [_reason(each) for each in seen.reasons],
        "crashes": [_crash(each) for each in reversed(seen.crashes)],
        "keys": len(service.keys),
        "made_at": service.made_at,
        "traffic": dict(traffic),
    }


def standing(seen: Situation) -> Standing:
    """The word for it."""
    kinds, lacks = {reason.kind for reason in seen.reasons}, seen.ready < seen.wanted
    if seen.phase is ServiceLife.STOPPING:
        return Standing.STOPPING
    if ServiceReasonKind.PAUSED in kinds:
        return Standing.PAUSED
    if ServiceReasonKind.ROLLING in kinds:
        return Standing.UPDATING
    if not lacks:
        if ServiceReasonKind.CANARY in kinds:
            return Standing.CANARY
        return Standing.READY if seen.wanted else Standing.ASLEEP
    for kind, word in (
        (ServiceReasonKind.BACKED_OFF, Standing.CRASHING),
        (ServiceReasonKind.UNREADY, Standing.UNREADY),
        (ServiceReasonKind.UNWRITTEN, Standing.UNREADY),
        (ServiceReasonKind.STOPPED, Standing.UNREADY),
        (ServiceReasonKind.LOADING, Standing.LOADING),
        (ServiceReasonKind.STARTING, Standing.LOADING),
        (ServiceReasonKind.WAITING, Standing.WAITING),
        (ServiceReasonKind.ORDERED, Standing.WAITING),
    ):
        if kind in kinds:
            return word
    return Standing.LOADING


def _revision(revision: Revision, seen: Situation) -> dict[str, Any]:
    own = [each for each in seen.replicas if each.revision == revision.number]
    canary = revision.phase is RevisionLife.CANARY
    return {
        "number": revision.number,
        "phase": revision.phase.value,
        "by": revision.by,
        "at": revision.at,
        "settled_at": revision.settled_at,
        "why": revision.why,
        "replicas": len(own),
        "ready": sum(each.state == "ready" for each in own),
        "canary_percent": revision.spec.updating.canary_percent if canary else None,
    }


def _replica(state: State, replica: Replica, seen: ReplicaSituation, now: float) -> dict[str, Any]:
    found = state.jobs.get(replica.job_id)
    job = job_record(state, found, now, _OF_JOB) if found is not None else dict.fromkeys(_OF_JOB, "")
    return {
        "number": seen.number,
        "revision": seen.revision,
        "job_id": seen.job_id or None,
        "job_state": job["state"],
        "node": seen.node,
        "port": seen.port,
        "state": seen.state,
        "health": seen.health.value,
        "since": seen.since,
        "made_at": replica.made_at,
        "why": seen.why,
        "draining_since": replica.draining_since,
        "std_out": job["std_out"],
        "std_err": job["std_err"],
    }


def _reason(reason: ServiceReason) -> dict[str, Any]:
    return {
        "kind": reason.kind.value,
        "text": service_sentence(reason),
        "replica": reason.fact("replica"),
        "job_id": reason.fact("job"),
        "since": reason.fact("since"),
        "until": reason.fact("until"),
    }


def _crash(crash: Crash) -> dict[str, Any]:
    return {
        "replica": crash.replica,
        "revision": crash.revision,
        "job_id": crash.job_id or None,
        "at": crash.at,
        "exit_code": crash.status.code,
        "exit_signal": crash.status.signal,
        "why": crash.why,
    }


def key_record(key: ServiceKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "note": key.note,
        "requests_per_minute": key.requests_per_minute,
        "max_concurrency": key.max_concurrency,
        "made_by": key.made_by,
        "made_at": key.made_at,
    }

"""Services: all of them, and one with its replicas, revisions, traffic, the autoscaler's reasons, and a request to try.

Traffic is asked for by the page's script (`service.js`). Invariant: what only the owner may do is offered to who may:
the daemon decides all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.web.asking import Asking
from bireme.web.paging import JOBS, PLAN, SERVICES, Pages, Part, Values

pages = Pages()
_MOST_EVENTS = 100


@pages.page(
    "/services", "services.html", title="Services", nav="services", parts={"table": Part((SERVICES, JOBS), every_s=2.0)}
)
async def services(asking: Asking) -> Values:
    told, ping = await asking.together(asking.get("/v1/services"), asking.get("/v1/ping"))
    return {"services": told["services"], "now": told["now"], "router": ping["router"]}


@pages.page(
    "/services/{service}",
    "service.html",
    title="Service",
    nav="services",
    parts={
        "facts": Part((SERVICES,), every_s=2.0),
        "replicas": Part((SERVICES, JOBS, PLAN), every_s=2.0),
        "scaling": Part((SERVICES,), every_s=2.0),
        "revisions": Part((SERVICES,), every_s=2.0),
        "story": Part((SERVICES,), every_s=5.0),
    },
)
async def service(asking: Asking) -> Values:
    name = asking.path["service"]
    told, keys, story = await asking.together(
        asking.get(f"/v1/services/{name}"),
        asking.get_or(None, f"/v1/services/{name}/keys"),
        asking.get_or({"events": []}, f"/v1/services/{name}/events") if asking.wants("story") else _none(),
    )
    record = told["service"]
    return {
        "title": name,
        "service": record,
        "now": told["now"],
        "may_change": keys is not None,
        "keys": keys["keys"] if keys is not None else [],
        "canary": next((each for each in record["revisions"] if each["canary_percent"]), None),
        "story": [_event(each) for each in reversed(story["events"][-_MOST_EVENTS:])],
        "rolls_back": any(each["phase"] in ("CANARY", "ROLLING") for each in record["revisions"])
        or len(record["revisions"]) > 1,
    }


async def _none() -> Mapping[str, Any]:
    return {"events": []}


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    return {"at": event["at"], "text": said_of_service(event), "cause": event["cause"]}


_SAID = {
    "ServiceDeployed": "revision {number} was made by {by}",
    "ServiceScaled": "{wanted} wanted: {why}",
    "ServiceStopping": "{by} stops it",
    "ServiceRemoved": "it is gone",
    "ServiceKeyAdded": "a key was made",
    "ServiceKeyRevoked": "key {key_id} was revoked by {by}",
    "RevisionChosen": "revision {number} was chosen by {by}",
    "RevisionShifted": "revision {number} has {percent}% of the requests, by {by}",
    "RevisionSettled": "revision {number} serves",
    "RevisionRetired": "revision {number} is retired",
    "RevisionFailed": "revision {number} was given up: {why}",
    "RevisionBackedOff": "revision {number}: new replicas wait a while",
    "ReplicaAdded": "replica {replica} of revision {revision}: job {job_id}",
    "ReplicaQueued": "replica {replica} is job {job_id}",
    "ReplicaHealthChanged": "replica {replica} is {health} {why}",
    "ReplicaDraining": "replica {replica} gets no more requests: {why}",
    "ReplicaWithdrawn": "replica {replica} is out of the router's table",
    "ReplicaEnding": "replica {replica} ends",
    "ReplicaGone": "replica {replica} is gone",
}


def said_of_service(event: Mapping[str, Any]) -> str:
    """An event of a service in words; one of a newer release by its name."""
    words = _SAID.get(event["kind"])
    return str(event["kind"]) if words is None else words.format_map(_Told(event["data"])).strip(" :")


class _Told(dict[str, Any]):
    """What is not said is nothing: fields that have their default are left out of events."""

    def __missing__(self, key: str) -> str:
        return ""

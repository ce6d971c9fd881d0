"""Admin: partitions, accounts with their limits, reservations as a calendar, healings, who asked for what, sessions.

Everybody sees what they may see; what changes something is offered to operators. Invariant: each part stands by itself:
what this cluster does not have, or this visitor may not see, is told in its place and costs the others nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bireme.web import words
from bireme.web.asking import Asking
from bireme.web.pages.nodes import said_of_node
from bireme.web.pages.services import said_of_service
from bireme.web.paging import BOOK, FAULTS, NODES, RESERVATIONS, Pages, Part, Values

pages = Pages()
_MOST_AUDIT = 100
_AHEAD_S, _BEHIND_S = 14 * 86_400.0, 86_400.0


@pages.page(
    "/admin",
    "admin.html",
    title="Admin",
    nav="admin",
    parts={
        "healings": Part((FAULTS,)),
        "partitions": Part((NODES,), every_s=5.0),
        "accounts": Part((BOOK,), every_s=5.0),
        "reserved": Part((RESERVATIONS,)),
        "audit": Part((NODES, BOOK, RESERVATIONS, FAULTS), every_s=5.0),
    },
)
async def admin(asking: Asking) -> Values:
    healed, listed, book, reserved, audit, sessions, ping = await asking.together(
        asking.get_or(None, "/v1/healings", {"all": asking.query.get("all", "")}),
        asking.get("/v1/partitions"),
        asking.get_or(None, "/v1/accounting/manager"),
        asking.get_or(None, "/v1/reservations"),
        asking.get_or(None, "/v1/audit", {"limit": str(_MOST_AUDIT)}) if asking.wants("audit") else _nothing(),
        asking.get_or(None, "/v1/web/sessions"),
        asking.get("/v1/ping"),
    )
    now = ping["now"]
    return {
        "now": now,
        "admin": asking.visitor.admin,
        "healed": healed,
        "all": asking.query.get("all", ""),
        "partitions": listed["partitions"],
        "book": book,
        "reservations": reserved["reservations"] if reserved is not None else None,
        "calendar": _calendar(reserved["reservations"], now) if reserved is not None else None,
        "audit": [_asked(each) for each in audit["events"]] if audit is not None else None,
        "sessions": sessions["sessions"] if sessions is not None else None,
    }


async def _nothing() -> None:
    return None


def _calendar(reservations: list[Mapping[str, Any]], now: float) -> dict[str, Any]:
    """Lanes for `plot.js`: a row for each reservation."""
    lanes = [
        {
            "name": "reservation",
            "title": each["name"],
            "spans": [
                {
                    "start": each["start_time"],
                    "end": each["end_time"],
                    "text": f"{each['node_list']}: {', '.join([*each['users'], *each['accounts'], *each['groups']])}",
                    "tone": "run" if each["state"] == "ACTIVE" else "start",
                    "more": ",".join(each["flags"]),
                }
            ],
        }
        for each in reservations
    ]
    ends = [each["end_time"] for each in reservations if each["end_time"]]
    return {"lanes": lanes, "first": now - _BEHIND_S, "final": max([now + _AHEAD_S, *ends]), "now": now}


def _asked(event: Mapping[str, Any]) -> dict[str, Any]:
    parts = event["cause"].split(" ", 2)
    return {
        "seq": event["seq"],
        "at": event["at"],
        "user": event["user"],
        "by": parts[2] if len(parts) > 2 else "",
        **_said(event["kind"], event["data"]),
    }


_SAID: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "AccountsChanged": lambda data: "; ".join(_of_book(data)) or "the account book",
    "PartitionUpdated": lambda data: f"partition {data['partition']['name']} is {data['partition'].get('state', 'UP')}",
    "ReservationSet": lambda data: (
        f"reservation {data['reservation']['name']} of {','.join(data['reservation'].get('nodes', ()))}"
    ),
    "ReservationRemoved": lambda data: f"reservation {data.get('name', '')} is removed",
    "HealingProposed": lambda data: f"{data['proposal']['title']}, since {data['proposal'].get('reason', '')}",
    "HealingDecided": lambda data: f"healing {data.get('id')} is {data.get('phase')} {data.get('why', '')}",
}


def _of_book(data: Mapping[str, Any]) -> Iterator[str]:
    """A change of the account book, in sacctmgr's words."""
    for each in data.get("accounts", ()):
        yield f"account {each['name']}"
    for each in data.get("associations", ()):
        user, account = each.get("user"), each["account"]
        limits = each.get("limits") or {}
        found = {name: dict(value) if isinstance(value, list) else value for name, value in limits.items()}
        yield f"{f'user {user} in ' if user else ''}account {account} {words.limits(found)}".strip()
    for each in data.get("qos", ()):
        yield f"QOS {each['name']}"
    known = {"accounts", "associations", "qos"}
    yield from (f"{name} {_short({name: value})}" for name, value in data.items() if name not in known and value)


def _said(kind: str, data: Mapping[str, Any]) -> dict[str, str]:
    """A change in words; one that has none by its name and what it holds."""
    if kind.startswith("Node"):
        return {"said": f"node {data['node']}: {said_of_node({'kind': kind, 'data': data})}", "data": ""}
    if kind.startswith(("Service", "Revision", "Replica")):
        return {"said": f"service {data['name']}: {said_of_service({'kind': kind, 'data': data})}", "data": ""}
    say = _SAID.get(kind)
    return {"said": say(data), "data": ""} if say is not None else {"said": kind, "data": _short(data)}


def _short(data: Mapping[str, Any]) -> str:
    """What was asked, in one line."""
    told = {name: value for name, value in data.items() if value not in (None, "", [], {}, False)}
    text = json.dumps(told, ensure_ascii=False, default=str)
    return text if len(text) <= 300 else text[:299] + "…"

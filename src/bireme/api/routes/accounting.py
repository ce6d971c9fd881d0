"""The account book over the API: read it, change it, and see how everybody stands.

What may be asked is `core/accounting/orders.py`, one object for each order; its class is named by the key `_`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.answers import Recipe
from bireme.api.passing import check_own_book
from bireme.api.problems import answer
from bireme.api.routing import Context, Routes
from bireme.core.accounting.orders import Orders, Outcome
from bireme.core.accounts.bookkeeping import change_accounts
from bireme.core.model.events import Event
from bireme.core.model.refusals import Caller
from bireme.core.state.state import State
from bireme.slurm.records.accounts import book_record, fair_tree_in_force, share_records
from bireme.slurm.records.association_manager import association_manager_record
from bireme.store import codec

routes = Routes("accounting")


@routes.get("/v1/accounting/book")
async def show_book(api: Context, request: Request) -> Response:
    """Accounts, users, associations and QOS, with what each association inherits."""
    check_own_book(api)
    record = book_record(api.cluster.state)
    _keep_seen(api, api.caller(request), record)
    return answer(record)


@routes.get("/v1/accounting/manager")
async def show_manager(api: Context, request: Request) -> Response:
    """The book, with what counts against the limits of every association and QOS."""
    check_own_book(api)
    caller = api.caller(request)
    record = association_manager_record(api.cluster.state, api.now())
    _keep_seen(api, caller, record)
    if api.viewer(caller).hidden("users", "usage"):
        for row in record["qos"]:
            row["users"] = {uid: each for uid, each in row["users"].items() if uid == str(caller.uid)}
    return answer(record)


@routes.get("/v1/accounting/shares")
async def show_shares(api: Context, request: Request) -> Response:
    """Shares, usage and fair share of every association, as of now."""
    check_own_book(api)
    state = api.cluster.state
    rows = share_records(state, api.now())
    viewer = api.viewer(api.caller(request))

    def seen(part: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        known = [row for row in part if viewer.sees_account(row["account"])]
        return [row for row in known if viewer.sees_user(row["user"], row["account"], "usage", "users")]

    beside = {"fair_tree": fair_tree_in_force(state), "cluster": state.config.name}
    return await api.in_slices(request, Recipe("shares", lambda: rows, seen, lambda: beside))


def _keep_seen(api: Context, caller: Caller, record: dict[str, Any]) -> None:
    """Of the book: what the caller may know of."""
    viewer = api.viewer(caller)
    rows = [each for each in record["associations"] if viewer.sees_account(each["account"])]
    rows = [each for each in rows if viewer.sees_user(each["user"], each["account"], "users")]
    record["associations"] = rows
    if "accounts" in record:
        record["accounts"] = [each for each in record["accounts"] if viewer.sees_account(each["name"])]
    if viewer.hidden("users", "accounts"):
        known = {each["user"] for each in rows} | {caller.user}
        record["users"] = [each for each in record["users"] if each["name"] in known]


@routes.post(
    "/v1/accounting/changes",
    body="`orders`: objects whose `_` is AddAccounts, AddUsers, AddQos, ModifyAccounts ...; `dry_run`: only say.",
)
async def change_book(api: Context, request: Request) -> Response:
    """Add, modify and delete accounts, users, associations, QOS and coordinators: all orders or none."""
    check_own_book(api)
    caller = api.caller(request)
    asked = codec.convert(Orders, await api.body(request))
    outcomes: list[Outcome] = []

    def decide(state: State, now: float) -> list[Event]:
        events, found = change_accounts(state, caller, asked.orders)
        outcomes[:] = found
        return events

    if asked.dry_run:
        decide(api.cluster.state, api.now())
    else:
        await api.cluster.do(api.cause(request), decide)
    return answer({"cluster": api.cluster.state.config.name, "outcomes": [_told(each) for each in outcomes]})


def _told(outcome: Outcome) -> dict[str, Any]:
    return {
        "accounts": list(outcome.accounts),
        "users": list(outcome.users),
        "qos": list(outcome.qos),
        "associations": [
            {"account": each.account, "user": each.user, "partition": each.partition, "parent": each.parent}
            for each in outcome.associations
        ],
    }

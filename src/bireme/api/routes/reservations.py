"""Reservations over the API: list them, make them, change them, remove them.

An order has the fields of `core/reservations/orders.ReservationOrder`. Users and groups are looked up here.
"""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.passing import check_own_book
from bireme.api.problems import ProblemError, answer
from bireme.api.routing import Context, Routes
from bireme.core.model.events import ReservationSet
from bireme.core.model.refusals import Refusal, Why
from bireme.core.reservations.orders import (
    ReservationOrder,
    create_reservation,
    delete_reservation,
    edited,
    update_reservation,
)
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand
from bireme.slurm.records.reservations import reservation_record
from bireme.store import codec

routes = Routes("reservations")


@routes.get("/v1/reservations")
async def list_reservations(api: Context, request: Request) -> Response:
    """The reservations, oldest first; with PrivateData=reservations users see those that they may use."""
    check_own_book(api)
    state, now, caller = api.cluster.state, api.now(), api.caller(request)
    viewer = api.viewer(caller)
    seen = [each for each in state.reservations.values() if viewer.sees_reservation(each)]
    return answer({"reservations": [reservation_record(state, each, now) for each in seen], "now": now})


@routes.post("/v1/reservations", body="`name` (may be empty: one is chosen) and `order`: begin, end, nodes, users ...")
async def make_reservation(api: Context, request: Request) -> Response:
    """Set nodes aside, as `scontrol create reservation` (operators only)."""
    caller, body = api.caller(request), await api.body(request)
    name, order = str(body.get("name") or ""), await api.callers.ask(caller.uid, _order, body.get("order"), ())
    recorded = await api.cluster.do(
        api.cause(request), lambda state, now: create_reservation(state, caller, name, order, now)
    )
    made = [each.event for each in recorded if isinstance(each.event, ReservationSet)]
    return answer({"name": made[0].reservation.name})


@routes.post("/v1/reservations/{name}/update", body="`order`: what changes; lists may say +name and -name.")
async def change_reservation(api: Context, request: Request) -> Response:
    """Change a reservation, as `scontrol update reservation=...` (operators only)."""
    caller, name = api.caller(request), request.path_params["name"]
    present = api.cluster.state.reservations.get(name)
    given, groups = (await api.body(request)).get("order"), present.groups if present else ()
    order = await api.callers.ask(caller.uid, _order, given, groups)
    await api.cluster.do(api.cause(request), lambda state, now: update_reservation(state, caller, name, order, now))
    return answer({"name": name})


@routes.post("/v1/reservations/{name}/delete")
async def remove_reservation(api: Context, request: Request) -> Response:
    """Remove a reservation that no job is in or waits for (operators only)."""
    caller, name = api.caller(request), request.path_params["name"]
    await api.cluster.do(api.cause(request), lambda state, _: delete_reservation(state, caller, name))
    return answer({"name": name})


def _order(given: object, groups: Iterable[str]) -> ReservationOrder:
    if not isinstance(given, dict):
        raise ProblemError(400, "order: expected an object")
    order = codec.convert(ReservationOrder, given)
    if order.nodes is not None:
        order = replace(order, nodes=tuple(name for word in order.nodes for name in _names(word)))
    for word in order.users or ():
        _check_user(word.lstrip("+-"))
    if order.groups is None:
        return order
    names = edited(tuple(groups), order.groups)
    return replace(order, gids=tuple(_gid(name) for name in names))


def _names(word: str) -> Iterable[str]:
    """Of a node, or of a hostlist."""
    if "[" not in word:
        return (word,)
    try:
        return expand(word)
    except SlurmSyntaxError as error:
        raise ProblemError(400, f"nodes: {word[:80]!r}: {error}") from error


def _check_user(name: str) -> None:
    try:
        pwd.getpwnam(name)
    except KeyError:
        raise Refusal(Why.USER_ID_MISSING, f"there is no user {name!r}") from None


def _gid(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise Refusal(Why.GROUP_ID_MISSING, f"there is no group {name!r}") from None

"""Reservations over the API: users and groups are looked up, orders are checked, and a refusal changes nothing."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import replace
from typing import Any

import pytest

from bireme.api.privacy import Viewer
from bireme.client.transport import ApiError
from bireme.core.model.refusals import Caller
from bireme.core.model.reservations import Reservation

Running = Any
"""The fixture `api` of conftest.py: `transport`, `cluster`, `happen`."""
ME = pwd.getpwuid(os.getuid()).pw_name
GROUP = grp.getgrgid(os.getgid())
WHEN = {"begin": 1000.0, "duration_s": 3600, "nodes": ["n1"]}


def make(api: Running, name: str = "", **order: Any) -> Any:
    return api.transport.post("/v1/reservations", {"name": name, "order": {**WHEN, **order}})


def listed(api: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.transport.get("/v1/reservations")["reservations"]
    return found


def test_one_is_made_changed_and_removed(api: Running) -> None:
    assert make(api, users=[ME]) == {"name": f"{ME}_1"}
    record = listed(api)[0]
    assert (record["node_list"], record["state"], record["users"], record["flags"]) == (
        "n1", "ACTIVE", [ME], ["SPEC_NODES"],
    )  # fmt: skip
    assert {node["name"]: node["flags"] for node in api.transport.get("/v1/nodes")["nodes"]}["n1"] == ["RESERVED"]
    changes = {"groups": [GROUP.gr_name], "flags": ["+DAILY"]}
    api.transport.post(f"/v1/reservations/{ME}_1/update", {"order": changes})
    assert listed(api)[0]["groups"] == [GROUP.gr_name]
    assert api.cluster.state.reservations[f"{ME}_1"].gids == (GROUP.gr_gid,)
    api.transport.post(f"/v1/reservations/{ME}_1/delete")
    assert listed(api) == []


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ({"users": ["nobody-of-this-name"]}, "ESLURM_USER_ID_MISSING"),
        ({"groups": ["no-group-of-this-name"]}, "ESLURM_GROUP_ID_MISSING"),
        ({"users": [ME], "nodes": ["n9"]}, "ESLURM_INVALID_NODE_NAME"),
        ({"users": [ME], "nodes": None, "partition": "none"}, "ESLURM_INVALID_PARTITION_NAME"),
        ({}, "ESLURM_RESERVATION_EMPTY"),
        ({"users": [ME], "begin": "soon"}, None),
        ({"users": [ME], "colour": "red"}, None),
    ],
)
def test_what_is_refused_leaves_nothing(api: Running, order: dict[str, Any], code: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        make(api, "r", **order)
    assert caught.value.code == code
    assert caught.value.status < 500
    assert listed(api) == []


def test_private_reservations_are_seen_by_those_who_may_use_them(api: Running) -> None:
    made = Reservation(name="r", begin=1000.0, end=2000.0, nodes=("n1",), users=("ada",), accounts=("physics",))
    state = api.cluster.state
    state.config = replace(state.config, raw={"PrivateData": "reservations"})

    def sees(caller: Caller, reservation: Reservation) -> bool:
        return Viewer(state, caller).sees_reservation(reservation)

    assert sees(Caller(uid=0, gid=0, user="root", admin=True), made)
    assert not sees(Caller(uid=5, gid=5, user="bob"), made)
    assert not sees(Caller(uid=6, gid=6, user="ada"), made), "not in the account"
    assert sees(Caller(uid=6, gid=6, user="ada"), replace(made, accounts=()))
    assert sees(Caller(uid=7, gid=7, user="eve", groups=(9,)), replace(made, users=(), accounts=(), gids=(9,)))

"""scontrol's and sinfo's reservations as a user meets them: what is sent, and Slurm's words when that fails."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fake_api import FakeApi

from bireme.client.transport import ApiError
from bireme.commands import reports, scontrol, sinfo

RECORD: dict[str, Any] = {
    "name": "r", "start_time": 0, "end_time": 60, "duration_s": 60, "node_list": "n1", "node_count": 1,
    "core_count": 8, "features": "", "partition": "", "flags": ["SPEC_NODES"], "tres": {"cpu": 8}, "users": ["ada"],
    "groups": [], "accounts": [], "state": "ACTIVE", "purge_after_s": None, "max_start_delay_s": None,
}  # fmt: skip


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi(
        {"/v1/reservations": {"reservations": [RECORD], "now": 1000, "name": "ada_1"}, "/v1/reservations/r/update": {}}
    )
    monkeypatch.setattr(reports, "transport", lambda: fake)
    return fake


def test_what_is_sent(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    line = "create reservation StartTime=now+60 Duration=5 Nodes=n[1-2] Users=ada Flags=maint"
    assert scontrol.main(line.split()) == 0
    path, body = api.posted.pop()
    assert (path, body["name"]) == ("/v1/reservations", "")
    assert {key: body["order"][key] for key in ("duration_s", "nodes", "users", "flags")} == {
        "duration_s": 300, "nodes": ["n1", "n2"], "users": ["ada"], "flags": ["MAINT"],
    }  # fmt: skip
    assert scontrol.main(["update", "reservation=r", "Users+=bob", "EndTime=now+60", "PartitionName=gpu"]) == 0
    path, body = api.posted.pop()
    assert (path, body["order"]["users"], body["order"]["partition"]) == ("/v1/reservations/r/update", ["+bob"], "gpu")
    assert scontrol.main(["delete", "reservation", "r"]) == 0
    assert api.posted.pop()[0] == "/v1/reservations/r/delete"
    assert capsys.readouterr().out == "Reservation created: ada_1\nReservation updated.\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("create", "too few arguments for create keyword"),
        ("create foo=1", "scontrol: error: Invalid creation entity: foo=1"),
        ("create partition=p", "scontrol: error: partitions and nodes are made in slurm.conf"),
        ("create res Foo=1", "scontrol: error: Unknown parameter Foo=1.  No reservation created."),
        (
            "create res StartTime=blah",
            "Invalid time specification (pos=0): blah\n"
            "scontrol: error: Invalid start time StartTime=blah.  No reservation created.",
        ),
        (
            "update res=r Foo=1",
            "scontrol: error: Unknown parameter Foo=1.  No reservation update.\nslurm_update error: No error",
        ),
        ("delete", "too few arguments for delete keyword"),
        ("delete foo=1", "Invalid deletion entity: foo=1"),
        ("delete res", "scontrol: error: Proper format is 'delete <ENTITY>=<ID>' or 'delete <ENTITY> <ID>'"),
    ],
)
def test_what_is_wrong_is_not_sent(api: FakeApi, capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    assert scontrol.main(line.split()) == 1
    assert capsys.readouterr().err == f"{message}\n"
    assert not api.posted


def test_refusals(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    busy = ApiError("Requested nodes are busy", status=409, code="ESLURM_NODES_BUSY", slurm_errno=2016)
    api.answers |= dict.fromkeys(("/v1/reservations", "/v1/reservations/r/update", "/v1/reservations/r/delete"), busy)
    assert scontrol.main(["create", "res=r", "StartTime=now", "Duration=1", "Nodes=n1", "Users=ada"]) == 1
    assert scontrol.main(["update", "reservationname=r", "Duration=1"]) == 1
    assert scontrol.main(["delete", "reservation=r"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "Error creating the reservation: Requested nodes are busy",
        "Note, unless nodes are directly requested a reservation must exist in a single partition.",
        "If no partition is requested the default partition is assumed.",
        "Error updating the reservation: Requested nodes are busy",
        "slurm_update error: Requested nodes are busy",
        "delete_reservation reservation=r: Requested nodes are busy",
    ]


def test_what_is_shown(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["-o", "show", "res", "r"]) == 0
    assert "Nodes=n1 NodeCnt=1 CoreCnt=8" in capsys.readouterr().out
    assert sinfo.main(["-hT"]) == 0
    assert capsys.readouterr().out.startswith("r            ACTIVE  ")
    assert scontrol.main(["show", "reservation", "other"]) == 1
    assert capsys.readouterr().out == "Reservation other not found\n"

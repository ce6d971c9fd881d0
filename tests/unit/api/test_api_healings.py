"""/v1/healings: who sees what, who may answer, and what the command prints of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.conftest import ask_as

from bireme.agent.health.checks import Check
from bireme.cli.faults.healings import lines_of, text_of
from bireme.cli.faults.repairing import repair
from bireme.client.sdk import Client
from bireme.client.transport import ApiError
from bireme.commands.voice import CommandFailure
from bireme.core.lifecycle.due import settled
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Gravity, Place, Quote, Trouble
from bireme.core.model.healing.policy import HealingMode, HealingPolicy

Running = Any
BOB = 4002
XID = Quote(text="NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.", source="kernel", at=1000.0)


def suggested(api: Running) -> None:
    """A node is broken, and nothing is done without a person."""
    broken = Trouble(
        detector="nic",
        place=Place(node="n2"),
        gravity=Gravity.BROKEN,
        cause="nic_down",
        title="the link of mlx5_0 is down",
        since=990.0,
        quotes=(XID,),
    )
    api.happen(e.HealingPolicySet(HealingPolicy(mode=HealingMode.SUGGEST)), e.FindingOpened(1, broken))
    settle(api)


def settle(api: Running) -> None:
    """What a kernel's turn would decide: this cluster has none."""
    for event in settled(api.cluster.state, 1000.0):
        api.happen(event)


def ask(api: Running, method: str, path: str, uid: int, body: Any = None) -> tuple[int, Any]:
    asked = asyncio.run_coroutine_threadsafe(ask_as(api.app, method, path, uid, body), api.loop)
    status, text = asked.result(10)
    return status, json.loads(text)


def test_a_suggestion_is_approved_by_an_operator_done_and_undone(api: Running) -> None:
    suggested(api)
    for verb in ("approve", "refuse", "undo"):
        assert ask(api, "POST", f"/v1/healings/1/{verb}", BOB, {})[0] == 403
    with Client(api.home) as client:
        [waiting] = client.healings()
        assert (waiting["state"], waiting["title"], waiting["findings"]) == ("suggested", "drain n2", [1])
        client.approve_healing(1, "go on")
        settle(api)
        assert client.healing(1)["state"] == "done"
        [node] = [each for each in client.nodes() if each["name"] == "n2"]
        assert "DRAIN" in node["flags"]
        assert node["reason"] == "the link of mlx5_0 is down (finding 1)"
        client.undo_healing(1, "cable")
        settle(api)
        assert client.healings() == []
        [over] = client.healings(everything=True)
        assert [mark["phase"] for mark in over["trail"]] == ["suggested", "approved", "done", "undone"]
        with pytest.raises(ApiError, match="is undone by"):
            client.undo_healing(1)
        with pytest.raises(ApiError, match="there is no healing 7"):
            client.healing(7)


def test_a_node_is_fenced_by_hand_and_resuming_it_is_the_undo(api: Running) -> None:
    assert ask(api, "POST", "/v1/healings", BOB, {"fence": "n1", "reason": "x"})[0] == 403
    with Client(api.home) as client:
        with pytest.raises(ApiError, match="the last node of partition small that takes jobs: say --last-too"):
            client.fence("n1", "a rattling fan")
        client.fence("n1", "a rattling fan", last_too=True)
        settle(api)
        assert client.healing(1)["state"] == "done"
        with pytest.raises(ApiError, match="fenced already: a rattling fan"):
            client.fence("n1", "again")
        client.transport.post("/v1/nodes/update", {"nodes": "n1", "state": "RESUME"})
        settle(api)
        assert client.healings(everything=True)[0]["state"] == "undone"
    assert ask(api, "POST", "/v1/healings", 0, {"fence": "n1", "reason": "x", "last_too": "yes"})[0] == 400
    assert ask(api, "GET", "/v1/healings/x", 0)[0] >= 400


def test_the_text_names_the_mode_what_waits_and_the_audit(api: Running) -> None:
    suggested(api)
    told = api.transport.get("/v1/healings")
    text = "\n".join(lines_of(told))
    assert text.startswith("Mode suggest: nothing is done before an operator approves it.")
    assert "bireme healings approve 1 does it" in text
    whole = "\n".join(text_of(told["healings"][0], lambda at: "T"))
    for words in ("Healing 1: drain n2", "kernel: NVRM: Xid", "Audit       T suggested: healing.mode is suggest here"):
        assert words in whole


def test_a_repair_lifts_a_fence_when_the_checks_pass_and_not_before(
    api: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suggested(api)
    api.happen(e.HealingApproved(1, "root"))
    settle(api)
    program = tmp_path / "repair"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("BIREME_HOME", str(tmp_path / "settings"))
    with pytest.raises(CommandFailure, match="names no program"):
        list(repair(api.transport, "n2", lambda: ()))
    monkeypatch.setenv("BIREME_HEALING_REPAIR", str(tmp_path / "none"))
    [(lifted, said)] = repair(api.transport, "n2", lambda: ())
    assert (lifted, "cannot be run: No such file" in said) == (False, True)
    monkeypatch.setenv("BIREME_HEALING_REPAIR", str(program))
    [(lifted, said)] = repair(api.transport, "n2", lambda: [Check("disk", "FAIL", "it is full", "empty it")])
    assert (lifted, said) == (False, "n2 stays fenced: a check fails after the repair: disk: it is full")
    [(lifted, said)] = repair(api.transport, "n2", lambda: [Check("disk", "PASS", "there is room", "")])
    assert (lifted, said[:22]) == (True, "n2 is in service again")
    settle(api)
    assert api.transport.get("/v1/findings")["findings"] == []

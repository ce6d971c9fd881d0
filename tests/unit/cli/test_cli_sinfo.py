"""sinfo as a user meets it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.fake_api import FakeApi, absent

from bireme.commands import reports, sinfo


def node(name: str, state: str, *flags: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "hostname": name, "state": state, "flags": list(flags), "cpus": 8, "cpus_allocated": 0,
        "memory_mib": 16000, "sockets": 1, "cores_per_socket": 8, "threads_per_core": 1, "weight": 1, "features": [],
        **more,
    }  # fmt: skip


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    nodes = [
        node("n1", "MIXED", cpus_allocated=4),
        node("n2", "IDLE"),
        node("n10", "IDLE", "DRAIN", reason="bad fan", reason_user="root", reason_time=0),
        node("c1", "DOWN", "NOT_RESPONDING", reason="Not responding", reason_user="root", reason_time=0),
    ]
    partitions = [
        {"name": "gpu", "nodes": ["n1", "n2", "n10"], "default": True, "max_time_s": 3600},
        {"name": "cpu", "nodes": ["c1"], "max_time_s": None},
        {"name": "secret", "nodes": ["n1"], "hidden": True, "max_time_s": None},
    ]
    fake = FakeApi({"/v1/nodes": {"nodes": nodes}, "/v1/partitions": {"partitions": partitions}})
    monkeypatch.setattr(reports, "transport", lambda: fake)
    for name in ("SINFO_FORMAT", "SINFO_SORT", "SINFO_PARTITION", "SINFO_ALL"):
        monkeypatch.delenv(name, raising=False)
    return fake


def out(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert sinfo.main(list(argv)) == 0
    return capsys.readouterr().out.splitlines()


def test_default(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys) == [
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST",
        "gpu*         up    1:00:00      1  drain n10",
        "gpu*         up    1:00:00      1    mix n1",
        "gpu*         up    1:00:00      1   idle n2",
        "cpu          up   infinite      1  down* c1",
    ]


def test_hidden_partitions_only_when_asked(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "-h", "-o", "%R") == ["gpu", "cpu"]
    assert out(capsys, "-a", "-h", "-o", "%R") == ["gpu", "cpu", "secret"]
    assert out(capsys, "-p", "secret", "-h", "-o", "%R") == ["secret"]


def test_nodes_in_the_order_people_count(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "-N", "-o", "%N") == ["NODELIST", "c1", "n1", "n2", "n10"]
    assert out(capsys, "-a", "-N", "-h", "-o", "%N")[1:3] == ["n1", "n1"]  # it is in two partitions
    assert out(capsys, "-N")[:2] == [
        "NODELIST   NODES PARTITION STATE ",
        "c1             1       cpu down* ",
    ]


def test_summary_and_reasons(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "-s")[1] == "gpu*         up    1:00:00          1/1/1/3 n[1-2,10]"
    assert [line[:7] for line in out(capsys, "-R", "-h")] == ["bad fan", "Not res"]


def test_filters(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "-h", "-d", "-o", "%N") == ["c1"]
    assert out(capsys, "-h", "-t", "drain", "-N", "-o", "%N") == ["n10"]
    assert out(capsys, "-n", "n[1-2]", "-h", "-N", "-o", "%N") == ["n1", "n2"]
    assert out(capsys, "-t", "drain")[1:] == [
        "gpu*         up    1:00:00      1  drain n10",
        "cpu          up   infinite      0    n/a ",
    ]


def test_refusals(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert sinfo.main(["-t", "foo"]) == 1
    assert capsys.readouterr().err.startswith('sinfo: error: Bad state string: "foo"\n')
    assert sinfo.main(["-o", "%!"]) == 0
    assert capsys.readouterr().err == "Invalid node format specification: !\n"


def test_long_and_a_format_exclude_each_other(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert sinfo.main(["-l", "-o", "%N"]) == 1
    clash = "Options -o(--format) and -l(--long) are mutually exclusive. Please remove one and retry."
    assert capsys.readouterr().err == f"sinfo: fatal: {clash}\n"


def test_no_daemon(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(reports, "transport", lambda: FakeApi({"/v1/nodes": absent()}))
    assert sinfo.main([]) == 1
    assert capsys.readouterr().err.startswith("slurm_load_partitions: Unable to contact slurm controller")


def test_json(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert sinfo.main(["--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {group["nodes"]["nodes"][0]: group["node"]["state"] for group in data["sinfo"]}["n10"] == ["IDLE", "DRAIN"]
    assert [group["nodes"]["nodes"][0] for group in data["sinfo"]][:2] == ["n10", "n1"]  # as its lines are sorted
    assert data["sinfo"][0]["partition"]["maximums"]["time"]["number"] == 60

"""What pages say of nodes, services, budgets and changes, without a browser."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.web import words
from bireme.web.pages.admin import _said
from bireme.web.pages.nodes import configured_gpus, said_of_node, use_of
from bireme.web.pages.services import said_of_service
from bireme.web.pages.use import _budgets


@pytest.mark.parametrize("kind", SERVICE_EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_of_a_service_has_words(kind: type) -> None:
    data = {"name": "chat", "number": 2, "replica": 3, "revision": 2, "by": "ann", "key": {"id": "ab"}, "key_id": "ab"}
    said = said_of_service({"kind": kind.__name__, "data": data})
    assert said != kind.__name__, "a new kind of event is told in words"
    assert "{" not in said


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("NodeUpdated", {"node": "n1", "drained": True, "note": "fan"}, "drained: fan"),
        ("NodeUpdated", {"node": "n1", "drained": False}, "back in service"),
        ("NodeUpdated", {"node": "n1", "weight": 3}, "changed"),
        ("NodeLost", {"node": "n1", "reason": "no answer"}, "it was lost: no answer"),
        ("NodeClosed", {"node": "n1", "why": ""}, "its cluster opened it again"),
        ("NodeOfTomorrow", {"node": "n1"}, "NodeOfTomorrow"),
    ],
)
def test_an_event_of_a_node_has_words(kind: str, data: dict[str, Any], said: str) -> None:
    assert said_of_node({"kind": kind, "data": data}) == said


def test_gpus_that_nobody_tells_of_are_those_of_the_configuration() -> None:
    assert [gpu["index"] for gpu in configured_gpus({"gres": "gpu:h100:2,shard:8,gpu:a100:1"})] == [0, 1, 2]
    assert [gpu["model"] for gpu in configured_gpus({"gres": "gpu:2"})] == ["", ""]
    assert configured_gpus({"gres": ""}) == []


def test_use_is_the_best_that_is_measured() -> None:
    assert use_of({"gpu_util": 99.0, "gpu_sm_active": 7.0}) == (7.0, "SM")
    assert use_of({"gpu_util": 0.0}) == (0.0, "util")
    assert use_of({"gpu_power": 80.0}) == (None, "")


def test_a_change_of_the_book_is_told_in_sacctmgrs_words() -> None:
    change = {"associations": [{"id": 3, "account": "lab", "limits": {"grp_tres": [["gres/gpu", 48]], "grp_jobs": 4}}]}
    assert _said("AccountsChanged", change)["said"] == "account lab GrpTRES=gres/gpu=48 GrpJobs=4"
    assert _said("SomethingNew", {"what": 1}) == {"said": "SomethingNew", "data": '{"what": 1}'}


def test_budgets_are_what_is_used_of_each_limit() -> None:
    counts = {"jobs": 3, "submitted": 5, "tres": {"gres/gpu": 8}}
    limits = {"grp_tres_mins": {"gres/gpu": 6000}, "grp_tres": {"gres/gpu": 16}, "grp_jobs": 3, "grp_wall_s": 7200}
    usage = {"gres/gpu": 1500.0, "wall": 30.0}
    row = {"account": "lab", "user": "", "limits": limits, "counts": counts, "usage": usage}
    found = {
        each["what"]: (each["used"], each["most"], each["part"])
        for each in _budgets({"associations": [row], "qos": []})
    }
    assert found == {
        "gres/gpu hours": (25.0, 100.0, 25.0),
        "wall hours": (0.5, 2.0, 25.0),
        "gres/gpu at once": (8, 16, 50.0),
        "jobs that run": (3, 3, 100.0),
    }


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.307, "0.31"), (12.34, "12.3"), (1234.5, "1,234"), (1000, "1,000"), (None, "–")]
)
def test_figures_are_short(value: float | None, shown: str) -> None:
    assert words.figure(value) == shown

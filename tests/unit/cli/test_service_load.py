"""What `bireme service show` and `why` tell of a service's load, and of what the autoscaler says of it."""

from __future__ import annotations

from typing import Any

from bireme.cli.serving.pages import why_lines

FIGURE = {"counted": "requests at once", "target": 16.0, "stable": 41.234, "burst": 40.0, "needs": 3, "missing": ""}
SAID = "41.2 requests at once, one replica for each 16"


def told(scaling: dict[str, Any]) -> list[str]:
    record = {
        "name": "chat", "user_name": "ann", "state": "READY", "wanted": 3, "ready": 3, "wanted_why": SAID,
        "replicas_min": 0, "replicas_max": 4, "fixed": False, "reasons": [], "crashes": [], "scaling": scaling,
    }  # fmt: skip
    return [line for line in why_lines(record, 0.0, {}) if line.startswith("Load")]


def test_the_load_is_told_with_what_it_needs() -> None:
    scaling = {"wanted": 3, "why": SAID, "cause": "load", "figures": [FIGURE], "next_change_at": None}
    assert told(scaling) == ["Load        41.2 requests at once, one replica for each 16: 3 replicas"]


def test_what_the_autoscaler_says_now_is_told_when_it_is_news() -> None:
    now = "as before"
    missing = FIGURE | {"stable": None, "missing": "nothing was measured for 70 s"}
    scaling = {"wanted": 3, "why": now, "cause": "missing", "figures": [missing], "next_change_at": None}
    assert told(scaling) == [f"Load        the autoscaler says: 3 replicas: {now}"]


def test_a_service_whose_number_does_not_change_has_no_load_to_tell() -> None:
    assert told({}) == []

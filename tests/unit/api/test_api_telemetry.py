"""Curves of GPUs over the API, of a real store of series: whose they are where several nodes have one of that name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.samples import T0, sampled
from tests.unit.api.conftest import SmallCluster, ask_as

from bireme.api.app import create_app
from bireme.api.cluster import Service
from bireme.core.telemetry.subjects import Subject
from bireme.ports import Holding, SeenGpu
from bireme.store.journal import SqliteStore
from bireme.store.series.store import SqliteSeries

SHARED, GONE = "GPU-shared", "GPU-gone"


class Telemetry:
    """Two virtual nodes name the same GPU; one that was on n3 is no longer there."""

    problem = ""

    def __init__(self, path: str) -> None:
        self.series = SqliteSeries(path)
        for no, (node, uuid) in enumerate((("n1", SHARED), ("n2", SHARED), ("n3", GONE)), 1):
            self.series.append(f"{node}/f", 1, [sampled(T0, Subject("gpu", node, uuid), gpu_util=10.0 * no)])
        self.series.hold([Holding(7, 1, "n3", GONE, False, T0, T0 + 10)])

    async def gpus(self) -> list[SeenGpu]:
        return [SeenGpu(node, SHARED, 0, "H200", 1, "", "", ()) for node in ("n1", "n2")]


@pytest.fixture
def telemetry(tmp_path: Path) -> Iterator[Telemetry]:
    made = Telemetry(str(tmp_path / "series.db"))
    yield made
    made.series.close()


@pytest.fixture
def ask(tmp_path: Path, telemetry: Telemetry) -> Iterator[Any]:
    store = SqliteStore(str(tmp_path / "journal.db"))
    service = Service(version="1", pid=1, up_since=0.0, owner_uid=0, telemetry=lambda: telemetry)  # type: ignore[arg-type,return-value]
    app = create_app(SmallCluster(store), store, service)  # type: ignore[arg-type]

    def asked(query: str) -> tuple[int, Any]:
        path = f"/v1/telemetry/series?metrics=gpu_util&reduce=mean&start={T0}&end={T0 + 10}&step=10&{query}"
        status, text = asyncio.run(ask_as(app, "GET", path, 0))
        return status, json.loads(text)

    yield asked
    store.close()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (f"gpu={SHARED}", [("n1", [10.0]), ("n2", [20.0])]),
        (f"gpu={SHARED}&node=n2", [("n2", [20.0])]),
        (f"gpu={GONE}", [("n3", [30.0])]),
        (f"gpu={GONE}&node=n1", []),
        ("gpu=GPU-never", []),
    ],
)
def test_a_gpu_of_several_nodes_is_shown_of_each(ask: Any, query: str, found: list[tuple[str, list[float]]]) -> None:
    _, told = ask(query)
    assert sorted((curve["node"], curve["mean"]) for curve in told["curves"]) == found


@pytest.mark.parametrize("query", ["", "job=1&gpu=GPU-shared", "job=1&node=n1", "job=1&gpu=GPU-shared&node=n1"])
def test_who_does_not_say_of_what_is_told_what_to_say(ask: Any, query: str) -> None:
    status, told = ask(query)
    assert (status, "one of job, gpu and node says of what" in told["error"]["message"]) == (400, True)

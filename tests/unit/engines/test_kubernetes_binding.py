"""Giving others' pods their nodes: answers that are lost, refusals, and ends in between."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.unit.engines.test_kubernetes_places import NOW, job

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.resources import Allocation, NodeShare
from bireme.engines.kubernetes.apiserver import insistence
from bireme.engines.kubernetes.apiserver.api import ApiProblem
from bireme.engines.kubernetes.apiserver.insistence import Insistence
from bireme.engines.kubernetes.guests.binding import Binder
from bireme.engines.kubernetes.guests.eviction import evict
from bireme.engines.kubernetes.guests.places import Places
from bireme.engines.kubernetes.guests.telling import Teller

SHARES = (NodeShare("n1", 2, 1024, tasks=1),)


class Server:
    """Answers `ask` with what is in `answers`, first to last: an object, or a problem to be raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), []

    async def ask(self, method: str, path: str, body: Any = None, *, params: Any = None) -> Any:
        self.asked.append(f"{method} {path.rpartition('/')[2]}")
        answer = self.answers.pop(0)
        if isinstance(answer, ApiProblem):
            raise answer
        return answer


class Bench:
    def __init__(self, *answers: Any) -> None:
        self.server: Any = Server(*answers)
        self.told: list[o.Observation] = []
        self.pods = {"team/a": {"metadata": {"name": "a", "namespace": "team", "uid": "u"}, "spec": {}}}
        self.places = Places(self.told.extend, lambda: NOW)
        self.gone: list[str] = []
        teller, insist = Teller(self.server, lambda: NOW), Insistence(self.server, "here")
        self.binder = Binder(
            insist,
            self.places,
            self.pods,
            teller,
            self.told.extend,
            lambda: NOW,
            _let_be,
            lambda _: "",
            self.gone.append,
        )

    def bind(self) -> list[o.Observation]:
        asyncio.run(self.binder.bind(c.LaunchJob(job(7, "a"), Allocation(7, 1, "main", SHARES))))
        return self.told


def _let_be(work: Coroutine[Any, Any, None]) -> None:
    work.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insistence, "_RETRY_S", 0.0)


def test_a_binding_whose_answer_was_lost_is_found_made() -> None:
    bench = Bench(ApiProblem("reset"), ApiProblem("exists", status=409), {"spec": {"nodeName": "n1"}})
    assert bench.bind() == [o.JobLaunched(7, 1, NOW)]
    assert bench.server.asked == ["POST binding", "POST binding", "GET a"]
    assert bench.places[7, 1].left == {"a"}


def test_a_pod_that_somebody_else_bound_is_not_ours() -> None:
    bench = Bench(ApiProblem("exists", status=409), {"spec": {"nodeName": "n2"}})
    (refused,) = bench.bind()
    assert isinstance(refused, o.JobRefused)
    assert "pod a could not be bound to n1" in refused.reason
    assert bench.gone == ["u"]


def test_a_server_that_stays_away_is_not_asked_for_ever() -> None:
    bench = Bench(*[ApiProblem("away")] * 5)
    assert isinstance(bench.bind()[0], o.JobRefused)
    assert not bench.server.answers


def test_a_job_that_is_to_end_while_it_is_bound_ends_once() -> None:
    bench = Bench()
    place = bench.places.hold(job(7, "a"), Allocation(7, 1, "main", SHARES))
    place.left.clear()
    asyncio.run(evict(bench.server, bench.places, place))
    assert bench.told == [], "whoever binds tells of it"
    place.binding = False
    asyncio.run(evict(bench.server, bench.places, place))
    assert bench.told == [o.JobCleared(7, 1, NOW)]

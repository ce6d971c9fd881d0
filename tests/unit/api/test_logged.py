"""What a timeline takes from a job's run: some metrics, and a word where the server says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bireme.api.looking_back import logged
from bireme.api.looking_back.logged import MOST_METRICS, logged_by
from bireme.core.model.jobs import Job, JobSpec, Owner, Pending, TrackedRun


class Run:
    """A server with a run that has these metrics; `hangs`: it never answers."""

    def __init__(self, *metrics: str, hangs: bool = False) -> None:
        self.metrics, self.hangs = metrics, hangs
        self.asked: list[tuple[str, ...]] = []

    async def of_job(self, job: Job, metrics: Sequence[str]) -> dict[str, Any]:
        return await self.of_past(job.id, job.submitted_at, metrics)

    async def of_past(self, job_id: int, submitted_at: float, metrics: Sequence[str]) -> dict[str, Any]:
        if self.hangs:
            await asyncio.Event().wait()
        self.asked.append(tuple(metrics))
        latest = [{"metric": name} for name in self.metrics]
        curves = [{"metric": name, "points": [[10.0, 1, 0.5], [11.0, 2, None]]} for name in metrics]
        return {"mlflow": {"run_id": "r", "link": "http://r", "metrics": latest, "curves": curves, "problem": ""}}


def test_some_metrics_are_taken_and_not_those_of_the_machine() -> None:
    names = [f"m{index}" for index in range(MOST_METRICS + 2)]
    run = Run("system/gpu_0_utilization_percentage", *names)
    found = asyncio.run(logged_by(run, None, 7, 0.0))
    assert found is not None
    assert found.link == "http://r"
    assert found.curves == dict.fromkeys(names[:MOST_METRICS], ((10.0, 0.5),)), "what is not a number is not there"
    assert found.absent == ("2 more metrics of its run: bireme experiment 7.",)


def test_a_server_that_hangs_is_told_as_what_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "LIMIT_S", 0.01)
    found = asyncio.run(logged_by(Run(hangs=True), None, 7, 0.0))
    assert found is not None
    assert (found.link, dict(found.curves)) == ("", {})
    assert found.absent == ("Its run in MLflow cannot be read: no answer within 0.01 s.",)


def test_nobody_is_asked_of_a_job_without_a_run() -> None:
    job = Job(7, JobSpec(owner=Owner(uid=1, gid=1, user="a")), 0.0, Pending(since=0.0))
    run = Run("loss")
    assert asyncio.run(logged_by(run, job, 7, 0.0)) is None
    job.tracked = TrackedRun("http://s", missed="no answer")
    assert asyncio.run(logged_by(run, job, 7, 0.0)) is None
    assert run.asked == []

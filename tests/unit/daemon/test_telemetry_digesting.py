"""Which starts are due for a digest and when: ends, restarts of the daemon, and rounds that come late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from bireme.core.telemetry.digest import Digest, GpuDigest, Level
from bireme.core.telemetry.subjects import Subject
from bireme.daemon.telemetry import digesting
from bireme.daemon.telemetry.digesting import AT_THE_LATEST_S, Digester, Run, RunsFollowed
from bireme.daemon.telemetry.intake import starts_in
from bireme.ports import Holding, Sampled
from bireme.testing.scenario import Scenario


class Followed:
    def __init__(self) -> None:
        self.world = Scenario("1x2:h100")
        self.runs = RunsFollowed()
        self._seen = 0

    def look(self) -> None:
        self.world.settle()
        since, self._seen = self._seen, len(self.world.journal)
        self.runs.after(self.world.state, self.world.journal[since:], self.world.now)


def test_a_start_is_due_when_it_is_over() -> None:
    followed = Followed()
    world = followed.world
    job = world.submit("train", gpus=2)
    followed.look()
    began = world.now
    assert followed.runs.goes_on((job, 1))
    assert not followed.runs.due
    world.now = began + 50
    world.finish("train")
    followed.look()
    (run,) = followed.runs.due.values()
    assert (run.name, run.start, run.end, len(run.nodes)) == ((job, 1), began, began + 50, 1)


def test_it_is_ready_when_the_gatherers_of_all_its_nodes_told_of_a_later_time() -> None:
    runs = RunsFollowed()
    run = Run(7, 1, 100.0, 200.0, ("n1", "n2"))
    runs.due[run.name] = run
    assert runs.ready({"n1": 201.0}, 202.0) == []
    assert runs.ready({"n1": 201.0, "n2": 200.0}, 202.0) == []
    assert runs.ready({"n1": 201.0, "n2": 201.0}, 202.0) == [run]
    assert runs.ready({}, 200.0 + AT_THE_LATEST_S) == [run], "nobody tells of its nodes"


class Store:
    """A store of series as far as digests go."""

    def __init__(self, *kept: Digest, measured: bool = True) -> None:
        self.kept = {(one.job_id, one.generation): one for one in kept}
        self.measured = measured
        self.made: list[tuple[int, int]] = []
        self.held: list[Holding] = []

    def digested_until(self) -> float | None:
        return max((one.end for one in self.kept.values()), default=None)

    def digests(self, job_ids: Any, *, steps: bool = True) -> list[Digest]:
        return [one for one in self.kept.values() if one.job_id in job_ids]

    def digest(self, job_id: int, generation: int, start: float, end: float) -> Digest:
        self.made.append((job_id, generation))
        gpus = (GpuDigest("n1", "GPU-a", False, end - start, 1.0, "gpu_util", Level(1.0, 1.0)),)
        return Digest(job_id, generation, start, end, gpus=gpus if self.measured else ())

    def keep_digests(self, made: Sequence[Digest]) -> None:
        self.kept |= {(one.job_id, one.generation): one for one in made}

    def holdings(self, job_id: int) -> list[Holding]:
        return [one for one in self.held if one.job_id == job_id]

    def hold(self, holdings: Sequence[Holding]) -> None:
        self.held += holdings


def test_a_start_that_cannot_be_put_together_keeps_no_other_waiting(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(Store):
        def digest(self, job_id: int, generation: int, start: float, end: float) -> Digest:
            if job_id == 7:
                raise ZeroDivisionError("a fault of ours")
            return super().digest(job_id, generation, start, end)

    store = Faulty()
    digested(store, [Run(7, 1, 100.0, 200.0, ("n1",)), Run(8, 1, 100.0, 200.0, ("n1",))], {"n1": 300.0})
    assert store.made == [(8, 1)]
    assert "what start 1 of job 7 used cannot be put together: ZeroDivisionError" in caplog.text


def test_a_fault_that_nobody_expected_does_not_end_the_making_of_digests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(digesting, "_LOOK_S", 0.0)
    told: list[Mapping[str, float]] = []

    def told_until() -> Mapping[str, float]:
        told.append({})
        if len(told) < 4:
            raise RuntimeError("dictionary changed size during iteration")
        return {"n1": 300.0}

    async def story() -> None:
        store = Store()
        digester = Digester(StandingClock(), lambda _: [Run(7, 1, 100.0, 200.0, ("n1",))])
        digester.begin(lambda: store, told_until, lambda node, index: "")  # type: ignore[arg-type,return-value]
        while not store.made:
            await asyncio.sleep(0)
        await digester.close()

    asyncio.run(story())
    assert [record.exc_info is not None for record in caplog.records] == [True], "it is said once, with its way"


class StandingClock:
    def now(self) -> float:
        return 1000.0


def digested(
    store: Store, past: Sequence[Run], told: Mapping[str, float], late: Sequence[tuple[int, int]] = ()
) -> None:
    """One look, as the daemon's task makes them; `late`: rounds that come after it, and a second look."""
    asked_since: list[float] = []

    def ended_since(at: float) -> Sequence[Run]:
        asked_since.append(at)
        return [run for run in past if run.end >= at]

    async def work() -> None:
        digester = Digester(StandingClock(), ended_since)
        digester._uuid_of = lambda node, index: f"GPU-{node}-{index}"
        await digester._digest_some(store, told)  # type: ignore[arg-type]
        digester.heard_of(late)
        if late:
            await digester._digest_some(store, told)  # type: ignore[arg-type]
        await digester.close()

    asyncio.run(work())
    assert len(asked_since) == 1


def run(job_id: int, end: float = 900.0) -> Run:
    return Run(job_id, 1, end - 10.0, end, ("n1",), (("n1", (0,)),))


def test_starts_that_ended_while_no_daemon_ran_are_found_in_the_history() -> None:
    kept = Digest(1, 1, 880.0, 890.0)
    store = Store(kept)
    digested(store, [run(1, 890.0), run(2), run(3)], {"n1": 950.0})
    assert store.made == [(2, 1), (3, 1)], "not those that have theirs"
    assert {(one.job_id, one.uuid, one.start, one.end) for one in store.held} == {
        (2, "GPU-n1-0", 890.0, 900.0),
        (3, "GPU-n1-0", 890.0, 900.0),
    }, "and whose GPUs they were, which nobody lived to write down"


def test_one_whose_gatherer_is_behind_waits() -> None:
    store = Store()
    digested(store, [run(2)], {"n1": 899.0})
    assert store.made == []


def test_a_round_that_comes_late_has_the_digest_made_anew() -> None:
    store = Store(Digest(1, 1, 100.0, 110.0))
    digested(store, [], {"n1": 950.0}, late=[(1, 1), (5, 1)])
    assert store.made == [(1, 1)]


def test_what_had_nothing_measured_is_found_again_when_rounds_come() -> None:
    store = Store(measured=False)
    digested(store, [run(2)], {"n1": 950.0}, late=[(2, 1)])
    assert store.made == [(2, 1), (2, 1)]
    assert store.kept == {}


def test_the_starts_that_a_round_tells_of() -> None:
    one = np.array([1.0])
    subjects = [Subject("task", "n1", "7.1.-5.0"), Subject("use", "n1", "8.2.0.3@GPU-a"), Subject("gpu", "n1", "1.2.3")]
    samples = [Sampled(0.0, 1.0, (subject,), {"memory": one}) for subject in (*subjects, Subject("task", "n1", "x"))]
    assert starts_in(samples) == {(7, 1), (8, 2)}

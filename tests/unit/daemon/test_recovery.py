"""The keepers of jobs that failed: who is asked as whom, what is believed of answers, and what is told in any case."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from bireme.agent.system.identity import Identity
from bireme.api.owner_reading import UnreadError
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.healing.policy import HealingMode, HealingPolicy
from bireme.core.state.state import State
from bireme.daemon.faults.restarts.inquests import InquestKeeper, seen_from
from bireme.daemon.faults.restarts.saving import CheckpointKeeper, checkpoint_from, saves
from bireme.testing.scenario import Scenario


class Stage:
    """A scenario, with what keepers ask of the runtime."""

    def __init__(self) -> None:
        self.world = Scenario("2x2:h100")
        self.world.record([e.HealingPolicySet(HealingPolicy(mode=HealingMode.ACT))])
        self.clock = self.world.clock
        self.told: list[o.Observation] = []

    @property
    def state(self) -> State:
        return self.world.state

    def report(self, observations: Sequence[o.Observation]) -> None:
        self.told += observations
        for each in observations:
            self.world.report(each)

    def subscribe(self, subscriber: Callable[[Sequence[e.Recorded]], None]) -> Callable[[], None]:
        return lambda: None


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(Identity, "of_user", classmethod(lambda cls, uid, gid=None: cls(uid, gid or 0)))
    return Stage()


def found(job: int, path: str = "/c/step-5", **more: Any) -> dict[str, Any]:
    return {"id": job, "found": {"path": path, "step": 5, "saved_at": 1.0, "layout": "file", **more}, "passed_over": []}


def test_each_owner_is_asked_once_for_all_of_their_jobs(stage: Stage) -> None:
    for label, user in (("a", "alice"), ("b", "alice"), ("c", "bob")):
        stage.world.submit(label, user=user, cpus=1, checkpoint_path="out/%j")
    stage.world.settle()
    asked: list[tuple[int, list[str]]] = []

    async def ask(owner: Identity, program: str, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        asked.append((owner.uid, [each["path"] for each in request["jobs"]]))
        return {"jobs": [found(each["id"]) for each in request["jobs"]]}

    keeper = CheckpointKeeper(stage, lambda: 30.0, ask)
    asyncio.run(keeper.look(list(stage.state.holding.values())))
    assert sorted((uid, len(paths)) for uid, paths in asked) == [(1001, 2), (1002, 1)]
    assert all(path.startswith("/") and "%" not in path for _, paths in asked for path in paths)
    assert all(job.checkpoint is not None for job in stage.state.jobs.values())


def test_an_owner_whose_process_hangs_costs_nobody_else(stage: Stage) -> None:
    for label, user in (("a", "alice"), ("c", "bob")):
        stage.world.submit(label, user=user, cpus=1, checkpoint_path="out")
    stage.world.settle()

    async def ask(owner: Identity, program: str, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        if owner.uid == 1001:
            raise UnreadError("it could not be read within 20 s")
        return {"jobs": [found(each["id"]) for each in request["jobs"]]}

    asyncio.run(CheckpointKeeper(stage, lambda: 30.0, ask).look(list(stage.state.holding.values())))
    assert (stage.world.job("a").checkpoint, stage.world.job("c").checkpoint is not None) == (None, True)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"found": None},
        {"found": "text"},
        {"found": {"path": 5, "saved_at": 1.0}},
        {"found": {"path": "/c", "saved_at": "now"}},
        {"found": {"path": "/c", "saved_at": 1e300}},
        {"found": {"path": "/c\0", "saved_at": 1.0}},
        {"found": {"path": "/" * 5000, "saved_at": 1.0}},
    ],
)
def test_an_answer_is_not_believed_beyond_its_form(told: dict[str, Any]) -> None:
    assert checkpoint_from(told) is None


def test_what_is_said_beside_a_checkpoint_is_cut_to_its_form() -> None:
    checkpoint = checkpoint_from({**found(1, step=-1, layout="x" * 100), "passed_over": ["y" * 1000, 5, *"abcdefgh"]})
    assert checkpoint is not None
    assert (checkpoint.step, len(checkpoint.layout), len(checkpoint.passed_over)) == (None, 32, 5)
    assert len(checkpoint.passed_over[0]) == 500


def test_whose_checkpoints_are_worth_a_look(stage: Stage) -> None:
    stage.world.submit("gpus", gpus=1)
    stage.world.submit("none", cpus=1)
    stage.world.submit("named", cpus=1, checkpoint_path="x")
    stage.world.settle()
    assert [saves(stage.world.job(label)) for label in ("gpus", "none", "named")] == [True, False, True]


@pytest.mark.parametrize("breaks", [False, True], ids=["answered", "broken"])
def test_every_end_is_told_of_also_where_nobody_could_look(stage: Stage, breaks: bool) -> None:
    stage.world.submit("train", cpus=1, heal="restart", requeue=None)
    stage.world.settle()
    stage.world.finish("train", 1)

    async def ask(*_: Any) -> dict[str, Any]:
        return {"jobs": []}

    async def diagnose(job: str, limit_s: float) -> dict[str, Any]:
        if breaks:
            raise RuntimeError("a bug")
        return {"cause": "python_error", "who": "you", "confidence": "high", "title": "A mistake", "evidence": []}

    async def once() -> None:
        keeper = InquestKeeper(stage, diagnose, CheckpointKeeper(stage, lambda: 0.0, ask))
        keeper.begin()
        while not any(isinstance(each, o.InquestHeld) for each in stage.told):
            await asyncio.sleep(0)
        await keeper.close()

    asyncio.run(once())
    stage.world.settle()
    assert stage.world.job("train").restarts == int(breaks)


def test_evidence_names_a_node_of_the_job_or_none(stage: Stage) -> None:
    stage.world.submit("train", gpus=1)
    stage.world.settle()
    job = stage.world.job("train")
    told = {"evidence": [{"node": "elsewhere", "text": "x"}, {"node": "n1", "text": "y" * 1000, "time": None}]}
    seen = seen_from(told, job, 1, 5.0)
    assert (seen.node, seen.cause, len(seen.quotes), len(seen.quotes[1].text)) == ("n1", "", 2, 500)

"""The keeper of idle GPUs over real series and the real rules, on a virtual clock: rounds come, or do not, and what
becomes of a job is told step by step. Nothing that is not known ends anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.idling.policy import IdleAction
from bireme.core.model.jobs import Running
from bireme.core.state.state import State
from bireme.core.telemetry.attribution import Card
from bireme.core.telemetry.subjects import Subject
from bireme.daemon.hooks import Hook
from bireme.daemon.idle.keeper import IdleKeeper
from bireme.ports import Sampled
from bireme.store.series.store import SqliteSeries
from bireme.testing.scenario import Scenario

NOW = 1_800_000_000.0
MINUTE = 60.0
ROUND_S = 10.0


class Stage:
    """A scenario with one node of two GPUs, its series, and the keeper that looks at them after every round."""

    def __init__(self, folder: Path, cluster: str = "1x2:h100", **rule: Any) -> None:
        self.world = Scenario(cluster, now=NOW, **({"shard": 4} if rule.pop("shards", False) else {}))
        config = self.world.state.config
        nodes = tuple(replace(node, gres=tuple(map(_with_uuids, node.gres))) for node in config.nodes)
        self.world.record([e.ClusterConfigured(replace(config, nodes=nodes))])
        self.world.idle_policy(**{"idle_s": 600, "grace_s": 300, "action": IdleAction.REQUEUE, **rule})
        self.series = SqliteSeries(str(folder / "series.db"))
        self.round = 0
        self.told: list[dict[str, Any]] = []
        self.begin()

    def begin(self) -> None:
        """The daemon is started: whoever kept something in memory keeps nothing."""
        hook = Hook(str, lambda: 1.0)
        hook.call = lambda facts: self.told.append(dict(facts))  # type: ignore[method-assign]
        self.keeper = IdleKeeper(_Cluster(self.world), lambda: self, lambda: ROUND_S, hook)
        self.world_told = len(self.world.journal)

    cards: tuple[Card, ...] = ()

    def rounds(self, seconds: float, *, looks: bool = True, **use: float | None) -> None:
        """So long the GPUs are used like that: `a=0`, `b=97`; one without a figure is None."""
        for _ in range(int(seconds / ROUND_S)):
            self.world.now += ROUND_S
            if use:
                self.sample(**use)
            if looks:
                self.look()

    def sample(self, about: str = "gpu", metric: str = "gpu_util", **use: float | None) -> None:
        self.round += 1
        subjects = tuple(Subject(about, "n1", name) for name in map(_uuid, use))  # type: ignore[arg-type]
        values = np.array([np.nan if each is None else each for each in use.values()])
        sampled = Sampled(self.world.now, ROUND_S, subjects, {metric: values})
        self.series.append("gatherer", self.round, [sampled])

    def look(self) -> None:
        before = len(self.world.journal)
        asyncio.run(self.keeper.look())
        if len(self.world.journal) > before:
            self.world.settle()

    def notices(self) -> list[str]:
        return list(self.world.idle_notices())

    def starts(self, label: str = "lazy") -> int:
        return self.world.job(label).generation

    def runs(self, label: str = "lazy") -> bool:
        return isinstance(self.world.job(label).phase, Running)


class _Cluster:
    """What the keeper asks of the runtime, of a scenario."""

    def __init__(self, world: Scenario) -> None:
        self._world, self.clock = world, world.clock

    @property
    def state(self) -> State:
        return self._world.state

    def report(self, observations: Sequence[o.Observation]) -> None:
        for each in observations:
            self._world.report(each)

    def subscribe(self, subscriber: Callable[[Sequence[e.Recorded]], None]) -> Callable[[], None]:
        raise NotImplementedError

    async def do(self, *_: Any, **__: Any) -> Sequence[e.Recorded]:
        raise NotImplementedError


def _uuid(name: str) -> str:
    return f"GPU-{name}" if "." not in name else name


def _with_uuids(pool: Any) -> Any:
    named = [replace(device, uuid=_uuid("ab"[device.index])) for device in pool.devices]
    return replace(pool, devices=tuple(named))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(**rule: Any) -> Stage:
        made.append(Stage(tmp_path, **rule))
        return made[-1]

    yield make
    for each in made:
        each.series.close()


def lazy(stage: Stage, **job: Any) -> Stage:
    """A job with both GPUs runs, or with what is said."""
    stage.world.submit("lazy", **(job or {"gpus": 2}))
    stage.world.settle()
    assert stage.runs()
    return stage


def test_an_idle_job_is_told_and_then_requeued(stage: Callable[..., Stage]) -> None:
    on = lazy(stage())
    on.rounds(9 * MINUTE, a=0, b=3)
    assert on.notices() == []
    on.rounds(2 * MINUTE, a=0, b=3)
    assert on.notices() == ["lazy"]
    assert on.starts() == 1
    on.rounds(6 * MINUTE, a=0, b=3)
    assert on.starts() == 2 or not on.runs()
    assert on.notices() == []


def test_one_busy_round_begins_it_anew(stage: Callable[..., Stage]) -> None:
    on = lazy(stage())
    on.rounds(9 * MINUTE, a=0, b=0)
    on.rounds(ROUND_S, a=0, b=60)
    on.rounds(9 * MINUTE, a=0, b=0)
    assert on.notices() == []
    on.rounds(2 * MINUTE, a=0, b=0)
    assert on.notices() == ["lazy"]
    on.rounds(ROUND_S, a=30, b=0)
    assert on.notices() == []
    assert on.starts() == 1


def test_any_of_its_gpus_is_enough_where_the_rule_says_so(stage: Callable[..., Stage]) -> None:
    on = lazy(stage(gpus="any"))
    on.rounds(11 * MINUTE, a=0, b=99)
    (text,) = on.world.idle_notices().values()
    assert text.startswith("1 of its 2 GPUs was below 5%")


def test_the_activity_of_multiprocessors_counts_before_utilisation(stage: Callable[..., Stage]) -> None:
    on = lazy(stage())
    for _ in range(66):
        on.world.now += ROUND_S
        on.sample(a=100, b=100)
        on.sample(metric="gpu_sm_active", a=1, b=0)
        on.look()
    assert on.notices() == ["lazy"]
    assert on.keeper.measured[on.world.id_of("lazy")].measure == "gpu_sm_active"


@pytest.mark.parametrize(
    "silence", [{}, {"a": 0.0}, {"a": 0.0, "b": None}], ids=["gatherer gone", "one card", "no figure"]
)
def test_lost_telemetry_ends_nobody(stage: Callable[..., Stage], silence: dict[str, float | None]) -> None:
    """In the grace, and before it: as long as nothing is known nothing is done, and what comes after counts anew."""
    on = lazy(stage())
    on.rounds(11 * MINUTE, a=0, b=0)
    assert on.notices() == ["lazy"]
    on.rounds(20 * MINUTE, **silence)
    assert on.starts() == 1
    assert on.runs()
    assert not on.keeper.measured[on.world.id_of("lazy")].known
    on.rounds(5 * MINUTE, a=0, b=0)
    assert on.notices() == []
    assert on.starts() == 1


def test_a_card_of_which_no_figure_ever_came_is_not_busy_but_unknown(stage: Callable[..., Stage]) -> None:
    on = lazy(stage())
    told = []
    for _ in range(6):
        on.rounds(ROUND_S, a=0)
        measured = on.keeper.measured[on.world.id_of("lazy")]
        told.append((measured.known, measured.why))
    assert told[0] == (False, "nothing is known of its GPUs yet")
    assert told[-1] == (False, "there is no figure of now of GPU-b on n1")
    assert {known for known, _ in told} == {False}


def test_a_clock_that_jumps_ahead_ends_nobody(stage: Callable[..., Stage]) -> None:
    on = lazy(stage())
    on.rounds(11 * MINUTE, a=0, b=0)
    assert on.notices() == ["lazy"]
    on.world.now += 3600.0
    on.rounds(2 * MINUTE, a=0, b=0)
    assert on.notices() == []
    assert on.starts() == 1


def test_a_daemon_that_comes_back_in_the_grace_goes_on(stage: Callable[..., Stage]) -> None:
    """The gatherer measured on without it: what was promised is kept, and no notice is given twice."""
    on = lazy(stage())
    on.rounds(11 * MINUTE, a=0, b=0)
    on.series.flush()
    on.begin()
    on.rounds(2 * MINUTE, looks=False, a=0, b=0)
    on.look()
    assert on.notices() == ["lazy"]
    assert on.starts() == 1
    on.rounds(4 * MINUTE, a=0, b=0)
    assert on.starts() == 2 or not on.runs()
    given = [each.event for each in on.world.journal if isinstance(each.event, e.IdleNoticeGiven)]
    assert len([each for each in given if each.generation == 1]) == 1


def test_an_hour_of_which_nothing_is_known_counts_for_nothing(stage: Callable[..., Stage]) -> None:
    on = lazy(stage())
    on.rounds(5 * MINUTE, a=0, b=0)
    on.begin()
    on.rounds(20 * MINUTE, looks=False)
    on.rounds(5 * MINUTE, a=0, b=0)
    assert on.notices() == []
    on.rounds(6 * MINUTE, a=0, b=0)
    assert on.notices() == ["lazy"]


def test_the_time_before_a_job_had_its_gpus_is_not_its_own(stage: Callable[..., Stage]) -> None:
    on = stage()
    on.rounds(20 * MINUTE, a=0, b=0)
    lazy(on)
    on.rounds(9 * MINUTE, a=0, b=0)
    assert on.notices() == []


def test_the_time_in_which_it_was_suspended_is_not_idle(stage: Callable[..., Stage]) -> None:
    on = lazy(stage())
    on.world.suspend("lazy")
    on.rounds(20 * MINUTE, a=0, b=0)
    on.world.resume("lazy")
    on.rounds(5 * MINUTE, a=0, b=0)
    assert on.notices() == []
    on.begin()  # and nobody takes it for idle after a restart
    on.rounds(5 * MINUTE, a=0, b=0)
    assert on.notices() == []


def test_a_job_whose_gpus_nobody_can_name_is_not_known(stage: Callable[..., Stage]) -> None:
    on = stage()
    config = on.world.state.config
    bare = [replace(node, gres=tuple(replace(pool, devices=()) for pool in node.gres)) for node in config.nodes]
    on.world.record([e.ClusterConfigured(replace(config, nodes=tuple(bare)))])
    lazy(on)
    on.rounds(20 * MINUTE, a=0, b=0)
    seen = on.keeper.measured[on.world.id_of("lazy")]
    assert (seen.known, seen.why) == (False, "which GPUs it has is not known by their UUIDs")
    assert on.notices() == []


@pytest.mark.parametrize(("own", "told"), [(0.0, ["lazy"]), (40.0, []), (None, [])], ids=["idle", "busy", "untold"])
def test_a_job_of_shards_is_judged_by_its_own_processes(
    stage: Callable[..., Stage], own: float | None, told: list[str]
) -> None:
    """However busy the others on that GPU are."""
    on = lazy(stage(shards=True), gres="shard:2")
    job, uuid = on.world.job("lazy"), _gpu_of(on)
    for _ in range(66):
        on.world.now += ROUND_S
        on.sample(a=100, b=100)
        task = f"{job.id}.{job.generation}.-5.0@{uuid}"
        on.sample("use", "use_gpu_memory", **{task: 900.0})
        if own is not None:
            on.sample("use", "use_gpu_util", **{task: own})
        on.look()
    assert on.notices() == told


def _gpu_of(on: Stage) -> str:
    allocation = on.world.job("lazy").allocation
    assert allocation is not None
    (number,) = allocation.shares[0].gpus_seen()
    return _uuid("ab"[number])


@pytest.mark.parametrize(
    ("own", "told", "why"),
    [
        ({"gpu_sm_active": 0.0}, ["lazy"], ""),
        ({"gpu_sm_active": 40.0}, [], "gpu_sm_active was 40%"),
        ({"gpu_memory_used": 9000.0}, [], "there is no figure of now of MIG.b on n1"),
    ],
    ids=["idle", "busy", "only its memory"],
)
def test_an_instance_is_judged_by_its_own_figures(
    stage: Callable[..., Stage], own: dict[str, float], told: list[str], why: str
) -> None:
    """Whatever its GPU and the other instances do."""
    on = stage()
    config = on.world.state.config
    (node,) = config.nodes
    (pool,) = node.gres
    named = tuple(replace(device, uuid=f"MIG.{'ab'[device.index]}") for device in pool.devices)
    cut = replace(config, nodes=(replace(node, gres=(replace(pool, devices=named),)),))
    on.world.record([e.ClusterConfigured(cut)])
    on.world.submit("other", gpus=1)
    lazy(on, gpus=1)
    for _ in range(66):
        on.world.now += ROUND_S
        on.sample(a=100)
        on.sample(metric="gpu_sm_active", **{"MIG.a": 90.0})
        for metric, value in own.items():
            on.sample(metric=metric, **{"MIG.b": value})
        on.look()
    assert on.notices() == told
    assert on.keeper.measured[on.world.id_of("lazy")].why == why

"""Detectors over a day of healthy noise, and over the ends of jobs of a real trace: none acts. And that they can.

The keeper of the daemon itself is fed, with rounds of gatherers on a virtual clock; the noise is drawn by seed.
"""

from __future__ import annotations

import asyncio
import csv
import gzip
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from bireme.core.faults.detection import lemon
from bireme.core.faults.detection.lemon import End
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity
from bireme.core.state.state import State
from bireme.core.telemetry.attribution import Card, CardSeen
from bireme.core.telemetry.subjects import Subject
from bireme.daemon.faults.detecting.keeper import DetectingKeeper
from bireme.engines.simulated.clock import VirtualClock
from bireme.ports import Happened, Sampled
from bireme.testing.scenario import Scenario

STEP_S = 10.0
DAY_S = 86_400.0
NODES = ("n1", "n2")
PHILLY = Path(__file__).resolve().parents[3] / "shared" / "data" / "philly" / "philly_jobs_82247.csv.gz"


class Cluster:
    """A world that the keeper reports to, as it reports to the runtime."""

    def __init__(self, world: Scenario) -> None:
        self.world, self.clock = world, world.clock
        self.told: list[o.TroubleSeen] = []

    clock: VirtualClock

    @property
    def state(self) -> State:
        return self.world.state

    def report(self, observations: Sequence[o.Observation]) -> None:
        self.told += [each for each in observations if isinstance(each, o.TroubleSeen)]
        for each in observations:
            self.world.report(each)

    def subscribe(self, subscriber: Callable[[Sequence[e.Recorded]], None]) -> Callable[[], None]:
        return lambda: None


class Pool:
    """Two nodes of eight GPUs, and a job of sixteen ranks on them. `Scene` says what they do."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.world = Scenario("2x8:h100")
        self.world.submit("train", nodes=2, gpus_per_node=8)
        self.world.settle()
        self.cluster = Cluster(self.world)
        self.seen = tuple(
            CardSeen(Card(node, f"GPU-{node}-{number}", number, number=number), "H100")
            for node in NODES
            for number in range(8)
        )
        self.keeper = DetectingKeeper(self.cluster, lambda: self.seen, Thresholds, lambda: STEP_S)
        self.written = 0.0
        self.began = self.world.now

    def round(
        self, node: str, scene: dict[str, float], missing: float = 0.0, happened: Sequence[Happened] = ()
    ) -> None:
        """What the gatherer of a node tells: `scene`, with some noise in every figure."""
        drawn, at = self.drawn, self.world.now
        job = self.world.job("train")
        gpus = tuple(Subject("gpu", node, f"GPU-{node}-{number}") for number in range(8))
        columns = {
            name: np.array([_noisy(drawn, name, value, missing) for _ in gpus])
            for name, value in scene.items()
            if name.startswith("gpu_")
        }
        tasks = tuple(
            Subject("task", node, f"{job.id}.{job.generation}.0.{8 * NODES.index(node) + rank}") for rank in range(8)
        )
        uses = tuple(Subject("use", node, f"{task.id}@{gpu.id}") for task, gpu in zip(tasks, gpus))
        of_tasks = {
            "output_position": np.full(8, self.written),
            "io_read": np.array([_noisy(drawn, "io", scene["io"], 0.0) for _ in tasks]),
            "cpu_user": np.array([_noisy(drawn, "cpu", scene["cpus"], 0.0) for _ in tasks]),
        }
        samples = [
            Sampled(at, STEP_S, (Subject("node", node, node),), {"node_load": np.array([drawn.uniform(5, 90)])}),
            Sampled(at, STEP_S, gpus, columns),
            Sampled(at, STEP_S, tasks, of_tasks),
            Sampled(at, STEP_S, uses, {"use_gpu_memory": np.full(8, 70_000.0)}),
        ]
        if drawn.random() < 0.01:
            offset = drawn.choice((-1, 1)) * drawn.uniform(2_000, 4_000)
            samples.append(
                Sampled(at, STEP_S, (Subject("node", node, node),), {"node_clock_offset": np.array([offset])})
            )
        self.keeper.heard(samples, happened)

    def look(self) -> None:
        asyncio.run(self.keeper.look())

    def grave(self) -> list[str]:
        """What somebody would act upon."""
        return [each.trouble.key for each in self.cluster.told if each.trouble.gravity is not Gravity.NOTE]


def _noisy(drawn: random.Random, name: str, value: float, missing: float) -> float:
    if missing and drawn.random() < missing:
        return float("nan")
    if name in ("gpu_throttle", "gpu_pcie_width", "gpu_pcie_generation", "gpu_answers", "gpu_memory_used") or not value:
        return value
    return value * drawn.uniform(0.97, 1.03)


TRAINS = {
    "gpu_util": 98.0, "gpu_tensor_active": 45.0, "gpu_dram_active": 40.0, "gpu_sm_clock": 1700.0, "gpu_throttle": 4.0,
    "gpu_nvlink_sent": 9e6, "gpu_memory_used": 70_000.0, "gpu_pcie_width": 16.0, "gpu_pcie_generation": 5.0,
    "gpu_pcie_replays": 0.02, "gpu_nvlink_crc_errors": 0.3, "gpu_nvlink_recoveries": 0.0, "gpu_ecc_uncorrected": 0.0,
    "gpu_row_remap_failure": 0.0, "gpu_answers": 1.0, "io": 3_000.0, "cpus": 1.0,
}  # fmt: skip
EVALUATES = TRAINS | {"gpu_util": 70.0, "gpu_tensor_active": 12.0, "gpu_dram_active": 15.0, "io": 100.0}
SAVES = TRAINS | {
    "gpu_util": 0.0, "gpu_tensor_active": 0.0, "gpu_dram_active": 0.1, "gpu_nvlink_sent": 0.0, "gpu_sm_clock": 1980.0,
    "gpu_throttle": 1.0, "io": 400_000.0, "gpu_pcie_generation": 1.0,
}  # fmt: skip
STALLS = SAVES | {"io": 10.0, "cpus": 0.3}
SCORES = STALLS | {"cpus": 1.0}
HANGS = STALLS | {"gpu_util": 100.0, "cpus": 1.0, "gpu_throttle": 0.0}


def day(pool: Pool) -> Iterator[tuple[dict[str, float], bool]]:
    """What a job does in a day, every ten seconds: (scene, whether it writes a line)."""
    drawn = pool.drawn
    while True:
        for _ in range(drawn.randint(150, 200)):
            yield TRAINS, drawn.random() < 0.7
            if drawn.random() < 0.005:
                for _ in range(drawn.randint(1, 3)):
                    yield STALLS, False
        for _ in range(drawn.randint(10, 60)):
            yield EVALUATES, False
        for _ in range(drawn.randint(2, 14)):
            yield SAVES, False
        for _ in range(drawn.randint(0, 20)):
            yield SCORES, False


def noise(pool: Pool, node: str) -> list[Happened]:
    """Events that healthy nodes tell now and then."""
    drawn, at = pool.drawn, pool.world.now
    kind = drawn.random()
    if kind < 0.001:
        return [Happened(at, node, "xid", f"GPU-{node}-3", code=drawn.choice((13, 31, 43, 45, 63)))]
    if kind < 0.002:
        text = "mlx5_core 0000:41:00.0 ib0: Link "
        return [Happened(at, node, "kernel", text=f"{text}{word}") for word in ("down", "up")]
    if kind < 0.004:
        return [Happened(at, node, "kernel", text="oom-kill: constraint=CONSTRAINT_MEMCG,task=python,pid=7")]
    return []


def play_a_day(pool: Pool, seconds: float = DAY_S) -> None:
    drawn = pool.drawn
    for scene, writes in day(pool):
        if pool.world.now - pool.began >= seconds:
            return
        pool.world.now += STEP_S
        pool.written += 80.0 * writes
        away = 36_000.0 <= pool.world.now - pool.began < 36_600.0
        for node in NODES:
            if not away and drawn.random() > 0.01:  # rounds are late and lost
                pool.round(node, scene, 0.02, noise(pool, node))
        pool.look()


def test_a_day_of_healthy_noise_raises_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool(seed=20261118)
    play_a_day(pool)
    assert caplog.records == [], "a detector that broke sees nothing"
    assert pool.world.now - pool.began >= DAY_S
    assert pool.grave() == []
    assert {each.trouble.detector for each in pool.cluster.told} <= {"xid"}, "notes are of Xids alone"


def test_in_the_same_noise_a_hang_is_told_as_soon_as_what_it_did_before_allows() -> None:
    pool = Pool(seed=7)
    play_a_day(pool, 7_200.0)
    for _ in range(12):  # so that it is at work when it stops
        pool.world.now += STEP_S
        pool.written += 80.0
        for node in NODES:
            pool.round(node, TRAINS)
        pool.look()
    assert pool.grave() == []
    patience_s = max(40.0, 2.0 * max(pulse.longest_quiet_s for pulse in pool.keeper._pulses.values()))
    stopped = pool.world.now
    while not pool.grave():
        assert pool.world.now - stopped < patience_s + 2 * STEP_S, "nobody notices"
        pool.world.now += STEP_S
        for node in NODES:
            pool.round(node, HANGS)
        pool.look()
    job = pool.world.job("train")
    assert pool.grave() == [f"hang job {job.id}.{job.generation}"]
    assert list(FINDINGS.of(pool.world.state))[-1] == pool.grave()[0]


def test_a_job_that_was_never_quiet_is_told_to_hang_in_under_sixty_seconds() -> None:
    pool = Pool(seed=3)
    for _ in range(60):
        pool.world.now += STEP_S
        pool.written += 80.0
        for node in NODES:
            pool.round(node, TRAINS)
        pool.look()
    stopped = pool.world.now
    while not pool.grave():
        pool.world.now += STEP_S
        for node in NODES:
            pool.round(node, HANGS)
        pool.look()
    assert pool.world.now - stopped < 60.0


# --- lemons ----------------------------------------------------------------------------------------------------------


def trace() -> list[tuple[float, str, int]]:
    """(end, whose, GPUs) of Philly's 82,247 jobs where the public traces lie beside the project; else as many
    generated ones of the same shape."""
    if PHILLY.exists():
        with gzip.open(PHILLY, "rt") as file:
            rows = list(csv.DictReader(file))
        return [
            (datetime.fromisoformat(row["timestamp"]).timestamp() + float(row["duration"]), row["cluster"],
             int(row["num_gpus"]))
            for row in rows
        ]  # fmt: skip
    drawn = random.Random(1)
    owners = [f"vc{number}" for number in range(15)]
    return [
        (drawn.uniform(0.0, 75 * DAY_S), drawn.choice(owners), drawn.choice((1, 1, 1, 2, 4, 8, 16)))
        for _ in range(82_247)
    ]


def replayed(seed: int, lemon_node: str = "") -> list[End]:
    """The trace on 100 nodes of eight GPUs. It does not say how jobs ended: each owner's fail in 5 to 45 of 100 cases,
    in streaks, as people try again."""
    drawn = random.Random(seed)
    shares: dict[str, float] = {}
    latest: dict[str, bool] = {}
    found = []
    for number, (end, whose, gpus) in enumerate(sorted(trace())):
        user = f"{whose}-{drawn.randrange(12)}"
        share = shares.setdefault(user, drawn.uniform(0.05, 0.45))
        failed = latest.get(user, False) if drawn.random() < 0.3 else drawn.random() < share
        latest[user] = failed
        first = drawn.randrange(100)
        nodes = tuple(f"n{(first + place) % 100}" for place in range(max(1, -(-gpus // 8))))
        if lemon_node in nodes and drawn.random() < 0.5:
            failed = True
        if len(nodes) <= lemon.WIDEST:
            found.append(End(end, user, f"job{number}", nodes, failed))
    return found


def weeks(ends: Sequence[End]) -> Iterator[Sequence[End]]:
    """What the detector would have had before it, every half a day."""
    at = ends[0].at + 7 * DAY_S
    while at < ends[-1].at:
        yield [end for end in ends if at - 7 * DAY_S <= end.at < at]
        at += DAY_S / 2


def test_no_node_of_the_replayed_trace_is_a_lemon() -> None:
    ends = sorted(replayed(5), key=lambda end: end.at)
    assert len(ends) > 80_000
    looks = list(weeks(ends))
    assert len(looks) > 100
    assert [each.node for look in looks for each in lemon.suspects(look, Thresholds())] == []


def test_a_node_of_the_replayed_trace_that_fails_every_second_job_is_one() -> None:
    ends = sorted(replayed(5, "n42"), key=lambda end: end.at)
    found = {each.node for look in list(weeks(ends))[::10] for each in lemon.suspects(look, Thresholds())}
    assert found == {"n42"}

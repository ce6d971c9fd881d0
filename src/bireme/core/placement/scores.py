"""Placement scores: of the nodes that can hold a job, which one should, and on which of its GPUs a part goes.

One class for each policy of the literature that is compared in docs/placement.md, and `Foresight`, Bireme's own. A
score sees a shape of work and rows of nodes that can hold it; it knows nothing of queues, topology or time. The planner
asks it after weights and switches and before "least left over" (`ranking.py`); the study of `sim/placement` asks
nothing else. Points are comparable within one call and for one shape only; more is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bireme.core.placement.target import WHOLE_MILLI, Ask, FloatArray, IntArray, Target, typical
from bireme.core.placement.usefulness import Usefulness

SCALE = 100
"""The published policies give whole points from 0 to 100: what differs by less is equal."""
STEP_MILLI = 10.0
"""Foresight: differences in usefulness that are smaller do not decide."""
REMAINDER, SHORTAGE, SCARCITY = 0.5, 0.1, 0.3
"""Foresight's view of the future; docs/placement.md says how they were chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some nodes as they are now."""

    cpus: IntArray
    left: IntArray
    """Nodes x GPUs: free thousandths. Zero where a node has fewer GPUs."""
    gpus: IntArray
    """How many GPUs each has, free or not."""
    model: IntArray
    kinds: IntArray
    """Which kinds of jobs are there: bit 0 for parts of GPUs, bit n for n whole ones."""

    @property
    def left_total(self) -> IntArray:
        total: IntArray = self.left.sum(axis=1)
        return total


@dataclass(frozen=True, slots=True, eq=False)
class Rated:
    points: FloatArray
    gpu: IntArray
    """Where a part of a GPU goes; whole GPUs are any free ones."""


class Score(Protocol):
    @property
    def lasting(self) -> bool:
        """Whether a node's points stay the same until the node changes."""
        ...

    def rate(self, ask: Ask, rows: Rows, turn: int) -> Rated:
        """All rows can hold the ask. `turn` is different at every decision."""
        ...


def kind_of(ask: Ask) -> int:
    return 0 if not ask.gpus else 1 if ask.in_part else 1 << min(ask.gpus, 62)


def fullest(ask: Ask, left: IntArray) -> IntArray:
    """The GPU with the least left that holds the part; of equal ones the first."""
    chosen: IntArray = np.where(left >= ask.milli, left, WHOLE_MILLI + 1).argmin(axis=1)
    return chosen


def whole_points(share: FloatArray) -> FloatArray:
    points: FloatArray = np.floor(share * SCALE)
    return points


class Random:
    """Any node, any GPU. The numbers come from the seed, so that a plan can be made again."""

    lasting = False

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def rate(self, ask: Ask, rows: Rows, turn: int) -> Rated:
        drawn = _scattered(self._seed, turn, rows.left.size + len(rows.cpus))
        points, among = drawn[: len(rows.cpus)], drawn[len(rows.cpus) :].reshape(rows.left.shape)
        return Rated(points, np.where(rows.left >= ask.milli, among, -1.0).argmax(axis=1))


def _scattered(seed: int, turn: int, count: int) -> FloatArray:
    """Numbers in [0, 1) that look random: a mixing function (splitmix64) of where they stand."""
    with np.errstate(over="ignore"):
        start = np.uint64((seed * 1_000_003 + turn) % 2**64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    numbers: FloatArray = mixed.astype(np.float64) / 2.0**64
    return numbers


class DotProduct:
    """Where ask and free are least aligned: CPUs and GPUs as shares of the largest node's (after Tetris)."""

    lasting = True

    def __init__(self, cpus_max: int, gpus_max: int) -> None:
        self._cpus, self._milli = max(cpus_max, 1), max(gpus_max, 1) * WHOLE_MILLI

    def rate(self, ask: Ask, rows: Rows, turn: int) -> Rated:
        cpus = rows.cpus / self._cpus * (ask.cpus / self._cpus)
        gpus = rows.left_total / self._milli * (ask.total_milli / self._milli)
        return Rated(whole_points(1.0 - (cpus + gpus) / 2), fullest(ask, rows.left))


class BestFit:
    """Where the least is left over, CPUs and GPUs counted as shares of the largest node's."""

    lasting = True

    def __init__(self, cpus_max: int, gpus_max: int) -> None:
        self._cpus, self._milli = max(cpus_max, 1), max(gpus_max, 1) * WHOLE_MILLI

    def rate(self, ask: Ask, rows: Rows, turn: int) -> Rated:
        cpus = (rows.cpus - ask.cpus) / self._cpus
        gpus = (rows.left_total - ask.total_milli) / self._milli
        return Rated(whole_points(1.0 - (cpus + gpus) / 2), fullest(ask, rows.left))


class GpuPacking:
    """On GPUs that are shared already, else on nodes that are used already, else on a free node with few GPUs."""

    lasting = True

    def rate(self, ask: Ask, rows: Rows, turn: int) -> Rated:
        if not ask.gpus:
            return Rated(np.zeros(len(rows.cpus)), np.zeros(len(rows.cpus), dtype=np.int64))
        free = (rows.left == WHOLE_MILLI).sum(axis=1)
        holding = np.sort(np.where(rows.left >= ask.milli, rows.left, WHOLE_MILLI + 1), axis=1)[:, : ask.gpus]
        to_open = (holding == WHOLE_MILLI).sum(axis=1)
        shared = np.maximum(SCALE - (holding // 10).sum(axis=1) // 10, SCALE // 2)
        opened = np.maximum(SCALE // 2 - to_open, SCALE // 3)
        empty = np.maximum(SCALE // 3 - free, free)
        points = np.where(free == rows.gpus, empty, np.where(to_open > 0, opened, shared))
        return Rated(points.astype(np.float64), fullest(ask, rows.left))


class GpuClustering:
    """Beside jobs of the same kind (parts, one GPU, two GPUs ...), the fullest node first."""

    lasting = True

    def __init__(self, gpus_max: int) -> None:
        self._milli = max(gpus_max, 1) * WHOLE_MILLI

    def rate(self, ask: Ask, rows: Rows, turn: int) -> Rated:
        if not ask.gpus:
            return Rated(np.zeros(len(rows.cpus)), np.zeros(len(rows.cpus), dtype=np.int64))
        kind, quarter = kind_of(ask), SCALE // 4
        fullness = quarter * (self._milli - rows.left_total) // self._milli
        same = np.where(rows.kinds == kind, 3 * quarter, np.where(rows.kinds & kind, 2 * quarter, 0))
        points = fullness + np.where(rows.kinds == 0, quarter, same)
        return Rated(points.astype(np.float64), fullest(ask, rows.left))


class GradientDescent:
    """FGD (Weng et al., ATC'23): where fragmentation grows least, on the GPU of that node where it does."""

    lasting = True

    def __init__(self, target: Target, supply: IntArray) -> None:
        self._usefulness = Usefulness(target, supply)

    def rate(self, ask: Ask, rows: Rows, turn: int) -> Rated:
        before = rows.left_total - self._usefulness.of(rows.cpus, rows.left, rows.model)
        row, gpu, after = _choices(ask, rows)
        useful = self._usefulness.of(rows.cpus[row] - ask.cpus, after, rows.model[row])
        growth = after.sum(axis=1) - useful - before[row]
        points = np.full(rows.left.shape, -1.0)
        points[row, gpu] = whole_points(1.0 / (1.0 + np.exp(growth / WHOLE_MILLI)))
        return Rated(points.max(axis=1), points.argmax(axis=1))


def _choices(ask: Ask, rows: Rows) -> tuple[IntArray, IntArray, IntArray]:
    """(row, GPU, what that leaves of each GPU) for every GPU that a part could go to, equal ones once."""
    if not ask.in_part:
        every = np.arange(len(rows.cpus))
        return every, np.zeros(len(every), dtype=np.int64), without(ask, rows.left)
    new = rows.left >= ask.milli
    for gpu in range(1, rows.left.shape[1]):
        new[:, gpu] &= (rows.left[:, :gpu] != rows.left[:, gpu : gpu + 1]).all(axis=1)
    row, gpu_of = np.nonzero(new)
    after = rows.left[row]
    after[np.arange(len(row)), gpu_of] -= ask.milli
    return row, gpu_of, after


def without(ask: Ask, left: IntArray) -> IntArray:
    """What is left of each GPU when the ask is held: less of the fullest that has the part, or free ones gone whole."""
    after = left.copy()
    if ask.in_part:
        after[np.arange(len(left)), fullest(ask, left)] -= ask.milli
    elif ask.gpus:
        free = left == WHOLE_MILLI
        after[free & (free.cumsum(axis=1) <= ask.gpus)] = 0
    return after


class Foresight:
    """Bireme's own: where usefulness to expected work falls least, looking further ahead than one more job.

    Steps of a hundredth of a GPU keep noise from deciding; between equal nodes the one with the least left is taken,
    so that empty nodes stay whole. Inside a node a part goes to the fullest GPU that holds it.
    """

    lasting = True

    def __init__(self, target: Target, supply: IntArray) -> None:
        self._usefulness = Usefulness(target, supply, remainder=REMAINDER, shortage=SHORTAGE, scarcity=SCARCITY)

    def rate(self, ask: Ask, rows: Rows, turn: int) -> Rated:
        before = self._usefulness.of(rows.cpus, rows.left, rows.model)
        after = self._usefulness.of(rows.cpus - ask.cpus, without(ask, rows.left), rows.model)
        steps = np.floor((after - before + ask.total_milli) / STEP_MILLI)
        tidiness = rows.left_total / (WHOLE_MILLI * (rows.left.shape[1] + 1))
        return Rated(steps - tidiness, fullest(ask, rows.left))


@dataclass(frozen=True, slots=True, eq=False)
class Supply:
    """What scores know of the cluster as a whole."""

    models: tuple[str, ...]
    gpus: IntArray
    """Of each model."""
    cpus_max: int
    """Of the largest node."""
    gpus_max: int


POLICIES = ("random", "dotprod", "gpuclustering", "gpupacking", "bestfit", "fgd", "foresight")
DEFAULT = "foresight"


def make_score(name: str, counts: Mapping[Ask, float], supply: Supply, seed: int = 0) -> Score:
    """`counts`: how often each shape of work is expected. Raises KeyError for a name that is not in POLICIES."""
    if name == "random":
        return Random(seed)
    if name == "dotprod":
        return DotProduct(supply.cpus_max, supply.gpus_max)
    if name == "bestfit":
        return BestFit(supply.cpus_max, supply.gpus_max)
    if name == "gpupacking":
        return GpuPacking()
    if name == "gpuclustering":
        return GpuClustering(supply.gpus_max)
    if name == "fgd":
        return GradientDescent(Target.of(typical(counts), supply.models), supply.gpus)
    if name == "foresight":
        on_gpus = {ask: count for ask, count in counts.items() if ask.gpus}
        return Foresight(Target.of(on_gpus, supply.models), supply.gpus)
    raise KeyError(name)

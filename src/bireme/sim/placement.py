"""The placement study: pods placed one by one on an empty cluster until more is asked for than it has.

The protocol of "Beware of Fragmentation" (Weng et al., USENIX ATC'23) on the openb lists: shuffle the pods by the seed,
draw more of them until their requests reach 130% of the GPUs, place each where the policy's score says, never remove
one. After each pod: how much of the GPUs is allocated, and how much of them is free but fragmented. The scores are
those of the planner (`core/placement/scores`); nothing else of it is in the way here: what differs is the score.

Points are kept for each shape and node and worked out again only for nodes that have changed since that shape last
came. Invariant: no CPU, memory or thousandth of a GPU is given out twice.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bireme.core.placement.scores import Rows, Score, Supply, kind_of, make_score
from bireme.core.placement.target import WHOLE_MILLI, Ask, BoolArray, FloatArray, IntArray, Target, typical
from bireme.core.placement.usefulness import Usefulness
from bireme.sim.openb import Node, Pod

DEMAND = 1.3
"""Requests for GPUs, as a multiple of what there is."""
READ_AT = (100, 130)
"""Demand in percent of the GPUs at which the study is read."""
FIRST_SEED = 42


@dataclass(frozen=True, slots=True)
class Reading:
    """In percent of all GPUs, the mean over the pods that came while the demand rounded to `demand`."""

    demand: int
    allocated: float
    fragmented: float


class Board:
    """The nodes, and what is left of them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.models = tuple(dict.fromkeys(node.model for node in nodes))
        gpus_max = max((node.gpus for node in nodes), default=0)
        self.gpus = np.array([node.gpus for node in nodes], dtype=np.int64)
        self.cpus = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        self.memory = np.array([node.memory_mib for node in nodes], dtype=np.int64)
        self.model = np.array([self.models.index(node.model) for node in nodes], dtype=np.int64)
        self.left: IntArray = np.where(np.arange(gpus_max) < self.gpus[:, None], WHOLE_MILLI, 0)
        self.kinds = np.zeros(len(nodes), dtype=np.int64)
        per_model = np.bincount(self.model, weights=self.gpus).astype(np.int64)
        self.supply = Supply(self.models, per_model, int(self.cpus.max()), gpus_max)
        self.capacity_milli = int(self.gpus.sum()) * WHOLE_MILLI

    def rows(self, at: IntArray) -> Rows:
        return Rows(self.cpus[at], self.left[at], self.gpus[at], self.model[at], self.kinds[at])

    def able(self, ask: Ask, at: IntArray) -> BoolArray:
        able: BoolArray = self.cpus[at] >= ask.cpus
        if ask.gpus:
            able &= (self.left[at] >= ask.milli).sum(axis=1) >= ask.gpus
        if ask.models:
            able &= np.isin(self.model[at], [self.models.index(name) for name in ask.models if name in self.models])
        return able

    def hold(self, pod: Pod, node: int, gpu: int) -> None:
        ask, left = pod.ask, self.left[node]
        chosen = [gpu] if ask.in_part else np.flatnonzero(left == WHOLE_MILLI)[: ask.gpus]
        self.cpus[node] -= ask.cpus
        self.memory[node] -= pod.memory_mib
        left[chosen] -= ask.milli
        self.kinds[node] |= kind_of(ask)
        assert min(self.cpus[node], self.memory[node], left.min()) >= 0
        assert len(chosen) == ask.gpus


class _Standing:
    """The points of all nodes for one shape, as of the `seen`-th change."""

    def __init__(self, ask: Ask, count: int) -> None:
        self.ask = ask
        self.points: FloatArray = np.full(count, -np.inf)
        self.gpu: IntArray = np.zeros(count, dtype=np.int64)
        self.seen = -1


class Placer:
    """Places pods by a score. `order` decides between nodes with equal points."""

    def __init__(self, board: Board, score: Score, order: IntArray) -> None:
        self.board = board
        self._score = score
        self._order = order
        self._standings: dict[Ask, _Standing] = {}
        self._changes: list[int] = []
        self._turn = 0

    def place(self, pod: Pod) -> int | None:
        """The node it is on now, or None: no node holds it."""
        self._turn += 1
        standing = self._standings.get(pod.ask)
        if standing is None:
            standing = self._standings[pod.ask] = _Standing(pod.ask, len(self.board.cpus))
        self._refresh(standing)
        points = np.where(self.board.memory >= pod.memory_mib, standing.points, -np.inf)
        best = points.max()
        if best == -np.inf:
            return None
        equal = np.flatnonzero(points == best)
        node = int(equal[self._order[equal].argmin()])
        self.board.hold(pod, node, int(standing.gpu[node]))
        self._changes.append(node)
        return node

    def _refresh(self, standing: _Standing) -> None:
        if standing.seen < 0 or not self._score.lasting:
            changed = np.arange(len(self.board.cpus))
        elif standing.seen == len(self._changes):
            return
        else:
            changed = np.unique(self._changes[standing.seen :])
        standing.seen = len(self._changes)
        able = self.board.able(standing.ask, changed)
        standing.points[changed[~able]] = -np.inf
        if able.any():
            rated = self._score.rate(standing.ask, self.board.rows(changed[able]), self._turn)
            standing.points[changed[able]] = rated.points
            standing.gpu[changed[able]] = rated.gpu


class Gauge:
    """Fragmentation of the whole cluster, as FGD's authors measure it whatever the policy."""

    def __init__(self, board: Board, counts: Counter[Ask]) -> None:
        self._board = board
        self._usefulness = Usefulness(Target.of(typical(counts), board.models), board.supply.gpus)
        self._of_node = self._fragmented(np.arange(len(board.cpus)))
        self.total_milli = float(self._of_node.sum())

    def follow(self, node: int) -> None:
        now = float(self._fragmented(np.array([node]))[0])
        self.total_milli += now - float(self._of_node[node])
        self._of_node[node] = now

    def _fragmented(self, at: IntArray) -> FloatArray:
        rows = self._board.rows(at)
        wasted: FloatArray = rows.left_total - self._usefulness.of(rows.cpus, rows.left, rows.model)
        return wasted


def arrivals(pods: Sequence[Pod], capacity_milli: int, seed: int) -> tuple[list[Pod], random.Random]:
    """The pods in the order in which they come, and the generator for what is drawn after them."""
    draw = random.Random(seed)
    coming = list(pods)
    draw.shuffle(coming)
    wanted = DEMAND * capacity_milli
    total = sum(pod.ask.total_milli for pod in coming)
    if not total:
        raise ValueError("no pod asks for a GPU: there is no demand to study")
    while total > wanted:
        total -= coming.pop(draw.randrange(len(coming))).ask.total_milli
    while True:
        more = pods[draw.randrange(len(pods))]
        if total + more.ask.milli > wanted:
            return coming, draw
        coming.append(more)
        total += more.ask.total_milli


def study(nodes: Sequence[Node], pods: Sequence[Pod], policy: str, seed: int) -> dict[int, Reading]:
    """One run: what was read at each percent of demand."""
    board = Board(nodes)
    counts = Counter(pod.ask for pod in pods)
    coming, draw = arrivals(pods, board.capacity_milli, seed)
    order = np.array(draw.sample(range(len(nodes)), len(nodes)), dtype=np.int64)
    placer = Placer(board, make_score(policy, counts, board.supply, seed), order)
    gauge = Gauge(board, counts)
    sums: dict[int, list[float]] = {}
    arrived = allocated = 0
    for pod in coming:
        arrived += pod.ask.total_milli
        node = placer.place(pod)
        if node is not None:
            allocated += pod.ask.total_milli
            gauge.follow(node)
        row = sums.setdefault(round(100 * arrived / board.capacity_milli), [0.0, 0.0, 0.0])
        for column, value in enumerate((1.0, allocated, gauge.total_milli)):
            row[column] += value
    percent = 100 / board.capacity_milli
    return {
        demand: Reading(demand, used / count * percent, wasted / count * percent)
        for demand, (count, used, wasted) in sums.items()
    }


def reading_at(readings: Mapping[int, Reading], demand: int) -> Reading:
    """The one at this demand, or the nearest: on few GPUs a single pod can be more than a percent."""
    return readings[min(readings, key=lambda at: abs(at - demand))]

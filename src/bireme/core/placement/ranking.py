"""Placement scores over the planner's columns: among nodes that can hold a job, which are the better place.

The planner's searches ask a `Ranking` for one-node jobs, after node weights and before "least left over"; gangs are
placed by switches. Nodes in the same condition get their points once, so that ten thousand nodes cost little more than
the conditions they are in. The kinds of jobs on a node (for `gpuclustering`) are told by what is in use of its GPUs.
Invariant: the same columns, target and need give the same points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bireme.core.placement.needs import Need
from bireme.core.placement.scores import Rows, Score, Supply, make_score
from bireme.core.placement.table import BoolArray, Free, NodeTable
from bireme.core.placement.target import WHOLE_MILLI, Ask, FloatArray, IntArray

_GPU = "gpu"
_MORE_THAN_GPUS = 4_096
"""No node has so many."""
_KNOWN_BY_NUMBER = 512
"""Of more nodes at once, those in the same condition are found by sorting them."""


class Ranking:
    __slots__ = (
        "_asks", "_gpus", "_model", "_name", "_points", "_score", "_shared", "_supply", "_table", "counted_at"
    )  # fmt: skip

    def __init__(self, name: str, table: NodeTable, counts: Mapping[Ask, float]) -> None:
        self._name = name
        self._table = table
        pools = [{pool.type or "": pool.count for pool in node.gres if pool.name == _GPU} for node in table.nodes]
        models = tuple(sorted({model for pool in pools for model in pool}))
        self._gpus: IntArray = np.array([sum(pool.values()) for pool in pools], dtype=np.int64)
        self._model: IntArray = np.array(
            [models.index(next(iter(pool))) if pool else 0 for pool in pools], dtype=np.int64
        )
        of_model = [sum(pool.get(model, 0) for pool in pools) for model in models]
        widest = int(self._gpus.max(initial=0))
        most_cpus = int(table.cpus.max(initial=1))
        self._supply = Supply(models, np.array(of_model, dtype=np.int64), most_cpus, widest)
        self._shared = {name for name, _ in table.fractions.keys}
        self._score: Score = make_score(name, counts, self._supply)
        self._asks: dict[Need, Ask] = {}
        self._points: dict[Ask, dict[int, float]] = {}
        """By the number of a node's condition."""
        self.counted_at = 0
        """How many jobs had been submitted when it was last told what to expect."""

    @property
    def idle(self) -> bool:
        """Without GPUs there is nothing to fragment."""
        return not self._supply.models

    def expect(self, counts: Mapping[Ask, float]) -> None:
        """Takes a new expectation of what will be asked for: from now on places are scored by it."""
        self._score = make_score(self._name, counts, self._supply)
        self._points.clear()

    def ask(self, need: Need) -> Ask:
        """A need as a shape. Parts of GPUs are thousandths of the most parts that any GPU has."""
        gpus = sum(count for name, _, count in need.gres if name == _GPU)
        models = tuple(sorted({type_ for name, type_, _ in need.gres if type_ and name in (_GPU, *self._shared)}))
        parts = [(name, count) for name, _, count in need.gres if name in self._shared]
        if gpus or not parts:
            return Ask(need.cpus, WHOLE_MILLI if gpus else 0, gpus, models)
        name, count = parts[0]
        most = max(
            int(self._table.fractions.largest_parts(key).max()) for key in self._table.fractions.keys if key[0] == name
        )
        return Ask(need.cpus, min(WHOLE_MILLI, -(-count * WHOLE_MILLI // most)), 1, models)

    def would_open(self, need: Need, free: Free, at: IntArray) -> BoolArray:
        """Whether the need would take the first GPUs of a node, of which all are free now."""
        if not self._asked(need).gpus:
            return np.zeros(len(at), dtype=np.bool_)
        opened: BoolArray = free.gres_of(_GPU, None)[at] >= self._gpus[at]
        return opened

    def _asked(self, need: Need) -> Ask:
        ask = self._asks.get(need)
        if ask is None:
            ask = self._asks[need] = self.ask(need)
        return ask

    def points(self, need: Need, free: Free, at: IntArray) -> FloatArray:
        """Of the nodes at these positions, all of which can hold the need. What is below a whole point only says which
        of equal nodes to fill first."""
        ask = self._asked(need)
        if not self._table.fractions.nodes[at].any():
            return self._points_of_whole(ask, free, at)
        rows = self._rows(free, at)
        condition = np.concatenate(
            (rows.cpus[:, None], rows.model[:, None], rows.gpus[:, None], rows.kinds[:, None], rows.left), axis=1
        )
        _, first, same = np.unique(condition, axis=0, return_index=True, return_inverse=True)
        return self._rated(ask, _some(rows, first))[same.ravel()]

    def _points_of_whole(self, ask: Ask, free: Free, at: IntArray) -> FloatArray:
        """The points of nodes that give out whole GPUs: one number says all of a node's condition."""
        number = free.cpus[at] * len(self._supply.models) + self._model[at]
        number = (number * _MORE_THAN_GPUS + self._gpus[at]) * _MORE_THAN_GPUS + free.gres_of(_GPU, None)[at]
        if len(at) <= _KNOWN_BY_NUMBER:
            return self._known_points(ask, free, at, number.tolist())
        _, first, same = np.unique(number, return_index=True, return_inverse=True)
        return self._rated(ask, self._rows(free, at[first]))[same]

    def _known_points(self, ask: Ask, free: Free, at: IntArray, conditions: list[int]) -> FloatArray:
        """The points of few nodes: most conditions were met before."""
        known = self._points.setdefault(ask, {})
        new = {each: place for place, each in enumerate(conditions) if each not in known}
        if new:
            rows = self._rows(free, at[list(new.values())])
            known.update(zip(new, self._rated(ask, rows).tolist()))
        return np.array([known[each] for each in conditions])

    def _rated(self, ask: Ask, rows: Rows) -> FloatArray:
        able = (rows.left >= ask.milli).sum(axis=1) >= ask.gpus
        points = np.full(len(able), -np.inf)
        points[able] = self._score.rate(ask, _some(rows, np.flatnonzero(able)), 0).points
        return points

    def _rows(self, free: Free, at: IntArray) -> Rows:
        width = max(1, self._supply.gpus_max)
        left: IntArray = np.where(np.arange(width) < free.gres_of(_GPU, None)[at][:, None], WHOLE_MILLI, 0)
        kinds = np.zeros(len(at), dtype=np.int64)
        shared = np.flatnonzero(self._table.fractions.nodes[at])
        if len(shared):
            left[shared], kinds[shared] = self._in_parts(free, at[shared], width)
        return Rows(free.cpus[at], left, self._gpus[at], self._model[at], kinds)

    def _in_parts(self, free: Free, at: IntArray, width: int) -> tuple[IntArray, IntArray]:
        """What is left of each GPU, the most first; and whether any is in use in parts, or whole."""
        fractions = self._table.fractions
        whole = free.uses[_GPU][at][:, :width] > 0
        left = np.where(np.arange(width) < self._gpus[at][:, None], WHOLE_MILLI, 0)
        left[whole] = 0
        in_part = np.zeros(len(at), dtype=np.bool_)
        for name, type_ in fractions.keys:
            used = free.uses[name][at][:, :width]
            parts = fractions.parts((name, type_))[at][:, :width]
            share = np.where(parts > 0, WHOLE_MILLI - WHOLE_MILLI * used // np.maximum(parts, 1), WHOLE_MILLI)
            left = np.minimum(left, share)
            in_part |= (used > 0).any(axis=1)
        return -np.sort(-left, axis=1), in_part.astype(np.int64) + 2 * whole.any(axis=1)


def _some(rows: Rows, at: IntArray) -> Rows:
    return Rows(rows.cpus[at], rows.left[at], rows.gpus[at], rows.model[at], rows.kinds[at])


def counted(asks: Iterable[Ask]) -> dict[Ask, float]:
    counts: dict[Ask, float] = {}
    for ask in asks:
        counts[ask] = counts.get(ask, 0.0) + 1.0
    return counts

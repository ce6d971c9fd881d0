"""Compacting: rounds become cells of fine chunks. Called by `store` for one gatherer after the other.

Rounds that come late, hours of them from a gatherer's spool, go where they belong; where that has been thinned out
already, the coarser levels are made anew at once.
Invariant: within one transaction, with the removal of the rounds' rows: each round is in one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bireme.core.telemetry.metrics import About
from bireme.core.telemetry.subjects import Subject
from bireme.store.series import chunks
from bireme.store.series.cells import NONE, STEP_BITS, Cells, Floats, Ints, of_samples, united
from bireme.store.series.chunks import chunk_key
from bireme.store.series.disk import Disk
from bireme.store.series.fresh import Stack, joined
from bireme.store.series.levels import FINE
from bireme.store.series.thinning import fold


def compact(disk: Disk, stacks: Sequence[Stack]) -> None:
    """Within a transaction."""
    groups: dict[tuple[About, str, int], list[Stack]] = {}
    for stack in joined(stacks):
        for window, part in _by_window(stack):
            groups.setdefault((stack.about, stack.node, window), []).append(part)
    for (about, node, window), group in groups.items():
        keys = _keys(disk, about, node, group)
        for metric in dict.fromkeys(name for stack in group for name in stack.metrics):
            series = disk.book.number(disk.connection, (node, about, metric))
            _merge(disk, series, metric, window, _cells(group, keys, metric))


def _by_window(stack: Stack) -> Iterator[tuple[int, Stack]]:
    windows = stack.at // FINE.window_s
    for window in np.unique(windows):
        mine = windows == window
        yield int(window), replace(stack, at=stack.at[mine], values=stack.values[mine])


def _keys(disk: Disk, about: About, node: str, group: Sequence[Stack]) -> list[Ints]:
    """Of each stack: by subject and round."""
    stays = _stays(group)
    numbers = {
        name: disk.subjects.number(disk.connection, Subject(about, node, name), *stay) for name, stay in stays.items()
    }
    found = []
    for stack in group:
        mine = np.array([numbers.get(name, 0) for name in stack.names], np.int64)
        steps = (stack.at // FINE.step_s).astype(np.int64)
        found.append((mine[:, np.newaxis] << STEP_BITS) | steps)
    return found


def _stays(group: Sequence[Stack]) -> dict[str, tuple[float, float]]:
    """When each subject was first and last measured in the window; those of which nothing was are not there."""
    stays: dict[str, tuple[float, float]] = {}
    for stack in group:
        known = np.any(~np.isnan(stack.values), axis=1)
        for no, name in enumerate(stack.names):
            at = stack.at[known[:, no]]
            if len(at):
                first, last = stays.get(name, (np.inf, -np.inf))
                stays[name] = min(first, float(at.min())), max(last, float(at.max()))
    return stays


def _cells(group: Sequence[Stack], keys: Sequence[Ints], metric: str) -> Cells:
    parts: list[tuple[Ints, Floats]] = [
        (key.ravel(), stack.values[:, stack.metrics.index(metric), :].T.ravel())
        for stack, key in zip(group, keys)
        if metric in stack.metrics
    ]
    return of_samples(np.concatenate([key for key, _ in parts]), np.concatenate([values for _, values in parts]))


def _merge(disk: Disk, series: int, metric: str, window: int, cells: Cells) -> None:
    if not len(cells):
        return
    key = chunk_key(series, FINE, window)
    merged = united([chunks.read(disk.connection, key, disk.damage) or NONE, cells])
    chunks.write(disk.connection, key, FINE, metric, merged)
    if window < disk.horizons.folded[FINE.no]:
        fold(disk, series, metric, FINE, window, merged)

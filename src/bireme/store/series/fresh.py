"""The newest rounds: in memory for whoever reads, and on disk as one row for each gatherer and flush.

A row is cheap to write and not to be searched; after some minutes `compacting` makes chunks of it. What is read of the
last minutes is read here, so that it need not be decoded.
Invariant: what has a row has the same content in memory; a batch leaves memory in the moment in which its chunks are
committed and its row is gone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import numpy as np

from bireme.core.telemetry.metrics import BY_NAME, About
from bireme.core.telemetry.subjects import Subject
from bireme.ports import Sampled
from bireme.store.series.cells import Floats
from bireme.store.series.columns import quantised
from bireme.store.series.levels import FINE, MOST_WINDOWS

ABSURD = 2.0**80
"""No figure is larger: sums of many such are still numbers."""
MAX_AT = float(MOST_WINDOWS * FINE.window_s)


@dataclass(frozen=True, slots=True)
class Stack:
    """Rounds of the same subjects and metrics, one upon the other."""

    about: About
    node: str
    names: tuple[str, ...]
    metrics: tuple[str, ...]
    interval_s: float
    """Of the latest."""
    at: Floats
    values: Floats
    """By round, metric and subject; NaN: not measured. No finer than the metric's grain."""

    @property
    def size(self) -> int:
        return int(self.values.size)

    def measured(self, prefix: str, start: float, end: float) -> list[Subject]:
        """Those whose name begins so and of which anything was measured in that time."""
        then = (self.at >= start) & (self.at <= end)
        known = np.any(~np.isnan(self.values[then]), axis=(0, 1))
        names = (name for no, name in enumerate(self.names) if known[no] and name.startswith(prefix))
        return [Subject(self.about, self.node, name) for name in names]


@dataclass(slots=True, eq=False)
class Batch:
    """What one gatherer told between two flushes."""

    last: int
    """The number of its latest round."""
    stacks: list[Stack] = field(default_factory=list)
    row: int | None = None
    """Where it is on disk; None: nowhere yet."""
    closed: bool = False
    """It is being written, or was: nothing is added."""

    @property
    def size(self) -> int:
        return sum(stack.size for stack in self.stacks)


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    """A stack without its values, which follow all of these as planes of bytes."""

    about: str
    node: str
    names: list[str]
    metrics: list[str]
    interval_s: float
    at: list[float]


_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[list[_Stored]] = msgspec.msgpack.Decoder(list[_Stored])


class RoundsError(ValueError):
    """Bytes that are no rounds."""


def stacks_of(samples: Sequence[Sampled]) -> list[Stack]:
    """One for each node and sort of subjects. Metrics that are not on the list, and times out of this world, are
    passed over; a value that is infinite or absurd was not measured."""
    found = []
    for sampled in samples:
        if not 0 <= sampled.at < MAX_AT:
            continue
        for about, node in dict.fromkeys((subject.about, subject.node) for subject in sampled.subjects):
            metrics = tuple(name for name in sampled.values if name in BY_NAME and BY_NAME[name].about == about)
            if metrics:
                found.append(_stack(sampled, about, node, metrics))
    return found


def _stack(sampled: Sampled, about: About, node: str, metrics: tuple[str, ...]) -> Stack:
    mine = [no for no, subject in enumerate(sampled.subjects) if (subject.about, subject.node) == (about, node)]
    values = np.array([sampled.values[name] for name in metrics], np.float64)
    assert values.shape[1] == len(sampled.subjects), "a value for each subject"
    if len(mine) < len(sampled.subjects):
        values = values[:, mine]
    with np.errstate(invalid="ignore"):
        values[~(np.abs(values) <= ABSURD)] = np.nan
    grains = np.array([[BY_NAME[name].grain] for name in metrics])
    names = tuple(sampled.subjects[no].id for no in mine)
    return Stack(about, node, names, metrics, sampled.interval_s, np.array([sampled.at]), _rounded(values, grains))


def _rounded(values: Floats, grains: Floats) -> Floats:
    return quantised(values, cast(float, grains))[np.newaxis]


def joined(stacks: Iterable[Stack]) -> list[Stack]:
    """As few as can be; rounds stay in their order."""
    alike: dict[tuple[Any, ...], list[Stack]] = {}
    for stack in stacks:
        alike.setdefault((stack.about, stack.node, stack.names, stack.metrics), []).append(stack)
    return [_joined(group) if len(group) > 1 else group[0] for group in alike.values()]


def _joined(group: Sequence[Stack]) -> Stack:
    first, latest = group[0], group[-1]
    at, values = np.concatenate([one.at for one in group]), np.concatenate([one.values for one in group])
    return Stack(first.about, first.node, first.names, first.metrics, latest.interval_s, at, values)


def encode(stacks: Sequence[Stack]) -> bytes:
    head = _encode(
        [
            _Stored(one.about, one.node, list(one.names), list(one.metrics), one.interval_s, one.at.tolist())
            for one in stacks
        ]
    )
    # By metric first: what is alike stands together.
    values = [np.ascontiguousarray(one.values.transpose(1, 2, 0)).ravel() for one in stacks]
    planes = np.concatenate(values or [np.empty(0)]).view(np.uint8).reshape(-1, 8).T.tobytes()
    return zlib.compress(len(head).to_bytes(4, "little") + head + planes, 1)


def decode(data: bytes) -> list[Stack]:
    """Raises RoundsError."""
    try:
        body = zlib.decompress(data)
        size = int.from_bytes(body[:4], "little")
        heads = _decode.decode(body[4 : 4 + size])
        planes = np.frombuffer(body, np.uint8, offset=4 + size).reshape(8, -1)
        values = np.ascontiguousarray(planes.T).view(np.float64).ravel()
        found, begin = [], 0
        for head in heads:
            shape = len(head.metrics), len(head.names), len(head.at)
            end = begin + shape[0] * shape[1] * shape[2]
            mine = np.ascontiguousarray(values[begin:end].reshape(shape).transpose(2, 0, 1))
            about = cast(About, head.about)
            found.append(
                Stack(
                    about, head.node, tuple(head.names), tuple(head.metrics), head.interval_s, np.array(head.at), mine
                )
            )
            begin = end
        return found
    except (zlib.error, msgspec.DecodeError, ValueError) as error:
        raise RoundsError(str(error)) from error

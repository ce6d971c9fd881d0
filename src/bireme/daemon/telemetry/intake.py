"""Makes samples that can be kept of the rounds that gatherers send: counters become rates, clocks are put right.

Called by `keeper`, in its writer's thread, with every round as it comes. It decides nothing and keeps nothing on disk.
Whoever connects is trusted to be a gatherer, but not to be of this release, nor in order, nor to have the right time.

Invariant: a round that was taken in once changes nothing when it comes again, and no sample is put where another clock
said it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from bireme.core.telemetry.attribution import Card, CardHolder, number_of
from bireme.core.telemetry.counters import Reading, growth
from bireme.core.telemetry.curves import Column
from bireme.core.telemetry.metrics import BY_NAME, TOTALS, Metric
from bireme.core.telemetry.subjects import Subject
from bireme.gather.messages import Device, Frame, Happening, HeldDevice, ProtocolError, Round, Value
from bireme.ports import Sampled

CLOCK_TOLERANCE_S = 2.0
"""A clock that is off by less is left alone: messages take their time, too."""
FRESH_S = 90.0
"""Figures that are older are nobody's any more: longer than the longest interval."""
COUNTED_S = 150.0
"""So old a counter may be that is not read in every round."""
MOST_NO = 2**40
"""Of rounds, at one a second, in 30,000 years."""
_TRIES = 3
"""Of a round that cannot be taken in; each costs its gatherer the connection."""
_SUBJECTS_AT_MOST = 20_000
"""In one frame: more is no machine's."""
_YOUNG_INTERVALS = 2.0
"""A task that began no longer ago began after the round before, or just before it was known whose it is."""
_TOTALS_EVERY_S = 600.0
"""The totals of a task that runs are kept at least so often: it may end while no gatherer lives to tell the last."""
_ABSURD = 2.0**64
"""No gauge and no counter is larger; NaN and the infinite are not smaller."""
_MOST_LETTERS = 1_000
"""Of what happened."""
_SILENT_AT_MOST = 1_000
"""GPUs of one gatherer of which it says nothing more and that are remembered."""


class Latest(NamedTuple):
    """The newest figures of one subject, as they were read: counters as totals."""

    at: float
    values: Mapping[str, float]


@dataclass(slots=True)
class Gatherer:
    """What is remembered of one of them."""

    id: str
    machine: str = ""
    release: str = ""
    kept: int = 0
    """Rounds up to this number are on disk."""
    taken: int = 0
    """Rounds up to this number were taken in."""
    offset_s: float = 0.0
    """Its clock, by the daemon's; 0 while it is near enough."""
    devices: dict[str, Device] = field(default_factory=dict)
    slurm_files: tuple[str, ...] = ()
    """Device files of its GPUs, by Slurm's numbers of them."""
    held: tuple[HeldDevice, ...] = ()
    """Its GPUs that jobs' pods have, each with `JOB.GENERATION`."""
    readings: dict[tuple[Subject, str], Reading] = field(default_factory=dict)
    """What counters said last."""
    totals: dict[Subject, tuple[float, float]] = field(default_factory=dict)
    """Of tasks: when each was seen first, and when its totals are kept next."""
    latest: dict[Subject, Latest] = field(default_factory=dict)
    heard_at: float = 0.0
    nodes: set[str] = field(default_factory=set)
    """All that it has told of."""
    told_at: float = 0.0
    """The time of its latest round, by the daemon's clock."""
    failed: tuple[int, int] = (0, 0)
    """The round that could not be taken in the last time, and how often in a row."""

    @property
    def is_remote(self) -> bool:
        """It came in by the door for other machines, which puts the node's name before its id."""
        return "/" in self.id


def cards_of(gatherer: Gatherer) -> list[Card]:
    """All that it tells of, with who has them."""
    holders: dict[str, list[CardHolder]] = {}
    for held in gatherer.held:
        holders.setdefault(held.uuid, []).append(holder_of(held))
    return [
        Card(
            device.node,
            device.uuid,
            None if device.parent else device.minor,
            None if device.parent else number_of(device.minor, gatherer.slurm_files),
            tuple(holders.get(device.uuid, ())),
        )
        for device in gatherer.devices.values()
    ]


def holder_of(held: HeldDevice) -> CardHolder:
    """Of what was named anew by the daemon's door."""
    job_id, _, generation = held.holder.partition(".")
    return CardHolder(int(job_id), int(generation), held.shared)


def take(
    gatherer: Gatherer, told: Round, now: float, arrived: float | None = None
) -> tuple[list[Sampled], list[Happening]]:
    """What is new in a round: samples to keep, and what happened. `arrived`: when it came, if it waited since then.
    Raises ProtocolError."""
    if told.no <= gatherer.taken:
        return [], []
    gatherer.offset_s = clock_offset(told.sent, now if arrived is None else arrived)
    at = told.at - gatherer.offset_s
    frames = [frame for frame in told.frames if not frame.ended]
    subjects = [_subjects(frame) for frame in frames]
    samples = [
        _sampled(gatherer, frame, named, at, told.interval_s) for frame, named in zip(frames, subjects, strict=True)
    ]
    samples += _totals_of_running(gatherer, subjects, at, told.interval_s)
    for frame in told.frames:
        samples += _totals_of_ended(gatherer, frame, at, told.interval_s) if frame.ended else ()
    if gatherer.offset_s:
        samples.append(_clock_sample(gatherer, at, told.interval_s))
    gatherer.taken, gatherer.heard_at = told.no, now
    gatherer.told_at = max(gatherer.told_at, at)
    gatherer.nodes.update(frame.node for frame in told.frames)
    _forget_the_gone(gatherer, {subject for named in subjects for subject in named})
    return samples, [_put_right(happening, gatherer.offset_s) for happening in told.happenings]


def clock_offset(sent: float, arrived: float) -> float:
    """How far ahead the clock is by which something was sent then; 0 where it is near enough, or does not say."""
    seen = sent - arrived if sent else 0.0
    return seen if abs(seen) > CLOCK_TOLERANCE_S else 0.0


def passes_over(gatherer: Gatherer, no: int) -> bool:
    """After round `no` could not be taken in: true once that was so too often. Then it counts as taken, or it would
    come again for ever, and all that comes after it never."""
    if not gatherer.taken < no <= MOST_NO:
        return False
    times = gatherer.failed[1] + 1 if gatherer.failed[0] == no else 1
    gatherer.failed = no, times
    if times >= _TRIES:
        gatherer.taken = no
    return times >= _TRIES


def newest(gatherer: Gatherer, now: float) -> dict[Subject, dict[str, float]]:
    """What it told of its GPUs and nodes in its latest rounds, counters as they count; nothing where that is old.

    A counter that is not read in every round (energy) is told as it was read last.
    """
    found = {
        subject: dict(latest.values)
        for subject, latest in gatherer.latest.items()
        if subject.about in ("gpu", "node") and abs(now - latest.at) <= FRESH_S
    }
    for (subject, name), reading in gatherer.readings.items():
        if subject in found and name not in found[subject] and abs(now - reading.at) <= COUNTED_S:
            found[subject][name] = reading.value
    return found


def starts_in(samples: Iterable[Sampled]) -> set[tuple[int, int]]:
    """The jobs and generations whose tasks are in there."""
    names = {
        tuple(subject.id.split(".", 2)[:2])
        for one in samples
        for subject in one.subjects
        if subject.about in ("task", "use")
    }
    return {(int(name[0]), int(name[1])) for name in names if len(name) == 2 and all(map(_is_number, name))}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 16


def _clock_sample(gatherer: Gatherer, at: float, interval_s: float) -> Sampled:
    machine = Subject("node", gatherer.machine, gatherer.machine)
    return Sampled(at, interval_s, (machine,), {"node_clock_offset": np.array([1000.0 * gatherer.offset_s])})


def _put_right(happening: Happening, offset_s: float) -> Happening:
    """By the daemon's clock, and with a text that does nothing to the terminal of who reads it."""
    text = happening.text[:_MOST_LETTERS]
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    return msgspec.structs.replace(happening, at=happening.at - offset_s, text=text)


def _subjects(frame: Frame) -> tuple[Subject, ...]:
    if len(frame.ids) > _SUBJECTS_AT_MOST:
        raise ProtocolError(f"{len(frame.ids)} subjects in one frame")
    return tuple(Subject(frame.about, frame.node, each) for each in frame.ids)


def _sampled(gatherer: Gatherer, frame: Frame, subjects: tuple[Subject, ...], at: float, interval_s: float) -> Sampled:
    raw = dict(_known_columns(frame))
    births = _births(frame, subjects, at, interval_s)
    for index, subject in enumerate(subjects):
        said = {metric.name: column[index] for metric, column in raw.items()}
        gatherer.latest[subject] = Latest(at, {name: value for name, value in said.items() if not math.isnan(value)})
    values = {
        metric.name: column if metric.kind == "gauge" else _rates(gatherer, metric, subjects, column, at, births)
        for metric, column in raw.items()
    }
    return Sampled(at, interval_s, subjects, values)


def _totals_of_running(
    gatherer: Gatherer, subjects: Iterable[tuple[Subject, ...]], at: float, interval_s: float
) -> Iterable[Sampled]:
    """Of those whose totals were kept last a quarter of their life ago, or longer than is lost gladly."""
    due: dict[Subject, Mapping[str, float]] = {}
    for subject in chain.from_iterable(subjects):
        first, again_at = gatherer.totals.get(subject, (at, at))
        if subject.about == "task" and at >= again_at:
            due[subject] = gatherer.latest[subject].values
            gatherer.totals[subject] = first, at + min(_TOTALS_EVERY_S, (at - first) / 4)
    return _totals(due, at, interval_s)


def _totals_of_ended(gatherer: Gatherer, frame: Frame, at: float, interval_s: float) -> Iterable[Sampled]:
    """Put where each was seen last: nothing of it is newer than that."""
    columns = dict(_known_columns(frame))
    by_time: dict[float, dict[Subject, Mapping[str, float]]] = {}
    for index, subject in enumerate(_subjects(frame)):
        seen = gatherer.latest.get(subject)
        last = seen.at if seen is not None else at - interval_s
        said = {metric.name: float(column[index]) for metric, column in columns.items() if metric.kind == "counter"}
        by_time.setdefault(last, {})[subject] = {name: each for name, each in said.items() if not math.isnan(each)}
    for last, ended in by_time.items():
        yield from _totals(ended, last, interval_s)


def _totals(counted: Mapping[Subject, Mapping[str, float]], at: float, interval_s: float) -> Iterable[Sampled]:
    """`counted` is what the counters of each say."""
    values = {
        name: np.array([_sum_of(parts, said) for said in counted.values()], dtype=np.float64)
        for name, parts in TOTALS.items()
    }
    known = {name: column for name, column in values.items() if not np.isnan(column).all()}
    if known:
        yield Sampled(at, interval_s, tuple(counted), known)


def _sum_of(parts: Iterable[str], said: Mapping[str, float]) -> float:
    known = [said[name] * BY_NAME[name].per_second for name in parts if name in said]
    return sum(known) if known else math.nan


def _births(frame: Frame, subjects: tuple[Subject, ...], at: float, interval_s: float) -> dict[Subject, float]:
    """Before which counters of young tasks were nothing: what they count is put over the whole interval in which they
    began, as every sample stands for one. Of one that is older, and new to this gatherer only, it is not known when it
    used what."""
    if not frame.ages:
        return {}
    if len(frame.ages) != len(frame.ids):
        raise ProtocolError(f"{len(frame.ages)} ages of {len(frame.ids)} subjects")
    return {
        subject: at - max(age, interval_s)
        for subject, age in zip(subjects, frame.ages, strict=True)
        if age is not None and 0.0 <= age <= _YOUNG_INTERVALS * interval_s
    }


def _known_columns(frame: Frame) -> Iterable[tuple[Metric, Column]]:
    """A metric that this release does not know, or that is of other subjects, is passed over."""
    for name, values in frame.columns.items():
        if len(values) != len(frame.ids):
            raise ProtocolError(f"{len(values)} values of {name} for {len(frame.ids)} subjects")
        metric = BY_NAME.get(name)
        if metric is not None and metric.about == frame.about:
            yield metric, np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: Value) -> float:
    return float(value) if value is not None and abs(value) <= _ABSURD else math.nan


def _rates(
    gatherer: Gatherer,
    metric: Metric,
    subjects: tuple[Subject, ...],
    column: Column,
    at: float,
    births: Mapping[Subject, float],
) -> Column:
    rates = np.full(len(column), np.nan)
    for index, subject in enumerate(subjects):
        if math.isnan(column[index]):
            continue
        now = Reading(at, float(column[index]))
        before = gatherer.readings.get((subject, metric.name))
        if before is None and subject in births:
            before = Reading(births[subject], 0.0)
        grown = growth(metric, before, now)
        gatherer.readings[subject, metric.name] = now
        if grown is not None:
            rates[index] = grown
    return rates


def _forget_the_gone(gatherer: Gatherer, present: set[Subject]) -> None:
    """Tasks end: what nobody speaks of any more is not remembered. A GPU that keeps silent for a round is."""
    gone = [subject for subject in gatherer.latest if subject.about in ("task", "use") and subject not in present]
    lasting = [subject for subject in gatherer.latest if subject.about in ("gpu", "node") and subject not in present]
    gone += sorted(lasting, key=lambda subject: gatherer.latest[subject].at)[:-_SILENT_AT_MOST]
    if not gone:
        return
    for subject in gone:
        del gatherer.latest[subject]
    lost = set(gone)
    gatherer.totals = {subject: told for subject, told in gatherer.totals.items() if subject not in lost}
    gatherer.readings = {key: reading for key, reading in gatherer.readings.items() if key[0] not in lost}

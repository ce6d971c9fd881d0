"""One job over time, as a value: lanes of spans, marks and curves over one axis, and what is not known of it.

Made by `timeline` of what others know: the journal's story (`telling`), the trail of reasons, whose GPUs they were,
what happened to them, curves. `api/looking_back/timelines` gathers these; the terminal, the page and the SDK show the
value. A lane is data: whoever knows more of a job (its experiment's metrics) adds a lane.
Pure. Invariant: every span and mark lies on the axis, and a span ends where it is said to end, or is still open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from bireme.core.telemetry.curves import Column
from bireme.core.telemetry.waiting import Waited

Tone = Literal["wait", "start", "run", "pause", "end", "good", "bad", "note"]
"""What it is like: for whoever draws it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one time."""

    at: float
    text: str
    tone: Tone = "note"
    more: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted; `end` None: it still does."""

    start: float
    end: float | None
    text: str
    tone: Tone = "note"
    more: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A curve under a name of its own: low, mean and high of each step, NaN where nothing was measured."""

    name: str
    start: float
    step_s: float
    low: Column
    mean: Column
    high: Column


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a timeline. `name` is for programs, `title` for people."""

    name: str
    title: str
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()
    lines: tuple[Line, ...] = ()
    unit: str = ""
    """Of its lines."""
    top: float | None = None
    """Where the scale of its lines ends; None: at their highest."""
    about: str = ""
    """What its lines are, in a sentence."""

    @property
    def is_empty(self) -> bool:
        return not (self.spans or self.marks or self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A job from its submission to its end, or until now; where it waits, until it is expected to start."""

    job: str
    job_id: int
    name: str
    user: str
    state: str
    start: float
    end: float
    now: float
    is_over: bool
    expected_start: float | None
    lanes: tuple[Lane, ...]
    absent: tuple[str, ...]
    """What is not known of it, and why: a sentence each."""


def laid_out(base: Timeline, lanes: Iterable[Lane], absent: Iterable[str]) -> Timeline:
    """The timeline with these lanes, each within its axis; empty ones are left out."""
    kept = (_within(lane, base.start, base.end) for lane in lanes)
    return replace(base, lanes=tuple(lane for lane in kept if not lane.is_empty), absent=tuple(absent))


def waiting_lane(spans: Sequence[Span], waits: Sequence[Waited]) -> Lane:
    """What kept it waiting, and when. `spans`: the times in which it waited; nothing is told outside of them."""
    found: list[Span] = []
    for waited in sorted(waits, key=lambda one: one.start):
        words = " + ".join(word for word, _ in waited.reasons) or "None"
        sentences = " ".join(sentence for _, sentence in waited.reasons)
        found += [
            Span(max(waited.start, whole.start), _earlier(waited.end, whole.end), words, "wait", sentences)
            for whole in spans
            if (whole.end is None or waited.start < whole.end) and (waited.end is None or waited.end > whole.start)
        ]
    return Lane("reasons", "why it waited", spans=tuple(_one_after_another(found)))


def times_of(spans: Iterable[Span], now: float) -> dict[str, float]:
    """Seconds of all spans with the same text, longest first."""
    total: dict[str, float] = {}
    for span in spans:
        total[span.text] = total.get(span.text, 0.0) + (now if span.end is None else span.end) - span.start
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _earlier(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)


def _one_after_another(spans: Sequence[Span]) -> list[Span]:
    """A span that was never closed (its daemon was killed) ends where the next begins."""
    closed = [
        replace(span, end=after.start) if span.end is None or span.end > after.start else span
        for span, after in pairwise(spans)
    ]
    return [*closed, *spans[-1:]]


def _within(lane: Lane, start: float, end: float) -> Lane:
    spans = tuple(
        replace(span, start=max(start, min(span.start, end)), end=None if span.end is None else min(span.end, end))
        for span in lane.spans
        if span.end is None or span.end >= start
    )
    marks = tuple(
        replace(mark, at=max(start, min(mark.at, end))) for mark in sorted(lane.marks, key=lambda one: one.at)
    )
    return replace(lane, spans=spans, marks=marks)

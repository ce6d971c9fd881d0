"""Curves of what was measured, as they are asked for: of a job, a node or a GPU, in steps that fit a plot.

Called by `routes/telemetry` in a thread: reading and reducing a day of many GPUs takes some milliseconds. Whose GPU it
was comes from the holdings that the daemon wrote down, never from what the figures look like.
Invariant: a curve of a job has nothing in it of a time in which another job had that GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bireme.core.telemetry.curves import Asked, Curve, plain
from bireme.core.telemetry.metrics import BY_NAME, About
from bireme.core.telemetry.subjects import Subject
from bireme.ports import Series

NOT_MEASURED = "nothing is measured here: telemetry.gather is off (bireme.toml)"
FINEST_S = 1.0
MOST_POINTS = 10_000
MOST_FIGURES = 500_000
"""Of one answer: curves times points."""
_OF_TASKS: tuple[About, ...] = ("task", "use")


@dataclass(frozen=True, slots=True)
class Span:
    """What is asked for: from when to when, in steps of so many seconds."""

    start: float
    end: float
    step_s: float

    @classmethod
    def of(cls, start: float, end: float, step_s: float, points: float) -> Span:
        """`step_s` or, where that is 0, so many points. What would be too many is made coarser."""
        length = max(end - start, FINEST_S)
        wanted = step_s or length / max(1.0, points)
        return cls(start, end, max(wanted, FINEST_S, length / MOST_POINTS))

    def coarser_for(self, curves: int) -> Span:
        """In steps so long that so many curves are no more figures than one answer may have."""
        points = max(1, MOST_FIGURES // max(1, curves))
        return Span(self.start, self.end, max(self.step_s, (self.end - self.start) / points))


def curves_of_job(
    series: Series, job_id: int, generation: int | None, metrics: Sequence[str], span: Span
) -> list[Curve]:
    """Of its GPUs, whole ones by what the GPU did, shared ones by what its tasks did there; and of its tasks."""
    held = [
        holding
        for holding in series.holdings(job_id=job_id, start=span.start, end=span.end)
        if generation in (None, holding.generation) and not holding.shared
    ]
    asked = _by_subject(metrics)
    prefix = f"{job_id}." if generation is None else f"{job_id}.{generation}."
    used: dict[About, list[Subject]] = {
        about: series.subjects(about, prefix, span.start, span.end) for about in _OF_TASKS if asked[about]
    }
    gpus = {(holding.node, holding.uuid) for holding in held}
    curves = len(gpus) * len(asked["gpu"]) + sum(len(found) * len(asked[about]) for about, found in used.items())
    span = span.coarser_for(curves)
    found: list[Curve] = []
    if held and asked["gpu"]:
        question = Asked(subjects=(), metrics=asked["gpu"], start=span.start, end=span.end, step_s=span.step_s)
        found += series.read_held(held, question)
    for about, subjects in used.items():
        found += _read(series, subjects, asked[about], span)
    return found


def curves_of_hardware(series: Series, subjects: Sequence[Subject], metrics: Sequence[str], span: Span) -> list[Curve]:
    """The curves of nodes, or of GPUs."""
    asked = _by_subject(metrics)[subjects[0].about] if subjects else ()
    return _read(series, subjects, asked, span.coarser_for(len(subjects) * len(asked)))


def described(curves: Iterable[Curve], reduce: str) -> list[dict[str, Any]]:
    """For JSON. `reduce`: mean, low, high, or band for all three."""
    rows = []
    for curve in curves:
        columns = {"low": curve.low, "mean": curve.mean, "high": curve.high}
        kept = columns if reduce == "band" else {reduce: columns[reduce]}
        rows.append(
            {
                "about": curve.subject.about,
                "node": curve.subject.node,
                "id": curve.subject.id,
                "metric": curve.metric,
                "unit": BY_NAME[curve.metric].unit,
                "start": curve.start,
                "step_s": curve.step_s,
                **{name: plain(column) for name, column in kept.items()},
            }
        )
    return rows


def _by_subject(metrics: Sequence[str]) -> dict[About, list[str]]:
    asked: dict[About, list[str]] = {"node": [], "gpu": [], "task": [], "use": []}
    for name in metrics:
        asked[BY_NAME[name].about].append(name)
    return asked


def _read(series: Series, subjects: Sequence[Subject], metrics: Sequence[str], span: Span) -> list[Curve]:
    points = (span.end - span.start) / span.step_s
    room = max(1, int(MOST_FIGURES / max(1.0, points * len(metrics))))
    asked = Asked(subjects=subjects[:room], metrics=metrics, start=span.start, end=span.end, step_s=span.step_s)
    return series.read(asked) if subjects and metrics else []

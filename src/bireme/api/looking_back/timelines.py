"""Gathers what is known of one job over time, and has a timeline made of it (`core/telemetry/timeline`).

Called by `routes/timelines` in a thread: it reads the journal, the history and the store of series. Who may see the job
was asked before; what of it is private all the same is left out here.
Invariant: what is missing (no telemetry, an old story) is said in `absent`, and the rest is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bireme.api import measured
from bireme.api.looking_back.befallen import LATE_S, Stay, befallen, machines_of
from bireme.api.looking_back.known import Sources
from bireme.core.model.finding.findings import Finding, Gravity
from bireme.core.telemetry import lanes as curve_lanes
from bireme.core.telemetry.curves import Curve, plain
from bireme.core.telemetry.telling import Run, Told, told_by_runs, told_by_story
from bireme.core.telemetry.timeline import Lane, Mark, Span, Timeline, Tone, laid_out, waiting_lane
from bireme.core.telemetry.waiting import Waited
from bireme.ports import Happened, HistoryQuery, Series, SeriesError, Store
from bireme.slurm.hostlist import expand

MOST_POINTS = 2_000
MOST_MARKS = 2_000
"""Of one lane: the newest."""
_FAULTS: dict[str, tuple[str, Tone]] = {
    "xid": ("Xid {code} on {gpu}", "bad"),
    "sxid": ("SXid {code} on {node}", "bad"),
    "gpu lost": ("{gpu} does not answer", "bad"),
    "gpu back": ("{gpu} answers again", "good"),
    "stray": ("a process of nobody's on {gpu}", "bad"),
    "kernel": ("the kernel of {node}", "bad"),
}
_RESERVATIONS = ("Reservation", "ReservationDeleted", "BadConstraints")
"""Reasons whose sentence names a reservation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """The job that is asked for, as the queue or the history has it."""

    job: str
    job_id: int
    array_job_id: int | None
    name: str
    user: str
    uid: int
    state: str
    submitted_at: float
    started_at: float | None
    """Of its latest start."""
    ended_at: float | None
    nodes: str
    expected_start: float | None
    findings: tuple[Finding, ...]
    """What is wrong now where it runs: of the job itself its story tells."""
    is_own: bool
    """It is the job of who asks."""
    reads_run: bool
    """Who asks may read its run in an experiment tracker."""
    outputs: dict[str, str]
    """Paths of its output, by the stream: out and err."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What is known of waiting besides what was written down. `hides_reservations`: from who asks, but for those of
    jobs of his own."""

    now: Callable[[int], Waited | None]
    hides_reservations: bool = False


def timeline_of(
    whose: Whose, sources: Sources, waits: Waits, now: float, points: int, logged: curve_lanes.Logged | None = None
) -> dict[str, Any]:
    """For JSON: the timeline, and how far each output had come when. `logged`: what its program did, for who may see
    that."""
    told, absent = _told(whose, sources.store)
    end = whose.ended_at if whose.ended_at is not None else now
    base = Timeline(
        job=whose.job,
        job_id=whose.job_id,
        name=whose.name,
        user=whose.user,
        state=whose.state,
        start=min(whose.submitted_at, end),
        end=max(end, whose.expected_start or 0.0) if whose.ended_at is None else end,
        now=now,
        is_over=whose.ended_at is not None,
        expected_start=whose.expected_start if whose.ended_at is None else None,
        lanes=(),
        absent=(),
    )
    lanes = [*told.lanes(), _wrong(whose, base)]
    curves: list[Curve] = []
    if sources.series is None:
        absent.append(f"No reasons, faults or curves: {sources.no_series}.")
    else:
        try:
            lanes.insert(1, _reasons(whose, told, waits, sources.series, absent))
            curves = _curves(whose, told, sources.series, base, points, end)
            lanes.append(_faults(whose, told, sources, sources.series, base, end))
            lanes += curve_lanes.lanes_of(curves, sources.gpu_names)
        except SeriesError as error:
            absent.append(f"What was measured cannot be read: {error}.")
        else:
            absent += _unmeasured(told, curves)
    if logged is not None:
        lanes += curve_lanes.logged_lanes(logged, min([*told.starts[:1], end]), end, max(1, min(points, MOST_POINTS)))
        absent += logged.absent
    return _plain(laid_out(base, lanes, absent), whose, curves)


def _told(whose: Whose, store: Store) -> tuple[Told, list[str]]:
    story = store.story(whose.job_id)
    told = told_by_story(story)
    if told.states and told.states[0].start <= whose.submitted_at + 1.0:
        return told, []
    query = HistoryQuery(jobs=((whose.array_job_id or whose.job_id, None),), duplicates=True)
    mine = [record for record in store.finished(query) if record["job_id"] == whose.job_id]
    if not mine:
        return told if told.states else _now_alone(whose), ["The beginning of its story is no longer in the journal."]
    runs = [
        Run(record["submit_time"], record.get("start_time"), record["end_time"], record["state"],
            record.get("node_list") or "", tuple(expand(record.get("node_list") or "")))
        for record in mine
    ]  # fmt: skip
    return told_by_runs(runs), [
        "Its story is no longer in the journal: its times are the history's, without steps, checkpoints and signals."
    ]


def _now_alone(whose: Whose) -> Told:
    """Of one that lives, and whose story is gone: how it stands."""
    told, began = Told(), whose.started_at
    told.states.append(Span(whose.submitted_at, began, "waits", "wait"))
    if began is not None:
        told.states.append(Span(began, None, "runs", "run"))
        told.places.append(Span(began, None, whose.nodes, "run"))
        told.hosts.append(tuple(expand(whose.nodes)))
    return told


def _reasons(whose: Whose, told: Told, known: Waits, series: Series, absent: list[str]) -> Lane:
    waits = series.waits(whose.job_id)
    if whose.array_job_id not in (None, whose.job_id):
        assert whose.array_job_id is not None
        waits = [*series.waits(whose.array_job_id), *waits]
    current = known.now(whose.job_id)
    if current is not None and current.start not in {one.start for one in waits}:
        waits.append(current)
    if known.hides_reservations and not whose.is_own:
        waits = [Waited(one.job_id, one.start, one.end, tuple(map(_without_reservation, one.reasons))) for one in waits]
    lane = waiting_lane(told.waiting, waits)
    waited = sum((span.end if span.end is not None else span.start) - span.start for span in told.waiting)
    if not lane.spans and waited > 2.0:
        absent.append(
            "What kept it waiting was not written down: it waited before this was kept, or while nothing was."
        )
    return lane


def _without_reservation(reason: tuple[str, str]) -> tuple[str, str]:
    word, text = reason
    return (word, "") if word in _RESERVATIONS or "eservation" in text else reason


def _curves(whose: Whose, told: Told, series: Series, base: Timeline, points: int, end: float) -> list[Curve]:
    if not told.starts:
        return []
    wanted = measured.Span.of(min(told.starts[0], end), end, 0.0, float(max(1, min(points, MOST_POINTS))))
    metrics = (*curve_lanes.METRICS, *curve_lanes.OUTPUTS.values())
    return measured.curves_of_job(series, whose.job_id, None, metrics, wanted)


def _unmeasured(told: Told, curves: Sequence[Curve]) -> list[str]:
    if not told.starts:
        return []
    if not curves:
        return ["Nothing was measured of it: it ran where no gatherer looks, before there was one, or for a moment."]
    measured_of = {curve.metric for curve in curves}
    has_gpus = any("GPU" in span.more for span in told.places)
    if has_gpus and not any(metric.startswith(("gpu_", "use_gpu_")) for metric in measured_of):
        return ["Nothing was measured of its GPUs: no gatherer knows them."]
    if has_gpus and "gpu_util" in measured_of and not measured_of.intersection(curve_lanes.REAL_USE):
        return ["Its GPUs do not count real use (GPM or DCGM): util is time in which anything ran, however little."]
    return []


def _faults(whose: Whose, told: Told, sources: Sources, series: Series, base: Timeline, end: float) -> Lane:
    stays = [
        Stay(place.start, place.end, machines_of(hosts, sources.machines))
        for place, hosts in zip(told.places, told.hosts, strict=True)
    ]
    mine = befallen(series, whose.job_id, stays, (base.start, end + LATE_S))
    marks = (_fault(one, whose, sources.gpu_names, end) for one in mine[-MOST_MARKS:])
    return Lane("faults", "faults", marks=tuple(marks))


def _wrong(whose: Whose, base: Timeline) -> Lane:
    """Findings about its GPUs and nodes, from when they were first seen, or it has been there."""
    spans = tuple(
        Span(max(each.trouble.since, whose.started_at or base.start), None, each.trouble.title,
             "note" if each.trouble.gravity is Gravity.NOTE else "bad", each.trouble.remedy)
        for each in whose.findings
    )  # fmt: skip
    return Lane("findings", "what is wrong", spans=spans)


def _fault(happened: Happened, whose: Whose, names: Mapping[str, str], end: float) -> Mark:
    """Of a process that is not the job's own no more is told than that there is one, and what a kernel said of its
    whole node to the job's owner alone. What came a moment after the end stands at it."""
    words, tone = _FAULTS.get(happened.kind, (happened.kind, "bad"))
    gpu = names.get(happened.uuid, happened.uuid or happened.node)
    is_others = happened.kind == "stray" or (not happened.task and not happened.uuid and not whose.reads_run)
    text = words.format(code=happened.code, gpu=gpu, node=happened.node)
    return Mark(min(happened.at, end), text, tone, "" if is_others else happened.text)


def _plain(timeline: Timeline, whose: Whose, curves: Sequence[Curve]) -> dict[str, Any]:
    lanes = [
        {
            "name": lane.name,
            "title": lane.title,
            "unit": lane.unit,
            "top": lane.top,
            "about": lane.about,
            "spans": [asdict(span) for span in lane.spans[-MOST_MARKS:]],
            "marks": [asdict(mark) for mark in lane.marks[-MOST_MARKS:]],
            "lines": [
                {"name": line.name, "start": line.start, "step_s": line.step_s,
                 "low": plain(line.low), "mean": plain(line.mean), "high": plain(line.high)}
                for line in lane.lines
            ],
        }
        for lane in timeline.lanes
    ]  # fmt: skip
    outputs = [
        {"stream": stream, "path": path, "looks": curve_lanes.output_positions(curves, curve_lanes.OUTPUTS[stream])}
        for stream, path in whose.outputs.items()
    ]
    names = ("job", "job_id", "name", "user", "state", "start", "end", "now", "is_over", "expected_start")
    return {
        **{name: getattr(timeline, name) for name in names},
        "user_id": whose.uid,
        "lanes": lanes,
        "absent": list(timeline.absent),
        "outputs": outputs,
    }

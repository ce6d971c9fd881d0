"""What the journal knows of a job's end, as lines of evidence: its latest start that is over, or the one that runs.

The words are those that `evidence/rules/scheduler.toml` knows; a person can read them too. Asked by the API. Pure.
Invariant: nothing that the job's programs wrote becomes part of these lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bireme.core.diagnosis.model import Line
from bireme.core.explain.wording import sentence
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Trouble
from bireme.core.model.jobs import Finished, Outcome
from bireme.core.model.reasons import Reason, ReasonKind
from bireme.core.model.resources import Allocation, ExitStatus
from bireme.core.model.steps import step_label

_SAID_ALREADY = (
    ReasonKind.NON_ZERO_EXIT,
    ReasonKind.RAISED_SIGNAL,
    ReasonKind.TIME_LIMIT,
    ReasonKind.OUT_OF_MEMORY,
    ReasonKind.NONE,
)
"""Reasons that the state and the exit code say."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a job, from its placement on, in the journal's events."""

    events: Sequence[e.Recorded]
    allocation: Allocation | None = None

    @property
    def is_over(self) -> bool:
        return any(isinstance(recorded.event, _ENDS) for recorded in self.events)

    @property
    def began_at(self) -> float:
        return self.events[0].at

    @property
    def ended_at(self) -> float | None:
        """When the start ended; None: it is not over."""
        return self.events[-1].at if self.is_over else None

    @property
    def steps(self) -> list[e.StepCreated]:
        return [recorded.event for recorded in self.events if isinstance(recorded.event, e.StepCreated)]


_ENDS = (e.JobEnding, e.JobEnded, e.JobLaunchFailed, e.JobCancelled)


def latest_start(story: Iterable[e.Recorded]) -> Start | None:
    """The newest that is over; where none is, the one that runs or what there is of a job that never started."""
    starts: list[Start] = []
    gathered: list[e.Recorded] = []
    for recorded in story:
        if isinstance(recorded.event, e.JobAllocated):
            starts.append(_start_of(gathered))
            gathered = []
        gathered.append(recorded)
    starts.append(_start_of(gathered))
    told = [start for start in starts if start.events]
    over = [start for start in told if start.is_over or _mirrored_end(start) is not None]
    return over[-1] if over else told[-1] if told else None


def _start_of(events: list[e.Recorded]) -> Start:
    first = events[0].event if events else None
    if isinstance(first, e.JobAllocated):
        return Start(tuple(events), first.allocation)
    return Start(tuple(events))


def _mirrored_end(start: Start) -> Finished | None:
    """Of a job in another scheduler's queue."""
    for recorded in reversed(start.events):
        event = recorded.event
        if isinstance(event, e.JobMirrored) and isinstance(event.seen.phase, Finished):
            return event.seen.phase
    return None


def lines_of_start(start: Start) -> list[Line]:
    """In the order of time."""
    lines: list[Line] = []
    for recorded in start.events:
        lines += _lines_of(recorded.event, recorded.at)
    ended = _mirrored_end(start)
    if ended is not None:
        lines += lines_of_outcome(ended.outcome, ended.ended_at)
    return sorted(lines, key=lambda line: line.at or 0.0)


def _lines_of(event: e.Event, at: float) -> list[Line]:
    match event:
        case e.BatchExited(status=status, at=when) if not status.ok:
            return [_line(when, f"{words_of(status)} (script)")]
        case e.StepNodeEnded(step_id=number, status=status, failed=failed) if not status.ok:
            step = f"(step {step_label(number)})"
            if not failed:
                return [_line(event.at, f"{words_of(status)} {step}", event.node)]
            return [
                Line(text=f"task {end.task} {words_of(end.status)} {step}", source="record", at=end.at,
                     node=event.node, rank=end.task)
                for end in failed
            ]  # fmt: skip
        case e.StepEnding(step_id=number, outcome=outcome):
            return [_line(at, f"step {step_label(number)} is ended: {outcome}")]
        case e.JobLaunchFailed(reason=reason):
            return _lines_of_reason(reason, at)
        case e.JobEnding(outcome=outcome) | e.JobCancelled(outcome=outcome):
            return lines_of_outcome(outcome, at)
        case e.FindingOpened(trouble=trouble) | e.FindingChanged(trouble=trouble):
            return _lines_of_trouble(trouble)
        case e.JobSuspended(for_job=by) if by is not None:
            return [_line(at, f"suspended for job {by}")]
    return []


def _lines_of_trouble(trouble: Trouble) -> list[Line]:
    """What detectors have found about this start while it ran, in their words, and where its programs stood."""
    said = Line(text=trouble.title, source="series", at=trouble.since, rank=trouble.place.rank)
    quoted = (each for each in trouble.quotes if each.source == "trace")
    return [said, *(Line(text=each.text, source="trace", at=each.at, node=each.node) for each in quoted)]


def lines_of_outcome(outcome: Outcome, at: float | None) -> list[Line]:
    """How the job as a whole ended."""
    by = f" by uid {outcome.by_uid}" if outcome.by_uid is not None else ""
    lines = [] if _is_told_better(outcome) else [_line(at, f"state {outcome.state}{by}")]
    if not outcome.status.ok:
        lines.append(_line(at, words_of(outcome.status)))
    if outcome.reason is not None:
        lines += _lines_of_reason(outcome.reason, at)
    return lines


def _is_told_better(outcome: Outcome) -> bool:
    """Slurm's word for a job that a node has not any more is that the node failed, and the engine knows why it has not:
    a pod is taken from a node that is well."""
    why = outcome.reason
    return why is not None and why.kind is ReasonKind.NODE_DOWN and why.fact("why") is not None


def _lines_of_reason(reason: Reason, at: float | None) -> list[Line]:
    node = str(reason.fact("node") or "")
    if reason.kind is ReasonKind.NODE_DOWN:
        why = reason.fact("why")
        return [_line(at, f"lost on node {node}: {why}" if why else f"node {node} lost: {sentence(reason)}", node)]
    if reason.kind is ReasonKind.PROLOG:
        return [_line(at, f"prolog failed: {sentence(reason)}", node)]
    if reason.kind in _SAID_ALREADY and reason.fact("why") is None:
        return []
    if reason.kind in (ReasonKind.LAUNCH_FAILED, ReasonKind.LAUNCH_FAILED_HELD):
        return [_line(at, f"reason LaunchFailed: {reason.fact('why') or sentence(reason)}", node)]
    return [_line(at, f"reason {reason.kind}: {sentence(reason)}", node)]


def words_of(status: ExitStatus) -> str:
    """How a process ended."""
    if status.out_of_memory:
        return "out of memory"
    return f"signal {status.signal}" if status.signal else f"exit code {status.code}"


def _line(at: float | None, text: str, node: str = "") -> Line:
    return Line(text=text, source="record", at=at, node=node)

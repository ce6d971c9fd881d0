"""A job's story as lanes: the events of the journal become spans and marks.

Of a job of our own the events say what happened; of one in another scheduler's queue each event is how it looked then
(`JobMirrored`). Of one whose story is gone the history has one run or several (`told_by_runs`). Pure.
Invariant: every event that is about a job is told or passed over by name (a test asks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from signal import Signals
from typing import Any

from bireme.core.explain.wording import clock, counted, sentence
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Gravity
from bireme.core.model.jobs import Ending, Finished, Outcome, Pending, Running, Starting, Suspended
from bireme.core.model.reasons import ReasonKind
from bireme.core.model.resources import Allocation, ExitStatus
from bireme.core.model.steps import Step, step_label
from bireme.core.telemetry.timeline import Lane, Mark, Span, Tone

_WAITS, _STARTS, _RUNS, _STOPS, _ENDS = "waits", "starts", "runs", "suspended", "ends"
_TONES: dict[str, Tone] = {_WAITS: "wait", _STARTS: "start", _RUNS: "run", _STOPS: "pause", _ENDS: "end"}
_NODES_NAMED = 8
PASSED_OVER: frozenset[type[Any]] = frozenset({
    e.JobAccrualChanged, e.JobToBeResumed, e.JobForgotten, e.ArrayPartSplit, e.StepEnding, e.ReplicaAdded,
    e.ReplicaQueued,
})  # fmt: skip
"""What a timeline does not need: it moves nothing that people see of the job."""


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a job as the history has it; `started_at` None: it never ran."""

    submitted_at: float
    started_at: float | None
    ended_at: float
    state: str
    nodes: str
    hosts: tuple[str, ...] = ()
    """The same, one by one."""


@dataclass(slots=True)
class Told:
    """What was made of a story."""

    states: list[Span] = field(default_factory=list)
    places: list[Span] = field(default_factory=list)
    hosts: list[tuple[str, ...]] = field(default_factory=list)
    """Of each of `places` all nodes."""
    steps: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    checkpoints: list[Mark] = field(default_factory=list)

    @property
    def waiting(self) -> list[Span]:
        """The times in which it waited."""
        return [span for span in self.states if span.text == _WAITS]

    @property
    def starts(self) -> list[float]:
        """When it began to run, each time."""
        return [
            span.start for place, span in enumerate(self.states) if span.text == _RUNS and not _resumed(self, place)
        ]

    def lanes(self) -> list[Lane]:
        return [
            Lane("state", "state", spans=tuple(self.states)),
            Lane("placement", "where", spans=tuple(self.places)),
            Lane("steps", "steps", spans=tuple(sorted(self.steps, key=lambda span: span.start))),
            Lane("checkpoints", "checkpoints", marks=tuple(self.checkpoints)),
            Lane("events", "what happened", marks=tuple(self.marks)),
        ]


def _resumed(told: Told, place: int) -> bool:
    return place > 0 and told.states[place - 1].text == _STOPS


class _Teller:
    """Goes through a story. One thing is open at a time in `states`, and one in `places`."""

    def __init__(self) -> None:
        self.told = Told()
        self._requeue = False
        self._open_steps: dict[tuple[int, int], tuple[Span, set[str], int]] = {}

    # --- spans --------------------------------------------------------------------------------------------

    def become(self, state: str, at: float, more: str = "") -> None:
        self._close(self.told.states, at)
        self.told.states.append(Span(at, None, state, _TONES[state], more))

    def _close(self, spans: list[Span], at: float) -> None:
        if spans and spans[-1].end is None:
            last = spans[-1]
            spans[-1] = Span(last.start, max(at, last.start), last.text, last.tone, last.more)

    def place(self, allocation: Allocation, at: float) -> None:
        self._close(self.told.places, at)
        self.told.places.append(Span(at, None, _named(allocation.node_names), "run", _resources(allocation)))
        self.told.hosts.append(tuple(allocation.node_names))

    def free(self, at: float) -> None:
        """Nothing of it is left: it holds nothing."""
        self._close(self.told.states, at)
        self._close(self.told.places, at)
        for key in tuple(self._open_steps):
            self._end_step(key, at, "ended with its job", "note")

    def mark(self, at: float, text: str, tone: Tone = "note", more: str = "") -> None:
        self.told.marks.append(Mark(at, text, tone, more))

    # --- events -------------------------------------------------------------------------------------------

    def submitted(self, event: e.JobSubmitted, at: float) -> None:
        if not self.told.states:
            self.mark(at, "submitted")
            self.become(_WAITS, at)

    def split(self, event: e.ArrayTaskSplit, at: float) -> None:
        self.mark(at, f"task {event.task_id} left the record of array {event.array_job_id}")

    def allocated(self, event: e.JobAllocated, at: float) -> None:
        self.become(_STARTS, at)
        self.place(event.allocation, at)
        self.mark(at, f"placed on {_named(event.allocation.node_names)}", "start", _resources(event.allocation))

    def started(self, event: e.JobStarted, at: float) -> None:
        self.become(_RUNS, event.at)
        again = f" again (start {event.generation})" if event.generation > 1 else ""
        self.mark(event.at, f"started{again}", "good")

    def launch_failed(self, event: e.JobLaunchFailed, at: float) -> None:
        self.free(at)
        self.mark(at, "could not be started", "bad", sentence(event.reason))
        self.become(_WAITS, at)

    def exited(self, event: e.BatchExited, at: float) -> None:
        self.mark(event.at, f"its script {_exit_words(event.status)}", _tone_of(event.status))

    def ending(self, event: e.JobEnding, at: float) -> None:
        self._requeue = event.requeue
        self.become(_ENDS, at)
        if event.verdict is not None:
            self.mark(at, event.verdict.text, "good" if event.verdict.restart else "note")
            return
        outcome = event.outcome
        bad = outcome.state not in ("COMPLETED", "CANCELLED")
        text = "preempted" if outcome.state == "PREEMPTED" else f"ends as {outcome.state}"
        self.mark(at, text, "bad" if bad else "note", _why(outcome))

    def ended(self, event: e.JobEnded, at: float) -> None:
        self.free(event.at)
        if self._requeue:
            self._requeue = False
            self.mark(event.at, "requeued", "wait")
            self.become(_WAITS, event.at)
        else:
            last = self.told.marks[-1].at if self.told.marks else event.at
            self.mark(max(event.at, last), "over")  # its processes were gone before that was seen

    def cancelled(self, event: e.JobCancelled, at: float) -> None:
        self.free(at)
        self.mark(at, f"{event.outcome.state} before it ran", "bad", _why(event.outcome))

    def requeued(self, event: e.JobRequeued, at: float) -> None:
        self.mark(at, "requeued" + (", held" if event.hold else ""), "wait")
        self.become(_WAITS, at)

    def suspended(self, event: e.JobSuspended, at: float) -> None:
        if event.for_job is None:
            self.mark(at, "suspended", "pause")
        else:
            self.mark(at, f"preempted: suspended for job {event.for_job}", "bad")
        self.become(_STOPS, at)

    def resumed(self, event: e.JobResumed, at: float) -> None:
        self.mark(at, "resumed", "good")
        self.become(_RUNS, at)

    def checkpointed(self, event: e.JobCheckpointed, at: float) -> None:
        found = event.checkpoint
        if event.gone:
            self.mark(at, "its checkpoint is there no more")
            return
        if found is None:
            self.told.checkpoints.append(Mark(at, "checkpoint", "good"))
            return
        step = "" if found.step is None else f", step {found.step}"
        self.told.checkpoints.append(Mark(min(at, found.saved_at), f"checkpoint{step}: {found.path}", "good"))

    def tracked(self, event: e.JobTracked, at: float) -> None:
        """Where the run is, and why there is none, is the owner's to know: it is not said here."""
        self.mark(at, "has a run in MLflow" if event.run.run_id else "starts without a run in MLflow")

    def signalled(self, event: e.JobSignalled, at: float) -> None:
        warned = " (the warning before its time limit)" if event.warning else ""
        self.mark(at, f"{_signal_name(event.signal)} sent{warned}")

    def held(self, event: e.JobHeld, at: float) -> None:
        self.mark(at, f"held by {'an operator' if event.by == 'admin' else 'its owner'}", "pause")

    def guarded(self, event: e.JobGuarded, at: float) -> None:
        self.mark(at, f"kept from preemption by {event.by}" if event.by else "may be preempted again")

    def found_idle(self, event: e.IdleNoticeGiven, at: float) -> None:
        facts = event.facts
        which = "its GPU" if facts.gpus == 1 else f"{facts.gpus_idle} of its {facts.gpus} GPUs"
        idle = f"{which} below {facts.below_percent:g}% for {clock(at - facts.since)}"
        then = "nothing is done" if event.act_at is None else f"{event.action.value} in {clock(event.act_at - at)}"
        self.mark(at, f"its owner is told: {idle}; {then}", "bad", f"rule {facts.rule} of {facts.source}")

    def finding(self, event: e.FindingOpened | e.FindingChanged, at: float) -> None:
        trouble = event.trouble
        self.mark(at, f"found: {trouble.title}", "note" if trouble.gravity is Gravity.NOTE else "bad", trouble.remedy)

    def leftover(self, event: e.LeftoverFound, at: float) -> None:
        self.mark(at, f"something of it is still on {event.node}", "bad")

    # --- steps --------------------------------------------------------------------------------------------

    def step_created(self, event: e.StepCreated, at: float) -> None:
        name = f"{step_label(event.step_id)} {event.spec.name}".rstrip()
        tasks = sum(len(node.task_ids) for node in event.nodes)
        more = f"{counted(tasks, 'task')} on {_named([node.node for node in event.nodes])}"
        span = Span(at, None, name, "run", more)
        self._open_steps[event.generation, event.step_id] = (span, {node.node for node in event.nodes}, 0)

    def step_started(self, event: e.StepStarted, at: float) -> None:
        key = event.generation, event.step_id
        if key in self._open_steps:
            span, nodes, worst = self._open_steps[key]
            self._open_steps[key] = (Span(event.at, None, span.text, span.tone, span.more), nodes, worst)

    def step_node_ended(self, event: e.StepNodeEnded, at: float) -> None:
        key = event.generation, event.step_id
        if key not in self._open_steps:
            return
        span, nodes, worst = self._open_steps[key]
        nodes.discard(event.node)
        if not event.status.ok:
            worst = 1
            span = Span(span.start, None, span.text, "bad", f"{span.more}; {event.node} {_exit_words(event.status)}")
        self._open_steps[key] = (span, nodes, worst)
        if not nodes:
            self._end_step(key, event.at, "failed" if worst else "exited with 0", "bad" if worst else "run")

    def _end_step(self, key: tuple[int, int], at: float, how: str, tone: Tone) -> None:
        span, _, _ = self._open_steps.pop(key)
        self.told.steps.append(Span(span.start, max(span.start, at), span.text, tone, f"{span.more}; {how}"))

    def finish(self) -> Told:
        self.told.steps += [span for span, _, _ in self._open_steps.values()]
        return self.told

    # --- another scheduler's ------------------------------------------------------------------------------

    def mirrored(self, event: e.JobMirrored, at: float) -> None:
        """How it looks now: what has changed since it was last seen becomes spans, with the times it gives itself."""
        seen, phase = event.seen, event.seen.phase
        if not self.told.states:
            self.mark(seen.submitted_at, "submitted")
            self.become(_WAITS, seen.submitted_at)
        last = self.told.states[-1]
        if isinstance(phase, Pending):
            if last.text != _WAITS or last.end is not None:
                self.free(at)
                self.mark(at, "requeued", "wait")
                self.become(_WAITS, at)
        elif isinstance(phase, Finished):
            self._mirrored_end(phase)
        else:
            self._mirrored_holding(phase, last.text, at)
        self._mirrored_steps(seen.steps)

    def _mirrored_holding(self, phase: Starting | Running | Suspended | Ending, last: str, at: float) -> None:
        began = phase.since if isinstance(phase, Starting) else phase.started_at
        began = at if began is None else began
        if last == _WAITS:
            self.place(phase.allocation, began)
            self.mark(began, f"placed on {_named(phase.allocation.node_names)}", "start", _resources(phase.allocation))
            if not isinstance(phase, Starting):
                self.become(_RUNS, began)
                self.mark(began, "started", "good")
                last = _RUNS
        now = {Starting: _STARTS, Running: _RUNS, Suspended: _STOPS, Ending: _ENDS}[type(phase)]
        if now != last:
            self.become(now, began if now == _STARTS or last == _STARTS else at)

    def _mirrored_end(self, phase: Finished) -> None:
        if self.told.states[-1].end is not None:
            return
        if phase.started_at is not None and self.told.states[-1].text == _WAITS:
            if phase.allocation is not None:
                self.place(phase.allocation, phase.started_at)
            self.become(_RUNS, phase.started_at)
            self.mark(phase.started_at, "started", "good")
        self.free(phase.ended_at)
        bad = phase.outcome.state not in ("COMPLETED", "CANCELLED")
        self.mark(phase.ended_at, f"over: {phase.outcome.state}", "bad" if bad else "note", _why(phase.outcome))

    def _mirrored_steps(self, steps: Sequence[Step]) -> None:
        self.told.steps = [
            Span(
                step.started_at,
                step.ended_at,
                f"{step_label(step.id)} {step.spec.name}".rstrip(),
                "run",
                _named([node.node for node in step.nodes]),
            )
            for step in steps
            if step.started_at is not None
        ] or self.told.steps


_TELLS: dict[type[Any], Callable[[_Teller, Any, float], None]] = {
    e.JobSubmitted: _Teller.submitted,
    e.ArrayTaskSplit: _Teller.split,
    e.JobBecameEligible: lambda teller, event, at: teller.mark(at, "could start from here on"),
    e.JobAllocated: _Teller.allocated,
    e.JobStarted: _Teller.started,
    e.JobLaunchFailed: _Teller.launch_failed,
    e.BatchExited: _Teller.exited,
    e.JobEnding: _Teller.ending,
    e.JobEnded: _Teller.ended,
    e.JobCancelled: _Teller.cancelled,
    e.JobRequeued: _Teller.requeued,
    e.JobHeld: _Teller.held,
    e.JobReleased: lambda teller, event, at: teller.mark(at, "released"),
    e.JobUpdated: lambda teller, event, at: teller.mark(at, "changed (scontrol update)"),
    e.JobSuspended: _Teller.suspended,
    e.JobResumed: _Teller.resumed,
    e.JobGuarded: _Teller.guarded,
    e.JobCheckpointed: _Teller.checkpointed,
    e.JobSignalled: _Teller.signalled,
    e.JobTracked: _Teller.tracked,
    e.JobMirrored: _Teller.mirrored,
    e.StepCreated: _Teller.step_created,
    e.StepStarted: _Teller.step_started,
    e.StepNodeEnded: _Teller.step_node_ended,
    e.IdleNoticeGiven: _Teller.found_idle,
    e.IdleNoticeWithdrawn: lambda teller, event, at: teller.mark(at, "no longer told of idle GPUs", more=event.why),
    e.IdleMoveBegun: lambda teller, event, at: teller.mark(at, "ended for idle GPUs, to another partition", "bad"),
    e.FindingOpened: _Teller.finding,
    e.FindingChanged: _Teller.finding,
    e.FindingDismissed: lambda teller, event, at: teller.mark(
        at, f"a finding was dismissed by {event.by}", more=event.why
    ),
    e.FindingClosed: lambda teller, event, at: teller.mark(at, "a finding is over", more=event.why),
    e.LeftoverFound: _Teller.leftover,
    e.LeftoverCleared: lambda teller, event, at: teller.mark(at, "nothing of it is left on its nodes"),
}
TOLD = frozenset(_TELLS)


def told_by_story(story: Iterable[e.Recorded]) -> Told:
    """What the journal says of one job, oldest first."""
    teller = _Teller()
    for recorded in story:
        tell = _TELLS.get(type(recorded.event))
        if tell is not None:
            tell(teller, recorded.event, recorded.at)
    return teller.finish()


def told_by_runs(runs: Sequence[Run]) -> Told:
    """What the history says of it: less, and for longer."""
    told = Told()
    for place, run in enumerate(sorted(runs, key=lambda one: one.ended_at)):
        waited_from = run.submitted_at if place == 0 else told.states[-1].end or run.submitted_at
        told.marks.append(Mark(waited_from, "requeued" if place else "submitted", "wait" if place else "note"))
        began = run.started_at if run.started_at is not None else run.ended_at
        told.states.append(Span(waited_from, max(waited_from, began), _WAITS, "wait"))
        if run.started_at is not None:
            told.states.append(Span(run.started_at, run.ended_at, _RUNS, "run"))
            told.marks.append(Mark(run.started_at, "started", "good"))
            told.places.append(Span(run.started_at, run.ended_at, run.nodes, "run"))
            told.hosts.append(run.hosts)
        bad = run.state not in ("COMPLETED", "CANCELLED")
        told.marks.append(Mark(run.ended_at, f"over: {run.state}", "bad" if bad else "note"))
    return told


# --- words ------------------------------------------------------------------------------------------------------


def _named(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:_NODES_NAMED])
    return shown if len(nodes) <= _NODES_NAMED else f"{shown} and {len(nodes) - _NODES_NAMED} more"


def _resources(allocation: Allocation) -> str:
    tres = allocation.tres()
    gpus = [
        f"{share.node}: GPU {', '.join(map(str, sorted(share.gres_indices('gpu'))))}"
        for share in allocation.shares[:_NODES_NAMED]
        if share.gres_indices("gpu")
    ]
    words = [f"partition {allocation.partition}", f"{tres.get('node', 0)} node(s)", f"{tres.get('cpu', 0)} CPUs"]
    if tres.get("gres/gpu"):
        words.append(f"{tres['gres/gpu']} GPU(s)")
    return ", ".join(words) + (f" ({'; '.join(gpus)})" if gpus else "")


def _why(outcome: Outcome) -> str:
    words = [sentence(outcome.reason)] if outcome.reason is not None else []
    if not outcome.status.ok and (outcome.reason is None or outcome.reason.kind is not ReasonKind.NON_ZERO_EXIT):
        words.append(f"It {_exit_words(outcome.status)}.")
    if outcome.by_uid is not None:
        words.append(f"Asked for by uid {outcome.by_uid}.")
    return " ".join(words)


def _exit_words(status: ExitStatus) -> str:
    if status.out_of_memory:
        return "ran out of memory"
    return f"was ended by {_signal_name(status.signal)}" if status.signal else f"exited with {status.code}"


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tone_of(status: ExitStatus) -> Tone:
    return "good" if status.ok else "bad"

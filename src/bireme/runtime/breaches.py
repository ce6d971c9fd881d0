"""A breach: an event that could not be applied, what asked for it, and what is left out so that the rest can happen.

An event that its thing's table does not allow, or whose handler fails, is a bug of ours. Where a run is watched
(simulations, tests) it ends the run. In a daemon it must not end everybody's work, and again at every start: the
kernel takes the turn back, leaves out what made the event, and goes through the rest of the turn again.
Invariant: nothing of what was left out has happened; a job that waits is held, with the reason, in an event.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from bireme.core.lifecycle.registry import PROGRAMME
from bireme.core.model import events as e
from bireme.core.model.jobs import Pending
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.plan.decisions import Decision, Preempt, Start, StartGang
from bireme.core.state.state import State

MOST_IN_A_TURN = 100
"""What breaks more often than this is not the fault of single jobs."""
_TOLD = 300
_SAID = "a fault of Bireme's keeps it from starting; it is held, and scontrol release tries again"


class BreachError(Exception):
    """An event that could not be applied. `decision`: the planner's that it came of, if it did."""

    def __init__(self, decision: Decision | None, event: e.Event, error: Exception) -> None:
        super().__init__(f"{type(event).__name__}: {error}")
        self.decision = decision
        self.event = event
        self.error = error

    @property
    def reason(self) -> Reason:
        """What a job says that is held for it."""
        said = str(self.error).partition("\n")[0].partition(f" ({type(self.event).__name__}(")[0]
        return reason(ReasonKind.SYSTEM_FAILURE, why=f"{_SAID} ({type(self.event).__name__}: {said[:_TOLD]})")


@dataclass(slots=True)
class LeftOut:
    """What breaches have left out of the turns since the daemon began."""

    happenings: set[Hashable] = field(default_factory=set)
    """Events that time or the planner would have happen again and again, by what they are about."""
    to_hold: dict[int, Reason] = field(default_factory=dict)
    """Jobs that are held in the turn which is done again, before they are planned for."""

    def note(self, state: State, breach: BreachError) -> None:
        """Of what time or the planner wanted, with the state as it was before the turn."""
        waiting = _planned_for(breach.decision)
        if breach.decision is None:
            job_id = getattr(breach.event, "job_id", 0)
            waiting = (job_id,) if _could_be_held(state, job_id) else ()
        if isinstance(breach.event, e.JobHeld) or not waiting:
            self.happenings.add(_name(breach.event))
        else:
            self.to_hold |= dict.fromkeys(waiting, breach.reason)

    def without(self, events: Sequence[e.Event]) -> Sequence[e.Event]:
        if not self.happenings:
            return events
        return [event for event in events if _name(event) not in self.happenings]

    def holds(self, state: State) -> Sequence[e.Event]:
        """The events that hold those who are to be held and are there by now; each is asked for once."""
        if not self.to_hold:
            return ()
        there = {job_id: why for job_id, why in self.to_hold.items() if _could_be_held(state, job_id)}
        self.to_hold = {job_id: why for job_id, why in self.to_hold.items() if job_id not in there}
        return self.without([e.JobHeld(job_id, "admin", why) for job_id, why in there.items()])


def _planned_for(decision: Decision | None) -> tuple[int, ...]:
    """The waiting jobs that a decision is for."""
    if isinstance(decision, StartGang):
        return tuple(start.job_id for start in decision.starts)
    if isinstance(decision, Start):
        return (decision.job_id,)
    return (decision.for_job,) if isinstance(decision, Preempt) else ()


def _could_be_held(state: State, job_id: int) -> bool:
    """Whether a hold would keep the job from what it does: it waits, and nobody holds it yet."""
    job = state.jobs.get(job_id)
    return job is not None and not job.mirrored and isinstance(job.phase, Pending) and job.phase.held_by is None


def _name(event: e.Event) -> Hashable:
    """What tells an event from others of its class: the things that it is about, and of a job which start."""
    programme = PROGRAMME[type(event)]
    keys = tuple(law.key(event) for law in (programme.law, *programme.others))
    return type(event), keys, getattr(event, "generation", None)

"""What each event means to the planner: whether its outlook still stands, whether a pass is called for, and why.

The planner is no kind: it keeps nothing that is journaled. But it has to take a stand on every event, as kinds do
(`tests/tidy/test_kinds.py`). A wrong stand is found by playing: a world in which a full pass would start somebody
whom the passes so far left waiting breaks a rule (`sim/faults/play.py`).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from bireme.core.model import events as e
from bireme.core.model.finding.events import FINDING_EVENTS
from bireme.core.model.healing.events import HEALING_EVENTS
from bireme.core.model.idling.events import IDLE_EVENTS


class Effect(Enum):
    """What an event does to the outlook that the pass before left."""

    NONE = "changes neither what is free, nor what is promised, nor who may start: the outlook stands"
    FOLLOWED = "the outlook follows it (`Outlook.note`)"
    VOIDS = "the outlook cannot follow it: the next pass looks at everything anew"


class Stand(NamedTuple):
    effect: Effect
    calls: bool
    """Somebody may start after it who could not before, or stands elsewhere in the queue: a pass is called for."""
    why: str


def _stands(why: str) -> Stand:
    return Stand(Effect.NONE, False, why)


def _followed(why: str, *, calls: bool = True) -> Stand:
    return Stand(Effect.FOLLOWED, calls, why)


def _voids(why: str, *, calls: bool = True) -> Stand:
    return Stand(Effect.VOIDS, calls, why)


STANDS: dict[type[e.Event], Stand] = {
    e.JobAccrualChanged: _stands("its priority grows otherwise from now on; all are weighed again at their time"),
    e.JobStarted: _stands("it holds what it held, and its planned end counts from when it was allocated"),
    e.BatchExited: _stands("it holds what it held until JobEnded"),
    e.JobCheckpointed: _stands("says which victim loses least; whoever may preempt is looked at in every pass"),
    e.JobTracked: _stands("where a job writes its figures is nothing to the queue"),
    e.JobSignalled: _stands("what a signal does shows when the job ends"),
    e.StepCreated: _stands("a step shares what its job holds"),
    e.StepStarted: _stands("a step shares what its job holds"),
    e.StepEnding: _stands("a step shares what its job holds"),
    e.StepNodeEnded: _stands("a step shares what its job holds"),
    e.JobForgotten: _stands("it had ended, holds nothing, and nobody who waits for it is left"),
    e.ArrayTaskSplit: _stands("the slot is the array's, for whichever task is next; what happens to this one follows"),
    e.ArrayPartSplit: _stands("the slot is the array's, for whichever task is next; what happens to these follows"),
    e.JobSubmitted: _followed("one more to look at"),
    e.JobBecameEligible: _followed("one more to look at"),
    e.JobReleased: _followed("one more to look at"),
    e.JobRequeued: _followed("one more to look at"),
    e.JobHeld: _followed("its slots are free for others, and whom it blocked may go on"),
    e.JobCancelled: _followed("its slots are free for others, and whom it blocked may go on"),
    e.JobAllocated: _followed("only takes: its end is in the calendar (on lent CPUs it cannot)", calls=False),
    e.JobEnding: _followed("its end is expected earlier; nothing is free before JobEnded", calls=False),
    e.JobEnded: _followed("what it held is free"),
    e.JobLaunchFailed: _followed("what it held is free, and it waits again"),
    e.JobResumed: _voids("only takes: CPUs that were lent are its own again", calls=False),
    e.JobUpdated: _voids("it may ask for something else, or stand elsewhere"),
    e.JobSuspended: _voids("its CPUs are lent, until nobody knows when"),
    e.JobToBeResumed: _voids("it wants its CPUs back"),
    e.JobGuarded: _voids("nobody may preempt it now, or some may again"),
    e.JobMirrored: _voids("another scheduler's job came, changed or went"),
    e.NodeRegistered: _voids("there is more or other room"),
    e.NodeLost: _voids("there is less room, and slots were on it"),
    e.NodeClosed: _voids("there is less room, or more again"),
    e.NodeUpdated: _voids("there is less room, or more again"),
    e.LeftoverFound: _voids("there is less room"),
    e.LeftoverCleared: _voids("there is more room again"),
    e.OthersCounted: _voids("what pods of others hold has changed"),
    e.EventsLost: _voids("nothing starts until the nodes were heard"),
    e.LossSettled: _voids("all may start again"),
    e.ClusterConfigured: _voids("nodes, partitions and policy may be others"),
    e.PartitionUpdated: _voids("its nodes, limits or tier may be others"),
    e.AccountsChanged: _voids("limits, QOS and shares may be others"),
    e.UsageReset: _voids("limits count from nought"),
    e.ReservationSet: _voids("who may use which nodes has changed"),
    e.ReservationRemoved: _voids("who may use which nodes has changed"),
    **dict.fromkeys(
        (
            e.ServiceDeployed,
            e.ServiceScaled,
            e.ServiceStopping,
            e.ServiceRemoved,
            e.RevisionChosen,
            e.RevisionShifted,
            e.RevisionSettled,
            e.RevisionRetired,
            e.RevisionFailed,
            e.RevisionBackedOff,
            e.ReplicaAdded,
            e.ReplicaQueued,
            e.ReplicaDraining,
            e.ReplicaWithdrawn,
            e.ReplicaEnding,
            e.ReplicaGone,
        ),
        _stands("what it means for the queue, the events of its replicas' jobs say"),
    ),
    **dict.fromkeys(
        (e.ServiceKeyAdded, e.ServiceKeyRevoked, e.ReplicaHealthChanged),
        _stands("who sends and who answers requests is nothing to the queue"),
    ),
    **dict.fromkeys(IDLE_EVENTS, _stands("what comes of it, the job's own events say")),
    **dict.fromkeys(FINDING_EVENTS, _stands("a finding keeps nobody out: a fence does, by events of its own")),
    **dict.fromkeys(HEALING_EVENTS, _stands("a decision changes nothing: what carries it out has events of its own")),
    e.FenceRaised: _voids("there is less room, and a slot may be on it", calls=False),
    e.FenceLifted: _voids("there is more room again"),
}

UNTOUCHED = frozenset(event for event, stand in STANDS.items() if stand.effect is Effect.NONE)
FOLLOWED = frozenset(event for event, stand in STANDS.items() if stand.effect is Effect.FOLLOWED)
CALLS_FOR_A_PASS = frozenset(event for event, stand in STANDS.items() if stand.calls)

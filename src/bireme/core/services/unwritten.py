"""What is known of replicas and could not be written: the state does not have it, and clients would feel it.

While the journal's disk is full nothing may happen that is not on it. But a replica that has ended takes no requests,
whether or not that is written, and nobody is to be sent to it or told that it is ready. The runtime asks here when a
group could not be committed, with the reports that it keeps for later, and puts the answer into `Serving.unwritten`
until the next turn; `standing` reads it, and so all who route, count and explain. Pure.
Invariant: it only takes away: nothing that was not written makes a replica ready.
"""

from __future__ import annotations

from collections.abc import Iterable

from bireme.core.jobs.intake import held_job
from bireme.core.model import observations as o
from bireme.core.model.serving.services import Health
from bireme.core.state.state import State


def unwritten(state: State, reports: Iterable[o.Observation]) -> dict[int, str]:
    """Jobs of replicas that do not take requests any more, by what was reported of them: what that is, in words."""
    found: dict[int, str] = {}
    for seen in reports:
        if isinstance(seen, o.BatchFinished | o.JobCleared | o.JobVanished) and _is_replica(state, seen):
            found[seen.job_id] = _ENDED
        elif isinstance(seen, o.ReplicaProbed) and _is_replica(state, seen) and found.get(seen.job_id) != _ENDED:
            found.pop(seen.job_id, None)
            if seen.health is not Health.READY:
                found[seen.job_id] = f"does not take requests ({seen.why})" if seen.why else "does not take requests"
    return found


_ENDED = "has ended"


def _is_replica(state: State, seen: o.BatchFinished | o.JobCleared | o.JobVanished | o.ReplicaProbed) -> bool:
    """Of the start that the state knows: a report of an earlier one says nothing."""
    return seen.job_id in state.serving.jobs and held_job(state, seen) is not None

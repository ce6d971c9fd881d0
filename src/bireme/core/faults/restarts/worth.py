"""Whether a job that one slow GPU holds up gains by starting again without it: what it would gain, and what it costs.

All ranks of a gang wait for the slowest, so what is lost is a share of all that is still ahead. How much that is nobody
knows: as much as it has done so far, and no more than its time limit leaves. What a restart costs is the work since
its newest checkpoint, and the start itself; so the best moment is right after a checkpoint, which is when `kind` asks.
Pure. Invariant: where there is no free place for it without that node, it is never worth it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bireme.core.explain.wording import clock
from bireme.core.jobs.due import limit_reached_at
from bireme.core.jobs.placing import demand_of, schedulable_nodes, search_for
from bireme.core.model.jobs import Job, Running
from bireme.core.state.state import State

START_S = 90.0
"""What a start takes until work goes on (loading a checkpoint, the first step): an assumption, nobody measures it."""
_MARGIN = 2.0
"""It has to gain so many times what it costs: both are estimates."""


@dataclass(frozen=True, slots=True)
class Reckoning:
    gained_s: float
    ahead_s: float
    cost_s: float

    @property
    def is_worth_it(self) -> bool:
        return self.gained_s >= _MARGIN * self.cost_s

    def __str__(self) -> str:
        return (
            f"that costs about {clock(self.gained_s)} of the {clock(self.ahead_s)} that may be ahead of it, "
            f"to start it again {clock(self.cost_s)}"
        )


def reckoned(state: State, job: Job, phase: Running, slower: float, now: float) -> Reckoning:
    """`slower`: by how much work is slower, as a share."""
    ran_s = max(0.0, now - phase.started_at - phase.suspended_s)
    end = limit_reached_at(state, job, phase)
    ahead_s = ran_s if end is None else max(0.0, min(ran_s, end - now))
    unsaved_s = max(0.0, now - max(phase.started_at, job.checkpointed_at or 0.0))
    return Reckoning(gained_s=ahead_s * slower, ahead_s=ahead_s, cost_s=unsaved_s + START_S)


def has_place_without(state: State, job: Job, nodes: tuple[str, ...]) -> bool:
    """Whether it would start at once elsewhere, were it to leave: with its own nodes but these, and others."""
    held, partition = job.held, state.partitions.get(job.held.partition)
    if partition is None:
        return False
    demand = demand_of(state, job, partition)
    demand = replace(demand, exclude=(*demand.exclude, *nodes), kept=held.node_names)
    draft = state.occupancy.draft()
    draft.release(held)
    return search_for(state, demand, partition, schedulable_nodes(state, partition)).find(draft).found

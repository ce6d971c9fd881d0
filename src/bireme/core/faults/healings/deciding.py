"""How a decision becomes a healing: by the mode that holds where it is to be done, and by what withholds it."""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.faults.healings.shelves import is_new, policy_of, proposed_so_far
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Place
from bireme.core.model.healing.healings import HealingAct, HealingLife, Proposal
from bireme.core.model.healing.policy import HealingMode
from bireme.core.state.state import State

_WITHOUT_EFFECT = (HealingAct.STOP_JOB, HealingAct.TELL)
"""Nobody has to approve that nothing is done."""


def proposed(state: State, proposal: Proposal, withheld: str = "") -> Iterator[e.HealingProposed]:
    """The event, unless the same was decided already. `withheld`: why Bireme may not do it by itself in any mode."""
    if not is_new(state, proposal):
        return
    if proposal.act in _WITHOUT_EFFECT:
        yield e.HealingProposed(proposed_so_far(state) + 1, proposal, HealingLife.APPROVED, "nothing is done")
        return
    mode = policy_of(state).mode_in(partitions_of(state, proposal.place))
    if mode is HealingMode.OBSERVE:
        phase, why = HealingLife.OBSERVED, "healing.mode is observe here"
    elif withheld:
        phase, why = HealingLife.SUGGESTED, withheld
    elif mode is HealingMode.SUGGEST:
        phase, why = HealingLife.SUGGESTED, "healing.mode is suggest here"
    else:
        phase, why = HealingLife.APPROVED, "healing.mode is act here"
    yield e.HealingProposed(proposed_so_far(state) + 1, proposal, phase, why)


def partitions_of(state: State, place: Place) -> tuple[str, ...]:
    """Where the place is: the partition that the job runs in, or all that have the node."""
    if place.job_id:
        job = state.jobs.get(place.job_id)
        if job is None:
            return ()
        return (job.allocation.partition,) if job.allocation is not None else tuple(job.spec.partitions)
    return tuple(name for name, partition in state.partitions.items() if place.node in partition.nodes)

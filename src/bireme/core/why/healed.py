"""What was decided about a job's failures, or would have been: lines of `bireme why`, newest first. Pure.

Invariant: a line that says that something would be done names how it is done after all.
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.faults.healings.shelves import HEALINGS
from bireme.core.faults.restarts.holdups import reckoning_of
from bireme.core.model.healing.healings import Healing, HealingLife
from bireme.core.model.jobs import Job
from bireme.core.state.state import State

_MOST = 3


def explain_healed(state: State, job: Job, now: float) -> list[str]:
    mine = [each for each in HEALINGS.of(state).values() if each.proposal.place.job_id == job.id]
    lines = [_line(each) for each in sorted(mine, key=lambda each: -each.id)[:_MOST]]
    return [*lines, *_held_up(state, job, now)]


def _line(healing: Healing) -> str:
    proposal, said = healing.proposal, healing.latest.text
    what = f"{proposal.title}. {proposal.reason}"
    match healing.phase:
        case HealingLife.OBSERVED:
            return f"Would be done, but {said}: {what} An operator can still do it: {_approve(healing)}."
        case HealingLife.SUGGESTED:
            return f"Suggested ({said}): {what} An operator does it by {_approve(healing)}."
        case HealingLife.DONE | HealingLife.APPROVED:
            return f"Done: {what}"
        case _:
            by = f" by {healing.latest.by}" if healing.latest.by else ""
            return f"{str(healing.phase).capitalize()}{by}: {what}{f' {said}.' if said else ''}"


def _approve(healing: Healing) -> str:
    return f"bireme healings approve {healing.id}"


def _held_up(state: State, job: Job, now: float) -> Iterator[str]:
    """Of one that a slow GPU holds up and that goes on there: what a restart without it would come to."""
    known = reckoning_of(state, job, now)
    if known is not None:
        finding, reckoning = known
        yield f"{finding.trouble.title}: {reckoning}. It is reckoned again whenever it has saved its work."

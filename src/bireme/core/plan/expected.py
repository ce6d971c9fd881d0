"""What work to expect on a live cluster, for the placement score: shapes of the latest jobs that the state knows.

Waiting, running and just ended jobs, the newest first; an array counts once for each of its tasks. Called at the begin
of a full pass; small passes keep its answer, and so do full ones until enough jobs have come to tell a difference.
Invariant: without an earlier answer, a function of the state alone.
"""

from __future__ import annotations

from itertools import islice

from bireme.core.model.jobs import JobSpec
from bireme.core.model.policy import Policy
from bireme.core.placement.demand import resolve
from bireme.core.placement.needs import part_of
from bireme.core.placement.ranking import Ranking
from bireme.core.placement.target import Ask
from bireme.core.state.state import State

LATEST = 1_000
"""So many jobs say what to expect."""
COUNTED_AFTER = 50
"""So many new ones may change that."""


def ranking_of(state: State, policy: Policy, before: Ranking | None) -> Ranking | None:
    """The configured placement with the target of now; None where no node has a GPU."""
    ranking = before or Ranking(policy.placement, state.occupancy.table, {})
    if ranking.idle:
        return None
    if before is None or not ranking.counted_at <= state.submissions < ranking.counted_at + COUNTED_AFTER:
        ranking.expect(_counts(state, ranking))
        ranking.counted_at = state.submissions
    return ranking


def _counts(state: State, ranking: Ranking) -> dict[Ask, float]:
    """Many jobs share a specification, and many specifications a shape: each is looked at once."""
    specs: dict[int, JobSpec] = {}
    jobs: dict[int, int] = {}
    for job in islice(reversed(state.jobs.values()), LATEST):
        key = id(job.spec)
        specs[key] = job.spec
        jobs[key] = jobs.get(key, 0) + 1
    counts: dict[Ask, float] = {}
    asks: dict[object, Ask | None] = {}
    for key, spec in specs.items():
        shape = (spec.resources, spec.partitions[:1])
        if shape not in asks:
            asks[shape] = _ask(state, ranking, spec)
        ask = asks[shape]
        if ask is not None:
            counts[ask] = counts.get(ask, 0.0) + jobs[key] * (len(spec.array.task_ids) if spec.array else 1)
    return counts


def _ask(state: State, ranking: Ranking, spec: JobSpec) -> Ask | None:
    partition = state.partitions.get(spec.partitions[0]) if spec.partitions else None
    if partition is None:
        return None
    return ranking.ask(part_of(resolve(spec, partition, state.config.settings)))

"""Follows which jobs have which GPUs, and writes it down beside the series, so that curves of long ago have an owner.

Told of every commit, and of every change of the GPUs that gatherers know. Looks at the jobs as they are then, not at
what happened to them: so a daemon that comes back, or a GPU that is known only later, leaves no gap.
Invariant: an open holding is of a job that holds that GPU now; it begins when the job got its resources.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from bireme.core.model import events as e
from bireme.core.model.cluster import NodeConfig
from bireme.core.model.jobs import HOLDING, Ending, Job, Running, Starting, Suspended
from bireme.core.state.state import State
from bireme.core.telemetry.attribution import Card, held_gpus
from bireme.ports import Holding

Held = dict[tuple[int, str], Holding]
"""What one job has, by generation and UUID."""


class Ownership:
    """Which GPUs jobs have now; what `changes_*` return is to be written down."""

    def __init__(self, known: Iterable[Holding]) -> None:
        """`known`: the open ones that were written before."""
        self._open: dict[int, Held] = {}
        for holding in known:
            self._open.setdefault(holding.job_id, {})[holding.generation, holding.uuid] = holding
        self.cards: tuple[Card, ...] = ()

    def owners(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """Jobs that have a GPU, or parts of it, now: by its node and UUID. By both, since a node may claim any UUID."""
        found: dict[tuple[str, str], set[int]] = {}
        for job_id, held in self._open.items():
            for holding in held.values():
                found.setdefault((holding.node, holding.uuid), set()).add(job_id)
        return {gpu: tuple(sorted(jobs)) for gpu, jobs in found.items()}

    def all_changes(self, state: State, now: float) -> list[Holding]:
        """After a start of the daemon, or when other GPUs are known."""
        return self.changes_of(state, {*self._open, *state.jobs}, now)

    def changes_after(self, state: State, events: Sequence[e.Recorded], now: float) -> list[Holding]:
        """`state`: as it is after these events."""
        ids = {job_id for recorded in events if (job_id := getattr(recorded.event, "job_id", None)) is not None}
        return self.changes_of(state, ids, now)

    def changes_of(self, state: State, job_ids: Collection[int], now: float) -> list[Holding]:
        """After a kubelet gave GPUs to pods of these jobs, or has them back."""
        changed: list[Holding] = []
        for job_id in job_ids:
            job = state.jobs.get(job_id)
            has = self._held(job, state) if job is not None else {}
            had = self._open.pop(job_id, {})
            has |= {key: had[key] for key in had.keys() - has.keys() if self._may_have(job, had[key])}
            changed += [replace(had[key], end=now) for key in had.keys() - has.keys()]
            changed += [has[key] for key in has.keys() - had.keys()]
            if has:
                self._open[job_id] = {key: had.get(key, holding) for key, holding in has.items()}
        return changed

    def _may_have(self, job: Job | None, had: Holding) -> bool:
        """That start of the job still holds what it got, and no gatherer has told yet which GPUs its node has: so it is
        each time that a daemon comes back."""
        return (
            job is not None
            and isinstance(job.phase, HOLDING)
            and job.phase.allocation.generation == had.generation
            and not any(card.node == had.node for card in self.cards)
        )

    def _held(self, job: Job, state: State) -> Held:
        if not isinstance(job.phase, HOLDING):
            return {}

        def config_of(node: str) -> NodeConfig | None:
            return state.nodes[node].config if node in state.nodes else None

        allocation, began = job.phase.allocation, since(job.phase)
        return {
            (allocation.generation, gpu.uuid): Holding(
                job.id, allocation.generation, gpu.node, gpu.uuid, gpu.shared, began, None
            )
            for gpu in held_gpus(allocation, config_of, self.cards)
        }


def since(phase: Starting | Running | Suspended | Ending) -> float:
    """When the job got what it holds."""
    if isinstance(phase, Starting):
        return phase.since
    return phase.started_at if phase.started_at is not None else phase.since

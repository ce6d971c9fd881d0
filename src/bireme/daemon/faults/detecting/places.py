"""Which GPU of which node a UUID is, as allocations number them, and whose it is now.

Asked by `keeper` for every event and figure. Invariant: a GPU whose number is not known keeps its UUID as its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bireme.core.model.cluster import NodeConfig
from bireme.core.model.finding.findings import Place
from bireme.core.model.jobs import Job
from bireme.core.state.state import State
from bireme.core.telemetry.attribution import Card, CardSeen, uuids_of


class Cards(Protocol):
    """What gatherers know."""

    def __call__(self) -> tuple[CardSeen, ...]: ...


class Places:
    def __init__(self, state: Callable[[], State], cards: Cards) -> None:
        self._state, self._cards = state, cards
        self._known: tuple[CardSeen, ...] = ()
        self._configs: tuple[NodeConfig, ...] = ()
        self._numbers: dict[tuple[str, str], int] = {}
        self._models: dict[tuple[str, str], str] = {}
        self.by_node: dict[str, list[Card]] = {}
        """Cards of each node, as they were when it was refreshed."""

    def refresh(self) -> None:
        """After cards or nodes may have changed: once a look."""
        cards = self._cards()
        configs = tuple(node.config for node in self._state().nodes.values())
        if cards == self._known and configs == self._configs:
            return
        self._known, self._configs = cards, configs
        self.by_node = {}
        for each in cards:
            self.by_node.setdefault(each.card.node, []).append(each.card)
        self._numbers = {
            (config.name, uuid): number
            for config in configs
            for number, uuid in uuids_of(config, self.by_node.get(config.name, ())).items()
        }
        self._models = {(each.card.node, each.card.uuid): each.model for each in cards if not each.is_part}

    def of_gpu(self, node: str, uuid: str) -> Place:
        if (node, uuid) not in self._models:
            self.refresh()
        return Place(node=node, gpu=self._numbers.get((node, uuid)), uuid=uuid)

    def model(self, node: str, uuid: str) -> str:
        """Empty of what is no whole GPU, or not known."""
        return self._models.get((node, uuid), "")

    def holder(self, place: Place) -> Place | None:
        """The start of the only job that has this GPU."""
        if place.gpu is None:
            return self._given_to(place)
        jobs = [job for job in self._state().holding.values() if _has(job, place)]
        return Place(job_id=jobs[0].id, generation=jobs[0].generation) if len(jobs) == 1 else None

    def _given_to(self, place: Place) -> Place | None:
        """Where GPUs have no numbers, by what a kubelet said of the card."""
        cards = (card for card in self.by_node.get(place.node, ()) if card.uuid == place.uuid)
        holding = self._state().holding
        starts = {
            (job.id, job.generation)
            for card in cards
            for holder in card.holders
            if (job := holding.get(holder.job_id)) is not None and job.generation == holder.generation
        }
        if len(starts) != 1:
            return None
        ((job_id, generation),) = starts
        return Place(job_id=job_id, generation=generation)


def _has(job: Job, place: Place) -> bool:
    shares = job.allocation.shares if job.allocation is not None else ()
    return any(share.node == place.node and place.gpu in share.gpus_seen() for share in shares)

"""Worlds in which GPUs and nodes break: what detectors see, what people do about it, and the rule that nothing is
started on what is fenced.

Of their own kind, as worlds with idle GPUs are, and with their faults: what is seen comes over the same wire as all
reports, late, twice and out of order, while daemons die and disks fill up.
Invariant: the same seed gives the same story.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from bireme.core.faults.fences import requests as fencing
from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.findings import requests as findings
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.faults.healings import requests as healings
from bireme.core.faults.healings.shelves import HEALINGS
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Gravity, Place, Trouble
from bireme.core.model.healing.policy import HealingMode, HealingPolicy
from bireme.core.model.observations import TroubleGone, TroubleSeen
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.model.resources import NodeShare
from bireme.core.state.state import State
from bireme.sim.faults.draw import ACCOUNTS, Draft, Story, draw_cluster, draw_fault, draw_submission
from bireme.sim.faults.draw_services import FAULTS
from bireme.sim.faults.witness import Violation

Decide = Callable[[State, float], list[e.Event]]
_ROOT = Caller(0, 0, "root", admin=True)


def draw_with_fences(seed: int) -> Story:
    source = random.Random(f"fences {seed}")
    config = draw_cluster(source)
    names = tuple(node.name for node in config.nodes)
    draft = Draft(source, names)
    for _ in range(source.randint(6, 20)):
        draw_submission(draft, config)
    draft.add("healing_policy", 0.0, mode="act", percent=source.choice((10, 50, 100)))
    for _ in range(source.randint(0, 2)):
        draft.add("healing_policy", mode=source.choice(("act", "suggest", "observe")), percent=100)
    for _ in range(source.randint(2, 10)):
        gpus = config.nodes[0].gres_count("gpu")
        gpu = source.randrange(gpus) if gpus and source.random() < 0.8 else None
        draft.add("trouble", node=source.choice(names), gpu=gpu, detector=source.choice(("xid", "nic")),
                  lasts=source.random() < 0.7, gone=source.random() < 0.3)  # fmt: skip
    for _ in range(source.randint(0, 6)):
        draft.add("healing_answer", word=source.choice(("approve", "refuse", "undo", "mended", "fence")),
                  which=source.random(), node=source.choice(names))  # fmt: skip
    faults = source.sample(FAULTS, k=source.randint(1, len(FAULTS)))
    for _ in range(source.randint(0, 10)):
        draw_fault(draft, source.choice(faults))
    limits: dict[str, dict[str, Any]] = {account: {} for account in sorted(set(ACCOUNTS.values()))}
    return Story(seed, config, limits, draft.in_order(), flag="--fences")


def seen_of(facts: dict[str, Any], now: float) -> TroubleSeen | TroubleGone:
    place = Place(node=facts["node"], gpu=facts["gpu"])
    if facts["gone"]:
        return TroubleGone(detector=facts["detector"], place=place, at=now, why="looked again", mended=True)
    trouble = Trouble(detector=facts["detector"], place=place, gravity=Gravity.BROKEN, cause="gpu_lost",
                      title=f"{place.key} is broken", since=now, lasts=facts["lasts"])  # fmt: skip
    return TroubleSeen(trouble, now)


def policy_order(facts: dict[str, Any]) -> Decide:
    policy = HealingPolicy(mode=HealingMode(facts["mode"]), breaker_percent=float(facts["percent"]))
    return lambda state, now: [e.HealingPolicySet(policy)]


def answer_order(facts: dict[str, Any]) -> Decide:
    return partial(_answered, facts)


def _answered(facts: dict[str, Any], state: State, now: float) -> list[e.Event]:
    """What an operator says about one of those that there are; nothing where it cannot be said."""
    word = facts["word"]
    try:
        if word == "fence":
            return fencing.fence(state, _ROOT, facts["node"], "by hand", last_too=True)
        numbers = _numbers(state, word)
        if not numbers:
            return []
        number = numbers[int(facts["which"] * len(numbers))]
        if word == "mended":
            return findings.mended(state, _ROOT, number, "")
        asks = {"approve": healings.approve, "refuse": healings.refuse, "undo": healings.undo}
        return asks[word](state, _ROOT, number)
    except Refusal:
        return []


def _numbers(state: State, word: str) -> list[int]:
    if word == "mended":
        return [finding.id for finding in FINDINGS.of(state).values()]
    return [healing.id for healing in HEALINGS.of(state).values()]


def all_mended(state: State, now: float) -> list[e.Event]:
    """When the faults have ended everything is repaired, and fences by hand are lifted."""
    events: list[e.Event] = [e.FindingClosed(key, "repaired", "root") for key in FINDINGS.of(state)]
    by_hand = (fence for fence in FENCES.of(state).values() if fence.by)
    return [*events, *(e.HealingUndone(fence.healing, "repaired", "root") for fence in by_hand)]


class FenceRules:
    """Fed with the journal's events. It reads them in its own way: which places are fenced, by events alone."""

    def __init__(self) -> None:
        self._fenced: dict[str, Place] = {}

    def committed(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            event = recorded.event
            if isinstance(event, e.FenceRaised):
                self._fenced[event.key] = event.fence.place
            elif isinstance(event, e.FenceLifted):
                del self._fenced[event.key]
            elif isinstance(event, e.JobAllocated):
                self._allocated(event)

    def _allocated(self, event: e.JobAllocated) -> None:
        for share in event.allocation.shares:
            place = next(self._on(share), None)
            if place is not None:
                raise Violation(f"job {event.job_id} was started on {place.key}, which was fenced before")

    def _on(self, share: NodeShare) -> Iterator[Place]:
        """Fenced places that the share is on."""
        for place in self._fenced.values():
            if place.node == share.node and (place.gpu is None or place.gpu in share.gpus_seen()):
                yield place

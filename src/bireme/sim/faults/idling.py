"""Worlds with idle GPUs: when jobs idle, what the policy says, and the rule that nobody is ended for it unwarned.

Of their own kind, as worlds with services are, and with their faults: figures come over the same wire as all reports,
late, twice and out of order, while daemons die and disks fill up. Invariant: the same seed gives the same story.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from bireme.core.model import events as e
from bireme.core.model.idling.policy import IdleAction, IdleMode, IdlePolicy, IdleRule
from bireme.core.model.reasons import ReasonKind
from bireme.sim.faults.draw import ACCOUNTS, PEOPLE_S, Draft, Story, draw_cluster, draw_fault, draw_submission
from bireme.sim.faults.draw_services import FAULTS
from bireme.sim.faults.witness import Violation

ROUND_S = 10.0
FRESH_S = 40.0
_MODES = ("act", "act", "act", "notify", "dry-run", "off")


def draw_with_idle(seed: int) -> Story:
    source = random.Random(f"idle {seed}")
    config = draw_cluster(source)
    draft = Draft(source, tuple(node.name for node in config.nodes))
    for _ in range(source.randint(4, 16)):
        draw_submission(draft, config)
    draft.add("idle_policy", 0.0, **_policy(source, "act"))
    for _ in range(source.randint(0, 2)):
        draft.add("idle_policy", **_policy(source, source.choice(_MODES)))
    for number in range(draft.submissions):
        for _ in range(source.randint(1, 3)):
            draft.add("idles", job=number, lasts_s=source.uniform(50, PEOPLE_S))
    faults = source.sample(FAULTS, k=source.randint(1, len(FAULTS)))
    for _ in range(source.randint(0, 10)):
        draw_fault(draft, source.choice(faults))
    limits: dict[str, dict[str, Any]] = {account: {} for account in sorted(set(ACCOUNTS.values()))}
    return Story(seed, config, limits, draft.in_order(), flag="--idle")


def _policy(source: random.Random, mode: str) -> dict[str, Any]:
    return {
        "mode": mode,
        "idle_s": source.choice((20, 60)),
        "grace_s": source.choice((0, 30, 100)),
        "action": source.choice(("requeue", "requeue", "cancel", "notify")),
        "otherwise": source.choice(("notify", "cancel")),
    }


def policy_of(facts: dict[str, Any]) -> IdlePolicy:
    rule = IdleRule(
        name="world",
        idle_s=facts["idle_s"],
        grace_s=facts["grace_s"],
        action=IdleAction(facts["action"]),
        otherwise=IdleAction(facts["otherwise"]),
    )
    return IdlePolicy(IdleMode(facts["mode"]), (rule,))


def idles_until(at: float, lasts_s: float, begin: float) -> float:
    """Nobody idles when people are gone, so that every world comes to its end."""
    return min(at + lasts_s, begin + PEOPLE_S)


class IdleRules:
    """Fed with the journal's events."""

    def __init__(self) -> None:
        self._told: dict[int, e.IdleNoticeGiven] = {}

    def committed(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            event = recorded.event
            if isinstance(event, e.IdleNoticeGiven):
                self._told[event.job_id] = event
            elif isinstance(event, e.IdleNoticeWithdrawn):
                self._told.pop(event.job_id, None)
            elif isinstance(event, e.JobEnding):
                self._ending(event, recorded.at)

    def _ending(self, event: e.JobEnding, at: float) -> None:
        told, why = self._told.pop(event.job_id, None), event.outcome.reason
        if why is None or why.kind is not ReasonKind.IDLE_GPUS:
            return
        if told is None or told.generation != event.generation:
            raise Violation(f"job {event.job_id} was ended for idleness, and nobody had told its owner")
        if told.act_at is None or at < told.act_at:
            raise Violation(f"job {event.job_id} was ended for idleness before the grace of its notice was over")
        if event.requeue is (told.action is IdleAction.CANCEL):
            raise Violation(f"job {event.job_id} was ended for idleness otherwise than its owner was told")

"""Facts of the journal about idle GPUs (`core/idle`). They stand with all others in `model/events.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from bireme.core.model.idling.policy import IdleAction, IdleFacts, IdlePolicy


@dataclass(frozen=True, slots=True)
class IdlePolicySet:
    """What is done about idle GPUs from now on."""

    policy: IdlePolicy


@dataclass(frozen=True, slots=True)
class IdleNoticeGiven:
    """A job's GPUs have been idle for as long as its rule says, and its owner is told what comes of it. May be given
    anew: another policy has another consequence."""

    job_id: int
    generation: int
    facts: IdleFacts
    action: IdleAction
    move_to: str = ""
    act_at: float | None = None


@dataclass(frozen=True, slots=True)
class IdleMoveBegun:
    """The grace of an idle job is over: it is ended, and waits in the notice's partition when it is back."""

    job_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class IdleNoticeWithdrawn:
    """What a job was told does not hold any more: its GPUs are used again, or nobody knows, or the rule is another."""

    job_id: int
    generation: int
    why: str


IdleEvent = IdlePolicySet | IdleNoticeGiven | IdleMoveBegun | IdleNoticeWithdrawn
IDLE_EVENTS: tuple[type[IdleEvent], ...] = get_args(IdleEvent)
"""All of them, for whoever takes one stand on every one."""

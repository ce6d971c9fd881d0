"""The account book as a kind: what `sacctmgr` changed, what was used, and what counts against limits.

It follows jobs: they are charged while they run, and counted while they are in the queue (`core/limits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bireme.core.accounting.resets import next_reset
from bireme.core.accounts import charging
from bireme.core.kinds.kind import Follower, Kind
from bireme.core.kinds.life import Life
from bireme.core.limits import following
from bireme.core.model import events as e
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.state.state import State


class Kept:
    """The only phase of the account book: it is there as long as its cluster."""


ACCOUNT_BOOK = Life(
    "account book",
    {(Kept, e.AccountsChanged): (Kept,), (Kept, e.UsageReset): (Kept,)},
    dict.fromkeys((e.AccountsChanged, e.UsageReset), (lambda event: "",)),
    lambda state, key: Kept,
    lambda state, key: f"of {state.config.name}",
)


def _count(state: State, event: e.Event, at: float) -> None:
    following.follow(state, event)


def _followers(event: type[e.Event]) -> tuple[Follower, ...]:
    charged = (charging.follow,) if event in charging.CHARGED else ()
    return (*charged, _count) if event in following.COUNTED else charged


def _usage_reset_at(state: State) -> float | None:
    """When PriorityUsageResetPeriod next asks for usage to begin at zero."""
    since = state.usage.reset_at
    return None if since is None else next_reset(state.config.settings.priority_usage_reset_period, since)


def _resets(state: State, now: float, decided: Sequence[e.Event]) -> Iterator[e.Event]:
    reset = _usage_reset_at(state)
    if reset is not None and reset <= now:
        yield e.UsageReset(everything=True)


ACCOUNTS = Kind(
    life=ACCOUNT_BOOK,
    applies={e.AccountsChanged: charging.accounts_changed, e.UsageReset: charging.usage_reset},
    follows={event: _followers(event) for event in charging.CHARGED | following.COUNTED},
    concludes=_resets,
    times=lambda state, now: (_usage_reset_at(state),),
    passes_over=frozenset(
        (
            e.JobBecameEligible,
            e.JobAccrualChanged,
            e.JobStarted,
            e.BatchExited,
            e.JobHeld,
            e.JobReleased,
            e.JobToBeResumed,
            e.JobGuarded,
            e.JobCheckpointed,
            e.JobTracked,
            e.JobSignalled,
            e.JobForgotten,
            *e.STEP_EVENTS,
            *e.NODE_EVENTS,
            *e.LOSS_EVENTS,
            *e.RESERVATION_EVENTS,
            *SERVICE_EVENTS,
            *IDLE_EVENTS,
            *e.FAULT_EVENTS,
        )
    ),
)

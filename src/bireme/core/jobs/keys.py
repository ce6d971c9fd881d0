"""Idempotency keys: the job that each recent submission became, so that one that is sent again is none of its own.

Put here when a submission is applied; asked by whoever submits, with the key that came with it.
"""

from __future__ import annotations

from bireme.core.state.shelf import Shelf
from bireme.core.state.state import State

KEPT_KEYS = 10_000
"""A retry comes within seconds, not days."""

KEYS = Shelf("keys", str, int)


def remember(state: State, key: str, job_id: int) -> None:
    KEYS.put(state, key, job_id)
    known = KEYS.of(state)
    if len(known) > KEPT_KEYS:
        KEYS.drop(state, next(iter(known)))

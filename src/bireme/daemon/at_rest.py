"""The store of a home that no daemon serves: held against its sums, gone on with after damage, pruned.

`bireme store` calls it, under the home's lock where it writes. It names the database, as the daemon does: both are
composition roots. Not here: how damage is found (`store/inspection`) and what is made of what is left
(`store/recovery`); files beside the journal (`daemon/inspection`).
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.daemon.inspection import check_journal_there, vanished_journal
from bireme.daemon.paths import Paths
from bireme.runtime.kernel import load
from bireme.store.inspection import Inspection, inspect
from bireme.store.journal import SqliteStore
from bireme.store.recovery import loss_of, recover

__all__ = ["Dropped", "Inspection", "inspected", "loss_of", "prune", "recover"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """How many jobs, blobs and events were dropped from a store."""

    jobs: int
    blobs: int
    events: int


def inspected(paths: Paths) -> Inspection:
    """What the journal holds and what of it is damaged, also that it is gone. Reads only."""
    found = inspect(paths.journal)
    if gone := vanished_journal(paths):
        found.findings.append(gone)
    return found


def prune(paths: Paths, before: float, *, events: bool) -> Dropped:
    """Drops what is older and that nothing needs. Raises StoreError, OSError."""
    check_journal_there(paths)
    store = SqliteStore(paths.journal)
    try:
        state = load(store)
        jobs = store.prune_history(before, {*state.jobs, *state.arrays})
        blobs = store.prune_blobs(before, state.blobs())
        if events:
            store.write_snapshot(state.seq, state)
        return Dropped(jobs, blobs, store.prune(before) if events else 0)
    finally:
        store.close()

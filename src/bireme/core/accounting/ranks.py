"""QOS for the classes of priority that others keep: PriorityClasses of Kubernetes, and services before batch. Pure.

`ranked` gives the change that makes the book agree with the classes: a QOS for each, whose jobs may preempt those of
every lower one. Asked when the classes change (`daemon/pod_queue.py`).
Invariant: only QOS made here are changed (their description says so), and of `normal` only what it may preempt of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bireme.core.accounting.book import AccountBook
from bireme.core.accounting.changes import refuse_preemption_loops
from bireme.core.model.accounts import NORMAL, Qos
from bireme.core.model.events import AccountsChanged

DESCRIPTION = "kept by Kubernetes"
"""Of the QOS made here. An operator who writes another one has the QOS for himself."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One class of jobs: its name, what it is worth, and whether it may end others. Jobs that nobody gave a class have
    the QOS `normal`, of value 0."""

    name: str
    value: float
    preempts: bool = True
    """False: its jobs go first, and nobody is ended for them."""


def ranked(book: AccountBook, ranks: Sequence[Rank]) -> AccountsChanged:
    """What is to change, perhaps nothing. Raises BookError when the QOS could then preempt one another in a loop."""
    kept = {rank.name: rank for rank in ranks if _is_ours(book.qos.get(rank.name)) and rank.name != NORMAL}
    values = {name: rank.value for name, rank in kept.items()} | {NORMAL: 0}
    found = [
        replace(
            book.qos.get(name) or Qos(id=0, name=name, description=DESCRIPTION),
            priority=max(0, int(rank.value)),
            preempt=_below(values, rank.value) if rank.preempts else (),
        )
        for name, rank in kept.items()
    ]
    if NORMAL in book.qos:
        normal = book.qos[NORMAL]
        others = tuple(name for name in normal.preempt if name not in values)
        found.append(replace(normal, preempt=(*others, *_below(values, 0))))
    changed = [qos for qos in found if qos != book.qos.get(qos.name)]
    new = [qos.name for qos in changed if qos.name not in book.qos]
    numbers = {name: number for number, name in enumerate(new, start=book.next_qos_id)}
    change = AccountsChanged(qos=tuple(replace(qos, id=numbers.get(qos.name, qos.id)) for qos in changed))
    refuse_preemption_loops(book.changed(change))
    return change


def _is_ours(qos: Qos | None) -> bool:
    return qos is None or qos.description == DESCRIPTION


def _below(values: dict[str, float], value: float) -> tuple[str, ...]:
    return tuple(sorted(name for name, other in values.items() if other < value))

"""Limits beside what counts against them, for every association and QOS: what `scontrol show assoc_mgr` prints.

Numbers by name, as JSON; the text is `slurm/formats/show/association_manager.py`'s. What is counted comes from the
jobs themselves and not from the ledger, which keeps tallies only where there is a limit. Invariant: a job counts for
its association and all above it, for its QOS, and there for its user and its account.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from bireme.core.accounting.usage import WALL
from bireme.core.jobs.due import gone_by, time_limit_s
from bireme.core.model.jobs import ArrayWaiting, Finished, Job, Pending
from bireme.core.state.state import State
from bireme.slurm.records.accounts import book_record, share_records

MINUTE_S = 60


@dataclass(slots=True)
class _Count:
    """The counts of one user or account: jobs that run, those that were submitted and have not ended, and what the
    former hold."""

    jobs: int = 0
    submitted: int = 0
    tres: dict[str, int] = field(default_factory=dict)
    run_minutes: dict[str, float] = field(default_factory=dict)

    def add(self, job: Job, minutes_left: float) -> None:
        self.submitted += len(job.array.waiting) if isinstance(job.array, ArrayWaiting) else 1
        if job.allocation is None:
            return
        self.jobs += 1
        for name, amount in job.allocation.tres().items():
            self.tres[name] = self.tres.get(name, 0) + amount
            self.run_minutes[name] = self.run_minutes.get(name, 0.0) + amount * minutes_left

    def record(self) -> dict[str, Any]:
        minutes = {name: int(amount) for name, amount in self.run_minutes.items()}
        return {"jobs": self.jobs, "submitted": self.submitted, "tres": self.tres, "tres_run_mins": minutes}


def association_manager_record(state: State, now: float) -> dict[str, Any]:
    """The book, with `counts` and `usage` of each association and QOS."""
    book = book_record(state)
    shares = {row["id"]: row for row in share_records(state, now)}
    by_association, by_qos = _counted(state, now)
    for row in book["associations"]:
        row["share"] = shares[row["id"]]
        row["counts"] = by_association[row["id"]].record()
        row["usage"] = _minutes(lambda name, of=row["id"]: state.usage.of_association(of, name, now), book["tres"])
    for row in book["qos"]:
        holders = by_qos[row["name"]]
        row["counts"] = holders["", ""].record()
        row["usage"] = _minutes(lambda name, of=row["name"]: state.usage.of_qos(of, name, now), book["tres"])
        row["users"] = {name: each.record() for (kind, name), each in sorted(holders.items()) if kind == "user"}
        row["accounts"] = {name: each.record() for (kind, name), each in sorted(holders.items()) if kind == "account"}
    return book


def _counted(state: State, now: float) -> tuple[dict[int, _Count], dict[str, dict[tuple[str, str], _Count]]]:
    associations: dict[int, _Count] = defaultdict(_Count)
    qos: dict[str, dict[tuple[str, str], _Count]] = defaultdict(lambda: defaultdict(_Count))
    for job in state.jobs.values():
        if isinstance(job.phase, Finished):
            continue
        partition = job.allocation.partition if job.allocation else next(iter(job.spec.partitions), "")
        own = state.accounts.for_job(job.spec.account, job.spec.owner.user, partition)
        left = _minutes_left(state, job, now)
        for each in state.accounts.chain(own.id) if own else ():
            associations[each.id].add(job, left)
        for holder in (("", ""), ("user", str(job.spec.owner.uid)), ("account", job.spec.account)):
            qos[job.spec.qos][holder].add(job, left)
    return associations, qos


def _minutes_left(state: State, job: Job, now: float) -> float:
    if isinstance(job.phase, Pending | Finished) or time_limit_s(state, job) is None:
        return 0.0
    began = getattr(job.phase, "started_at", None) or now
    return max(0.0, gone_by(state, job, began + getattr(job.phase, "suspended_s", 0.0)) - now) / MINUTE_S


def _minutes(used: Any, names: list[str]) -> dict[str, float]:
    """TRES minutes by name; `wall` too, and `raw`: seconds of billing units."""
    minutes = {name: used(name) / MINUTE_S for name in (*names, WALL)}
    return {**minutes, "raw": used("billing")}

"""The rule of a job's field: who may give it, how long it may change, and who else needs it. Said where it is declared.

A field of `JobSpec` is declared as `planned(default, ...)` or `carried(default, ...)`, so that none is added without a
thought about these. Read by `core/jobs` (rights, requests), by the mirror of another scheduler's queue and by
`store/planning_input`. Not here: what Slurm's commands call the field (`slurm/job_fields`).
Invariant: every field of JobSpec has a rule (a test asks).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from typing import Any


class Giver(StrEnum):
    """Who may give a field to a job that is submitted."""

    ANYBODY = "anybody"
    """Accounts, QOS, partitions and reservations have access rules of their own."""
    OPERATOR = "operator"
    """Refused where an ordinary user gives it."""
    LOWERING = "lowering"
    """An ordinary user may lower the place in the queue by it, not raise it."""
    PASSED_OVER = "passed over"
    """Not applied where an ordinary user gives it, as in Slurm, and named among what was ignored."""
    NOBODY = "nobody"
    """Never the request's own words: from the connection, the place in the request, or the cluster."""


class Until(IntEnum):
    """How long a field may change, where it may change at all (`slurm/changes` says which)."""

    STARTS = 1
    ENDS = 2
    FORGOTTEN = 3
    """While anybody remembers the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRule:
    """What is to be known of a job's field besides its type."""

    giver: Giver = Giver.ANYBODY
    until: Until = Until.STARTS
    planned: bool
    """The planner reads it. What it does not read stays out of the files that `bireme snapshot` makes."""
    unseen: bool = False
    """Another scheduler's queue does not show it: what Bireme knows of it, since it submitted the job, stays."""


_RULE = "rule"


def planned(default: Any, *, giver: Giver = Giver.ANYBODY, until: Until = Until.STARTS, unseen: bool = False) -> Any:
    """A field that the planner reads."""
    return field(default=default, metadata=ruled(FieldRule(giver=giver, until=until, planned=True, unseen=unseen)))


def carried(default: Any, *, giver: Giver = Giver.ANYBODY, until: Until = Until.STARTS, unseen: bool = False) -> Any:
    """A field that only goes with the job: for whoever runs it, or to be shown."""
    return field(default=default, metadata=ruled(FieldRule(giver=giver, until=until, planned=False, unseen=unseen)))


def ruled(rule: FieldRule) -> dict[str, FieldRule]:
    """The metadata of a field that has this rule: for one without a default."""
    return {_RULE: rule}


def rules_of(specification: type) -> dict[str, FieldRule]:
    """The rule of each field that has one."""
    return {each.name: each.metadata[_RULE] for each in fields(specification) if _RULE in each.metadata}

"""Why a job waits or failed, as data, made by the code that decided.

`ReasonKind` values are Slurm's own words (what `squeue %r` prints); the facts say the rest. Wording lives in
`core/explain`. Invariant: a pending job always has at least one reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonKind(StrEnum):
    NONE = "None"
    PRIORITY = "Priority"
    RESOURCES = "Resources"
    DEPENDENCY = "Dependency"
    DEPENDENCY_NEVER_SATISFIED = "DependencyNeverSatisfied"
    BEGIN_TIME = "BeginTime"
    JOB_HELD_USER = "JobHeldUser"
    JOB_HELD_ADMIN = "JobHeldAdmin"
    JOB_ARRAY_TASK_LIMIT = "JobArrayTaskLimit"
    PARTITION_DOWN = "PartitionDown"
    PARTITION_INACTIVE = "PartitionInactive"
    PARTITION_NODE_LIMIT = "PartitionNodeLimit"
    PARTITION_TIME_LIMIT = "PartitionTimeLimit"
    REQUIRED_NODE_NOT_AVAILABLE = "ReqNodeNotAvail"
    BAD_CONSTRAINTS = "BadConstraints"
    LAUNCH_FAILED = "JobLaunchFailure"
    LAUNCH_FAILED_HELD = "launch_failed_requeued_held"
    REQUEUED_HELD = "job_requeued_in_held_state"
    SPECIAL_EXIT = "job_requeued_in_special_exit_state"
    CLEANING = "Cleaning"
    RESERVATION = "Reservation"
    LICENSES = "Licenses"
    NODE_DOWN = "NodeDown"
    NON_ZERO_EXIT = "NonZeroExitCode"
    TIME_LIMIT = "TimeLimit"
    OUT_OF_MEMORY = "OutOfMemory"
    RAISED_SIGNAL = "RaisedSignal"
    DEADLINE = "DeadLine"
    SYSTEM_FAILURE = "SystemFailure"
    PROLOG = "Prolog"
    PREEMPTED = "Preempted"
    JOBS_LIMIT = "MaxJobCount"


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that blocks a job (or ended it). Facts are (name, value) pairs for wording and for tools."""

    kind: ReasonKind
    facts: tuple[tuple[str, str | int | float], ...] = ()

    def fact(self, name: str) -> str | int | float | None:
        for key, value in self.facts:
            if key == name:
                return value
        return None


def reason(kind: ReasonKind, **facts: str | int | float) -> Reason:
    return Reason(kind, tuple(facts.items()))

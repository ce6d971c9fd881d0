"""A job and a node as another scheduler shows them: what an engine that places by itself reports.

Such an engine has a queue of its own (a real Slurm); Bireme mirrors it and decides nothing about its jobs. A sighting
is complete: what it does not say is not so.
Invariant: a sighting of a job that holds resources names them, node by node.
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.model.jobs import RULES, ArrayTask, JobSpec, Phase
from bireme.core.model.reasons import Reason
from bireme.core.model.resources import NO_USAGE, SUCCESS, ExitStatus, Usage
from bireme.core.model.steps import Step

UNSEEN_FIELDS = tuple(name for name, rule in RULES.items() if rule.unseen)
"""Of a JobSpec: what a queue does not show. Where Bireme submitted the job it knows them all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    job_id: int
    spec: JobSpec
    submitted_at: float
    phase: Phase
    restarts: int = 0
    waiting: tuple[int, ...] = ()
    """Of an array: its tasks that have not started."""
    task: ArrayTask | None = None
    het_job_id: int | None = None
    eligible_at: float | None = None
    steps: tuple[Step, ...] = ()
    batch_status: ExitStatus | None = None
    batch_usage: Usage = NO_USAGE
    usage: Usage = NO_USAGE
    worst_step_status: ExitStatus = SUCCESS
    key: str = ""
    """The idempotency key that Bireme submitted it with."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What another scheduler thinks of a waiting job right now. Not journaled: it changes with every pass of its."""

    job_id: int
    priority: int
    reasons: tuple[Reason, ...] = ()
    expected_start: float | None = None


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """Whether a node answers and takes jobs. `health` is one of `nodes.Health`."""

    node: str
    health: str
    drained: bool = False
    note: str = ""
    note_by_uid: int = 0
    version: str = ""

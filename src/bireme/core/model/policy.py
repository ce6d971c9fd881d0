"""What an operator may tune about planning: Scheduler* and Preempt* keys, typed; `slurm/conf` reads them."""

from __future__ import annotations

from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Preemption:
    """Whose jobs may be ended for others, and how."""

    by: str = "none"
    """"none", "partition" (lower PriorityTier) or "qos" (named in the preemptor's QOS)."""
    mode: str = "OFF"
    """OFF, CANCEL, REQUEUE or SUSPEND; a partition or QOS may say otherwise for its own jobs."""
    within: bool = False
    """WITHIN: also between jobs of one QOS, by priority."""
    exempt_s: int = 0
    """PreemptExemptTime: a job that has run for less is let be."""


@dataclass(frozen=True, slots=True)
class Policy:
    backfill: bool = True
    """sched/backfill: jobs may start out of order where they delay no slot. False: sched/builtin, strict order."""
    starts_max: int = 1_000
    """At most so many starts in one pass; the rest is taken up by the next."""
    bookings_max: int = 500
    """bf_max_job_test: so many waiting jobs get a slot in the calendar."""
    bookings_per_array: int = 20
    """bf_max_job_array_resv."""
    bookings_per_user: int | None = None
    """bf_max_job_user; None: no limit."""
    bookings_per_partition: int | None = None
    """bf_max_job_part; None: no limit."""
    interval_s: float = 30.0
    """bf_interval: a long queue is planned anew this often; between, only what changed is looked at."""
    many: int = 1_000
    """A queue longer than this is long."""
    resolution_s: float = 60.0
    """bf_resolution: what comes back within so many seconds counts as one moment."""
    window_s: float = DAY_S
    """bf_window: how far the calendar looks."""
    placement: str = "foresight"
    """placement=: the score that chooses among nodes that can hold a job; one of `core/placement/scores.POLICIES`."""
    preemption: Preemption = Preemption()


DEFAULT_POLICY = Policy()

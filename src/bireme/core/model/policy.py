"""What an operator may tune about planning: Scheduler* and Preempt* keys, typed; `slurm/conf` reads them."""

from __future__ import annotations

from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Preemption:
    """Whose jobs may be ended for others, and how."""

    by: str = "services"
    """"none", "partition" (lower PriorityTier), "qos" (named in the preemptor's QOS), or "services", where slurm.conf
    says nothing: as "qos", but for the QOS of services alone (`Settings.service_qos`), and only who can be requeued."""
    mode: str = "OFF"
    """OFF, CANCEL, REQUEUE or SUSPEND; a partition or QOS may say otherwise for its own jobs."""
    within: bool = False
    """WITHIN: also between jobs of one QOS, by priority."""
    exempt_s: int = 0
    """PreemptExemptTime: a job that has run for less is let be."""
    lowest_first: bool = False
    """preempt_strict_order: the lowest priority goes first, whatever it costs."""
    youngest_first: bool = False
    """preempt_youngest_first: the latest start goes first, whatever it costs."""


@dataclass(frozen=True, slots=True)
class Policy:
    backfill: bool = True
    """sched/backfill: jobs may start out of order where they delay no slot. False: sched/builtin, strict order."""
    starts_max: int = 1_000
    """At most so many starts in one pass; the rest is taken up by the next."""
    bookings_max: int = 500
    """bf_max_job_test: so many waiting jobs get a slot in the calendar."""
    bookings_per_user: int | None = None
    """bf_max_job_user; None: no limit."""
    bookings_per_partition: int | None = None
    """bf_max_job_part; None: no limit."""
    bookings_per_association: int | None = None
    """bf_max_job_assoc; None: no limit."""
    bookings_per_user_in_partition: int | None = None
    """bf_max_job_user_part; None: no limit."""
    one_slot_per_job: bool = False
    """bf_one_resv_per_job: a job of several partitions keeps the first slot that is found."""
    reserves_after_s: float = 0.0
    """bf_min_age_reserve: who has waited for less holds nothing back from others."""
    reserves_from_priority: int = 0
    """bf_min_prio_reserve: nor does who has less."""
    reserves_in_partition: int | None = None
    """bf_job_part_count_reserve: only so many, the first of each partition, hold something back; None: all."""
    stops_at_association_limits: bool = False
    """assoc_limit_stop: whom a limit of its association blocks, blocks those behind it."""
    interval_s: float = 30.0
    """bf_interval: a long queue is planned anew this often; between, only what changed is looked at."""
    many: int = 1_000
    """A queue longer than this is long."""
    array_tasks_max: int | None = None
    """max_array_tasks: of one array; None: as many as MaxArraySize allows."""
    takes_any_licences: bool = False
    """allow_zero_lic: a job that asks for more licences than there are waits, and is not refused."""
    resolution_s: float = 60.0
    """bf_resolution: what comes back within so many seconds counts as one moment."""
    window_s: float = DAY_S
    """bf_window: how far the calendar looks."""
    switches_wait_most_s: int = 300
    """max_switch_wait: --switches is insisted on for so long, whatever longer time it names."""
    placement: str = "foresight"
    """placement=: the score that chooses among nodes that can hold a job; one of `core/placement/scores.POLICIES`."""
    preemption: Preemption = Preemption()


DEFAULT_POLICY = Policy()

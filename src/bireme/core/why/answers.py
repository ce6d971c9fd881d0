"""What `bireme why` answers, as data: the API sends it, `cli/why.py` words it. Nothing here decides.

Times are seconds since the epoch, None where there is no telling. A job that the asker may not see has the label `?`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bireme.core.model.healing.checkpoints import Checkpoint


class Certainty(StrEnum):
    """How much an expected start is worth, or why there is none."""

    NOW = "now"
    """The next pass starts it."""
    SLOT = "slot"
    """A slot is booked: it starts then at the latest, unless jobs come that go before it."""
    PREEMPTS = "preempts"
    """Jobs of lower rank are ended for it; it starts when they are gone."""
    THEIRS = "theirs"
    """Another scheduler decides, and keeps it back for a reason of its own: the start is what that one expects."""
    GATED = "gated"
    """Something must happen first that no plan can foresee."""
    LIMITED = "limited"
    """It starts when enough of what counts against a limit has ended."""
    BLOCKED = "blocked"
    """Nothing that runs frees what it lacks: nodes that are down, or what its partition allows."""
    STRICT_ORDER = "strict_order"
    """sched/builtin books no slots."""
    NOT_TESTED = "not_tested"
    """It, or a job before it, is beyond the number of jobs that get slots (bf_max_job_test and the like)."""
    NO_TIME_LIMIT = "no_time_limit"
    """Jobs without a time limit hold what it needs, or go before it."""
    BEYOND_WINDOW = "beyond_window"
    """Nothing is free for it within bf_window."""
    NEVER_TOGETHER = "never_together"
    """Each component of a heterogeneous job would have a slot within bf_window, but not all of them at one moment."""


@dataclass(frozen=True, slots=True)
class Other:
    """What an answer says of a job that is not the one asked about."""

    job: str
    user: str
    name: str
    expected_start: float | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where it stands in the queue of one partition."""

    partition: str
    position: int
    """1 is the next; 0: it does not stand in line, because it is held or waits for something else than resources."""
    in_line: int
    aside: int
    """Waiting jobs of the partition that are held, or wait for a time or for other jobs."""
    before: tuple[Other, ...]
    """The nearest of those before it, nearest last."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One summand of a priority."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Priority:
    partition: str
    value: int
    set_by_operator: bool = False
    parts: tuple[Weight, ...] = ()
    """Empty with priority/basic: the number only says who came first."""


@dataclass(frozen=True, slots=True)
class Block:
    """One thing that keeps it from starting, with Slurm's word for it."""

    reason: str
    text: str
    facts: tuple[tuple[str, str | int | float], ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """A job that gives back what the one asked about waits for."""

    job: str
    nodes: tuple[str, ...]
    at: float | None
    running: bool
    """False: it waits itself, and has its slot before."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A reservation of others that keeps it off some nodes."""

    reservation: str
    nodes: tuple[str, ...]
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Spare:
    """How much there is of something that a job needs: the most that one node has free, and the most that one has at
    all."""

    what: str
    """`CPUs`, `MiB`, `gpu:h100` ..."""
    free: int
    of: int


@dataclass(frozen=True, slots=True)
class Room:
    """What one partition has for it."""

    partition: str
    needs: str
    nodes_needed: int
    nodes_now: int
    """Nodes that have enough free at this moment."""
    nodes_long_enough: int | None
    """Of those, nodes that are not promised to others before this job would end; None: it was not looked at."""
    fits_now: bool
    """Whether it would start if nothing were promised to others."""
    reserved: tuple[Closed, ...] = ()
    """Reservations in its way, from now until it would end."""
    fenced: tuple[str, ...] = ()
    """GPUs of its nodes that are out of service, each with the reason."""
    spare: tuple[Spare, ...] = ()
    """What is free of each thing that it needs: where too few nodes are able, it shows what is scarce."""


@dataclass(frozen=True, slots=True)
class Expected:
    start: float | None
    certainty: Certainty
    partition: str = ""
    nodes: tuple[str, ...] = ()
    slots_before: int = 0
    """Jobs before it that have slots of their own."""
    waits_for: tuple[Release, ...] = ()
    """Who frees the nodes of the slot, the last one last."""
    preempts: tuple[str, ...] = ()
    """Jobs that are ended for it."""
    endless: tuple[str, ...] = ()
    """Jobs without a time limit that hold nodes of its partitions, or go before it."""
    window_s: float = 0.0
    lifts_at: float | None = None
    """Where limits alone keep it: when they let it go at the latest, if nobody starts before it under them. Behind a
    gate (a dependency, its array's throttle): when that opens at the latest."""
    lifted_by: tuple[str, ...] = ()
    """The jobs that must have ended by then, or begun."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that was planned, and the start that came out."""

    what: str
    command: str
    """How to do it to this job; empty: only by submitting it again."""
    start: float
    starts_now: bool
    sooner_by_s: float | None
    """None: without the change there is no telling."""
    partition: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SentBack:
    """A job ran, or should have, and is in the queue again."""

    at: float
    text: str
    restarts: int


@dataclass(frozen=True, slots=True)
class Waiting:
    expected: Expected
    places: tuple[Place, ...]
    priorities: tuple[Priority, ...]
    blocks: tuple[Block, ...]
    rooms: tuple[Room, ...]
    sent_back: SentBack | None = None
    components: int = 1
    """Of a heterogeneous job, which start together or not at all."""


@dataclass(frozen=True, slots=True)
class Running:
    partition: str
    nodes: tuple[str, ...]
    holds: tuple[tuple[str, int], ...]
    """By TRES name; mem in MiB."""
    whole_nodes: bool
    submitted_at: float
    started_at: float
    waited_s: float
    """From when it could have run until it did."""
    ends_at: float | None
    """When its time limit ends it; None: it has none."""
    leaves: tuple[str, ...] = ()
    """Leaf switches (or blocks) of its nodes; empty without a topology."""
    fewest_leaves: int = 0
    """What the best place in an empty cluster would use."""
    in_blocks: bool = False
    """The leaves are blocks of topology/block, not switches."""
    displaced: tuple[str, ...] = ()
    """Jobs that were ended or requeued to make room for it."""
    sent_back: SentBack | None = None
    checkpointed_at: float | None = None
    """Until when its work is saved."""
    checkpoint: Checkpoint | None = None
    """The newest whole one that was found."""
    suspended_at: float | None = None
    """Since when it stands still; None: it runs."""
    suspended_for: str = ""
    """For which job; empty: an operator said so."""
    idle_notice: str = ""
    """What its owner was told of its idle GPUs; empty: nothing that holds."""

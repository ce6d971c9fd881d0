"""Idle GPUs: the policy that says what is done about jobs that hold GPUs and do not use them, and what a job was told.

Values only. The policy comes from `idle.toml` (`daemon/idle/policy_file.py`) and is journaled whole (`IdlePolicySet`);
what follows from it is decided in `core/idle`. Invariant: a rule's name is its table in the file, and so its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class IdleMode(StrEnum):
    """How far the policy goes."""

    OFF = "off"
    DRY_RUN = "dry-run"
    """`bireme idle` says who would be hit; nobody is told and nothing is done."""
    NOTIFY = "notify"
    """Owners are told; nothing is done."""
    ACT = "act"


class IdleAction(StrEnum):
    """What is done about an idle job after its grace."""

    NOTIFY = "notify"
    """Nothing more than to tell its owner."""
    REQUEUE = "requeue"
    MOVE = "move"
    """Queued again in another partition."""
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRule:
    """What is idle, for which jobs, and what is done about it. No names in a list: all of them."""

    name: str
    partitions: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    jobs: str = "batch"
    """"batch", or "interactive": salloc, and srun outside a job."""
    below_percent: float = 5.0
    idle_s: int = 7200
    """So long without a break."""
    gpus: str = "all"
    """"all" of a job's GPUs have to be idle, or "any" of them."""
    grace_s: int = 1800
    """Between the notice and what is done."""
    action: IdleAction = IdleAction.NOTIFY
    otherwise: IdleAction = IdleAction.NOTIFY
    """Where a job cannot be requeued or moved."""
    move_to: str = ""
    exempt_comments: tuple[str, ...] = ()
    """Words of `--comment`."""
    exempt_qos: tuple[str, ...] = ()
    exempt_accounts: tuple[str, ...] = ()
    exempt_users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    mode: IdleMode = IdleMode.OFF
    rules: tuple[IdleRule, ...] = ()
    """The first that is for a job counts."""
    source: str = "idle.toml"
    """What people call the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleFacts:
    """What was measured of a job's GPUs, and by which rule it counts as idle."""

    rule: str
    source: str
    since: float
    gpus_idle: int
    gpus: int
    below_percent: float
    percent: float
    """The most that was measured of the idle ones since then."""
    measure: str
    """By its name among the metrics: `gpu_sm_active`, `gpu_util`, `use_gpu_util`."""
    memory_mib: int = 0
    """What the idle ones hold meanwhile."""


class NoticeLife(StrEnum):
    """Where a notice stands."""

    GIVEN = "given"
    LEAVING = "leaving"
    """Its job is being ended, to be queued again in another partition."""


@dataclass(frozen=True, slots=True)
class IdleNotice:
    """What the owner of an idle job was told: the thing of the kind `core/idle`."""

    job_id: int
    generation: int
    facts: IdleFacts
    action: IdleAction
    move_to: str
    given_at: float
    act_at: float | None
    """When it is done at the earliest; None: nothing is."""
    phase: NoticeLife = NoticeLife.GIVEN

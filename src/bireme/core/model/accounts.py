"""Who may use the cluster, with which share and under which limits: accounts, users, associations, QOS.

Records only, all frozen; how they hang together and what may be done to them is `core/accounting/book.py`, what they
used is `core/accounting/usage.py`. An association is Slurm's (account, user, partition): without a user it is the
account itself in the tree, with one it is what a job is charged to.
Invariant: a limit that is not set is None, or a name that its map does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ROOT = "root"
"""The account at the top of the tree, which is always there; and the user that owns it."""
NORMAL = "normal"
"""The QOS that is there from the start."""

TresMap = tuple[tuple[str, int], ...]
"""Amounts by TRES name (`cpu`, `mem` in MiB, `node`, `billing`, `gres/gpu`, `gres/gpu:h100`, `license/x`), in
`tres_rank` order, each name once."""

_FIRST_TRES = ("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages")


def tres_rank(name: str) -> tuple[int, str]:
    """Slurm's order: the eight that every cluster has, then the rest by name."""
    position = _FIRST_TRES.index(name) if name in _FIRST_TRES else len(_FIRST_TRES)
    return position, name


def tres_map(amounts: dict[str, int]) -> TresMap:
    return tuple(sorted(amounts.items(), key=lambda item: tres_rank(item[0])))


def changed_names(names: tuple[str, ...], changes: tuple[str, ...]) -> tuple[str, ...]:
    """A list after `+name` and `-name`: added ones come last."""
    kept = dict.fromkeys(names)
    for change in changes:
        if change[0] == "+":
            kept[change[1:]] = None
        else:
            kept.pop(change[1:], None)
    return tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one association or QOS allows. `grp_*` count everything under it together; `max_*` each job or user.

    An association has no `*_per_account` and no `min_*`; its `max_*_per_user` are for each user's own association
    below it, which is what Slurm calls MaxJobs, MaxSubmit and so on there. Of an association, `max_*` are inherited
    from the accounts above (per field, per TRES); `grp_*` are not: every account on the way up holds by itself.
    TRES minutes are minutes; walls are seconds.
    """

    grp_tres: TresMap = ()
    grp_tres_mins: TresMap = ()
    grp_tres_run_mins: TresMap = ()
    grp_jobs: int | None = None
    grp_jobs_accrue: int | None = None
    grp_submit: int | None = None
    grp_wall_s: int | None = None

    max_tres_per_job: TresMap = ()
    max_tres_per_node: TresMap = ()
    max_tres_mins_per_job: TresMap = ()
    max_wall_s: int | None = None

    max_tres_per_user: TresMap = ()
    max_tres_run_mins_per_user: TresMap = ()
    max_jobs_per_user: int | None = None
    max_jobs_accrue_per_user: int | None = None
    max_submit_per_user: int | None = None

    max_tres_per_account: TresMap = ()
    max_tres_run_mins_per_account: TresMap = ()
    max_jobs_per_account: int | None = None
    max_jobs_accrue_per_account: int | None = None
    max_submit_per_account: int | None = None

    min_tres_per_job: TresMap = ()
    min_priority: int | None = None
    """MinPrioThreshold: below it a job does not get resources reserved ahead of time."""


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    name: str
    description: str = ""
    organization: str = ""
    coordinators: tuple[str, ...] = ()


class AdminLevel(StrEnum):
    NONE = "None"
    OPERATOR = "Operator"
    ADMINISTRATOR = "Administrator"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: str
    default_account: str = ""
    default_wckey: str = ""
    admin_level: AdminLevel = AdminLevel.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """A node of the share tree. Its parent is `parent` for an account, and its own account for a user."""

    id: int
    account: str
    user: str = ""
    """Empty: the account itself."""
    partition: str = ""
    """Empty: every partition. Only with a user."""
    parent: str = ""
    """The account above; empty for root, and for users, who stand under their account."""
    shares: int | None = 1
    """Fairshare; None is `parent`: no share of its own, it competes where its parent does."""
    priority: int | None = None
    qos: tuple[str, ...] = ()
    """The QOS allowed here, replacing what is inherited; empty inherits."""
    qos_changes: tuple[str, ...] = ()
    """`+name` and `-name`: changes to the inherited list, where none is set here."""
    default_qos: str = ""
    limits: Limits = NO_LIMITS

    @property
    def key(self) -> tuple[str, str, str]:
        return self.account, self.user, self.partition

    @property
    def parent_account(self) -> str:
        return self.account if self.user else self.parent


class QosFlag(StrEnum):
    DENY_ON_LIMIT = "DenyOnLimit"
    ENFORCE_USAGE_THRESHOLD = "EnforceUsageThreshold"
    NO_RESERVE = "NoReserve"
    PARTITION_MAX_NODES = "PartitionMaxNodes"
    PARTITION_MIN_NODES = "PartitionMinNodes"
    OVER_PARTITION_QOS = "OverPartQOS"
    PARTITION_TIME_LIMIT = "PartitionTimeLimit"
    REQUIRES_RESERVATION = "RequiresReservation"
    NO_DECAY = "NoDecay"
    USAGE_FACTOR_SAFE = "UsageFactorSafe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    id: int
    name: str
    description: str = ""
    priority: int = 0
    flags: tuple[QosFlag, ...] = ()
    limits: Limits = NO_LIMITS
    preempt: tuple[str, ...] = ()
    """Names of the QOS whose jobs this one's may preempt."""
    preempt_mode: str = ""
    """Empty: the cluster's PreemptMode."""
    preempt_exempt_s: int | None = None
    """None: the cluster's PreemptExemptTime."""
    grace_s: int = 0
    usage_factor: float = 1.0
    """What a job's usage is multiplied by."""
    usage_threshold: float | None = None
    """Below this fair share factor jobs are refused, or wait (EnforceUsageThreshold)."""
    limit_factor: float | None = None
    """What the association's group TRES limits are multiplied by for jobs of this QOS."""

    def has(self, flag: QosFlag) -> bool:
        return flag in self.flags

"""Which limits hold for a job: the account book, the partitions and the licences, boiled down to a list of rules.

Slurm's order: the partition's QOS, the job's own (the other way round with OverPartQOS), the user's association, the
accounts above it. A limit that an earlier one sets is not asked of a later one, TRES by TRES; but every account on the
way up holds by itself. Jobs of one user, account, QOS, partition and licences have the same rules, so they are made
once (`Rulebook.for_job`) and a job without any costs one lookup. What is held against them is `ledger.py`; whether a
job passes is `checks.py`. Invariant: limits of associations and QOS count only with AccountingStorageEnforce=limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from bireme.core.accounting.book import AccountBook
from bireme.core.limits.licences import parse_licences
from bireme.core.limits.words import ASSOCIATION, QOS, word_for
from bireme.core.model.accounts import Association, Limits, Qos, QosFlag
from bireme.core.model.cluster import PartitionConfig, Settings
from bireme.core.model.jobs import JobSpec
from bireme.core.model.reasons import ReasonKind

ALWAYS = "ACCRUE_ALWAYS"
Holder = tuple[str, ...]
"""Whose holdings are counted together: ("association", "7"), ("qos", "gold"), ("qos", "gold", "user", "alice") ..."""


class Measure(Enum):
    """What a rule looks at."""

    JOBS = "jobs that run"
    SUBMITTED = "jobs that wait or run"
    ACCRUING = "waiting jobs that grow older"
    TRES = "what running jobs hold"
    RUN_MINUTES = "what running jobs may still use"
    MINUTES = "what was used"
    WALL = "for how long jobs ran"
    JOB_TRES = "what the job asks for"
    JOB_NODE_TRES = "what the job holds on one node"
    JOB_MINUTES = "what the job may use"
    JOB_WALL = "the job's time limit"
    JOB_MIN_TRES = "the least a job must ask for"


OF_THE_JOB_ALONE = frozenset(
    {Measure.JOB_TRES, Measure.JOB_NODE_TRES, Measure.JOB_MINUTES, Measure.JOB_WALL, Measure.JOB_MIN_TRES}
)


@dataclass(frozen=True, slots=True)
class Rule:
    measure: Measure
    limit: int
    kind: ReasonKind
    holder: Holder
    where: str
    """Who sets it, for people: `QOS gold`, `account physics`."""
    tres: str = ""


@dataclass(frozen=True, slots=True)
class JobRules:
    """All rules for one kind of job, those asked first in front."""

    to_start: tuple[Rule, ...] = ()
    to_submit: tuple[Rule, ...] = ()
    to_accrue: tuple[Rule, ...] = ()
    """How many may grow older at once."""
    holders: tuple[Holder, ...] = ()
    """Whose tallies its holdings go to."""
    queues: tuple[Holder, ...] = ()
    """Whose tallies count it from its submission on."""
    usage_factor: float = 1.0
    safe_factor: float = 1.0
    """The factor on what a job is expected to use: the QOS's with UsageFactorSafe."""
    share_min: float | None = None
    """UsageThreshold with EnforceUsageThreshold: the least fair share that may run."""
    deny: bool = False
    """DenyOnLimit: refused at submission rather than left waiting for ever."""


NO_RULES = JobRules()

_WHOLE, _USER, _ACCOUNT = "whole", "user", "account"
_Field = tuple[str, Measure, str]
_BEFORE: tuple[_Field, ...] = (
    ("grp_jobs", Measure.JOBS, _WHOLE),
    ("grp_wall_s", Measure.WALL, _WHOLE),
    ("max_jobs_per_account", Measure.JOBS, _ACCOUNT),
    ("max_jobs_per_user", Measure.JOBS, _USER),
    ("max_wall_s", Measure.JOB_WALL, _WHOLE),
)
"""Asked first of every level, then the next ones of every level."""
_AFTER: tuple[_Field, ...] = (
    ("grp_tres_mins", Measure.MINUTES, _WHOLE),
    ("grp_tres", Measure.TRES, _WHOLE),
    ("grp_tres_run_mins", Measure.RUN_MINUTES, _WHOLE),
    ("max_tres_mins_per_job", Measure.JOB_MINUTES, _WHOLE),
    ("max_tres_per_job", Measure.JOB_TRES, _WHOLE),
    ("max_tres_per_node", Measure.JOB_NODE_TRES, _WHOLE),
    ("max_tres_per_account", Measure.TRES, _ACCOUNT),
    ("max_tres_per_user", Measure.TRES, _USER),
    ("max_tres_run_mins_per_account", Measure.RUN_MINUTES, _ACCOUNT),
    ("max_tres_run_mins_per_user", Measure.RUN_MINUTES, _USER),
    ("min_tres_per_job", Measure.JOB_MIN_TRES, _WHOLE),
)
_SUBMIT: tuple[_Field, ...] = (
    ("grp_submit", Measure.SUBMITTED, _WHOLE),
    ("max_submit_per_account", Measure.SUBMITTED, _ACCOUNT),
    ("max_submit_per_user", Measure.SUBMITTED, _USER),
)
_ACCRUE: tuple[_Field, ...] = (
    ("grp_jobs_accrue", Measure.ACCRUING, _WHOLE),
    ("max_jobs_accrue_per_account", Measure.ACCRUING, _ACCOUNT),
    ("max_jobs_accrue_per_user", Measure.ACCRUING, _USER),
)
_SCALED = frozenset({"grp_tres", "max_tres_per_job", "max_tres_per_node"})
"""Limits of associations that a QOS's LimitFactor multiplies."""


@dataclass(frozen=True, slots=True)
class _Level:
    """One place that sets limits, and whose holdings each of them counts."""

    words: str
    limits: Limits
    where: str
    holders: Mapping[str, Holder]
    factor: float = 1.0
    group_only: bool = False
    """An account above the job's association: its `max_*` were inherited already."""


_Key = tuple[str, str, str, str, str]


@dataclass(slots=True)
class Rulebook:
    book: AccountBook = field(default_factory=AccountBook)
    partitions: Mapping[str, PartitionConfig] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    idle: bool = True
    """Nothing limits any job."""
    limits_ages: bool = False
    """Some limit says how many jobs may grow older at once."""
    _made: dict[_Key, JobRules] = field(default_factory=dict)

    @property
    def enforced(self) -> bool:
        return "limits" in self.settings.accounting_enforce

    def for_job(self, spec: JobSpec, partition: str) -> JobRules:
        if self.idle:
            return NO_RULES
        key = (spec.account, spec.owner.user, spec.qos, partition, spec.resources.licenses)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(*key)
        return found

    def _make(self, account: str, user: str, qos_name: str, partition: str, licences: str) -> JobRules:
        qos = self.book.qos.get(qos_name)
        configured = self.partitions.get(partition)
        levels = self._levels(account, user, qos, configured) if self.enforced else []
        to_start = [*_rules(levels, _BEFORE), *_rules(levels, _AFTER)]
        to_start += [*_partition_rules(configured, user), *self._licence_rules(licences)]
        to_submit = list(_rules(levels, _SUBMIT))
        own = self._levels(account, user, qos, replace(configured, qos="") if configured else None)
        to_accrue = tuple(_rules(own, _ACCRUE)) if self.enforced else ()  # a partition's QOS has no say here
        everywhere = [*_rules(levels, (*_BEFORE, *_AFTER), settles=False), *to_start]
        counted = (rule.holder for rule in everywhere if rule.measure not in OF_THE_JOB_ALONE)
        queued = _rules(levels, _SUBMIT, settles=False)
        factor = qos.usage_factor if qos else 1.0
        return JobRules(
            tuple(to_start),
            tuple(to_submit),
            to_accrue,
            tuple(dict.fromkeys(counted)),
            tuple(dict.fromkeys(rule.holder for rule in queued)),
            factor,
            factor if qos and qos.has(QosFlag.USAGE_FACTOR_SAFE) else 1.0,
            qos.usage_threshold if self.enforced and qos and qos.has(QosFlag.ENFORCE_USAGE_THRESHOLD) else None,
            any(level.words == QOS and self._denies(level) for level in levels),
        )

    def _denies(self, level: _Level) -> bool:
        qos = self.book.qos.get(level.holders[_WHOLE][1])
        return qos is not None and qos.has(QosFlag.DENY_ON_LIMIT)

    def _levels(self, account: str, user: str, qos: Qos | None, partition: PartitionConfig | None) -> list[_Level]:
        of_partition = self.book.qos.get(partition.qos) if partition and partition.qos else None
        both = [of_partition, qos]
        if qos is not None and qos.has(QosFlag.OVER_PARTITION_QOS):
            both.reverse()
        levels = [_qos_level(each, user, account) for each in dict.fromkeys(both) if each is not None]
        association = self.book.for_job(account, user, partition.name if partition else "")
        if association is not None:
            factor = qos.limit_factor if qos and qos.limit_factor is not None else 1.0
            for depth, each in enumerate(self.book.chain(association.id)):
                limits = each.limits if depth else self.book.limits_of(each.id)
                levels.append(_association_level(each, limits, factor, group_only=depth > 0))
        return levels

    def _licence_rules(self, asked: str) -> Iterator[Rule]:
        there = dict(parse_licences(self.settings.licenses) or ()) if asked else {}
        for tres, _ in parse_licences(asked) or ():
            limit, holder = there.get(tres, 0), licence_holder(tres)
            yield Rule(Measure.TRES, limit, ReasonKind.LICENSES, holder, "the cluster", tres)


def rulebook(book: AccountBook, partitions: Mapping[str, PartitionConfig], settings: Settings) -> Rulebook:
    nothing = not (
        "limits" in settings.accounting_enforce
        or settings.licenses
        or any(partition.max_cpus_per_user is not None for partition in partitions.values())
    )
    return Rulebook(book, partitions, settings, nothing, _limits_ages(book, settings))


def _limits_ages(book: AccountBook, settings: Settings) -> bool:
    if "limits" not in settings.accounting_enforce or not settings.priority.multifactor:
        return False
    limits = [qos.limits for qos in book.qos.values()] + [each.limits for each in book.associations.values()]
    counted = any(getattr(each, name) is not None for each in limits for name, _, _ in _ACCRUE)
    return counted and ALWAYS not in settings.priority_flags


def licence_holder(tres: str) -> Holder:
    return ("licence", tres)


def _qos_level(qos: Qos, user: str, account: str) -> _Level:
    holders = {
        _WHOLE: ("qos", qos.name),
        _USER: ("qos", qos.name, "user", user),
        _ACCOUNT: ("qos", qos.name, "account", account),
    }
    return _Level(QOS, qos.limits, f"QOS {qos.name}", holders)


def _association_level(association: Association, limits: Limits, factor: float, group_only: bool) -> _Level:
    own = ("association", str(association.id))
    who = f"account {association.account}" + (f" for user {association.user}" if association.user else "")
    return _Level(ASSOCIATION, limits, who, {_WHOLE: own, _USER: own}, factor, group_only)


def _rules(levels: list[_Level], fields: tuple[_Field, ...], *, settles: bool = True) -> Iterator[Rule]:
    """Level by level. What a QOS has set is settled; accounts add to each other.

    `settles` False: also what a QOS has settled. Whoever set it still counts the job, for the others it holds for.
    """
    settled: set[tuple[str, str]] = set()
    for level in levels:
        own = [rule for name, measure, over in fields for rule in _rules_of(level, name, measure, over)]
        yield from (rule for name, rule in own if (name, rule.tres) not in settled)
        if level.words == QOS and settles:
            settled.update((name, rule.tres) for name, rule in own)


def _rules_of(level: _Level, name: str, measure: Measure, over: str) -> Iterator[tuple[str, Rule]]:
    if level.group_only and not name.startswith("grp_"):
        return
    holder = level.holders.get(over)
    value: object = getattr(level.limits, name)
    if holder is None or value is None:
        return
    if isinstance(value, int):
        kind = ReasonKind.PRIORITY if measure is Measure.ACCRUING else word_for(level.words, name)
        yield name, Rule(measure, value, kind, holder, level.where)
        return
    assert isinstance(value, tuple)
    for tres, amount in value:
        limit = int(amount * level.factor) if name in _SCALED else amount
        yield name, Rule(measure, limit, word_for(level.words, name, tres), holder, level.where, tres)


def _partition_rules(partition: PartitionConfig | None, user: str) -> Iterator[Rule]:
    """MaxCPUsPerUser on a partition: Slurm's own way to say it is the partition's QOS, whose word this has."""
    if partition is not None and partition.max_cpus_per_user is not None:
        holder, where = ("partition", partition.name, "user", user), f"partition {partition.name}"
        kind = ReasonKind.QOS_MAX_CPU_PER_USER_LIMIT
        yield Rule(Measure.TRES, partition.max_cpus_per_user, kind, holder, where, "cpu")

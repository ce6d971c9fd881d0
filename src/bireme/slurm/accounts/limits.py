"""The words that set limits: `MaxJobs=5`, `GrpTRES=cpu=10,gres/gpu=4`, `MaxWall=1-0`, and how each is read.

One table each for associations and QOS: a word, how much of it must be written, and the field of `Limits` it sets.
Called by `slurm/accounts/words.py`. Not here: what a limit does (`core/limits`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bireme.core.accounting.edits import CLEAR, LimitsEdit
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import parse_tres
from bireme.slurm.times import MINUTE_S, Infinite, parse_time_limit


class UnknownWordError(SlurmSyntaxError):
    """A word or value that `sacctmgr` does not know; the text is what it prints before `Unknown option`."""


@dataclass(slots=True)
class LimitsBuilder:
    counts: dict[str, int] = field(default_factory=dict)
    tres: dict[str, dict[str, int]] = field(default_factory=dict)

    def built(self) -> LimitsEdit:
        return LimitsEdit(counts=self.counts, tres=self.tres)


Setter = Callable[[LimitsBuilder, str, str], None]
"""(builder, the word as its table has it, the value)."""


def number(word: str, text: str) -> int:
    """A whole number; -1 clears."""
    if text in ("-1", ""):
        return CLEAR
    if not text.isascii() or not text.isdigit():
        raise UnknownWordError(f"sacctmgr: error: Invalid value for {word} ({text})")
    return int(text)


def wall(word: str, text: str) -> int:
    """A time limit in seconds, in whole minutes; -1 and UNLIMITED clear."""
    if text in ("-1", ""):
        return CLEAR
    try:
        parsed = parse_time_limit(text)
    except SlurmSyntaxError as error:
        raise UnknownWordError(f" Bad {word} time format: {text}") from error
    return CLEAR if isinstance(parsed, Infinite) else -(-parsed // MINUTE_S) * MINUTE_S


def tres_amounts(text: str) -> dict[str, int]:
    """`cpu=10,mem=4G,gres/gpu=-1`: amounts by name, -1 clears that one."""
    amounts: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, equals, amount = part.strip().partition("=")
        kind, slash, rest = name.partition("/")
        name = kind.lower() + slash + rest
        if not equals:
            raise UnknownWordError(f"sacctmgr: error: no value for TRES {name}: write {name}=NUMBER")
        try:
            probe = parse_tres(f"{name}=1")
        except SlurmSyntaxError as error:
            raise UnknownWordError(f"sacctmgr: error: slurmdb_format_tres_str: no TRES known by type {name}") from error
        if amount == "-1":
            amounts.update(dict.fromkeys(probe, CLEAR))
            continue
        try:
            amounts.update(parse_tres(f"{name}={amount}"))
        except SlurmSyntaxError as error:
            raise UnknownWordError(f"sacctmgr: error: Invalid value for TRES {name} ({amount})") from error
    return amounts


def _count(name: str) -> Setter:
    def set_it(builder: LimitsBuilder, word: str, text: str) -> None:
        builder.counts[name] = number(word, text)

    return set_it


def _wall(name: str) -> Setter:
    def set_it(builder: LimitsBuilder, word: str, text: str) -> None:
        builder.counts[name] = wall("GrpWall" if name.startswith("grp") else "MaxWall", text)

    return set_it


def _tres(name: str) -> Setter:
    def set_it(builder: LimitsBuilder, word: str, text: str) -> None:
        builder.tres.setdefault(name, {}).update(tres_amounts(text))

    return set_it


def _one_tres(name: str, tres: str) -> Setter:
    """The older words: MaxCPUs=4 is MaxTRES=cpu=4."""

    def set_it(builder: LimitsBuilder, word: str, text: str) -> None:
        builder.tres.setdefault(name, {}).update(tres_amounts(f"{tres}={text or CLEAR}"))

    return set_it


_GROUP: list[tuple[str, int, Setter]] = [
    ("GrpCPUMins", 7, _one_tres("grp_tres_mins", "cpu")),
    ("GrpCPURunMins", 7, _one_tres("grp_tres_run_mins", "cpu")),
    ("GrpCPUs", 7, _one_tres("grp_tres", "cpu")),
    ("GrpJobs", 4, _count("grp_jobs")),
    ("GrpJobsAccrue", 8, _count("grp_jobs_accrue")),
    ("GrpMemory", 4, _one_tres("grp_tres", "mem")),
    ("GrpNodes", 4, _one_tres("grp_tres", "node")),
    ("GrpSubmitJobs", 4, _count("grp_submit")),
    ("GrpTRES", 7, _tres("grp_tres")),
    ("GrpTRESMins", 8, _tres("grp_tres_mins")),
    ("GrpTRESRunMins", 8, _tres("grp_tres_run_mins")),
    ("GrpWall", 4, _wall("grp_wall_s")),
]
_EACH_JOB: list[tuple[str, int, Setter]] = [
    ("MaxCPUMinsPerJob", 7, _one_tres("max_tres_mins_per_job", "cpu")),
    ("MaxCPUsPerJob", 7, _one_tres("max_tres_per_job", "cpu")),
    ("MaxNodesPerJob", 4, _one_tres("max_tres_per_job", "node")),
    ("MaxTRESPerJob", 7, _tres("max_tres_per_job")),
    ("MaxTRESMinsPerJob", 8, _tres("max_tres_mins_per_job")),
    ("MaxTRESPerNode", 11, _tres("max_tres_per_node")),
    ("MaxWallDurationPerJob", 4, _wall("max_wall_s")),
]

ASSOCIATION_LIMITS: list[tuple[str, int, Setter]] = [
    *_GROUP,
    *_EACH_JOB,
    ("MaxJobs", 4, _count("max_jobs_per_user")),
    ("MaxJobsAccrue", 8, _count("max_jobs_accrue_per_user")),
    ("MaxSubmitJobs", 4, _count("max_submit_per_user")),
    ("MaxTRESRunMins", 8, _tres("max_tres_run_mins_per_user")),
]
QOS_LIMITS: list[tuple[str, int, Setter]] = [
    *_GROUP,
    ("MaxTRESPerUser", 11, _tres("max_tres_per_user")),
    ("MaxTRESPU", 9, _tres("max_tres_per_user")),
    ("MaxTRESPerAccount", 11, _tres("max_tres_per_account")),
    ("MaxTRESPA", 9, _tres("max_tres_per_account")),
    *_EACH_JOB,
    ("MaxCPUsPerUser", 11, _one_tres("max_tres_per_user", "cpu")),
    ("MaxNodesPerUser", 11, _one_tres("max_tres_per_user", "node")),
    ("MaxJobsPerUser", 4, _count("max_jobs_per_user")),
    ("MaxJobsPU", 9, _count("max_jobs_per_user")),
    ("MaxJobsPerAccount", 11, _count("max_jobs_per_account")),
    ("MaxJobsPA", 9, _count("max_jobs_per_account")),
    ("MaxJobsAccruePerUser", 8, _count("max_jobs_accrue_per_user")),
    ("MaxJobsAccruePU", 15, _count("max_jobs_accrue_per_user")),
    ("MaxJobsAccruePerAccount", 17, _count("max_jobs_accrue_per_account")),
    ("MaxJobsAccruePA", 15, _count("max_jobs_accrue_per_account")),
    ("MaxSubmitJobsPerUser", 4, _count("max_submit_per_user")),
    ("MaxSubmitJobsPU", 15, _count("max_submit_per_user")),
    ("MaxSubmitPU", 11, _count("max_submit_per_user")),
    ("MaxSubmitJobsPerAccount", 17, _count("max_submit_per_account")),
    ("MaxSubmitJobsPA", 15, _count("max_submit_per_account")),
    ("MaxSubmitPA", 11, _count("max_submit_per_account")),
    ("MaxTRESRunMinsPerUser", 8, _tres("max_tres_run_mins_per_user")),
    ("MaxTRESRunMinsPU", 16, _tres("max_tres_run_mins_per_user")),
    ("MaxTRESRunMinsPerAccount", 18, _tres("max_tres_run_mins_per_account")),
    ("MaxTRESRunMinsPA", 16, _tres("max_tres_run_mins_per_account")),
    ("MinCPUsPerJob", 7, _one_tres("min_tres_per_job", "cpu")),
    ("MinTRESPerJob", 7, _tres("min_tres_per_job")),
    ("MinPrioThreshold", 5, _count("min_priority")),
]


def limit_setter(table: list[tuple[str, int, Setter]], word: str) -> tuple[str, Setter] | None:
    """The entry that a word means: its whole name, or as much of it as must be written; the first such one."""
    small = word.lower()
    for name, _, setter in table:
        if name.lower() == small:
            return name, setter
    for name, least, setter in table:
        if len(small) >= least and name.lower().startswith(small):
            return name, setter
    return None

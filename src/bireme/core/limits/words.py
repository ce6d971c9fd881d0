"""Slurm's word for every limit: which reason a job gets that one of them blocks.

Slurm's words are not regular (`QOSGrpCpuLimit`, `QOSGrpMemLimit`, `QOSGrpGRES`); this is the one place that knows.
Invariant: every field of `Limits` that blocks a job has its word for every TRES (checked when it is imported).
"""

from __future__ import annotations

from bireme.core.model.reasons import ReasonKind

QOS = "qos"
ASSOCIATION = "association"

COUNTS: dict[tuple[str, str], ReasonKind] = {
    (QOS, "grp_jobs"): ReasonKind.QOS_GRP_JOBS_LIMIT,
    (QOS, "grp_submit"): ReasonKind.QOS_GRP_SUBMIT_JOBS_LIMIT,
    (QOS, "grp_wall_s"): ReasonKind.QOS_GRP_WALL_LIMIT,
    (QOS, "max_jobs_per_account"): ReasonKind.MAX_JOBS_PER_ACCOUNT,
    (QOS, "max_jobs_per_user"): ReasonKind.QOS_MAX_JOBS_PER_USER_LIMIT,
    (QOS, "max_submit_per_account"): ReasonKind.MAX_SUBMIT_JOBS_PER_ACCOUNT,
    (QOS, "max_submit_per_user"): ReasonKind.QOS_MAX_SUBMIT_JOB_PER_USER_LIMIT,
    (QOS, "max_wall_s"): ReasonKind.QOS_MAX_WALL_DURATION_PER_JOB_LIMIT,
    (ASSOCIATION, "grp_jobs"): ReasonKind.ASSOC_GRP_JOBS_LIMIT,
    (ASSOCIATION, "grp_submit"): ReasonKind.ASSOC_GRP_SUBMIT_JOBS_LIMIT,
    (ASSOCIATION, "grp_wall_s"): ReasonKind.ASSOC_GRP_WALL_LIMIT,
    (ASSOCIATION, "max_jobs_per_user"): ReasonKind.ASSOC_MAX_JOBS_LIMIT,
    (ASSOCIATION, "max_submit_per_user"): ReasonKind.ASSOC_MAX_SUBMIT_JOB_LIMIT,
    (ASSOCIATION, "max_wall_s"): ReasonKind.ASSOC_MAX_WALL_DURATION_PER_JOB_LIMIT,
}

_Family = tuple[str, dict[str, str]]
"""A pattern for the TRES's own word, and the words of those that do not follow it."""

_QOS_RUN: _Family = ("QOSGrp{}RunMinutes", {"cpu": "QOSGrpCPURunMinutesLimit"})
_ASSOC_RUN: _Family = ("AssocGrp{}RunMinutes", {"cpu": "AssocGrpCPURunMinutesLimit"})
_FAMILIES: dict[tuple[str, str], _Family] = {
    (QOS, "grp_tres"): (
        "QOSGrp{}",
        {"cpu": "QOSGrpCpuLimit", "mem": "QOSGrpMemLimit", "node": "QOSGrpNodeLimit"},
    ),
    (QOS, "grp_tres_mins"): ("QOSGrp{}Minutes", {"cpu": "QOSGrpCPUMinutesLimit"}),
    (QOS, "grp_tres_run_mins"): _QOS_RUN,
    (QOS, "max_tres_run_mins_per_user"): _QOS_RUN,  # Slurm has no word of its own for these two
    (QOS, "max_tres_run_mins_per_account"): _QOS_RUN,
    (QOS, "max_tres_per_job"): (
        "QOSMax{}PerJob",
        {"cpu": "QOSMaxCpuPerJobLimit", "node": "QOSMaxNodePerJobLimit"},
    ),
    (QOS, "max_tres_per_node"): (
        "QOSMax{}PerNode",
        {"node": "QOSMaxUnknownPerNode", "license": "QOSMaxUnknownPerNode"},
    ),
    (QOS, "max_tres_per_user"): (
        "QOSMax{}PerUser",
        {"cpu": "QOSMaxCpuPerUserLimit", "node": "QOSMaxNodePerUserLimit"},
    ),
    (QOS, "max_tres_per_account"): ("Max{}PerAccount", {}),
    (QOS, "max_tres_mins_per_job"): (
        "QOSMax{}MinutesPerJob",
        {"cpu": "QOSMaxCpuMinutesPerJobLimit", "bb": "QOSMaxUnknownMinutesPerJob"},
    ),
    (QOS, "min_tres_per_job"): ("QOSMin{}", {"cpu": "QOSMinCpuNotSatisfied"}),
    (ASSOCIATION, "grp_tres"): (
        "AssocGrp{}",
        {"cpu": "AssocGrpCpuLimit", "mem": "AssocGrpMemLimit", "node": "AssocGrpNodeLimit"},
    ),
    (ASSOCIATION, "grp_tres_mins"): (
        "AssocGrp{}Minutes",
        {"cpu": "AssocGrpCPUMinutesLimit", "mem": "AssocGrpMemMinutes"},
    ),
    (ASSOCIATION, "grp_tres_run_mins"): (_ASSOC_RUN[0], {**_ASSOC_RUN[1], "mem": "AssocGrpMemRunMinutes"}),
    (ASSOCIATION, "max_tres_run_mins_per_user"): (_ASSOC_RUN[0], {**_ASSOC_RUN[1], "mem": "AssocGrpMemRunMinutes"}),
    (ASSOCIATION, "max_tres_per_user"): (
        "AssocGrp{}",
        {"cpu": "AssocGrpCpuLimit", "mem": "AssocGrpMemLimit", "node": "AssocGrpNodeLimit"},
    ),
    (ASSOCIATION, "max_tres_per_job"): (
        "AssocMax{}PerJob",
        {"cpu": "AssocMaxCpuPerJobLimit", "mem": "AssocMaxMemPerJob", "node": "AssocMaxNodePerJobLimit"},
    ),
    (ASSOCIATION, "max_tres_per_node"): (
        "AssocMax{}PerNode",
        {"mem": "AssocMaxMemPerNode", "node": "AssocMaxUnknownPerNode", "license": "AssocMaxUnknownPerNode"},
    ),
    (ASSOCIATION, "max_tres_mins_per_job"): (
        "AssocMax{}MinutesPerJob",
        {"cpu": "AssocMaxCpuMinutesPerJobLimit", "mem": "AssocMaxMemMinutesPerJob"},
    ),
}
_TRES = {
    "cpu": "Cpu",
    "mem": "Memory",
    "node": "Node",
    "billing": "Billing",
    "gres": "GRES",
    "license": "License",
    "bb": "BB",
    "energy": "Energy",
    "other": "Unknown",
}


def _words(family: _Family) -> dict[str, ReasonKind]:
    pattern, others = family
    return {tres: ReasonKind(others.get(tres) or pattern.format(word)) for tres, word in _TRES.items()}


_AMOUNTS = {key: _words(family) for key, family in _FAMILIES.items()}


def word_for(holder: str, field: str, tres: str = "") -> ReasonKind:
    """The reason of a limit: `holder` is QOS or ASSOCIATION, `field` a field of `Limits`."""
    if not tres:
        return COUNTS[holder, field]
    kind = tres.partition("/")[0]
    return _AMOUNTS[holder, field][kind if kind in _TRES else "other"]

"""What the queue's priorities are made of, as flat records: a line for each partition of each waiting job.

Called by the API for `sprio`. The numbers are those of the latest pass, as `squeue` shows them.
"""

from __future__ import annotations

from typing import Any

from bireme.core.model.jobs import Job
from bireme.core.priority.multifactor import Parts
from bireme.core.priority.order import is_ranked, parts_of
from bireme.core.state.state import State

PRIORITY_FIELDS = {
    "job_id": "its id; of an array, that of the array",
    "array_job_id": "the array it is of, or null",
    "array_task_id": "its task, or null",
    "partition": "in which of its partitions",
    "user_id": "whose it is",
    "user_name": "whose it is",
    "account": "its account",
    "qos_name": "its QOS",
    "priority": "the sum, cut to a whole number",
    "set_by_operator": "true: it is fixed, and nothing else counts",
    "site": "site factor",
    "age": "weighed age",
    "assoc": "weighed association factor",
    "fair_share": "weighed fair share",
    "job_size": "weighed size",
    "partition_factor": "weighed partition factor",
    "qos": "weighed QOS factor",
    "tres": "weighed factor of each TRES, by name",
    "nice": "what is taken off",
}


def priority_records(state: State, jobs: list[Job], now: float) -> list[dict[str, Any]]:
    return [
        _record(job, parts)
        for job in sorted(jobs, key=lambda each: each.id)
        if is_ranked(state, job)
        for parts in parts_of(state, job, now)
    ]


def _record(job: Job, parts: Parts) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "array_job_id": job.array_job_id,
        "array_task_id": job.task_id,
        "partition": parts.partition,
        "user_id": job.spec.owner.uid,
        "user_name": job.spec.owner.user,
        "account": job.spec.account,
        "qos_name": job.spec.qos,
        "priority": parts.priority,
        "set_by_operator": parts.set_by_operator,
        "site": parts.site,
        "age": parts.age,
        "assoc": parts.assoc,
        "fair_share": parts.fair_share,
        "job_size": parts.job_size,
        "partition_factor": parts.partition_factor,
        "qos": parts.qos,
        "tres": dict(parts.tres),
        "nice": parts.nice,
    }


def weights_record(state: State) -> dict[str, Any]:
    """What each factor is weighed by; `tres` by name and as it was written."""
    settings = state.config.settings.priority
    return {
        "site": 1,
        "age": settings.weight_age,
        "assoc": settings.weight_assoc,
        "fair_share": settings.weight_fair_share,
        "job_size": settings.weight_job_size,
        "partition_factor": settings.weight_partition,
        "qos": settings.weight_qos,
        "tres": dict(settings.weight_tres),
        "tres_text": state.config.raw.get("PriorityWeightTRES", ""),
    }

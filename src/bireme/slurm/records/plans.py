"""What a pass decided, as a record: for `bireme plan`, and to be compared with what was decided another time."""

from __future__ import annotations

from typing import Any

from bireme.core.model.resources import NodeShare
from bireme.core.plan.decisions import Plan, Preempt, Resume, Start, StartGang
from bireme.slurm.hostlist import compress


def plan_record(passed: Plan) -> dict[str, Any]:
    """`starts`, `preempts`, `resumes` and `waits`, as they were decided; by job id where order says nothing."""
    starts: list[Start] = []
    preempts: list[dict[str, Any]] = []
    resumes: list[int] = []
    for decision in passed.starts:
        if isinstance(decision, Preempt):
            victims = [victim.job_id for victim in decision.victims]
            preempts.append({"job_id": decision.for_job, "victims": victims})
        elif isinstance(decision, Resume):
            resumes.append(decision.job_id)
        else:
            starts.extend(decision.starts if isinstance(decision, StartGang) else (decision,))
    return {
        "starts": [_start(start) for start in starts],
        "preempts": preempts,
        **({"resumes": resumes} if resumes else {}),
        "waits": [
            {
                "job_id": job_id,
                "reasons": [reason.kind.value for reason in verdict.reasons],
                "expected_start": verdict.expected_start,
            }
            for job_id, verdict in sorted(passed.verdicts.items())
        ],
    }


def _start(start: Start) -> dict[str, Any]:
    record: dict[str, Any] = {
        "job_id": start.job_id,
        "partition": start.partition,
        "nodes": compress([share.node for share in start.shares]),
        "cpus": sum(share.cpus for share in start.shares),
        "gres": _gres(start.shares),
    }
    return record if start.task_id is None else {**record, "task_id": start.task_id}


def _gres(shares: tuple[NodeShare, ...]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for share in shares:
        for gres in share.gres:
            name = f"{gres.name}:{gres.type}" if gres.type else gres.name
            totals[name] = totals.get(name, 0) + gres.count
    return totals

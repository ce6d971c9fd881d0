"""What answers about findings and healings have in common: where it is, and the evidence that the caller may read.

Evidence may name other users' processes: where jobs are private it is quoted to operators, and to the owner of the job
that it is about. Where a job's programs stand (stacks name its code) is for its owner and for operators everywhere.
Invariant: whether evidence was left out is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bireme.api.routing import Context
from bireme.core.model.finding.findings import Place, Quote
from bireme.core.model.refusals import Caller

_OF_CODE = "trace"


def placed(api: Context, place: Place) -> dict[str, Any]:
    job = api.cluster.state.jobs.get(place.job_id)
    return {
        "place": place.key,
        "node": place.node,
        "gpu": place.gpu,
        "uuid": place.uuid,
        "job_id": place.job_id or None,
        "job": job.label if job is not None else None,
        "generation": place.generation or None,
        "rank": place.rank,
    }


def quoted(api: Context, caller: Caller, place: Place, quotes: Sequence[Quote]) -> dict[str, Any]:
    job = api.cluster.state.jobs.get(place.job_id)
    whole = caller.may_change(job.spec.owner.uid) if job is not None else caller.admin
    some = whole or not api.viewer(caller).hidden("jobs")
    shown = [each for each in quotes if whole or (some and each.source != _OF_CODE)]
    return {"evidence": [asdict(each) for each in shown], "evidence_hidden": len(shown) < len(quotes)}

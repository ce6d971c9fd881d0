"""Whom a finding concerns: the job that it is about, and the jobs that hold the GPU or are on the node.

Asked by the API for `bireme why`, timelines and who may see what. Pure.
Invariant: what is wrong with a GPU concerns only jobs that have that GPU, whole or in part.
"""

from __future__ import annotations

from collections.abc import Iterable

from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.model.finding.findings import Finding
from bireme.core.model.jobs import Job
from bireme.core.state.state import State


def concerns(finding: Finding, job: Job) -> bool:
    """Whether it is about this start of the job, or about where it is."""
    place = finding.trouble.place
    if place.job_id:
        return place.job_id == job.id and place.generation == job.generation
    if job.allocation is None:
        return False
    shares = [share for share in job.allocation.shares if share.node == place.node]
    if place.gpu is None:
        return bool(shares)
    return any(place.gpu in share.gpus_seen() for share in shares)


def concerning(state: State, job: Job) -> list[Finding]:
    """Those that stand, gravest first."""
    return gravest_first(each for each in FINDINGS.of(state).values() if concerns(each, job))


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda each: (-each.trouble.gravity.rank, each.id))

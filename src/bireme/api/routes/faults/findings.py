"""Findings: what is wrong with the pool or with a job, dismissed and called mended by operators.

Who may know of a finding: of one about a job, who may know of the job; of one about a node or a GPU, who may see nodes
(as the reasons in `sinfo -R`), and whoever has a job there. Who may read its evidence: `quoting`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.privacy import Viewer
from bireme.api.problems import ProblemError, answer
from bireme.api.routes.faults.quoting import placed, quoted
from bireme.api.routing import Context, Routes, is_id
from bireme.core.faults.findings import requests
from bireme.core.faults.findings.concerning import concerns, gravest_first
from bireme.core.faults.findings.damping import least_s
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.model.finding.findings import Finding, FindingLife
from bireme.core.model.jobs import Job
from bireme.core.model.refusals import Caller, Refusal

routes = Routes("findings")
LONGEST_WHY = 400


class Reader:
    """What one caller may know of findings."""

    def __init__(self, api: Context, caller: Caller) -> None:
        self._api, self._caller, self._state = api, caller, api.cluster.state
        self._viewer: Viewer = api.viewer(caller)
        self._by_node: dict[str, list[Job]] | None = None

    def all(self) -> list[Finding]:
        """Those that stand and may be known of, gravest first."""
        return gravest_first(each for each in FINDINGS.of(self._state).values() if self.sees(each))

    def sees(self, finding: Finding) -> bool:
        job = self._about(finding)
        if job is not None:
            return self._api.sees(self._caller, job.spec.owner.uid, job.spec.account)
        if not self._viewer.hidden("nodes"):
            return True
        return any(job.spec.owner.uid == self._caller.uid for job in self._concerned(finding))

    def record(self, finding: Finding) -> dict[str, Any]:
        trouble, place = finding.trouble, finding.trouble.place
        return {
            "id": finding.id,
            "detector": trouble.detector,
            "gravity": trouble.gravity.value,
            "state": finding.phase.value,
            "title": trouble.title,
            "cause": trouble.cause,
            "remedy": trouble.remedy,
            "who": trouble.who,
            "lasts": trouble.lasts,
            **placed(self._api, place),
            "since": trouble.since,
            "opened_at": finding.opened_at,
            "changed_at": finding.changed_at,
            "times": finding.times,
            "stands_until": finding.opened_at + least_s(finding.times),
            "dismissed_by": finding.dismissed_by,
            "why_dismissed": finding.why_dismissed,
            **quoted(self._api, self._caller, place, trouble.quotes),
            "jobs": [job.label for job in self._on(finding)],
        }

    def _about(self, finding: Finding) -> Job | None:
        return self._state.jobs.get(finding.trouble.place.job_id)

    def _on(self, finding: Finding) -> Sequence[Job]:
        """Jobs that it concerns now, those that the caller may know of."""
        return [
            job
            for job in self._concerned(finding)
            if self._api.sees(self._caller, job.spec.owner.uid, job.spec.account)
        ]

    def _concerned(self, finding: Finding) -> list[Job]:
        about = self._about(finding)
        if about is not None:
            return [about]
        if self._by_node is None:
            self._by_node = {}
            for job in self._state.holding.values():
                for node in job.allocation.node_names if job.allocation is not None else ():
                    self._by_node.setdefault(node, []).append(job)
        return [job for job in self._by_node.get(finding.trouble.place.node, ()) if concerns(finding, job)]


def counted(api: Context, request: Request) -> dict[str, int]:
    """How many stand undismissed, by their gravity: what `bireme status` says in a line."""
    found = Reader(api, api.caller(request)).all()
    return dict(Counter(each.trouble.gravity.value for each in found if each.phase is FindingLife.OPEN))


@routes.get("/v1/findings")
async def list_findings(api: Context, request: Request) -> Response:
    """What is wrong with GPUs, nodes and jobs, gravest first, as far as the caller may know.

    `gravity`: `broken` (work there fails), `degraded` (it costs speed), `note`. `evidence` quotes what was read or
    measured: text, source, time, node; `evidence_hidden`: there is some, and jobs are private here.
    """
    reader = Reader(api, api.caller(request))
    return answer({"findings": [reader.record(each) for each in reader.all()], "now": api.now()})


@routes.get("/v1/findings/{finding}")
async def show_finding(api: Context, request: Request) -> Response:
    """One finding, by its number, with its evidence."""
    reader = Reader(api, api.caller(request))
    found = _found(api, request)
    if not reader.sees(found):
        raise requests.no_finding(found.id)
    return answer({"finding": reader.record(found), "now": api.now()})


@routes.post("/v1/findings/{finding}/dismiss", body="`why`: a sentence, which is asked for.")
async def dismiss_finding(api: Context, request: Request) -> Response:
    """Say that a finding is nothing: it stays silent until it is gone, or graver. For operators."""
    number, why = _number(request), await _why(api, request)
    if not why:
        raise ProblemError(400, "why: say in a sentence why it is nothing")
    caller = api.caller(request)
    await api.cluster.do(api.cause(request), lambda state, _: requests.dismiss(state, caller, number, why), own=True)
    return await show_finding(api, request)


@routes.post("/v1/findings/{finding}/mended", body="`why`: what was done, which may be left out.")
async def close_finding(api: Context, request: Request) -> Response:
    """Say that a finding is over, as after a repair. Where it is not, its detector finds it again. For operators."""
    number, why, caller = _number(request), await _why(api, request), api.caller(request)
    await api.cluster.do(api.cause(request), lambda state, _: requests.mended(state, caller, number, why), own=True)
    return answer({"closed": number, "now": api.now()})


def _found(api: Context, request: Request) -> Finding:
    return requests.found(api.cluster.state, _number(request))


def _number(request: Request) -> int:
    text = request.path_params["finding"]
    if not is_id(text):
        raise Refusal(requests.no_finding(0).why, f"{text[:80]!r} is not the number of a finding: `bireme findings`")
    return int(text)


async def _why(api: Context, request: Request) -> str:
    why = (await api.body(request)).get("why", "")
    if not isinstance(why, str):
        raise ProblemError(400, "why: is not a text")
    if len(why) > LONGEST_WHY:
        raise ProblemError(400, f"why: at most {LONGEST_WHY} characters")
    return why.strip()

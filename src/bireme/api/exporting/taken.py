"""What a page is made of, taken from the state on the loop: references and copies of dicts, no look at single jobs.

Made by `exporter`; `writing` reads it in a thread. Jobs go on changing meanwhile: a page of a busy second may have a
job in two counts or in none. What is read of a job (its phase, its spec) is replaced as a whole, never changed.
Invariant: taking costs the loop a copy of the dicts of jobs, and what services there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bireme.api.cluster import Cluster, Service, Work
from bireme.api.privacy import Viewer
from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.findings.shelves import FINDINGS, opened_so_far
from bireme.core.faults.healings.shelves import HEALINGS, proposed_so_far
from bireme.core.model.finding.findings import Finding
from bireme.core.model.healing.fences import Fence
from bireme.core.model.healing.healings import Healing
from bireme.core.model.jobs import Job
from bireme.core.model.nodes import Node
from bireme.core.services.standing import standing
from bireme.core.state.state import State, Verdict
from bireme.core.telemetry.exported import Measured
from bireme.ports import NewestRound


@dataclass(frozen=True, slots=True)
class ServiceTaken:
    """How a service stands."""

    name: str
    user: str
    uid: int
    account: str
    wanted: int
    ready: int
    by_stand: Mapping[str, int]
    """Its replicas by where their jobs are: `waiting`, `running` ..."""
    crashes: int
    """Of late."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What was counted since this daemon started."""

    started: int
    by_state: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Taken:
    """All that one page is made of."""

    now: float
    cluster: str
    engine: str
    version: str
    up_since: float
    problems: Mapping[str, bool]
    """By what they are about: `journal`, `engine`, `telemetry`, `router`."""
    pending: tuple[Job, ...]
    verdicts: Mapping[int, Verdict]
    holding: tuple[Job, ...]
    nodes: tuple[Node, ...]
    services: tuple[ServiceTaken, ...]
    submitted: int
    events: int
    planned_at: float | None
    ended: Ended
    work: Work | None
    measured: Measured
    rounds: tuple[NewestRound, ...]
    findings: tuple[Finding, ...]
    findings_opened: int
    """Since the journal began."""
    fences: tuple[Fence, ...]
    healings: tuple[Healing, ...]
    healings_proposed: int
    """Since the journal began."""
    router_page: str
    viewer: Viewer


def take(cluster: Cluster, service: Service, viewer: Viewer, ended: Ended, measured: Measured, router: str) -> Taken:
    """On the loop."""
    state, telemetry = cluster.state, service.telemetry()
    return Taken(
        now=cluster.clock.now(),
        cluster=state.config.name,
        engine=cluster.engine.name,
        version=service.version,
        up_since=service.up_since,
        problems={
            "journal": bool(cluster.unwritable),
            "engine": bool(cluster.engine.problem),
            "telemetry": telemetry is not None and bool(telemetry.problem),
            "router": bool(service.router().get("problem")),
        },
        pending=tuple(state.pending.values()),
        verdicts=dict(state.verdicts),
        holding=tuple(state.holding.values()),
        nodes=tuple(state.nodes.values()),
        services=_services(state),
        submitted=state.submissions,
        events=state.seq,
        planned_at=state.planned_at,
        ended=ended,
        work=service.work(),
        measured=measured,
        rounds=tuple(telemetry.newest_rounds()) if telemetry is not None else (),
        findings=tuple(FINDINGS.of(state).values()),
        findings_opened=opened_so_far(state),
        fences=tuple(FENCES.of(state).values()),
        healings=tuple(HEALINGS.of(state).values()),
        healings_proposed=proposed_so_far(state),
        router_page=router,
        viewer=viewer,
    )


def _services(state: State) -> tuple[ServiceTaken, ...]:
    found = []
    for service in state.services.values():
        seen = standing(state, service)
        by_stand: dict[str, int] = {}
        for each in seen:
            by_stand[each.stand.value] = by_stand.get(each.stand.value, 0) + 1
        found.append(
            ServiceTaken(
                name=service.name,
                user=service.owner.user,
                uid=service.owner.uid,
                account=service.target.spec.job.account,
                wanted=service.wanted,
                ready=sum(each.ready for each in seen),
                by_stand=by_stand,
                crashes=len(service.crashes),
            )
        )
    return tuple(found)

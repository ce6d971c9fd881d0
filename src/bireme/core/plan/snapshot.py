"""What a pass reads: the state as it is, the policy, and the time.

Every part of a pass (`fitting`, `limiting`, `slots`, `work`) has the one `Snapshot` of that pass and asks it what a job
asks for and how long it would hold it. Invariant: a pass changes nothing that it reads here. What it works out is its
own, or lies in the outlook for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from bireme.core.jobs.due import gone_by, time_limit_s
from bireme.core.jobs.placing import demand_of, unasked_nodes
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Job, ResourceRequest
from bireme.core.model.policy import Policy
from bireme.core.model.resources import Allocation
from bireme.core.placement.demand import Demand
from bireme.core.placement.search import Fit
from bireme.core.state.state import State


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state, the policy and the time of one pass."""

    state: State
    policy: Policy
    now: float

    def asked(self, job: Job) -> ResourceRequest:
        """Its request, without --switches once it has waited long enough for them, and without nodes that no replica of
        a service is put on."""
        request = job.spec.resources
        if unasked := unasked_nodes(self.state, job):
            request = replace(request, exclude=(*request.exclude, *unasked))
        if request.switches is None:
            return request
        most_s = self.policy.switches_wait_most_s
        patience_s = most_s if request.switches_wait_s is None else min(most_s, request.switches_wait_s)
        waited_s = self.now - (job.eligible_at or job.submitted_at)
        return request if waited_s < patience_s else replace(request, switches=None)

    def demand(self, job: Job, partition: PartitionConfig) -> Demand:
        return demand_of(self.state, job, partition)

    def duration_s(self, job: Job) -> float:
        limit = time_limit_s(self.state, job)
        return inf if limit is None else float(limit)

    def gone_by(self, job: Job, begin: float) -> float:
        """When it has left its place at the latest, if it begins then."""
        return gone_by(self.state, job, begin)

    def allocation(self, job: Job, partition: PartitionConfig, fit: Fit) -> Allocation:
        """What it would be given there; the start gets its generation when it is accepted."""
        return Allocation(job.id, 0, partition.name, fit.shares, fit.whole_nodes)

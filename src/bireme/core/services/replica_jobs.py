"""The job that a replica is: its specification, its port, and the commands about it for an engine with its own queue.

Called by the handlers and by whoever turns decisions into events. Invariant: no two replicas have one port.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from bireme.core.model import commands as c
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import JobSpec
from bireme.core.model.refusals import Caller
from bireme.core.model.serving.probes import ReplicaOf
from bireme.core.model.serving.services import Replica, Service, ServiceSpec
from bireme.core.state.state import State


def job_of(state: State, service: Service, revision: int, number: int, port: int) -> JobSpec:
    """What is submitted for a replica: what the revision asks for, and what is this one's own."""
    spec = service.revisions[revision].spec
    of = ReplicaOf(service.name, revision, number, port, spec.probes)
    comment = spec.job.comment or f"replica {number} of service {service.name}, revision {revision}"
    return _staying(state, spec).revised(
        name=service.name, owner=service.owner, requeue=False, comment=comment, replica=of
    )


def _staying(state: State, spec: ServiceSpec) -> JobSpec:
    """Without a time limit of its own it stays as long as its partitions let it, whatever they give by default."""
    if spec.job.time_limit_given or spec.job.time_limit_s is not None:
        return spec.job
    limits = [partition.max_time_s for partition in _partitions(state, spec.job)]
    given = [limit for limit in limits if limit is not None]
    return spec.job.revised(time_limit_given=True, time_limit_s=min(given, default=None))


def _partitions(state: State, spec: JobSpec) -> Iterator[PartitionConfig]:
    for partition in state.partitions.values():
        if partition.name in spec.partitions or (not spec.partitions and partition.default):
            yield partition


def owner_of(service: Service) -> Caller:
    """Who submits a replica. What only operators may ask for was judged when the revision was made."""
    owner = service.owner
    return Caller(
        uid=owner.uid,
        gid=owner.gid,
        user=owner.user,
        admin=True,
        group=owner.group,
        groups=owner.groups,
        group_names=service.group_names,
    )


def free_port(state: State) -> int | None:
    """The next port that no replica has, anywhere: several nodes may be one host. None: all are in use."""
    first, last = state.config.settings.service_ports
    begin = state.next_port if first <= state.next_port <= last else first
    turn = chain(range(begin, last + 1), range(first, begin))
    return next((port for port in turn if port not in state.serving.ports), None)


def submit_command(state: State, service: Service, replica: Replica) -> c.SubmitReplica:
    spec = job_of(state, service, replica.revision, replica.number, replica.port)
    key = f"{service.name}/{replica.number}/{replica.made_at}"
    of_services = "" if spec.qos else state.config.settings.service_qos
    return c.SubmitReplica(service.name, replica.number, spec, key, of_services)


def end_command(service: Service, replica: Replica) -> c.EndReplica:
    return c.EndReplica(service.name, replica.number, replica.job_id, service.owner)

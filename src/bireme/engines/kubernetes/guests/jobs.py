"""Others' pods as a job of Bireme's queue: one component of a gang, its pods as tasks. Pure.

`scheduler.py` asks for it, once a gang is complete. What a pod needs is `pods`, what makes a gang `gangs`.
Invariant: the job names its pods and its try, so that a daemon that comes back knows them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bireme.core.model.jobs import JobKind, JobSpec, Owner, Workload
from bireme.engines.kubernetes.guests.gangs import Gang
from bireme.engines.kubernetes.guests.pods import PARTITION, TIME_LIMIT, Needs

Object = Mapping[str, Any]

_NOBODY = 65534


def job_of(
    gang: Gang,
    needs: Needs,
    members: Sequence[Object],
    offset: int | None,
    *,
    key: str,
    account: str,
    qos: str,
    gpus_a_node: int,
) -> JobSpec:
    """`members`: pods of the same needs. `offset`: which component, where the gang has several. `key`: of this try to
    submit it (`submission_key`)."""
    first, namespace = members[0], members[0]["metadata"]["namespace"]
    annotations = first["metadata"].get("annotations") or {}
    labels = first["metadata"].get("labels") or {}
    limit = annotations.get(TIME_LIMIT) or first["spec"].get("activeDeadlineSeconds")
    partition = annotations.get(PARTITION) or labels.get(PARTITION)
    names = tuple(pod["metadata"]["name"] for pod in members)
    uids = tuple(pod["metadata"]["uid"] for pod in members)
    kind = gang.group.kind if gang.group else "Pod"
    return JobSpec(
        kind=JobKind.PODS,
        name=gang.group.name if gang.group else names[0],
        owner=Owner(uid=_NOBODY, gid=_NOBODY, user=namespace, group=namespace),
        account=account,
        qos=qos,
        partitions=(partition,) if partition else (),
        resources=needs.request(len(members), gpus_a_node),
        time_limit_s=int(limit) if limit else None,
        time_limit_given=True,
        het_component=offset,
        site_factor=int(first["spec"].get("priority", 0)),
        requeue=False,
        workload=Workload(key, namespace, names, kind, uids),
    )

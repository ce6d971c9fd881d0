"""Jobs of others' pods that hold a place: which pods they are, on which nodes, and how many of them are left.

`scheduler.py` owns it, `binding` fills the places and `eviction` empties them. It asks nobody: it is told what
became of each pod, and reports the end of the job when the last one has ended.
Invariant: a pod belongs to the job that was placed with it last; the end of a job is not told while its pods are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bireme.core.model import observations as o
from bireme.core.model.jobs import Job, ResourceRequest
from bireme.core.model.resources import Allocation, ExitStatus
from bireme.engines.kubernetes.guests import words
from bireme.engines.kubernetes.nodes import Amounts
from bireme.ports import Report

Object = Mapping[str, Any]
Key = tuple[int, int]
"""A start of a job: its id and generation."""


@dataclass(slots=True)
class Place:
    """What a job of guests holds."""

    job_id: int
    generation: int
    namespace: str
    nodes: dict[str, str]
    """Pod name -> node."""
    left: set[str]
    """Names of pods that have not ended."""
    each: Amounts
    """What it holds for each of them, GPUs aside."""
    gang: str = ""
    """Key of the gang that its pods are of."""
    asked: ResourceRequest = field(default_factory=ResourceRequest)
    uids: dict[str, str] = field(default_factory=dict)
    """Pod name -> uid, where it is known."""
    worst: ExitStatus = field(default_factory=ExitStatus)
    leaving: bool = False
    binding: bool = True

    @property
    def key(self) -> Key:
        return self.job_id, self.generation

    def full_name(self, name: str) -> str:
        return f"{self.namespace}/{name}"

    def means(self, pod: Object) -> bool:
        """Whether this is the pod that has a place here, and not a later one of the same name."""
        name = pod["metadata"]["name"]
        return name in self.nodes and self.uids.get(name, pod["metadata"]["uid"]) == pod["metadata"]["uid"]

    @property
    def vacant(self) -> list[str]:
        """Names of pods that have ended while others of the job go on: what it holds for them, nobody uses."""
        goes_on = bool(self.left) and not self.leaving and not self.binding
        return [name for name in self.nodes if name not in self.left] if goes_on else []


class Places:
    def __init__(self, report: Report, now: Callable[[], float]) -> None:
        self._report, self._now = report, now
        self._places: dict[Key, Place] = {}
        self._job_of: dict[str, Key] = {}
        """namespace/name of a placed pod -> its job."""

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def __getitem__(self, key: Key) -> Place:
        return self._places[key]

    def all(self) -> Iterable[Place]:
        return list(self._places.values())

    def of_pod(self, full_name: str) -> Place | None:
        return self._places.get(self._job_of.get(full_name, (0, 0)))

    def of_gang(self, gang: str) -> list[Place]:
        return [place for place in self._places.values() if place.gang == gang]

    def held_for(self, pod: Object) -> Amounts | None:
        """What a job holds for this pod; None: nothing, maybe since one of its name has ended and this is another."""
        name = pod["metadata"]["name"]
        place = self.of_pod(f"{pod['metadata']['namespace']}/{name}")
        return place.each if place is not None and name in place.left and place.means(pod) else None

    def on(self, node: str) -> list[Key]:
        return [key for key, place in self._places.items() if node in place.nodes.values()]

    def hold(self, job: Job, allocation: Allocation) -> Place:
        """An order that is given again finds what it made."""
        found = self._places.get((job.id, allocation.generation))
        if found is not None:
            return found
        workload = job.spec.workload
        assert workload is not None
        nodes = dict(zip(workload.pods, (share.node for share in allocation.shares for _ in range(share.tasks))))
        asked = job.spec.resources
        cpus = asked.cpus_per_task or 1
        each = Amounts(1000 * cpus, cpus * (asked.memory_per_cpu_mib or 0))
        place = Place(
            job.id,
            allocation.generation,
            workload.namespace,
            nodes,
            set(workload.pods),
            each,
            workload.gang,
            asked,
            dict(zip(workload.pods, workload.uids)),
        )
        self._places[place.key] = place
        for name in workload.pods:
            self._job_of[place.full_name(name)] = place.key
        return place

    def forget(self, key: Key) -> bool:
        """Whether there was such a job."""
        place = self._places.pop(key, None)
        if place is None:
            return False
        for name in map(place.full_name, place.nodes):
            if self._job_of.get(name) == key:  # a later pod of the same name may have a place by now
                del self._job_of[name]
        return True

    def take_over(self, place: Place, vacant: str, pod: Object) -> str:
        """Gives what was held for a pod that has ended to the one that was made in its stead; the node it is on."""
        assert vacant not in place.left, f"pod {vacant} of job {place.job_id} has not ended"
        name, node = pod["metadata"]["name"], place.nodes.pop(vacant)
        place.uids.pop(vacant, None)
        if self._job_of.get(place.full_name(vacant)) == place.key:
            del self._job_of[place.full_name(vacant)]
        place.nodes[name], place.uids[name] = node, pod["metadata"]["uid"]
        place.left.add(name)
        self._job_of[place.full_name(name)] = place.key
        return node

    def pod_over(self, place: Place, name: str, pod: Object | None) -> None:
        """`pod`: the last word on it; None: nothing is known of how it ended."""
        if name not in place.left:
            return
        place.left.discard(name)
        status = words.exit_status(pod)
        if not status.ok and place.worst.ok:
            place.worst = status
        if not place.left and not place.binding:
            self.over(place)

    def over(self, place: Place) -> None:
        """Reports the end of a place whose last pod has ended: as the one that was asked for, or as its own."""
        at = self._now()
        if place.leaving:
            self._report([o.JobCleared(*place.key, at)])
        else:
            self._report([o.BatchFinished(*place.key, place.worst, at, cleared=True)])

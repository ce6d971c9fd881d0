"""Jobs of others' pods that hold a place: which pod is whose, and when the job is over."""

from __future__ import annotations

from typing import Any

from bireme.core.model import observations as o
from bireme.core.model.jobs import Job, JobKind, JobSpec, Owner, Pending, ResourceRequest, Workload
from bireme.core.model.resources import Allocation, ExitStatus, NodeShare
from bireme.engines.kubernetes.guest_places import Place, Places

NOW = 1_000.0


def job(job_id: int, *pods: str) -> Job:
    return Job(
        id=job_id,
        spec=JobSpec(
            kind=JobKind.PODS,
            name="pods",
            owner=Owner(uid=1, gid=1, user="team", group="team"),
            resources=ResourceRequest(cpus_per_task=2, memory_per_cpu_mib=512),
            workload=Workload(f"key#{job_id}", "team", pods, "Pod"),
        ),
        submitted_at=NOW,
        phase=Pending(NOW),
    )


def failed(code: int) -> dict[str, Any]:
    ended = {"state": {"terminated": {"exitCode": code}}}
    return {"status": {"phase": "Failed", "containerStatuses": [ended]}}


def held(places: Places, job_id: int, *pods: str) -> Place:
    shares = tuple(NodeShare(f"n{number}", 2, 1024, tasks=1) for number, _ in enumerate(pods, 1))
    place = places.hold(job(job_id, *pods), Allocation(job_id, 1, "main", shares))
    place.binding = False
    return place


def test_a_job_is_over_with_its_last_pod_and_ends_as_the_first_that_failed() -> None:
    told: list[o.Observation] = []
    places = Places(told.extend, lambda: NOW)
    place = held(places, 7, "a", "b", "c")
    assert place.nodes == {"a": "n1", "b": "n2", "c": "n3"}
    places.pod_over(place, "a", failed(3))
    places.pod_over(place, "b", failed(4))
    places.pod_over(place, "b", failed(4))
    assert told == []
    places.pod_over(place, "c", None)
    assert told == [o.BatchFinished(7, 1, ExitStatus(code=3), NOW, cleared=True)]


def test_what_was_asked_to_end_is_told_as_cleared() -> None:
    told: list[o.Observation] = []
    places = Places(told.extend, lambda: NOW)
    place = held(places, 7, "a")
    place.leaving = True
    places.pod_over(place, "a", failed(143))
    assert told == [o.JobCleared(7, 1, NOW)]


def test_the_next_pod_of_a_name_is_another_one() -> None:
    """A StatefulSet gives its pods their names again; and somebody else may use a name as soon as it is free."""
    places = Places(lambda _: None, lambda: NOW)
    first = held(places, 7, "web-0")
    assert places.held_for("team", "web-0") == first.each
    assert places.held_for("others", "web-0") is None
    places.pod_over(first, "web-0", None)
    assert places.held_for("team", "web-0") is None
    second = held(places, 8, "web-0")
    assert places.forget(first.key)
    assert not places.forget(first.key)
    assert places.of_pod("team/web-0") is second
    assert places.held_for("team", "web-0") == second.each

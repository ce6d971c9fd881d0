"""Jobs of others' pods that hold a place: which pod is whose, and when the job is over."""

from __future__ import annotations

from typing import Any

from bireme.core.model import observations as o
from bireme.core.model.jobs import Job, JobKind, JobSpec, Owner, Pending, ResourceRequest, Workload
from bireme.core.model.resources import Allocation, ExitStatus, NodeShare
from bireme.engines.kubernetes.guests.places import Place, Places

NOW = 1_000.0


def job(job_id: int, *pods: str, uids: tuple[str, ...] | None = None) -> Job:
    """Pods have their names as uids, unless told otherwise."""
    return Job(
        id=job_id,
        spec=JobSpec(
            kind=JobKind.PODS,
            name="pods",
            owner=Owner(uid=1, gid=1, user="team", group="team"),
            resources=ResourceRequest(cpus_per_task=2, memory_per_cpu_mib=512),
            workload=Workload(f"key#{job_id}", "team", pods, "Pod", uids if uids is not None else pods),
        ),
        submitted_at=NOW,
        phase=Pending(NOW),
    )


def failed(code: int) -> dict[str, Any]:
    ended = {"state": {"terminated": {"exitCode": code}}}
    return {"status": {"phase": "Failed", "containerStatuses": [ended]}}


def seen(namespace: str, name: str, uid: str = "") -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name, "uid": uid or name}}


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
    assert places.held_for(seen("team", "web-0")) == first.each
    assert places.held_for(seen("others", "web-0")) is None
    places.pod_over(first, "web-0", None)
    assert places.held_for(seen("team", "web-0")) is None
    second = held(places, 8, "web-0")
    assert places.forget(first.key)
    assert not places.forget(first.key)
    assert places.of_pod("team/web-0") is second
    assert places.held_for(seen("team", "web-0")) == second.each


def test_a_pod_of_the_same_name_with_another_uid_is_not_the_one_that_has_a_place() -> None:
    places = Places(lambda _: None, lambda: NOW)
    place = held(places, 7, "web-0")
    assert place.means(seen("team", "web-0"))
    assert not place.means(seen("team", "web-0", "later"))
    assert places.held_for(seen("team", "web-0", "later")) is None
    old = places.hold(job(8, "db-0", uids=()), Allocation(8, 1, "main", (NodeShare("n1", 2, 1024, tasks=1),)))
    assert old.means(seen("team", "db-0", "whichever")), "journals of before told names alone"


def test_a_pod_takes_over_what_is_held_for_one_that_has_ended() -> None:
    told: list[o.Observation] = []
    places = Places(told.extend, lambda: NOW)
    place = held(places, 7, "a", "b")
    assert place.vacant == []
    places.pod_over(place, "a", failed(1))
    assert place.vacant == ["a"]
    assert places.take_over(place, "a", seen("team", "a2")) == "n1"
    assert place.vacant == []
    assert places.held_for(seen("team", "a2")) == place.each
    assert places.of_pod("team/a") is None
    places.pod_over(place, "b", None)
    assert told == [], "the one that came later goes on"
    places.pod_over(place, "a2", None)
    assert [type(one) for one in told] == [o.BatchFinished]


def test_nothing_is_vacant_in_a_job_that_ends() -> None:
    places = Places(lambda _: None, lambda: NOW)
    place = held(places, 7, "a", "b")
    places.pod_over(place, "a", failed(1))
    place.leaving = True
    assert place.vacant == []

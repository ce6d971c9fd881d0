"""Disruption budgets: of the jobs that are not kept, all could be evicted together."""

from __future__ import annotations

from typing import Any

from bireme.engines.kubernetes.guests.budgets import keepers


def pod(name: str, app: str = "web", born: int = 0, namespace: str = "team") -> dict[str, Any]:
    created = f"2026-01-01T00:00:{born:02}Z"
    return {"metadata": {"name": name, "namespace": namespace, "labels": {"app": app}, "creationTimestamp": created}}


def budget(allowed: int, app: str = "web", name: str = "kept") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed},
    }


def test_a_budget_without_room_keeps_all_that_it_covers() -> None:
    jobs = {1: [pod("a")], 2: [pod("b", app="batch")], 3: [pod("c", namespace="other")]}
    assert keepers([budget(0)], jobs) == {1: "disruption budget kept"}


def test_as_many_as_a_budget_allows_may_go_and_the_youngest_are_chosen() -> None:
    jobs = {1: [pod("a", born=1)], 2: [pod("b", born=2)], 3: [pod("c", born=3)]}
    assert set(keepers([budget(1)], jobs)) == {1, 2}
    assert set(keepers([budget(3)], jobs)) == set()


def test_a_gang_goes_whole_or_stays() -> None:
    jobs = {1: [pod("a"), pod("b")], 2: [pod("c", born=9)]}
    assert set(keepers([budget(2)], jobs)) == {1}
    assert set(keepers([budget(3)], jobs)) == set()


def test_a_pod_under_two_budgets_needs_both() -> None:
    jobs = {1: [pod("a")]}
    assert keepers([budget(1), budget(0, name="strict")], jobs) == {1: "disruption budget strict"}

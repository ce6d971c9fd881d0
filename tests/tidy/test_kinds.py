"""Every kind takes a stand on every event, and whoever else follows events does too: nothing is meant by silence."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from bireme.core.kinds.kind import Kind
from bireme.core.lifecycle.registry import KINDS, SHELVES
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.plan import stands
from bireme.core.priority import following
from bireme.core.state.state import State

SOURCE = Path(__file__).parents[2] / "src" / "bireme"
EVENTS = frozenset(get_args(e.Event))
OF_ALL_KINDS = ("runtime/kernel.py", "core/lifecycle/apply.py", "core/lifecycle/due.py", "core/lifecycle/intake.py")
"""What knows the shape of a kind, and no kind."""
ROOMS = tuple(
    f"bireme.core.{room}"
    for room in (
        "jobs",
        "steps",
        "nodes",
        "reservations",
        "accounts",
        "cluster",
        "services",
        "idle",
        "faults",
    )
)


def names(events: object) -> list[str]:
    return sorted(event.__name__ for event in events)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_takes_a_stand_on_every_event(kind: Kind) -> None:
    governed = {event for _, event in kind.life.rows}
    concerned = governed | set(kind.applies) | set(kind.follows)
    silent = EVENTS - concerned - kind.passes_over
    assert not silent, f"{kind.name} says nothing of {names(silent)}: apply, govern, follow or pass over"
    both = concerned & kind.passes_over
    assert not both, f"{kind.name} passes over what it concerns itself with: {names(both)}"
    assert concerned | kind.passes_over <= EVENTS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_speaks_of_events_that_concern_it_only(kind: Kind) -> None:
    """What else it says of an event, it says of one that it has not passed over."""
    also = {*kind.entails, *kind.chronicles, *kind.chronicles_after, *kind.closes, *kind.reopens}
    assert not also & kind.passes_over, names(also & kind.passes_over)


def test_every_event_and_every_observation_has_one_kind() -> None:
    applied = Counter(event for kind in KINDS for event in kind.applies)
    assert applied == Counter(EVENTS)
    interpreted = Counter(seen for kind in KINDS for seen in kind.interprets)
    assert interpreted == Counter(get_args(o.Observation))


def test_shelves_have_names_that_nothing_else_in_a_snapshot_has() -> None:
    names = [shelf.name for shelf in SHELVES]
    assert len(set(names)) == len(names)
    assert not {"format", "specs", *(field.name for field in dataclasses.fields(State))} & set(names)


def test_kinds_have_names_of_their_own() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    "stands_taken",
    [
        (stands.STANDS.keys(),),
        (following.RANKS_ALL, following.RANKS_ONE, following.RANKS_NONE),
    ],
    ids=["the planner", "priorities"],
)
def test_who_follows_events_without_being_a_kind_takes_a_stand_too(
    stands_taken: tuple[frozenset[type[e.Event]], ...],
) -> None:
    taken = Counter(event for stand in stands_taken for event in stand)
    assert taken == Counter(EVENTS), "an event without a stand, or with two"


def test_the_outlook_has_a_case_for_each_event_that_it_is_said_to_follow_and_a_stand_has_its_reason() -> None:
    tree = ast.parse((SOURCE / "core/plan/outlook.py").read_text())
    cases = {
        each.cls.attr
        for each in ast.walk(tree)
        if isinstance(each, ast.MatchClass) and isinstance(each.cls, ast.Attribute)
    }
    assert cases == {event.__name__ for event in stands.FOLLOWED}
    assert all(stand.why for stand in stands.STANDS.values())


@pytest.mark.parametrize("path", OF_ALL_KINDS)
def test_the_kernel_knows_no_kind(path: str) -> None:
    """Neither their modules nor their events: a new kind changes nothing there."""
    tree = ast.parse((SOURCE / path).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    strangers = [name for name in imported if name.startswith((*ROOMS, "bireme.slurm"))]
    assert not strangers, f"{path} imports {strangers}"
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not attributes & {"loss", "mirrored", "phase"}, f"{path} looks into things of a kind"
    named = attributes & {each.__name__ for each in EVENTS}
    assert named <= {"ClusterConfigured"}, f"{path} names {sorted(named)}"

"""Whatever breaks, is mended, fenced, lifted, started and ended: nothing is started on what was fenced before."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.core.faults.fences import requests as fences
from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.healings import requests as healings
from bireme.core.faults.healings.shelves import HEALINGS
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Place
from bireme.core.model.jobs import Running
from bireme.core.model.refusals import Refusal
from bireme.testing.scenario import Scenario

places = st.builds(Place, node=st.sampled_from(["n1", "n2"]), gpu=st.sampled_from([None, 0, 1, 2]))
broken = st.tuples(st.just("broken"), places)
mended = st.tuples(st.just("mended"), places)
by_hand = st.tuples(st.just("fence"), places)
undone = st.tuples(st.just("undo"), st.integers(1, 9))
ended = st.tuples(st.just("end"), st.integers(0, 30))
jobs = st.tuples(
    st.just("submit"),
    st.fixed_dictionaries(
        {"gres": st.sampled_from(["gpu:1", "gpu:2", "gpu:3", "shard:1", "shard:4", "shard:6"])},
        optional={"exclusive": st.booleans(), "nodes": st.integers(1, 2)},
    ),
)
actions = st.lists(st.one_of(broken, mended, by_hand, undone, ended, jobs), min_size=2, max_size=30)


def do(world: Scenario, number: int, word: str, what: object) -> None:
    if isinstance(what, Place):
        if word == "fence":
            where = what.node if what.gpu is None else what.key
            world.people(fences.fence, where, "by hand", last_too=True)
        elif word == "broken":
            world.trouble("xid", what)
        else:
            world.trouble_gone("xid", what, mended=True)
    elif isinstance(what, dict):
        world.submit(f"j{number}", **what)
    elif word == "undo":
        world.people(healings.undo, what)
    else:
        running = [job for job in world.state.jobs.values() if isinstance(job.phase, Running)]
        if running and isinstance(what, int):
            world.finish(world.labels[running[what % len(running)].id])


def starts_on_fenced(world: Scenario) -> list[str]:
    """By the journal alone: which starts were on a place that was fenced at that moment."""
    fenced: dict[str, Place] = {}
    wrong = []
    for recorded in world.journal:
        event = recorded.event
        if isinstance(event, e.FenceRaised):
            fenced[event.key] = event.fence.place
        elif isinstance(event, e.FenceLifted):
            del fenced[event.key]
        elif isinstance(event, e.JobAllocated):
            for share in event.allocation.shares:
                here = [place for place in fenced.values() if place.node == share.node]
                wrong += [place.key for place in here if place.gpu is None or place.gpu in share.gpus_seen()]
    return wrong


@settings(max_examples=80, deadline=None)
@given(actions)
def test_nothing_is_started_on_what_is_fenced(given_actions: list[tuple[str, object]]) -> None:
    world = Scenario("2x3:h100", shard=4)
    world.healing_policy("act", breaker_percent=100.0)
    for number, (word, what) in enumerate(given_actions):
        with suppress(Refusal):
            do(world, number, word, what)
        world.settle()
        world.state.validate()
    assert starts_on_fenced(world) == []
    assert world.replayed().shelves == world.state.shelves
    for healing in [each.id for each in HEALINGS.of(world.state).values()]:
        with suppress(Refusal):
            world.people(healings.undo, healing)
    assert not FENCES.of(world.state)
    for label in list(world.labels.values()):
        with suppress(KeyError, AssertionError):
            world.finish(label)
    world.settle()
    assert [node.shut for node in world.state.nodes.values()] == [(), ()]

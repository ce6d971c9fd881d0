"""Worlds in which everything goes wrong, on the real kernel, planner, store and crew engine: a fixed set of seeds.

A failure prints the line that replays it. `make soak` plays others, for as long as one likes.
"""

from __future__ import annotations

import pytest

from bireme.sim.faults.draw import CLOSED, FAULTS, draw, draw_with_loss
from bireme.sim.faults.draw_services import draw_with_services
from bireme.sim.faults.fencing import draw_with_fences
from bireme.sim.faults.idling import draw_with_idle
from bireme.sim.faults.play import Failed
from bireme.sim.faults.soak import play

SEEDS = (*range(1, 41), 42, 65, 82, 95, 111, 143)
"""In 42, 65 and 111 the clock goes back after a job that another waits for has begun: a rule took the other's start for
one that came too early. In 82 and 95 slots of those behind kept a job from preempting, and in 82 another waited for a
reservation that was gone; in 143 a cancelled job that was queued again forgot whom it had waited for."""
LOSSES = (1, 2, 3, 10, 30, 31, 54, 91)
"""Of worlds with a loss: 1, 31, 54 and 91 found something that was mended."""
SERVICES = (*range(1, 33), 48, 164, 190, 334, 768)
"""Of worlds with services: 5, 29, 48, 164, 190, 334 and 768 found something that was mended."""
IDLE = tuple(range(1, 13))
"""Of worlds with idle GPUs."""
FENCES = tuple(range(1, 13))
"""Of worlds with GPUs and nodes that break."""
FOUND = (1700343, 2700187, 4700211, 5700347, 9700131, 9700248, 10700090, 13700193, 13700281, 22000180, 31000775)
"""Worlds that soaking found broken, and that were mended: as they were drawn then, without wishes."""


@pytest.mark.parametrize(("seed", "wishes"), [*((seed, True) for seed in SEEDS), *((seed, False) for seed in FOUND)])
def test_world(seed: int, wishes: bool) -> None:
    try:
        outcome = play(draw(seed, wishes=wishes))
    except Failed as failure:
        pytest.fail(f"{failure}\n{failure.replay}", pytrace=False)
    assert outcome.jobs
    assert outcome.events


@pytest.mark.parametrize("seed", LOSSES)
def test_world_whose_newest_events_are_lost(seed: int) -> None:
    """Nothing that a node saw to its end runs again, nothing runs twice at once, and everything comes to an end."""
    try:
        outcome = play(draw_with_loss(seed))
    except Failed as failure:
        pytest.fail(f"{failure} (a world with a loss, seed {seed}, step {failure.steps})", pytrace=False)
    assert outcome.acts["journal_lost"]


@pytest.mark.parametrize("seed", SERVICES)
def test_world_with_services(seed: int) -> None:
    """Never too few nor too many replicas by our own doing, and all that is wanted when the faults have ended."""
    try:
        outcome = play(draw_with_services(seed))
    except Failed as failure:
        pytest.fail(f"{failure} (a world with services, seed {seed}, step {failure.steps})", pytrace=False)
    assert outcome.acts["deploy"]


@pytest.mark.parametrize("seed", IDLE)
def test_world_with_idle_gpus(seed: int) -> None:
    """Nobody is ended for it without a notice about that start, before its grace is over, or otherwise than told."""
    try:
        outcome = play(draw_with_idle(seed))
    except Failed as failure:
        pytest.fail(f"{failure} (a world with idle GPUs, seed {seed}, step {failure.steps})", pytrace=False)
    assert outcome.acts["idles"]


@pytest.mark.parametrize("seed", FENCES)
def test_world_with_fences(seed: int) -> None:
    """Nothing is started on what was fenced before, and everything comes to an end when all is repaired."""
    try:
        outcome = play(draw_with_fences(seed))
    except Failed as failure:
        pytest.fail(f"{failure} (a world with fences, seed {seed}, step {failure.steps})", pytrace=False)
    assert outcome.acts["trouble"]


def test_everything_that_people_do_to_services_is_drawn() -> None:
    acts = [act for seed in SERVICES for act in draw_with_services(seed).acts]
    drawn = {act.kind for act in acts}
    words = ("scale", "advise", "restart", "rollback", "promote", "stop")
    assert {"deploy", "crash", "node_dies", *(f"{word}_service" for word in words)} <= drawn
    options = [
        act.facts["options"] for seed in SERVICES for act in draw_with_services(seed).acts if act.kind == "deploy"
    ]
    assert any("canary" in each for each in options)
    assert any("hang=" in each["comment"] for each in options)


def test_every_fault_and_every_habit_of_people_is_drawn() -> None:
    drawn = {act.kind for seed in SEEDS for act in draw(seed).acts}
    assert {*FAULTS, CLOSED} - {"node_back"} <= drawn, "node_back is a long cut_off"
    assert {"submit", "cancel", "hold", "release", "requeue", "suspend", "resume", "signal", "update"} <= drawn
    assert {"step", "end_step", "node", "reserve", "limit", "reconfigure"} <= drawn
    habits = {name for seed in SEEDS for act in draw(seed).acts for job in act.facts.get("jobs", ()) for name in job}
    assert {"array", "after", "hold", "begin_at", "requeue", "kind", "partition", "exclusive", "signal"} <= habits
    assert any(len(act.facts.get("jobs", ())) > 1 for seed in SEEDS for act in draw(seed).acts), "heterogeneous jobs"
    assert {"licenses", "reservation", "qos", "deadline_at", "name", "mem"} <= habits
    jobs = [job for seed in SEEDS for act in draw(seed).acts for job in act.facts.get("jobs", ())]
    conditions = {job["after"] for job in jobs if "after" in job}
    for word in ("after:", "afterany:", "afterok:", "afternotok:", "aftercorr:", "singleton", "+1", "?", "_2"):
        assert any(word in condition for condition in conditions), word


def test_a_world_plays_the_same_way_twice() -> None:
    assert play(draw(4)) == play(draw(4))


def test_a_world_can_be_stopped_after_some_turns() -> None:
    assert play(draw(4), until=20).steps == 20

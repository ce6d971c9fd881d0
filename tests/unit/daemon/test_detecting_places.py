"""Where a fault is, and whose the card is that has it: by its number, or where it has none by a kubelet's word."""

from __future__ import annotations

from bireme.core.model.finding.findings import Place
from bireme.core.telemetry.attribution import Card, CardHolder, CardSeen
from bireme.daemon.faults.detecting.places import Places
from bireme.testing.scenario import Scenario


def holder(world: Scenario, *holders: tuple[int, int], shared: bool = False) -> Place | None:
    """Of the only card of n1, whose number nobody knows, and which these starts have."""
    had = tuple(CardHolder(job_id, generation, shared) for job_id, generation in holders)
    seen = (CardSeen(Card("n1", "GPU-a", None, holders=had), "H100"),)
    places = Places(lambda: world.state, lambda: seen)
    place = places.of_gpu("n1", "GPU-a")
    assert place == Place(node="n1", gpu=None, uuid="GPU-a")
    return places.holder(place)


def test_a_card_without_a_number_is_that_jobs_to_whom_the_kubelet_gave_it() -> None:
    world = Scenario("1x2:h100")
    one, two = world.submit("one", gpus=1), world.submit("two", gpus=1)
    world.settle()
    assert holder(world, (one, 1)) == Place(job_id=one, generation=1)
    assert holder(world, (one, 1), (two, 0), (99, 1)) == Place(job_id=one, generation=1), "starts that are over"
    assert holder(world, (one, 1), (two, 1), shared=True) is None, "which of them it was is not known"
    assert holder(world, (one, 2)) is None
    assert holder(world) is None

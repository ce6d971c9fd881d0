"""Findings: one for what is seen many times, closed by who may, gone with what they were about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bireme.core.faults.findings import requests
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Gravity, Place, Quote
from bireme.core.model.refusals import Caller, Refusal
from bireme.testing.scenario import Scenario

GPU = Place(node="n1", gpu=2, uuid="GPU-2")
ROOT = Caller(0, 0, "root", admin=True)
ALICE = Caller(1000, 1000, "alice")


def told(world: Scenario) -> list[str]:
    return [type(each.event).__name__ for each in world.journal if type(each.event).__name__.startswith("Finding")]


def test_what_is_seen_again_and_again_is_one_finding_and_one_event() -> None:
    world = Scenario("2x8:h100")
    for _ in range(5):
        world.trouble("off_the_bus", GPU)
        world.wait(10)
    assert world.findings() == {"off_the_bus n1:gpu2": "broken"}
    assert told(world) == ["FindingOpened"]
    assert world.replayed().shelves == world.state.shelves


def test_a_finding_that_gets_graver_says_so_and_keeps_its_beginning_and_its_number() -> None:
    world = Scenario("2x8:h100")
    world.trouble("pcie", GPU, Gravity.DEGRADED)
    begun = world.now
    world.wait(60)
    world.trouble("pcie", GPU, Gravity.BROKEN)
    world.trouble("pcie", GPU, Gravity.DEGRADED)  # what lasts gets no milder by itself
    assert told(world) == ["FindingOpened", "FindingChanged"]
    changed = world.journal[-1].event
    assert isinstance(changed, e.FindingChanged)
    assert changed.trouble.since == begun
    assert requests.found(world.state, 1).trouble.gravity is Gravity.BROKEN


def test_what_does_not_last_is_over_when_it_is_not_seen_and_what_lasts_when_it_is_mended() -> None:
    world = Scenario("2x8:h100")
    world.trouble("throttle", GPU, Gravity.DEGRADED, lasts=False)
    world.trouble("ecc", GPU)
    for detector in ("throttle", "ecc"):
        world.trouble_gone(detector, GPU)
    assert world.findings() == {"ecc n1:gpu2": "broken"}
    world.trouble_gone("ecc", GPU, mended=True)
    assert world.findings() == {}
    world.trouble("ecc", GPU)
    assert requests.found(world.state, 3), "a number is never given twice"


def test_a_finding_about_a_job_is_over_with_its_start() -> None:
    world = Scenario("1x8:h100")
    world.submit("train", gpus=8)
    world.expect(train="runs n1")
    job = world.job("train")
    place = Place(job_id=job.id, generation=job.generation, rank=3)
    world.trouble("hang", replace(place, generation=job.generation + 1))
    assert world.findings() == {}, "of a start that there is not, nothing is found"
    world.trouble("hang", place, lasts=False)
    assert world.findings() == {f"hang job {job.id}.{job.generation} rank 3": "broken"}
    world.finish("train")
    world.settle()
    assert world.findings() == {}


def test_operators_dismiss_and_close_and_others_may_not() -> None:
    world = Scenario("2x8:h100")
    world.trouble("pcie", GPU, Gravity.DEGRADED)
    with pytest.raises(Refusal):
        requests.dismiss(world.state, ALICE, 1, "looks fine")
    with pytest.raises(Refusal) as refused:
        requests.mended(world.state, ROOT, 7, "")
    assert refused.value.hint == "no finding 7 stands: `bireme findings` lists those that do"
    world.record(requests.dismiss(world.state, ROOT, 1, "a riser with eight lanes"))
    world.trouble("pcie", GPU, Gravity.DEGRADED)
    assert world.findings() == {"pcie n1:gpu2": "degraded dismissed"}
    world.trouble("pcie", GPU, Gravity.BROKEN)
    assert world.findings() == {"pcie n1:gpu2": "broken"}, "it is graver than what was dismissed"
    world.record(requests.mended(world.state, ROOT, 1, "card replaced"))
    assert world.findings() == {}


def test_nothing_is_found_on_a_node_that_nobody_has() -> None:
    world = Scenario("1x8:h100")
    world.trouble("ecc", Place(node="n9", gpu=0))
    assert world.findings() == {}


# -- what was closed ---------------------------------------------------------------------------------------------------


def test_what_was_told_before_a_finding_was_closed_opens_it_no_more() -> None:
    """A gatherer that outlives its daemon tells again what it told."""
    world = Scenario("1x1:h100")
    place, told_at = Place(node="n1", gpu=0), world.now
    xid = {"quotes": (Quote(text="Xid 79", source="device", at=told_at),), "lasts": True}
    world.trouble("xid", place, **xid)
    world.wait(100)
    world.record(requests.mended(world.state, ROOT, 1, "card replaced"))
    world.wait(100)
    world.trouble("xid", place, **xid)
    assert world.findings() == {}
    world.trouble("xid", place, **{**xid, "quotes": (Quote(text="Xid 79", source="device", at=world.now),)})
    assert world.findings() == {"xid n1:gpu0": "broken"}
    assert world.replayed().shelves == world.state.shelves


def test_one_that_comes_and_goes_stands_longer_each_time() -> None:
    world = Scenario("1x1:h100")
    place = Place(node="n1")
    for _ in range(3):
        world.trouble("nic", place, lasts=False)
        world.wait(10)
        world.trouble_gone("nic", place)
        assert world.findings() == {}
    world.trouble("nic", place, lasts=False)
    world.wait(500)
    world.trouble_gone("nic", place)
    assert world.findings() == {"nic n1": "broken"}
    world.wait(101)
    world.trouble_gone("nic", place)
    assert world.findings() == {}
    world.wait(7200)
    world.trouble("nic", place, lasts=False)
    world.trouble_gone("nic", place)
    assert world.findings() == {}, "that was long ago"


def test_another_fault_of_the_same_part_keeps_the_evidence_of_the_first() -> None:
    world = Scenario("1x1:h100")
    place = Place(node="n1", gpu=0)
    for code, cause in ((95, "gpu_ecc_error"), (79, "gpu_fell_off_bus")):
        world.trouble("xid", place, cause=cause, quotes=(Quote(text=f"Xid {code}", source="device", at=world.now),))
    (finding,) = FINDINGS.of(world.state).values()
    assert [each.text for each in finding.trouble.quotes] == ["Xid 79", "Xid 95"]

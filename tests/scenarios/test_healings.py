"""Healings: decided once, done by the mode or by a person, refused, taken back; every step is in its audit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bireme.core.faults.healings import requests
from bireme.core.faults.healings.deciding import proposed
from bireme.core.faults.healings.shelves import HEALINGS, to_do
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Place
from bireme.core.model.healing.healings import HealingAct, HealingLife, Proposal
from bireme.core.model.healing.policy import HealingMode, HealingPolicy
from bireme.core.model.refusals import Caller, Refusal
from bireme.testing.scenario import Scenario

ROOT = Caller(0, 0, "root", admin=True)
ALICE = Caller(1000, 1000, "alice")
DRAIN = Proposal(
    act=HealingAct.FENCE_NODE,
    place=Place(node="n1"),
    title="drain n1",
    reason="a disk is broken",
    findings=(1,),
    undo="nothing to take back",
)


def decided(world: Scenario, mode: HealingMode, proposal: Proposal = DRAIN, withheld: str = "") -> None:
    world.record([e.HealingPolicySet(HealingPolicy(mode=mode))])
    world.record(list(proposed(world.state, proposal, withheld)))


def stood(world: Scenario, number: int = 1) -> list[str]:
    return [mark.phase.value for mark in HEALINGS.of(world.state)[number].trail]


@pytest.mark.parametrize(
    ("mode", "phase"), [("observe", "observed"), ("suggest", "suggested"), ("act", "approved")], ids=str
)
def test_the_mode_says_what_becomes_of_a_decision(mode: str, phase: str) -> None:
    world = Scenario("2x8:h100")
    decided(world, HealingMode(mode))
    assert stood(world) == [phase]
    assert [each.id for each in to_do(world.state, [HealingAct.FENCE_NODE])] == ([1] if phase == "approved" else [])
    assert world.replayed().shelves == world.state.shelves


@pytest.mark.parametrize("mode", list(HealingMode))
def test_nobody_has_to_approve_that_nothing_is_done(mode: HealingMode) -> None:
    world = Scenario("2x8:h100")
    decided(world, mode, replace(DRAIN, act=HealingAct.TELL))
    assert stood(world) == ["approved"]


def test_what_is_withheld_is_suggested_also_where_bireme_may_act() -> None:
    world = Scenario("2x8:h100")
    decided(world, HealingMode.ACT, withheld="too much is out already")
    assert stood(world) == ["suggested"]
    assert HEALINGS.of(world.state)[1].latest.text == "too much is out already"


def test_the_most_careful_mode_of_a_nodes_partitions_counts() -> None:
    policy = HealingPolicy(mode=HealingMode.ACT, partitions=(("prod", HealingMode.OBSERVE),))
    assert policy.mode_in(("batch", "prod")) is HealingMode.OBSERVE
    assert policy.mode_in(("batch",)) is HealingMode.ACT


def test_what_was_refused_is_not_suggested_again_for_the_same_findings() -> None:
    world = Scenario("2x8:h100")
    decided(world, HealingMode.SUGGEST)
    world.record(requests.refuse(world.state, ROOT, 1, "we know"))
    decided(world, HealingMode.SUGGEST)
    assert list(HEALINGS.of(world.state)) == [1]
    world.record(list(proposed(world.state, Proposal(**{**as_fields(DRAIN), "findings": (1, 2)}))))
    assert stood(world, 2) == ["suggested"], "something new was found"


def test_approved_done_and_undone_by_who_may_and_each_step_is_kept() -> None:
    world = Scenario("2x8:h100")
    decided(world, HealingMode.SUGGEST)
    with pytest.raises(Refusal):
        requests.approve(world.state, ALICE, 1)
    world.record(requests.approve(world.state, ROOT, 1, "yes"))
    world.record([e.HealingDone(1)])
    world.record(requests.undo(world.state, ROOT, 1, "card replaced"))
    assert stood(world) == ["suggested", "approved", "done", "undone"]
    assert [mark.by for mark in HEALINGS.of(world.state)[1].trail] == ["", "root", "", "root"]
    for ask in (requests.undo, requests.approve, requests.refuse):
        with pytest.raises(Refusal) as refused:
            ask(world.state, ROOT, 1)
        assert "healing 1 (drain n1) is undone by root" in refused.value.hint
    with pytest.raises(Refusal) as refused:
        requests.undo(world.state, ROOT, 9)
    assert refused.value.hint == "there is no healing 9: `bireme healings` lists them"


def test_only_so_many_that_are_over_are_kept_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bireme.core.faults.healings.kind.MOST_OVER", 2)
    world = Scenario("2x8:h100")
    for number in range(1, 6):
        decided(world, HealingMode.SUGGEST, Proposal(**{**as_fields(DRAIN), "findings": (number,)}))
        world.record(requests.refuse(world.state, ROOT, number))
    assert list(HEALINGS.of(world.state)) == [4, 5]
    assert HEALINGS.of(world.state)[5].phase is HealingLife.REFUSED
    with pytest.raises(Refusal) as refused:
        requests.found(world.state, 1)
    assert "no longer at hand" in refused.value.hint


def as_fields(proposal: Proposal) -> dict[str, object]:
    return {name: getattr(proposal, name) for name in proposal.__dataclass_fields__}

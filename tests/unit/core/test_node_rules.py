"""Node rules as Kubernetes reads them, and that placement keeps to them."""

from __future__ import annotations

import pytest

from bireme.core.model.cluster import Settings
from bireme.core.model.node_rules import NODE_NAME, LabelRule, NodeRules, Preference, Taint, Toleration
from bireme.testing.scenario import Scenario

LABELS = {"gpu": "h200", "zone": "a", "slots": "8"}


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        (LabelRule("gpu", "In", ("h100", "h200")), True),
        (LabelRule("gpu", "In", ("a100",)), False),
        (LabelRule("none", "In", ("x",)), False),
        (LabelRule("gpu", "NotIn", ("h200",)), False),
        (LabelRule("none", "NotIn", ("x",)), True),
        (LabelRule("gpu", "Exists"), True),
        (LabelRule("none", "DoesNotExist"), True),
        (LabelRule("slots", "Gt", ("7",)), True),
        (LabelRule("slots", "Lt", ("8",)), False),
        (LabelRule("gpu", "Gt", ("7",)), False),
        (LabelRule("none", "Lt", ("8",)), False),
        (LabelRule("gpu", "Nonsense"), False),
    ],
)
def test_a_rule_about_a_label(rule: LabelRule, holds: bool) -> None:
    assert rule.holds(LABELS) is holds


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration("dedicated", "Equal", "team"), True),
        (Toleration("dedicated", "Equal", "other"), False),
        (Toleration("dedicated", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "Equal", "team"), False),
        (Toleration("dedicated", "Exists", effect="NoExecute"), False),
    ],
)
def test_a_toleration(toleration: Toleration, covers: bool) -> None:
    assert toleration.covers(Taint("dedicated", "team", "NoSchedule")) is covers


def test_all_rules_and_one_of_the_alternatives() -> None:
    rules = NodeRules(
        all_of=(LabelRule("zone", "In", ("a",)),),
        any_of=((LabelRule("gpu", "In", ("a100",)),), (LabelRule(NODE_NAME, "In", ("n1",)),)),
    )
    assert rules.admit("n1", LABELS, ())
    assert not rules.admit("n2", LABELS, ())
    assert not rules.admit("n1", {**LABELS, "zone": "b"}, ())
    assert rules.keys() == {"zone", "gpu"}


def test_a_taint_that_nothing_tolerates_keeps_it_away() -> None:
    assert not NodeRules().admit("n1", {}, (Taint("x"),))
    assert NodeRules(tolerations=(Toleration("x", "Exists"),)).admit("n1", {}, (Taint("x"),))


def test_a_preferred_node_goes_before_a_fuller_one_and_excludes_none() -> None:
    world = Scenario("3x8", settings=Settings(memory_is_consumable=False))
    rather = NodeRules(preferred=(Preference(5, (LabelRule(NODE_NAME, "In", ("n3",)),)),))
    against = NodeRules(preferred=(Preference(-5, (LabelRule(NODE_NAME, "In", ("n1", "n3")),)),))
    assert rather.keys() == set()
    world.submit("first", cpus=4)
    world.submit("liked", cpus=5, node_rules=rather)
    world.submit("full", cpus=4, node_rules=rather)
    world.submit("avoids", cpus=2, node_rules=against)
    world.submit("packed", cpus=3)
    world.expect(first="runs n1", liked="runs n3", full="runs n1", avoids="runs n2", packed="runs n3")

"""One pool: training makes way when a service needs room, and comes back when it leaves."""

from __future__ import annotations

from dataclasses import replace

from bireme.core.model.accounts import Qos
from bireme.core.model.cluster import Settings
from bireme.core.model.events import AccountsChanged
from bireme.core.model.policy import Policy, Preemption
from bireme.core.model.refusals import Why
from bireme.core.services import requests as services
from bireme.testing.scenario import Scenario


def test_training_makes_way_for_a_service_that_grows_and_comes_back_when_it_shrinks() -> None:
    world = Scenario("2x8")
    world.serve("chat", "1-2", cpus=8)
    world.probes("chat")
    world.submit("train", cpus=8, user="bob")
    world.submit("next", cpus=8, user="bob")
    world.expect(
        {"chat": "1/1 r1", "chat/1": "runs n1", "train": "runs n2", "next": "waits Resources"},
    )
    world.record(services.advised(world.state, "chat", 2, "load"))
    world.expect(
        {"chat": "1/2 r1 [2 loading]", "chat/2": "runs n2", "train": "waits Resources", "next": "waits Priority"},
    )
    world.probes("chat/2")
    world.record(services.advised(world.state, "chat", 1, "quiet"))
    world.settle()
    world.wait(61)
    assert world.described()["train"] == "runs n2"
    assert world.described()["chat"] == "1/1 r1"


def test_who_cannot_be_requeued_is_let_be_by_default() -> None:
    world = Scenario("1x8")
    world.submit("train", cpus=8, requeue=False, user="bob")
    world.settle()
    world.serve("chat", "1", cpus=8)
    world.expect({"train": "runs n1", "chat": "0/1 r0 rolling r1 [1 waiting]", "chat/1": "waits Resources"})


def test_nobody_preempts_by_the_name_of_the_qos_alone() -> None:
    world = Scenario("1x8")
    world.serve("chat", "1")
    with world.refused(Why.INVALID_QOS):
        world.submit("sly", qos="service", user="bob")
    world.submit("job", user="bob")
    with world.refused(Why.INVALID_QOS):
        world.update("job", qos="service", user="bob")


def test_where_preemption_is_configured_its_rules_hold() -> None:
    rules = Settings(policy=Policy(preemption=Preemption("none")), memory_is_consumable=False)
    world = Scenario("1x8", settings=rules)
    world.submit("train", cpus=8, user="bob")
    world.settle()
    world.serve("chat", "1", cpus=8)
    world.expect({"train": "runs n1", "chat": "0/1 r0 rolling r1 [1 waiting]", "chat/1": "waits Resources"})


def test_a_qos_that_an_operator_made_is_left_alone() -> None:
    world = Scenario("1x8")
    own = Qos(id=7, name="service", description="ours")
    world.record([AccountsChanged(qos=(own,))])
    world.serve("chat", "1")
    world.settle()
    assert world.state.accounts.qos["service"] == own
    assert world.job("chat/1").spec.qos == "service"
    without = replace(world.state.config.settings, service_qos="")
    other = Scenario("1x8", settings=without)
    other.serve("chat", "1")
    other.settle()
    assert other.job("chat/1").spec.qos == "normal"


def test_a_service_may_name_the_qos_that_it_would_have_anyway() -> None:
    world = Scenario("1x8")
    world.serve("chat", "1", qos="Service")
    world.settle()
    assert world.job("chat/1").spec.qos == "service"
    assert "service" in world.state.accounts.qos

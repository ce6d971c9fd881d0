"""Services at the limits of accounts and QOS: what cannot run waits and says why, nobody tries in vain without end, and
others' services are served."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.model import events as e
from bireme.core.model.cluster import Settings
from bireme.core.services import requests as services
from bireme.core.services.situation import situation
from bireme.core.services.wording import service_sentence
from bireme.testing.books import book_change
from bireme.testing.scenario import Scenario


def limited(cluster: str = "1x16", *, account: Any = None, alice: Any = None, qos: Any = None) -> Scenario:
    """alice in account lab, bob in another."""
    world = Scenario(
        cluster, settings=Settings(accounting_enforce=("associations", "limits"), memory_is_consumable=False)
    )
    users = {"alice": {"account": "lab", **(alice or {})}, "bob": {"account": "other"}}
    world.record([book_change(world.state.accounts, {"lab": account or {}, "other": {}}, users, qos)])
    return world


def told(world: Scenario, name: str = "chat") -> list[str]:
    seen = situation(world.state, world.state.services[name], world.now)
    return [service_sentence(each) for each in seen.reasons]


def tries(world: Scenario) -> int:
    """What happened to services, in the journal."""
    return sum(isinstance(each.event, e.JobSubmitted | e.RevisionBackedOff | e.ReplicaAdded) for each in world.journal)


LIMITS = [
    ({"account": {"grp_tres": {"cpu": 2}}}, "AssocGrpCpuLimit"),
    ({"account": {"grp_jobs": 2}}, "AssocGrpJobsLimit"),
    ({"alice": {"max_jobs_per_user": 2}}, "AssocMaxJobsLimit"),
    ({"qos": {"service": {"grp_tres": {"cpu": 3}}}}, "QOSGrpCpuLimit"),
    ({"qos": {"service": {"max_jobs_per_user": 2}}}, "QOSMaxJobsPerUserLimit"),
]


@pytest.mark.parametrize(("limits", "word"), LIMITS, ids=[word for _, word in LIMITS])
def test_replicas_above_a_limit_wait_and_say_which(limits: dict[str, Any], word: str) -> None:
    world = limited(**limits)
    world.serve("chat", "1-9")
    world.serve("bobs", "1-9", user="bob")
    world.probes("chat", "bobs")
    world.settle()
    for name, user in (("chat", "alice"), ("bobs", "bob")):
        world.serving(services.scale, name, 4 if name == "chat" else 1, user=user)
    world.settle()
    world.probes("chat")
    world.settle()
    waiting = [text for label, text in world.described().items() if label.startswith("chat/") and "waits" in text]
    assert waiting == [f"waits {word}"] * 2
    assert world.described()["chat"].startswith("2/4 r1")
    assert world.described()["bobs"] == "1/1 r1"
    assert sum("waits: " in each for each in told(world)) == 2
    before = tries(world)
    world.wait(3600)
    assert tries(world) == before, "those that wait are enough"


def test_an_update_at_a_limit_goes_one_by_one() -> None:
    world = limited(account={"grp_jobs": 2})
    world.serve("chat", "2")
    world.probes("chat")
    world.settle()
    world.serve("chat", "2")
    world.settle()
    assert world.described()["chat/3"] == "waits AssocGrpJobsLimit"
    world.wait(11)
    world.drained("chat/2")
    world.settle()
    assert world.described()["chat/3"] == "runs n1"
    world.probes("chat/3")
    world.wait(100)
    world.probes("chat/4")
    world.wait(100)
    assert world.described()["chat"] == "2/2 r2"


def test_what_may_not_even_be_submitted_is_tried_ever_more_rarely() -> None:
    world = limited(alice={"max_submit_per_user": 2})
    world.serve("chat", "4")
    world.serve("bobs", "4", user="bob")
    world.settle()
    world.probes("chat", "bobs")
    world.settle()
    assert world.described()["chat"].startswith("2/4 r0")
    assert world.described()["bobs"] == "4/4 r1"
    assert any("no replica could be submitted: " in each for each in told(world))
    before = tries(world)
    world.wait(3600)
    assert tries(world) - before <= 20
    world.record([book_change(world.state.accounts, {"lab": {}, "other": {}}, {"alice": {"account": "lab"}})])
    world.wait(301)
    world.probes("chat")
    world.settle()
    assert world.described()["chat"] == "4/4 r1"


def test_an_update_that_may_not_be_submitted_takes_nothing_from_what_serves() -> None:
    world = limited(alice={"max_submit_per_user": 2})
    world.serve("chat", "2")
    world.probes("chat")
    world.settle()
    world.serve("chat", "2", ready_within_s=600.0)
    world.wait(100)
    assert world.described()["chat"] == "2/2 r1 rolling r2"
    assert any("no replica could be submitted: " in each for each in told(world))
    world.wait(600)
    assert world.described()["chat"] == "2/2 r1"
    (given_up,) = told(world)
    assert given_up.startswith("Revision 2 was given up: ")
    assert "no replica could be submitted: " in given_up

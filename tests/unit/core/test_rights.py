"""Who may ask for what at a submission: a stand on every field, and what ordinary users get of the operators' own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from bireme.core.jobs import rights
from bireme.core.jobs.submission import submit
from bireme.core.lifecycle.apply import apply
from bireme.core.model.events import ClusterConfigured, JobSubmitted, Recorded
from bireme.core.model.field_rules import Giver
from bireme.core.model.jobs import RULES, JobSpec, Owner
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.state.state import State
from bireme.testing.worlds import build_cluster

ANN = Caller(uid=1, gid=1, user="ann")
ROOT = Caller(uid=0, gid=0, user="root", admin=True)
RAISED: dict[str, Any] = {"site_factor": 5, "admin_comment": "mine", "nice": -1, "priority": 1_000}
REFUSED = {"site_factor": Why.ACCESS_DENIED, "admin_comment": Why.ACCESS_DENIED, "nice": Why.INVALID_NICE}


def submitted(caller: Caller, **given: Any) -> JobSubmitted:
    state = State()
    apply(state, Recorded(1, 0.0, "test", ClusterConfigured(build_cluster("2x8"))))
    spec = JobSpec(owner=Owner(uid=caller.uid, gid=caller.gid, user=caller.user), script="x", **given)
    (event,) = submit(state, caller, [spec], 0.0)
    assert isinstance(event, JobSubmitted)
    return event


def given_by(*givers: Giver) -> list[str]:
    return [name for name, rule in RULES.items() if rule.giver in givers]


def test_every_field_of_a_job_has_a_rule() -> None:
    assert RULES.keys() == {field.name for field in fields(JobSpec)}
    assert RAISED.keys() == set(given_by(Giver.OPERATOR, Giver.LOWERING, Giver.PASSED_OVER))
    assert given_by(Giver.NOBODY) == ["owner", "het_component", "requeue_asked", "workload", "replica"]


@pytest.mark.parametrize("name", given_by(Giver.OPERATOR, Giver.LOWERING))
def test_what_operators_alone_give_is_refused_to_others(name: str) -> None:
    with pytest.raises(Refusal) as refusal:
        submitted(ANN, **{name: RAISED[name]})
    assert refusal.value.why is REFUSED[name]
    assert "only an operator may" in refusal.value.hint
    assert getattr(submitted(ROOT, **{name: RAISED[name]}).spec, name) == RAISED[name]


@pytest.mark.parametrize("name", sorted(RAISED))
def test_what_operators_alone_give_they_alone_change(name: str) -> None:
    spec = submitted(ANN).spec
    with pytest.raises(Refusal) as refusal:
        rights.check_changes(ANN, spec, {name: RAISED[name], "comment": "mine"})
    assert refusal.value.why is Why.ACCESS_DENIED
    rights.check_changes(ROOT, spec, {name: RAISED[name]})
    rights.check_changes(ANN, spec, {"comment": "mine", "nice": 5, "priority": 0})


def test_anybody_may_stand_back() -> None:
    assert submitted(ANN, nice=100).priority == submitted(ANN).priority - 100


def test_a_priority_is_an_operators_and_passed_over_from_others() -> None:
    assert submitted(ROOT, priority=1_000).priority == 1_000
    plain, asked = submitted(ANN), submitted(ANN, priority=4_000_000_000)
    assert (asked.priority, asked.spec.priority, asked.spec.ignored) == (plain.priority, None, ("priority",))
    given = JobSpec(owner=plain.spec.owner, priority=1)
    assert "--priority is accepted but not applied" in rights.passed_over(ANN, given)
    assert not rights.passed_over(ROOT, given)
    assert not rights.passed_over(ANN, plain.spec)

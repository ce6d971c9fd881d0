"""Idle GPUs: who is told, who is spared, who is requeued, moved or cancelled, and that nothing unknown ends anybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bireme.core.explain.wording import sentence
from bireme.core.idle.rules import spared
from bireme.core.lifecycle.outstanding import outstanding
from bireme.core.model import events as e
from bireme.core.model.commands import TellJob
from bireme.core.model.idling.policy import IdleAction
from bireme.core.model.jobs import Ending, Finished, JobKind, Pending
from bireme.testing.scenario import Scenario

HOUR = 3600.0
TWO_HOURS = 2 * HOUR
REQUEUE: dict[str, Any] = {"idle_s": 7200, "grace_s": 1800, "action": IdleAction.REQUEUE}


def lazy_world(
    mode: str = "act", cluster: str = "1x8:h100", job: dict[str, Any] | None = None, **rule: Any
) -> Scenario:
    """One job with two GPUs has run for three hours, under one rule."""
    world = Scenario(cluster)
    world.idle_policy(mode, **{**REQUEUE, **rule})
    world.submit("lazy", **{"gpus": 2, **(job or {})})
    world.expect(lazy="runs n1")
    world.wait(3 * HOUR)
    return world


def events_of(world: Scenario) -> list[str]:
    return [type(each.event).__name__ for each in world.journal if type(each.event).__name__.startswith("Idle")]


def test_an_idle_job_is_told_and_requeued_after_its_grace() -> None:
    world = lazy_world()
    world.idles("lazy", TWO_HOURS, gpus=2, gpus_idle=2)
    text = "its 2 GPUs were below 5% for 2 hours (policy idle.toml [train]): it will be requeued in 30 minutes"
    assert world.idle_notices() == {"lazy": f"{text} unless they are used"}
    world.expect()
    world.wait(1800)
    world.expect()  # time alone ends nobody
    world.idles("lazy", TWO_HOURS + 1800, gpus=2, gpus_idle=2)
    (ending,) = [each.event for each in world.journal if isinstance(each.event, e.JobEnding)]
    assert ending.requeue
    assert ending.outcome.reason is not None
    said = "Its 2 GPUs were below 5% for 02:30:00 (policy idle.toml [train])."
    assert sentence(ending.outcome.reason) == said
    assert world.idle_notices() == {}
    assert world.replayed().jobs == world.state.jobs
    assert world.replayed().shelves == world.state.shelves


def test_one_busy_round_takes_the_notice_back() -> None:
    world = lazy_world()
    world.idles("lazy", TWO_HOURS)
    world.wait(1700)
    world.works("lazy")
    assert world.idle_notices() == {}
    world.wait(200)
    world.idles("lazy", 190)
    world.expect()
    assert events_of(world) == ["IdlePolicySet", "IdleNoticeGiven", "IdleNoticeWithdrawn"]


def test_a_streak_that_began_after_the_notice_is_another_one() -> None:
    """As after a gap in what was measured: the keeper never said that they were busy."""
    world = lazy_world(idle_s=600)
    world.idles("lazy", 600)
    world.wait(1800)
    world.idles("lazy", 1200)
    assert world.idle_notices() == {}
    world.expect()


@pytest.mark.parametrize("late", [-31.0, 31.0, -86_400.0], ids=["old", "of the future", "a day old"])
def test_a_figure_that_is_not_of_now_does_nothing(late: float) -> None:
    world = lazy_world()
    world.idles("lazy", TWO_HOURS)
    world.wait(1800)
    world.idles("lazy", 3 * HOUR, at=world.now + late)
    world.expect()
    assert "lazy" in world.idle_notices()


def test_what_is_not_known_takes_the_notice_back_and_ends_nobody() -> None:
    world = lazy_world()
    world.idles("lazy", TWO_HOURS)
    world.wait(1800)
    world.works("lazy", "GPU-b does not answer")
    world.idles("lazy", TWO_HOURS, since=None)
    world.expect()
    assert world.idle_notices() == {}


def test_a_job_on_a_node_that_does_not_answer_is_left_alone() -> None:
    world = lazy_world()
    world.idles("lazy", TWO_HOURS)
    world.lose("n1")
    world.idles("lazy", TWO_HOURS)
    assert world.idle_notices() == {}


def test_a_suspended_job_is_not_idle() -> None:
    world = lazy_world()
    world.idles("lazy", TWO_HOURS)
    world.suspend("lazy")
    assert world.idle_notices() == {}
    world.idles("lazy", TWO_HOURS)
    assert world.idle_notices() == {}


def test_of_an_earlier_start_nothing_is_held_against_the_next() -> None:
    world = lazy_world()
    first = world.job("lazy").generation
    world.idles("lazy", TWO_HOURS)
    world.requeue("lazy")
    world.wait(HOUR)
    assert world.idle_notices() == {}
    assert world.job("lazy").generation > first
    world.idles("lazy", TWO_HOURS, generation=first)
    assert world.idle_notices() == {}


def test_dry_run_says_and_does_nothing() -> None:
    world = lazy_world("dry-run")
    world.idles("lazy", TWO_HOURS)
    assert events_of(world) == ["IdlePolicySet"]


def test_notify_only_tells() -> None:
    world = lazy_world("notify")
    world.idles("lazy", TWO_HOURS)
    assert world.idle_notices()["lazy"].endswith("(policy idle.toml [train]): use it, or end the job")
    world.wait(86_000)
    world.idles("lazy", TWO_HOURS + 86_000)
    world.expect()


def test_cancel_ends_it_with_the_reason() -> None:
    world = lazy_world(action=IdleAction.CANCEL)
    world.idles("lazy", TWO_HOURS)
    world.wait(1800)
    world.idles("lazy", TWO_HOURS + 1800)
    world.expect(lazy="CANCELLED")
    phase = world.job("lazy").phase
    assert isinstance(phase, Finished)
    assert phase.outcome.reason is not None
    assert phase.outcome.reason.fact("rule") == "train"


@pytest.mark.parametrize(
    ("otherwise", "becomes"), [(IdleAction.NOTIFY, {}), (IdleAction.CANCEL, {"lazy": "CANCELLED"})]
)
def test_who_may_not_be_requeued_has_what_the_rule_says_otherwise(
    otherwise: IdleAction, becomes: dict[str, str]
) -> None:
    world = lazy_world(otherwise=otherwise, job={"requeue": False})
    world.idles("lazy", TWO_HOURS)
    world.wait(1800)
    world.idles("lazy", TWO_HOURS + 1800)
    world.expect(becomes)


def test_a_moved_job_waits_in_its_new_partition() -> None:
    world = Scenario("2x8:h100", partitions={"train": {"nodes": "n1"}, "scrap": {"nodes": "n2"}})
    world.idle_policy(**{**REQUEUE, "action": IdleAction.MOVE, "move_to": "scrap"})
    world.submit("lazy", gpus=8, partitions=("train",))
    world.submit("next", gpus=8, partitions=("train",))
    world.expect(lazy="runs n1", next="waits Resources")
    world.wait(3 * HOUR)
    world.idles("lazy", TWO_HOURS)
    assert "it will be queued again in partition scrap in 30 minutes" in world.idle_notices()["lazy"]
    world.wait(1800)
    world.idles("lazy", TWO_HOURS + 1800)
    world.settle()
    assert world.job("lazy").spec.partitions == ("scrap",)
    world.wait(600)
    world.expect(lazy="runs n2", next="runs n1")
    assert world.idle_notices() == {}
    assert world.replayed().jobs == world.state.jobs
    assert world.replayed().shelves == world.state.shelves


def test_who_could_never_run_there_is_not_moved() -> None:
    world = Scenario("1x8:h100+1x2:h100", partitions={"train": {"nodes": "n1"}, "scrap": {"nodes": "n2"}})
    world.idle_policy(**{**REQUEUE, "action": IdleAction.MOVE, "move_to": "scrap"})
    world.submit("lazy", gpus=8, nodes=1, partitions=("train",))
    world.expect(lazy="runs n1")
    world.wait(3 * HOUR)
    world.idles("lazy", TWO_HOURS)
    assert world.idle_notices()["lazy"].endswith("use it, or end the job")


@pytest.mark.parametrize(
    ("rule", "job"),
    [
        ({"exempt_comments": ("keep-gpu",)}, {"comment": "tuning, keep-gpu"}),
        ({"exempt_users": ("alice",)}, {}),
        ({"partitions": ("elsewhere",)}, {}),
        ({"qos": ("high",)}, {}),
        ({"accounts": ("vision",)}, {}),
        ({"jobs": "interactive"}, {}),
    ],
    ids=str,
)
def test_whom_no_rule_is_for_is_left_alone(rule: dict[str, Any], job: dict[str, Any]) -> None:
    world = lazy_world(job=job, **rule)
    world.idles("lazy", TWO_HOURS)
    assert world.idle_notices() == {}


def test_a_comment_has_to_say_the_word_itself() -> None:
    world = lazy_world(job={"comment": "do-not-keep-gpu"}, exempt_comments=("keep-gpu",))
    world.idles("lazy", TWO_HOURS)
    assert "lazy" in world.idle_notices()


def test_replicas_of_services_are_the_autoscalers_business() -> None:
    world = Scenario("1x8:h100")
    world.idle_policy(**REQUEUE)
    world.serve("chat", gpus=1)
    world.settle()
    world.wait(3 * HOUR)
    world.idles("chat/1", TWO_HOURS)
    assert world.idle_notices() == {}


def test_components_of_a_heterogeneous_job_are_left_alone() -> None:
    world = Scenario("1x8:h100")
    world.idle_policy(**REQUEUE)
    world.submit_het("lazy", {"gpus": 2}, {"gpus": 1})
    world.settle()
    world.wait(3 * HOUR)
    for component in ("lazy", "lazy+1"):
        assert spared(world.job(component)) == "a component of a heterogeneous job: its end would be the others'"
        world.idles(component, TWO_HOURS)
    assert world.idle_notices() == {}


SHELLS: dict[str, Any] = {"jobs": "interactive", "action": IdleAction.CANCEL}


def test_an_interactive_shell_has_its_own_rule_and_no_other() -> None:
    for rule, told in (({}, False), (SHELLS, True)):
        world = lazy_world(**rule)
        shell = world.job("lazy")
        shell.spec = replace(shell.spec, kind=JobKind.INTERACTIVE)
        world.idles("lazy", TWO_HOURS)
        assert bool(world.idle_notices()) is told
    world.wait(1800)
    world.idles("lazy", TWO_HOURS + 1800)
    phase = world.job("lazy").phase
    assert isinstance(phase, Ending | Finished)
    assert phase.outcome.state == "CANCELLED"


def test_a_new_policy_while_a_grace_runs_gives_a_new_notice() -> None:
    world = lazy_world()
    world.idles("lazy", TWO_HOURS)
    world.wait(1000)
    world.idle_policy(**{**REQUEUE, "action": IdleAction.CANCEL})
    world.idles("lazy", TWO_HOURS + 1000)
    assert "it will be cancelled in 30 minutes" in world.idle_notices()["lazy"]
    world.wait(1000)
    world.idles("lazy", TWO_HOURS + 2000)
    world.expect()
    world.wait(800)
    world.idles("lazy", TWO_HOURS + 2800)
    world.expect(lazy="CANCELLED")


def test_who_was_promised_a_long_grace_keeps_it() -> None:
    world = lazy_world()
    world.idles("lazy", TWO_HOURS)
    world.idle_policy(**{**REQUEUE, "grace_s": 60})
    world.wait(120)
    world.idles("lazy", TWO_HOURS + 120)
    world.expect()
    assert "lazy" in world.idle_notices()


@pytest.mark.parametrize("mode", ["off", "dry-run"])
def test_a_policy_that_is_switched_off_takes_notices_back(mode: str) -> None:
    world = lazy_world()
    world.idles("lazy", TWO_HOURS)
    world.idle_policy(mode, **REQUEUE)
    world.wait(1800)
    world.idles("lazy", TWO_HOURS + 1800)
    world.expect()
    assert world.idle_notices() == {}


def test_the_line_in_the_output_is_told_again_after_a_restart() -> None:
    """And the restart between notice and act changes nothing: the journal has the notice."""
    world = lazy_world()
    world.idles("lazy", TWO_HOURS)
    (told,) = [each for each in world.engine.commands if isinstance(each, TellJob)]
    assert (told.text, told.at) == (world.idle_notices()["lazy"], world.now)
    world.state = world.replayed()
    world.outlook = None
    assert [each for each in outstanding(world.state) if isinstance(each, TellJob)] == [told]
    world.wait(1800)
    world.idles("lazy", TWO_HOURS + 1800)
    assert isinstance(world.job("lazy").phase, Ending | Pending)

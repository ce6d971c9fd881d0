"""The tables are law: what they do not name does not happen, and no event leaves a thing where its row does not say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.core.faults.fences import requests as fences
from bireme.core.faults.findings import requests as findings
from bireme.core.faults.healings import requests as healings
from bireme.core.faults.healings.deciding import proposed
from bireme.core.faults.healings.shelves import HEALINGS
from bireme.core.jobs import requests
from bireme.core.kinds.life import IllegalTransition, Law, Life, Phase
from bireme.core.lifecycle.apply import apply
from bireme.core.lifecycle.registry import KINDS, PROGRAMME
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place
from bireme.core.model.healing.healings import HealingAct, HealingLife, Proposal
from bireme.core.model.healing.policy import HealingMode, HealingPolicy
from bireme.core.model.idling.policy import IdleAction
from bireme.core.model.serving.services import ServiceKey
from bireme.core.reservations.orders import ReservationOrder, create_reservation
from bireme.core.services import requests as services
from bireme.core.state.state import State
from bireme.runtime.kernel import Group, Kernel
from bireme.runtime.stories import IllegalTransitionError
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore
from bireme.testing.scenario import Scenario, caller_named
from bireme.testing.worlds import build_cluster

LIVES = tuple(kind.life for kind in KINDS)
Change = tuple[str, Phase, type[e.Event], Phase]
"""What a journal shows: (kind, phase before, event, phase after)."""


def full_life() -> list[e.Recorded]:
    """A journal in which jobs, steps, nodes, a reservation and the cluster go through most of what they can."""
    world = Scenario("2x4")
    world.submit("held", hold=True)
    world.submit("array", array="0-3", time_s=600)
    world.submit("job", time_s=6_000)
    world.settle()
    world.cancel("held")
    world.step("job")
    world.finish_step("job", 0)
    world.suspend("job")
    world.resume("job")
    world.checkpoint("job")
    world.requeue("job")
    world.settle()
    world.ask(requests.signal, "job", 10, "batch")
    world.cancel("array_[2-3]")
    world.finish("job")
    world.requeue("job")
    world.lose("n1")
    world.comes_back("n1")
    world.node("n2", "DOWN")
    world.node("n2", "RESUME")
    order = ReservationOrder(
        begin=world.now + 10, duration_s=60, users=("alice",), nodes=("n1",), flags=("IGNORE_JOBS",)
    )
    world.record(create_reservation(world.state, caller_named("root"), "tuesday", order, world.now))
    world.record([e.AccountsChanged(), e.EventsLost(len(world.journal), len(world.journal)), e.LossSettled()])
    world.wait(100_000)
    _service_life(world)
    _idle_life(world)
    _finding_life(world)
    _inquest_life(world)
    _healing_life(world)
    return world.journal


def _service_life(world: Scenario) -> None:
    """A service is deployed, updated, has a canary, crashes, and is stopped."""
    world.serve("chat", "1")
    world.probes("chat")
    world.serve("chat", "1")
    world.probes("chat")
    world.wait(100)
    world.serve("chat", "1", canary=50)
    world.serving(services.promote, "chat")
    world.serving(services.rollback, "chat")
    world.serving(services.rollback, "chat", 1)
    world.serving(services.add_key, "chat", ServiceKey(id="one", digest="00"), world.now)
    world.serving(services.revoke_key, "chat", "one")
    world.settle()
    for number in world.state.services["chat"].replicas:
        world.finish(f"chat/{number}", 1)
    world.serving(services.scale, "chat", 2)
    world.wait(100)
    world.serving(services.stop, "chat")
    world.wait(1_000)


def _idle_life(world: Scenario) -> None:
    """The owner of an idle job is told, told otherwise, told nothing any more, and told again before it is requeued."""
    world.idle_policy(idle_s=600, grace_s=60, action=IdleAction.REQUEUE)
    world.submit("lazy", time_s=60_000)
    world.wait(1_000)
    world.idles("lazy", 600)
    world.idle_policy(idle_s=600, grace_s=60, action=IdleAction.CANCEL)
    world.idles("lazy", 600)
    world.works("lazy")
    world.idles("lazy", 600)
    world.wait(100)
    world.idles("lazy", 700)
    world.wait(1_000)


def _finding_life(world: Scenario) -> None:
    """A finding is opened, gets graver, is dismissed, gets graver again, is dismissed and closed; another is closed."""
    gpu = Place(node="n1", gpu=0)
    for gravity in (Gravity.NOTE, Gravity.DEGRADED, Gravity.BROKEN):
        world.trouble("pcie", gpu, gravity)
        if gravity is not Gravity.NOTE:
            world.record(findings.dismiss(world.state, caller_named("root"), 1, "seen"))
    world.trouble_gone("pcie", gpu, mended=True)
    world.trouble("pcie", gpu)
    world.trouble_gone("pcie", gpu, mended=True)


def _inquest_life(world: Scenario) -> None:
    """The end of a job is looked into, and it comes back; the next one does not wait."""
    world.record([e.HealingPolicySet(HealingPolicy(mode=HealingMode.ACT))])
    world.submit("healed", heal="restart")
    world.settle()
    world.finish("healed", 1)
    job = world.job("healed")
    world.report(o.InquestHeld(job_id=job.id, generation=job.generation, at=world.now))
    world.settle()
    world.ask(requests.update, "healed", {"heal": "off"}, world.now)
    world.finish("healed", 1)


def _healing_life(world: Scenario) -> None:
    """Decisions in each mode: they are approved, refused, done, failed, undone, and lapse."""
    root, state = caller_named("root"), world.state
    for mode in HealingMode:
        world.record([e.HealingPolicySet(HealingPolicy(mode=mode))])
        for rank in range(3):
            place = Place(node="n1", gpu=rank)
            first = len(HEALINGS.of(state)) + 1
            told = Proposal(
                act=HealingAct.FENCE_GPU, place=place, title=mode, reason="of it", findings=(first,), undo="no need"
            )
            world.record(list(proposed(state, told)))
            if mode is not HealingMode.ACT:
                over = (healings.approve(state, root, first), healings.refuse(state, root, first))
                world.record((*over, [e.HealingLapsed(first, "gone")])[rank])
            if HEALINGS.of(state)[first].phase is HealingLife.APPROVED:
                world.record([e.HealingFailed(first, "cannot")] if rank else [e.HealingDone(first)])
            if HEALINGS.of(state)[first].phase is HealingLife.DONE:
                world.record(healings.undo(state, root, first))
    world.people(fences.fence, "n1", "a rattling fan")
    world.node("n1", "RESUME")
    world.settle()


JOURNAL = full_life()


def replay(journal: list[e.Recorded] = JOURNAL) -> State:
    state = State()
    for recorded in journal:
        apply(state, recorded)
    return state


def changes() -> set[Change]:
    """Everything that the journal lets happen to anything."""
    state, seen = State(), set[Change]()
    for recorded in JOURNAL:
        event = recorded.event
        about = [(life, key_of(event)) for life in LIVES for key_of in life.things.get(type(event), ())]
        before = [life.phase(state, key) for life, key in about]
        apply(state, recorded)
        seen |= {(life.kind, was, type(event), life.phase(state, key)) for (life, key), was in zip(about, before)}
    return seen


def with_other_rows(monkeypatch: pytest.MonkeyPatch, event: type[e.Event], kind: str, rows: dict[Phase, tuple]) -> None:
    def changed(law: Law) -> Law:
        return law._replace(rows=rows) if law.life.kind == kind else law

    programme = PROGRAMME[event]
    changed_programme = programme._replace(law=changed(programme.law), others=tuple(map(changed, programme.others)))
    monkeypatch.setitem(PROGRAMME, event, changed_programme)


def table_of(kind: str, event: type[e.Event]) -> dict[Phase, tuple[Phase, ...]]:
    life = next(life for life in LIVES if life.kind == kind)
    return {phase: after for (phase, happens), after in life.rows.items() if happens is event}


def _cases() -> Iterator[object]:
    for kind, before, event, after in sorted(changes(), key=str):
        named = f"{kind}-{getattr(before, '__name__', before)}-{event.__name__}-{getattr(after, '__name__', after)}"
        yield pytest.param(kind, before, event, after, id=named)


CASES = list(_cases())


def test_the_journal_shows_every_kind() -> None:
    assert {change[0] for change in changes()} == {life.kind for life in LIVES}
    assert len(changes()) >= 30


@pytest.mark.parametrize(("kind", "before", "event", "after"), CASES)
def test_a_phase_after_that_the_row_does_not_name_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, kind: str, before: Phase, event: type[e.Event], after: Phase
) -> None:
    rows = table_of(kind, event)
    rows[before] = tuple(phase for phase in rows[before] if phase is not after)
    with_other_rows(monkeypatch, event, kind, rows)
    with pytest.raises(IllegalTransition, match=f"{kind} .* may not be .* after {event.__name__}"):
        replay()


@pytest.mark.parametrize(("kind", "before", "event", "after"), CASES)
def test_an_event_without_a_row_does_not_happen(
    monkeypatch: pytest.MonkeyPatch, kind: str, before: Phase, event: type[e.Event], after: Phase
) -> None:
    rows = table_of(kind, event)
    del rows[before]
    with_other_rows(monkeypatch, event, kind, rows)
    with pytest.raises(IllegalTransition, match=f"{kind} .*: {event.__name__} may not happen to it"):
        replay()


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.kind)
def test_every_row_is_about_something_and_leads_somewhere(life: Life) -> None:
    assert {event for _, event in life.rows} == set(life.things)
    assert all(life.rows.values())


def kernel_with(folder: Path, *events: e.Event) -> Kernel:
    kernel = Kernel(SqliteStore(str(folder / "journal.db"), durable=False), rows_of)
    kernel.commit(kernel.configure(build_cluster("2x4"), 0.0))
    group = Group()
    kernel._record_all(group, "somebody", events, 1.0)
    kernel.commit(group)
    return kernel


STORIES: dict[str, tuple[e.Event, ...]] = {
    "NodeLost": (e.NodeRegistered("n1", 1.0), e.NodeLost("n1", "silent"), e.NodeLost("n1", "silent")),
    "ReservationRemoved": (e.ReservationRemoved("tuesday"),),
    "LossSettled": (e.EventsLost(1, 0), e.LossSettled(), e.LossSettled()),
    "JobReleased": (e.JobReleased(7),),
    "StepStarted": (e.StepStarted(7, 1, 0, 1.0),),
}


@pytest.mark.parametrize("word", STORIES)
@pytest.mark.parametrize("stored", [True, False], ids=["on disk", "of this turn"])
def test_what_may_not_happen_is_told_with_its_story(tmp_path: Path, word: str, stored: bool) -> None:
    *before, last = STORIES[word]
    kernel = kernel_with(tmp_path, *before) if stored else kernel_with(tmp_path)
    group = Group()
    if not stored:
        kernel._record_all(group, "somebody", before, 1.0)
    with pytest.raises(IllegalTransitionError) as error:
        kernel._record_all(group, "somebody else", [last], 2.0)
    text = str(error.value)
    assert f"{word} may not happen to it" in text
    assert [line.split(": ")[1].split("(")[0] for line in text.splitlines() if "somebody: " in line] == [
        type(event).__name__ for event in before
    ]

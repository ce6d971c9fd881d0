"""What a change would do to the jobs that wait: worlds of the scenario language, taken as snapshots."""

from dataclasses import replace
from typing import Any

import pytest

from bireme.core.model import events as e
from bireme.core.model.jobs import ArrayTask, Owner, Pending, Running
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.model.sightings import Sighting
from bireme.sim.whatif import Change, Outcome, what_if
from bireme.sim.workloads.trace import TraceJob, Workload
from bireme.slurm.conf.altered import BadChangeError
from bireme.slurm.conf.diagnostics import ConfigurationError
from bireme.store.planning_input import encode_input
from bireme.testing.scenario import Scenario
from bireme.testing.worlds import build_spec

NOW = 1_000_000.0
HOUR = 3600


def busy() -> Scenario:
    """Both nodes are taken for an hour; a gang and a small job wait."""
    world = Scenario("2x8:h100", leaves=["n1", "n2"], now=NOW)
    world.submit("one", gpus_per_node=8, time_s=HOUR)
    world.submit("two", gpus_per_node=8, time_s=2 * HOUR)
    world.settle()
    world.submit("gang", nodes=2, gpus_per_node=8, time_s=HOUR)
    world.submit("small", gpus_per_node=1, time_s=3 * HOUR)
    world.settle()
    return world


def asked(world: Scenario, change: Change, history: Workload | None = None, **more: Any) -> Outcome:
    return what_if(encode_input(world.state, world.now, "test"), change, history, **more)


def starts(outcome: Outcome) -> dict[str, tuple[float | None, float | None]]:
    def after(at: float | None) -> float | None:
        return None if at is None else at - NOW

    return {waiter.name: (after(waiter.before), after(waiter.after)) for waiter in outcome.waiters}


def test_more_nodes() -> None:
    outcome = asked(busy(), Change(add_nodes=("2x8:h100",)))
    assert starts(outcome) == {"gang": (2 * HOUR, 0), "small": (3 * HOUR, HOUR)}
    assert (outcome.units_before, outcome.units_after) == (16, 32)
    assert outcome.used_before == pytest.approx((16 * 3600 + 8 * 3600 + 16 * 3600) / (3 * 3600 * 16))


def test_fewer_nodes() -> None:
    drained = asked(busy(), Change(drain=("n2",)))
    assert starts(drained) == {"gang": (2 * HOUR, None), "small": (3 * HOUR, HOUR)}
    by_switch = asked(busy(), Change(drain=("leaf2",)))
    assert by_switch == drained


def test_another_policy() -> None:
    world = Scenario("1x8:h100", now=NOW)
    for name, gpus in (("run", 4), ("big", 8), ("little", 4)):
        world.submit(name, gpus_per_node=gpus, time_s=HOUR)
    outcome = asked(world, Change(keys={"SchedulerType": "sched/builtin"}))
    assert starts(outcome)["little"] == (0, 2 * HOUR), "without backfill it waits behind the big one"


def test_another_job() -> None:
    owner = Owner(uid=1002, gid=1002, user="bob")
    spec = build_spec("mine", {"nodes": 1, "gpus_per_node": 8, "time_s": HOUR}, owner)
    outcome = asked(busy(), Change(submit=((spec,),), submit_run_s=600.0))
    mine = outcome.waiters[-1]
    assert (mine.name, mine.user, mine.submitted, mine.before) == ("mine", "bob", True, None)
    assert mine.after == NOW + HOUR, "on n1, until the gang begins"
    assert starts(outcome)["gang"] == (2 * HOUR, 2 * HOUR)


def test_another_heterogeneous_job() -> None:
    owner = Owner(uid=1002, gid=1002, user="bob")
    head, work = (build_spec(name, {"gpus_per_node": 8, "time_s": HOUR}, owner) for name in ("head", "work"))
    specs = (replace(head, het_component=0), replace(work, het_component=1))
    outcome = asked(busy(), Change(submit=(specs,), submit_run_s=600.0))
    told = {(each.name, each.component, each.after) for each in outcome.waiters if each.submitted}
    both = NOW + 6 * HOUR
    assert told == {("head", 0, both), ("work", 1, both)}, "together, when those before it have gone"
    assert outcome.ends_after == both + 600, "the end of its script ends both"


def test_run_times_come_from_history() -> None:
    like = [
        TraceJob(submit=NOW - 9000 + n, run_s=600.0, gpus=8, user="alice", partition="main", nodes=1) for n in range(9)
    ]
    outcome = asked(busy(), Change(drain=()), Workload(source="history", jobs=tuple(like)))
    assert outcome.guessed == 2
    assert starts(outcome)["gang"] == (600, 600), "both run ten minutes, as those before them did"


def test_history_comes_again() -> None:
    world = Scenario("1x8:h100", now=NOW)
    day = 86_400.0
    before = Workload(
        source="history",
        jobs=(TraceJob(submit=NOW - day + 60, run_s=HOUR, gpus=8, user="alice", partition="main", limit_s=HOUR),),
    )
    world.submit("now", gpus_per_node=8, time_s=HOUR)
    quiet, again = (asked(world, Change(drain=()), before, again_s=each) for each in (0.0, day))
    assert quiet.ends_before == NOW + HOUR
    assert again.ends_before == NOW + 2 * HOUR


def test_an_array_is_told_as_one() -> None:
    world = Scenario("1x8:h100", now=NOW)
    world.submit("sweep", gpus_per_node=8, time_s=HOUR, array="0-3")
    world.settle()
    (waiter,) = asked(world, Change(add_nodes=("3x8:h100",))).waiters
    assert waiter.before is not None
    assert (waiter.before - NOW, waiter.last_before) == (HOUR, NOW + 3 * HOUR)
    assert (waiter.after, waiter.last_after) == (NOW, NOW)


def test_what_was_down_stays_down() -> None:
    world = busy()
    world.node("n1", "DOWN")
    world.lose("n2")
    outcome = asked(world, Change(add_nodes=("1x8:h100",)))
    assert starts(outcome)["gang"] == (None, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Change(drain=("leaf9",)), "there is no node or switch leaf9; switches are leaf1, leaf2, spine"),
        (Change(add_nodes=("1x8:h100 partition=gold",)), "no partition 'gold'; there are main"),
        (Change(drain=("n[1-",)), "--drain n[1-"),
    ],
)
def test_what_cannot_be_changed(change: Change, said: str) -> None:
    with pytest.raises(BadChangeError) as caught:
        asked(busy(), change)
    assert said in str(caught.value)


def test_a_key_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="unrecognized key: Fairness"):
        asked(busy(), Change(keys={"Fairness": "1"}))


def test_a_job_that_is_refused() -> None:
    spec = build_spec("huge", {"nodes": 40, "time_s": HOUR}, Owner(uid=1002, gid=1002, user="bob"))
    with pytest.raises(BadChangeError, match=r"huge: .*40 nodes asked"):
        asked(busy(), Change(submit=((spec,),)))


def mirrored(world: Scenario, job_id: int, *, cpus: int, **more: Any) -> None:
    """A job of another scheduler's queue, as the Slurm engine reports it."""
    owner = Owner(uid=1000, gid=1000, user="ann")
    spec = build_spec("sweep", {"cpus": cpus, "time_s": HOUR, "array": "1-5"}, owner, lambda label: 0)
    spec = replace(spec, partitions=("main",))
    world.record([e.JobMirrored(job_id, Sighting(job_id=job_id, spec=spec, submitted_at=NOW - 100, **more))])


def test_an_array_of_another_schedulers_with_tasks_that_run_and_tasks_that_wait() -> None:
    """Its tasks were never counted here: another scheduler saw to them."""
    world = Scenario("1x8", now=NOW)
    held = Allocation(51, 1, "main", (NodeShare("n1", 8, 1, tuple(range(8))),))
    mirrored(world, 50, cpus=8, phase=Pending(since=NOW - 100, eligible_at=NOW - 100), waiting=(2, 3))
    mirrored(world, 51, cpus=8, phase=Running(held, NOW - 60), task=ArrayTask(50, 1, 3, 1, 3))
    outcome = asked(world, Change(add_nodes=("1x8",)))
    assert [(waiter.before, waiter.after) for waiter in outcome.waiters] == [(NOW + HOUR - 60, NOW)]
    assert [(waiter.last_before, waiter.last_after) for waiter in outcome.waiters] == [
        (NOW + 2 * HOUR - 60, NOW + HOUR - 60)
    ]

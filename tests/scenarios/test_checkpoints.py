"""Checkpoints that were found: facts of the journal, where a start goes on, and who is ended for others."""

from __future__ import annotations

from typing import Any

from bireme.core.jobs import requests
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.cluster import Settings
from bireme.core.model.healing.checkpoints import Checkpoint
from bireme.core.model.jobs import Ending
from bireme.core.model.policy import Policy, Preemption
from bireme.slurm.records.jobs import job_record
from bireme.testing.scenario import Scenario

TIERS = {"low": {"priority_tier": 1}, "high": {"priority_tier": 2}}
SETTINGS = Settings(policy=Policy(preemption=Preemption("partition", "REQUEUE")), memory_is_consumable=False)


def found(world: Scenario, label: str, *, ago_s: float = 0.0, path: str = "/run/step-5", **more: Any) -> None:
    """A process of the owner's has found this one."""
    job = world.job(label)
    checkpoint = Checkpoint(path=path, saved_at=world.now - ago_s, **more)
    world.report(o.CheckpointSeen(job.id, job.generation, checkpoint, world.now))


def told(world: Scenario) -> list[e.JobCheckpointed]:
    return [each.event for each in world.journal if isinstance(each.event, e.JobCheckpointed)]


def test_what_is_found_again_and_again_is_one_fact_and_says_what_would_be_lost() -> None:
    world = Scenario("1x1:h100")
    world.submit("train", gpus=1)
    world.settle()
    world.wait(100)
    for _ in range(3):
        job = world.job("train")
        checkpoint = Checkpoint(path="/run/step-5", saved_at=world.state.jobs[job.id].phase.started_at + 60, step=5)  # type: ignore[union-attr]
        world.report(o.CheckpointSeen(job.id, job.generation, checkpoint, world.now))
    assert len(told(world)) == 1
    record = job_record(world.state, world.job("train"), world.now)
    assert (record["unsaved_s"], record["checkpoint"]["step"]) == (40, 5)
    assert world.replayed().jobs == world.state.jobs


def test_the_newest_checkpoint_outlives_a_restart_and_saves_nothing_of_the_next_start() -> None:
    world = Scenario("1x1:h100")
    world.submit("train", gpus=1)
    world.settle()
    world.wait(100)
    found(world, "train")
    world.requeue("train")
    world.settle()
    world.wait(30)
    job = world.job("train")
    assert job.restarts == 1
    assert job.checkpoint is not None
    assert job.checkpointed_at is None
    found(world, "train", ago_s=50)  # of the start before
    assert world.job("train").checkpointed_at is None
    found(world, "train", ago_s=10)
    assert world.job("train").checkpointed_at == world.now - 10


def test_what_is_found_while_it_ends_or_waits_is_where_it_goes_on_and_a_late_word_is_not() -> None:
    world = Scenario("1x1:h100")
    world.submit("train", gpus=1)
    world.settle()
    generation = world.job("train").generation
    world.requeue("train")
    found(world, "train", path="/run/step-9")
    assert world.job("train").checkpoint == Checkpoint(path="/run/step-9", saved_at=world.now)
    world.settle()
    assert world.job("train").generation == generation + 1
    late = Checkpoint(path="/run/late", saved_at=world.now)
    world.report(o.CheckpointSeen(world.job("train").id, generation, late, world.now))
    assert world.job("train").checkpoint != late


def test_a_time_of_a_file_that_lies_in_the_future_is_now() -> None:
    world = Scenario("1x1:h100")
    world.submit("train", gpus=1)
    world.settle()
    found(world, "train", ago_s=-1e9)
    assert world.job("train").checkpointed_at == world.now


def test_among_equals_the_one_whose_newest_checkpoint_is_the_youngest_makes_way() -> None:
    """Slurm would take the youngest: `late`."""
    world = Scenario("2x1:h100", partitions=TIERS, settings=SETTINGS)
    world.submit("early", gpus=1, partition="low")
    world.settle()
    world.wait(600)
    world.submit("late", gpus=1, partition="low")
    world.settle()
    world.wait(300)
    found(world, "early", ago_s=20)
    world.submit("urgent", gpus=1, partition="high")
    world.settle()
    assert [each for each in ("early", "late") if world.job(each).restarts] == ["early"]
    (ending,) = [each.event for each in world.journal if isinstance(each.event, e.JobEnding)]
    assert ending.outcome.reason is not None
    assert ending.outcome.reason.fact("lost_s") == 20
    assert isinstance(ending, e.JobEnding)
    assert not isinstance(world.job("late").phase, Ending)


def test_a_job_says_so_itself_and_a_file_that_is_older_takes_nothing_back() -> None:
    world = Scenario("1x1:h100")
    world.submit("train", gpus=1)
    world.settle()
    world.wait(100)
    world.ask(requests.checkpointed, "train")
    said = world.now
    world.wait(10)
    found(world, "train", ago_s=60)
    assert world.job("train").checkpointed_at == said


def test_one_that_was_thrown_away_is_offered_to_no_start() -> None:
    world = Scenario("1x8")
    world.submit("train", cpus=8)
    world.settle()
    job = world.job("train")
    world.wait(60)
    for checkpoint in (Checkpoint(path="/c", saved_at=world.now), None, None):
        world.report(o.CheckpointSeen(job.id, job.generation, checkpoint, world.now))
    assert (job.checkpoint, job.checkpointed_at) == (None, None)
    assert sum(isinstance(each.event, e.JobCheckpointed) for each in world.journal) == 2, "news alone"
    assert world.replayed().jobs == world.state.jobs

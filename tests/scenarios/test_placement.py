"""SchedulerParameters=placement: which of several nodes a job gets."""

import pytest

from bireme.core.model.cluster import Settings
from bireme.core.model.policy import Policy
from bireme.core.placement.scores import DEFAULT, POLICIES
from bireme.slurm.conf.scheduling import scheduling_policy
from bireme.slurm.errors import SlurmSyntaxError
from bireme.testing.scenario import Scenario


def world_of(cluster: str, placement: str = DEFAULT, **options: int) -> Scenario:
    settings = Settings(memory_is_consumable=False, policy=Policy(placement=placement))
    return Scenario(cluster, settings=settings, **options)


def test_the_model_that_others_depend_on_is_spared() -> None:
    world = world_of("1x4:a100+1x4:h100")
    for number in range(2):
        world.submit(f"typed{number}", gpus="h100:1")
    world.submit("plain", gpus=1)
    world.expect(typed0="runs n2", typed1="runs n2", plain="runs n1")


def test_best_fit_does_not_spare_it() -> None:
    world = world_of("1x4:a100+1x4:h100", "bestfit")
    for number in range(2):
        world.submit(f"typed{number}", gpus="h100:1")
    world.submit("plain", gpus=1)
    world.expect(typed0="runs n2", typed1="runs n2", plain="runs n2")


def test_parts_are_kept_together_so_that_a_whole_node_stays() -> None:
    world = world_of("2x8:h100", shard=4)
    for number in range(3):
        world.submit(f"part{number}", gres="shard:1")
    world.submit("whole", nodes=1, gpus_per_node=8)
    world.expect(part0="runs n1", part1="runs n1", part2="runs n1", whole="runs n2")


@pytest.mark.parametrize("placement", POLICIES)
def test_every_policy_fills_the_cluster(placement: str) -> None:
    world = world_of("3x4:h100", placement, shard=4, threads_per_core=1)
    for number in range(3):
        world.submit(f"three{number}", gpus=3)
    for number in range(4):
        world.submit(f"part{number}", gres="shard:1")
    world.settle()
    assert sum(word.startswith("runs") for word in world.described().values()) >= 6


def test_a_placement_that_there_is_not_is_refused_by_name() -> None:
    assert scheduling_policy({"SchedulerParameters": "bf_window=60,placement=FGD"}).placement == "fgd"
    with pytest.raises(SlurmSyntaxError, match=r"SchedulerParameters=placement=tetris: there are random, dotprod"):
        scheduling_policy({"SchedulerParameters": "placement=tetris"})


def test_jobs_of_one_node_that_ask_to_be_spread_take_the_emptiest() -> None:
    world = Scenario("3x8:h100")
    for label in ("a", "b", "c", "d"):
        world.submit(label, gpus=1, spread=True)
    world.expect(a="runs n1", b="runs n2", c="runs n3", d="runs n1")

"""GPUs in parts: `shard` and `mps` beside whole GPUs, and MIG profiles as types."""

import pytest

from bireme.core.model.refusals import Refusal, Why
from bireme.slurm.gres import parse_gres
from bireme.slurm.records.nodes import gres_used_text
from bireme.testing.scenario import Scenario


def parts(world: Scenario, label: str) -> tuple[tuple[int, int], ...]:
    allocation = world.job(label).allocation
    assert allocation is not None
    return tuple(part for share in allocation.shares for gres in share.gres for part in gres.parts)


def test_jobs_share_a_gpu_until_it_is_full() -> None:
    world = Scenario("1x2:h100", shard=4, threads_per_core=1)
    world.submit("three", gres="shard:3")
    world.submit("two", gres="shard:2")
    world.expect(three="runs n1", two="runs n1")
    assert parts(world, "three") == ((0, 3),)
    assert parts(world, "two") == ((1, 2),)


def test_the_fullest_gpu_that_still_holds_it_is_taken() -> None:
    world = Scenario("1x4:h100", shard=4)
    world.submit("one", gres="shard:1")
    world.submit("two", gres="shard:h100:2")
    world.submit("four", gres="shard:4")
    world.submit("rest", gres="shard:1")
    world.expect(one="runs n1", two="runs n1", four="runs n1", rest="runs n1")
    assert [parts(world, label) for label in ("one", "two", "four", "rest")] == [
        ((0, 1),),
        ((0, 2),),
        ((1, 4),),
        ((0, 1),),
    ]


def test_parts_that_lie_on_two_gpus_are_not_enough_for_a_job_that_fits_on_one() -> None:
    world = Scenario("1x4:h100", shard=4)
    for gpu in range(4):
        world.submit(f"three{gpu}", gres="shard:3")
    world.settle()
    world.shown.update(world.described())
    world.submit("two", gres="shard:2")
    world.expect(two="waits Resources")
    world.finish("three2")
    world.expect(three2="COMPLETED", two="runs n1")
    assert parts(world, "two") == ((2, 2),)


def test_more_than_a_gpus_worth_comes_from_several() -> None:
    world = Scenario("1x4:h100", shard=4)
    world.submit("one", gres="shard:1")
    world.submit("six", gres="shard:6")
    world.expect(one="runs n1", six="runs n1")
    assert parts(world, "six") == ((0, 2), (1, 4))


def test_a_gpu_in_parts_is_not_given_whole_nor_a_whole_one_in_parts() -> None:
    world = Scenario("1x2:h100", shard=4)
    world.submit("part", gres="shard:1")
    world.submit("both", gpus=2, time_s=60)
    world.expect(part="runs n1", both="waits Resources")
    world.finish("part")
    world.expect(part="COMPLETED", both="runs n1")
    world.submit("late", gres="shard:1")
    world.expect(late="waits Resources")
    world.finish("both")
    world.expect(both="COMPLETED", late="runs n1")


def test_the_gpu_comes_back_with_its_last_part() -> None:
    world = Scenario("1x4:h100", shard=2)
    for name in "abcd":
        world.submit(name, gres="shard:1")
    world.submit("whole", gpus=3)
    world.expect(a="runs n1", b="runs n1", c="runs n1", d="runs n1", whole="waits Resources")
    world.finish("a")
    world.expect(a="COMPLETED")
    world.finish("b")
    world.expect(b="COMPLETED", whole="runs n1")


def test_a_gpu_is_in_use_as_one_kind_of_parts() -> None:
    world = Scenario("1x4:h100", shard=4, mps=100)
    world.submit("shard", gres="shard:1")
    world.submit("mps", gres="mps:50")
    world.expect(shard="runs n1", mps="runs n1")
    assert (parts(world, "shard"), parts(world, "mps")) == (((0, 1),), ((1, 50),))


def test_the_future_knows_when_parts_come_back() -> None:
    world = Scenario("1x1:h100", shard=4, threads_per_core=1)
    world.submit("whole", gpus=1, time_s=600)
    world.submit("part", gres="shard:2", time_s=60)
    world.expect(whole="runs n1", part="waits Resources")
    assert world.outlook is not None
    assert [slot.begin for slot in world.outlook.bookings[world.job("part").id]] == [world.now + 600]


def test_who_starts_now_keeps_off_the_gpu_that_is_promised_in_parts() -> None:
    world = Scenario("1x4:h100", shard=4)
    world.submit("short", gres="gpu:1", time_s=600)
    world.submit("long", gres="gpu:2", time_s=6000)
    world.submit("parts", gres="shard:8", time_s=600)
    world.submit("filler", gres="shard:1", time_s=6000)
    world.submit("brief", gres="shard:1", time_s=300)
    world.expect(short="runs n1", long="runs n1", parts="waits Resources", filler="waits Priority", brief="runs n1")


def test_a_gpu_in_shards_now_and_promised_to_mps_is_open_to_neither() -> None:
    world = Scenario("2x3:h100", shard=4, mps=100)
    world.submit("shards", gres="shard:7", nodes=2, time_s=60)
    world.submit("promised", gres="mps:150", time_s=60)
    world.submit("behind", gres="mps:30", time_s=120)
    world.expect(shards="runs n[1-2]", promised="waits Resources", behind="runs n1")
    assert parts(world, "behind") == ((2, 30),)


def test_more_than_a_node_has_is_refused() -> None:
    world = Scenario("1x2:h100", shard=4)
    with pytest.raises(Refusal):
        world.submit("nine", gres="shard:9")


def test_exclusive_takes_the_gpus_whole() -> None:
    world = Scenario("1x2:h100", shard=4)
    world.submit("all", exclusive=True)
    world.expect(all="runs n1")
    allocation = world.job("all").allocation
    assert allocation is not None
    assert [(gres.name, gres.count) for gres in allocation.shares[0].gres] == [("gpu", 2)]


def test_a_step_sees_the_gpu_of_its_jobs_parts() -> None:
    world = Scenario("1x2:h100", shard=4)
    world.submit("job", gres="shard:3")
    world.expect(job="runs n1")
    step = world.step("job", gres_per_node=parse_gres("shard:2"))
    assert [gres.parts for gres in step.nodes[0].gres] == [((0, 2),)]


def test_nodes_show_what_is_used_of_each_gpu() -> None:
    world = Scenario("1x2:h100", shard=4)
    world.submit("job", gres="shard:3")
    world.settle()
    room = world.state.occupancy.room("n1")
    texts = [gres_used_text(pool, room) for pool in world.state.nodes["n1"].config.gres]
    assert texts == ["gpu:h100:0(IDX:N/A)", "shard:h100:3(3/4,0/4)"]


def test_a_mig_profile_is_a_type() -> None:
    world = Scenario("1x2:a100_3g.20gb+1x2:a100_7g.80gb")
    world.submit("slice", gres="gpu:a100_3g.20gb:1")
    world.submit("three", gres="gpu:a100_7g.80gb:2")
    world.submit("late", gres="gpu:a100_7g.80gb:1")
    world.expect(slice="runs n1", three="runs n2", late="waits Resources")


def test_with_one_sharing_only_one_gpu_of_a_node_is_shared() -> None:
    world = Scenario("1x4:h100", mps=100, one_sharing=("mps",))
    world.submit("first", gres="mps:60")
    world.submit("second", gres="mps:60", time_s=60)
    world.submit("small", gres="mps:40")
    world.submit("whole", gpus=3)
    world.expect(first="runs n1", second="waits Resources", small="runs n1", whole="runs n1")
    assert {gpu for label in ("first", "small") for gpu in world.job(label).allocation.shares[0].gpus_seen()} == {0}
    world.finish("first")
    world.finish("small")
    world.expect(first="COMPLETED", small="COMPLETED", second="runs n1")


def test_with_one_sharing_nothing_is_larger_than_a_gpu() -> None:
    world = Scenario("1x4:h100", mps=100, one_sharing=("mps",))
    with world.refused(Why.NODE_CONFIG_UNAVAILABLE):
        world.submit("large", gres="mps:101")


def test_replicas_of_a_service_share_a_gpu_and_leave_the_others_to_training() -> None:
    world = Scenario("1x4:h100", shard=4, threads_per_core=1)
    world.serve("chat", "3", gres="shard:1")
    world.submit("training", gpus=3)
    world.expect(
        {"chat": "0/3 r0 rolling r1 [1 loading] [2 loading] [3 loading]"}
        | dict.fromkeys(("chat/1", "chat/2", "chat/3", "training"), "runs n1")
    )
    assert {parts(world, f"chat/{number}") for number in (1, 2, 3)} == {((0, 1),)}


def test_replicas_of_a_service_have_a_mig_profile_each() -> None:
    world = Scenario("1x2:a100_3g.20gb", threads_per_core=1)
    world.serve("chat", "2", gres="gpu:a100_3g.20gb:1")
    world.serve("more", "1", gres="gpu:a100_3g.20gb:1")
    world.expect(
        {"chat": "0/2 r0 rolling r1 [1 loading] [2 loading]", "chat/1": "runs n1", "chat/2": "runs n1"}
        | {"more": "0/1 r0 rolling r1 [1 waiting]", "more/1": "waits Resources"}
    )

"""Fences: the smallest thing is out of service, nothing new is placed there, and it comes back as it went."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bireme.core.explain.wording import sentence
from bireme.core.faults.fences import requests as fences
from bireme.core.faults.findings import requests as findings
from bireme.core.faults.healings import requests as healings
from bireme.core.faults.healings.shelves import HEALINGS
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Gravity, Place, Quote
from bireme.core.model.refusals import Refusal
from bireme.core.model.resources import Device, GresPool
from bireme.core.why.waiting import explain_waiting
from bireme.slurm.records.nodes import node_record
from bireme.testing.scenario import Scenario, caller_named
from bireme.testing.worlds import build_cluster


def gpu(node: str = "n1", number: int = 2) -> Place:
    return Place(node=node, gpu=number)


def world_of(cluster: str = "2x8:h100", mode: str = "act", **options: Any) -> Scenario:
    world = Scenario(cluster, **options)
    world.healing_policy(mode)
    return world


GPU2 = gpu()


def broken(world: Scenario, place: Place = GPU2, detector: str = "off_the_bus", **more: Any) -> None:
    world.trouble(detector, place, title=f"GPU {place.gpu} fell off the bus", **more)
    world.settle()


def given(world: Scenario, label: str) -> tuple[int, ...]:
    allocation = world.job(label).allocation
    assert allocation is not None
    return allocation.shares[0].gres_indices("gpu")


# -- one GPU ---------------------------------------------------------------------------------------------------------


def test_a_broken_gpu_is_out_of_service_and_the_node_keeps_the_others() -> None:
    world = world_of("1x8:h100")
    broken(world)
    assert world.fences() == {"n1:gpu2": "GPU 2 fell off the bus (finding 1)"}
    assert world.healings() == ["fence-gpu n1:gpu2: done"]
    world.submit("seven", gpus=7)
    world.submit("one", gpus=1)
    world.expect(seven="runs n1", one="waits Resources")
    assert given(world, "seven") == (0, 1, 3, 4, 5, 6, 7)
    assert world.replayed().shelves == world.state.shelves


def test_what_runs_there_goes_on_and_nothing_follows_it() -> None:
    world = world_of("1x8:h100")
    world.submit("old", gpus=8)
    world.submit("small", gpus=8)
    world.expect(old="runs n1", small="waits Resources")
    broken(world)
    world.expect(small="waits ReqNodeNotAvail")
    world.finish("old")
    world.submit("seven", gpus=7)
    world.expect(old="COMPLETED", seven="runs n1")


def test_a_job_that_wants_all_waits_until_the_fence_is_lifted() -> None:
    world = world_of("1x8:h100")
    broken(world)
    world.submit("eight", gpus=8)
    world.expect(eight="waits ReqNodeNotAvail")
    world.people(healings.undo, 1, "card replaced")
    world.expect(eight="runs n1")
    assert world.fences() == {}
    assert world.healings() == ["fence-gpu n1:gpu2: undone"]


def test_a_finding_that_is_mended_lifts_its_fence() -> None:
    world = world_of("1x8:h100")
    broken(world)
    broken(world, detector="ecc")
    world.trouble_gone("off_the_bus", gpu(), mended=True)
    world.settle()
    assert list(world.fences()) == ["n1:gpu2"], "another finding stands there"
    world.trouble_gone("ecc", gpu(), mended=True)
    world.settle()
    assert world.fences() == {}
    assert HEALINGS.of(world.state)[1].latest.text == "looked again"


def test_a_calendar_does_not_count_on_a_fenced_gpu_that_a_job_still_has() -> None:
    world = world_of("2x8:h100")
    world.submit("old", gpus_per_node=8, nodelist=("n1",), time_s=600)
    world.submit("other", gpus_per_node=8, nodelist=("n2",), time_s=6_000)
    world.settle()
    broken(world)
    world.submit("eight", gpus_per_node=8, time_s=60)
    world.settle()
    expected = world.state.verdicts[world.job("eight").id].expected_start
    assert expected is not None
    assert expected - world.now > 5_000, "on n2, after the long one"


def test_shards_and_instances_of_a_card_go_with_it() -> None:
    world = world_of("1x2:h100", shard=4)
    world.submit("part", gres="shard:1")
    world.expect(part="runs n1")
    broken(world, gpu(number=0))
    world.submit("four", gres="shard:4")
    world.submit("more", gres="shard:1")
    world.expect(four="runs n1", more="waits Resources")
    world.finish("part")
    world.expect(part="COMPLETED")
    world.people(healings.undo, 1)
    world.expect(more="runs n1")


def test_a_card_with_instances_is_fenced_with_all_of_them() -> None:
    config = build_cluster("1x4")
    cards = ("/dev/nvidia0,/dev/cap1", "/dev/nvidia0,/dev/cap2", "/dev/nvidia1,/dev/cap3")
    devices = tuple(Device(index, "a100_3g.20gb", file=file) for index, file in enumerate(cards))
    node = replace(config.nodes[0], gres=(GresPool("gpu", "a100_3g.20gb", 3, devices),))
    world = world_of("1x4")
    world.record([e.ClusterConfigured(replace(world.state.config, nodes=(node,)))])
    world.settle()
    broken(world, gpu(number=1))
    assert world.state.nodes["n1"].shut_gpus == (0, 1)


def test_a_fence_stays_through_loss_of_the_node_and_another_configuration() -> None:
    world = world_of("1x4")
    uuids = tuple(Device(index, "h100", uuid=f"GPU-{index}") for index in range(4))
    configured(world, uuids)
    broken(world, Place(node="n1", uuid="GPU-2"))
    assert world.state.nodes["n1"].shut_gpus == (2,)
    world.lose("n1")
    world.comes_back("n1")
    assert world.state.nodes["n1"].shut_gpus == (2,)
    turned = tuple(replace(device, index=3 - device.index) for device in reversed(uuids))
    configured(world, turned)
    assert world.state.nodes["n1"].shut_gpus == (1,), "the same card has another number now"
    configured(world, ())
    assert world.state.nodes["n1"].shut_gpus == ()
    configured(world, uuids)
    assert world.state.nodes["n1"].shut_gpus == (2,)
    assert world.replayed().shelves == world.state.shelves


def configured(world: Scenario, devices: tuple[Device, ...]) -> None:
    gres = (GresPool("gpu", "h100", len(devices), devices),) if devices else ()
    node = replace(world.state.config.nodes[0], gres=gres)
    world.record([e.ClusterConfigured(replace(world.state.config, nodes=(node,)))])
    world.settle()


def test_who_cannot_run_for_a_fence_is_told_of_it_and_holds_up_nobody() -> None:
    world = world_of("1x8:h100")
    broken(world)
    world.submit("eight", gpus=8)
    world.submit("one", gpus=1)
    world.expect(eight="waits ReqNodeNotAvail", one="runs n1")
    reasons = world.state.verdicts[world.id_of("eight")].reasons
    said = "GPUs that it needs are out of service: GPU 2 of n1 is fenced: GPU 2 fell off the bus (finding 1)."
    assert [sentence(each) for each in reasons] == [said]
    waiting, _ = explain_waiting(world.state, world.job("eight"), world.now)
    assert waiting.blocks[0].text == said


def test_slurms_words_show_what_is_out_and_what_is_still_in_use() -> None:
    world = world_of("1x8:h100")
    world.submit("old", gpus=3)
    world.settle()
    for number in (2, 5):
        broken(world, gpu(number=number))
    record = node_record(world.state, world.state.nodes["n1"], world.now)
    assert record["gres_drained"] == "gpu:h100:2(IDX:2,5)"
    assert record["gres_used"] == "gpu:h100:3(IDX:0-2)"
    assert record["reason"].startswith("GPU 2 fenced: GPU 2 fell off the bus (finding 1); GPU 5 fenced")
    world.finish("old")
    world.settle()
    assert node_record(world.state, world.state.nodes["n1"], world.now)["gres_used"] == "gpu:h100:0(IDX:N/A)"


# -- a node ----------------------------------------------------------------------------------------------------------


def test_a_broken_node_is_drained_with_the_reason_and_resuming_it_lifts_the_fence() -> None:
    world = world_of()
    seen = (Quote(text="mlx5_0: link down", source="kernel"),)
    world.trouble("nic", Place(node="n1"), title="the link of mlx5_0 is down", quotes=seen)
    world.settle()
    node = world.state.nodes["n1"]
    assert node.drained
    assert node.note is not None
    assert node.note.text == "the link of mlx5_0 is down (finding 1)"
    world.submit("job", gpus=8)
    world.expect(job="runs n2")
    world.node("n1", "RESUME")
    world.settle()
    assert world.fences() == {}
    assert world.healings() == ["fence-node n1: undone"]
    assert HEALINGS.of(world.state)[1].latest.by == "root"
    world.wait(100)
    assert world.fences() == {}, "a person has said so: not again for the same finding"


def test_what_an_operator_drained_stays_drained_when_the_fence_is_lifted() -> None:
    world = world_of()
    world.node("n1", "DRAIN", "new cables on Friday")
    world.trouble("nic", Place(node="n1"))
    world.settle()
    assert list(world.fences()) == ["n1"]
    world.trouble_gone("nic", Place(node="n1"), mended=True)
    world.settle()
    assert world.fences() == {}
    assert world.state.nodes["n1"].drained
    assert world.state.nodes["n1"].note.text == "new cables on Friday"


def test_where_somebody_else_chooses_gpus_the_node_is_the_smallest_thing() -> None:
    world = Scenario("2x8:h100")
    world.healing_policy("act", whole_nodes=("",))
    broken(world)
    assert world.fences() == {"n1": "GPU 2 fell off the bus; here a GPU cannot be fenced without its node (finding 1)"}


# -- the circuit breaker, and the modes ------------------------------------------------------------------------------


def test_no_more_than_a_share_of_the_pool_is_fenced_without_a_person() -> None:
    world = world_of("20x8:h100")
    for number in range(1, 5):
        world.trouble("nic", Place(node=f"n{number}"))
    world.settle()
    assert list(world.fences()) == ["n1", "n2"], "10% of 20"
    assert world.healings()[2:] == ["fence-node n3: suggested", "fence-node n4: suggested"]
    assert HEALINGS.of(world.state)[3].latest.text.startswith("the circuit breaker: 2 of 20 nodes are fenced already")
    world.people(healings.approve, 3)
    assert list(world.fences()) == ["n1", "n2", "n3"]


def test_gpus_count_too_and_those_of_one_node_are_always_allowed() -> None:
    world = world_of("4x4:h100")
    for number in range(6):
        broken(world, gpu(f"n{number % 4 + 1}", number // 4))
    assert len(world.fences()) == 4
    assert world.healings()[4:] == ["fence-gpu n1:gpu1: suggested", "fence-gpu n2:gpu1: suggested"]


def test_the_last_node_of_a_partition_needs_a_person() -> None:
    world = Scenario("10x2:h100", partitions={"main": {}, "small": {"nodes": "n1"}})
    world.healing_policy("act")
    world.trouble("nic", Place(node="n1"))
    world.settle()
    assert world.healings() == ["fence-node n1: suggested"]
    assert "the last node of partition small" in HEALINGS.of(world.state)[1].latest.text
    for number in (0, 1):
        broken(world, gpu("n1", number))
    assert world.healings()[1:] == ["fence-gpu n1:gpu0: done", "fence-gpu n1:gpu1: suggested"]


def test_a_suggestion_lapses_with_its_finding_and_a_lifted_fence_makes_room_in_the_breaker() -> None:
    world = world_of("2x8:h100", "suggest")
    broken(world)
    assert world.healings() == ["fence-gpu n1:gpu2: suggested"]
    world.trouble_gone("off_the_bus", gpu(), mended=True)
    world.settle()
    assert world.healings() == ["fence-gpu n1:gpu2: lapsed"]


def test_what_was_observed_is_decided_anew_when_the_mode_changes() -> None:
    world = world_of(mode="observe")
    broken(world)
    world.trouble("pcie", gpu("n2"), Gravity.DEGRADED)
    world.settle()
    assert world.healings() == ["fence-gpu n1:gpu2: observed"]
    world.healing_policy("act")
    assert world.healings() == ["fence-gpu n1:gpu2: lapsed", "fence-gpu n1:gpu2: done"]
    assert list(world.fences()) == ["n1:gpu2"]


def test_a_dismissed_finding_lifts_the_fence_and_a_milder_one_too() -> None:
    world = world_of()
    broken(world)
    world.people(findings.dismiss, 1, "a riser")
    assert world.fences() == {}
    assert HEALINGS.of(world.state)[1].latest.by == "root"


# -- people ----------------------------------------------------------------------------------------------------------


def test_people_fence_by_hand_and_are_told_what_is_wrong_with_what_they_ask() -> None:
    world = world_of("2x8:h100", partitions={"main": {}, "small": {"nodes": "n2"}})
    world.people(fences.fence, "n1:gpu2", "fan 3 rattles")
    assert world.fences() == {"n1:gpu2": "fan 3 rattles"}
    said = {
        ("n1:gpu2", "again"): "n1:gpu2 is fenced already: fan 3 rattles; `bireme healings undo 1` lifts that",
        ("n1:gpu9", "x"): "n1 has no GPU 9: it has GPUs 0 to 7",
        ("n1:GPU-x", "x"): "n1 has no GPU GPU-x: it has GPUs 0 to 7",
        ("n7", "x"): "no node 'n7' here",
        ("n1:", "x"): "'n1:' is no place: say a node as n1, or a GPU of one as n1:gpu2 or n1:GPU-UUID",
        ("n1", " "): "say why, for whoever finds it fenced: --reason='fan 3 rattles'",
        ("n2", "x"): "n2 is the last node of partition small that takes jobs: say --last-too to mean it",
    }
    for (place, why), hint in said.items():
        with pytest.raises(Refusal) as refused:
            world.people(fences.fence, place, why)
        assert refused.value.hint == hint
    with pytest.raises(Refusal):
        world.people(fences.fence, "n1", "x", user="alice")
    world.people(fences.fence, "n2", "x", last_too=True)
    assert list(world.fences()) == ["n1:gpu2", "n2"]


def test_what_is_approved_when_its_node_is_gone_fails_with_a_sentence() -> None:
    world = world_of("3x8:h100", "suggest")
    world.trouble("nic", Place(node="n1"))
    world.settle()
    world.record(healings.approve(world.state, caller_named("root"), 1))
    world.record([e.ClusterConfigured(replace(world.state.config, nodes=world.state.config.nodes[1:]))])
    world.settle()
    assert world.healings() == ["fence-node n1: failed"]
    assert HEALINGS.of(world.state)[1].latest.text == "there is no node n1 any more"


def test_the_last_gpus_of_a_partition_need_a_word_too_and_what_stays_is_counted() -> None:
    world = world_of("1x3:h100")
    world.people(fences.fence, "n1:gpu0", "x")
    world.people(fences.fence, "n1:gpu1", "x")
    titles = [each.proposal.title for each in HEALINGS.of(world.state).values()]
    assert titles == [f"take GPU {n} of n1 out of service, {rest}" for n, rest in enumerate(("2 stay", "1 stays"))]
    with pytest.raises(Refusal) as refused:
        world.people(fences.fence, "n1:gpu2", "x")
    assert "this is the last GPU of partition" in refused.value.hint
    world.people(fences.fence, "n1:gpu2", "x", last_too=True)
    assert HEALINGS.of(world.state)[3].proposal.title == "take GPU 2 of n1 out of service, none stays"

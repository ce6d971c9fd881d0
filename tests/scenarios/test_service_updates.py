"""Updates of services: revisions take each other's place without anybody noticing, or are given up."""

from __future__ import annotations

import pytest

from bireme.core.lifecycle.due import settled
from bireme.core.model.refusals import Refusal, Why
from bireme.core.model.serving.services import Amount, RevisionLife, Updating
from bireme.core.services import requests as services
from bireme.core.services.amounts import leeway
from bireme.core.services.situation import situation
from bireme.core.services.wording import service_sentence
from bireme.testing.scenario import Scenario


def served(cluster: str = "1x16", replicas: str = "2", **options: object) -> Scenario:
    """A service `chat` whose replicas are all ready."""
    world = Scenario(cluster)
    world.serve("chat", replicas, **options)
    world.probes("chat")
    world.settle()
    world.shown = world.described()
    return world


def phases(world: Scenario) -> dict[int, str]:
    return {number: each.phase.value for number, each in world.state.services["chat"].revisions.items()}


def told(world: Scenario) -> list[str]:
    seen = situation(world.state, world.state.services["chat"], world.now)
    return [service_sentence(each) for each in seen.reasons]


def test_a_new_replica_is_ready_before_an_old_one_drains() -> None:
    world = served()
    world.serve("chat", "2")
    world.expect({"chat": "2/2 r1 rolling r2 [3 loading]", "chat/3": "runs n1"})
    world.probes("chat/3")
    world.expect(chat="2/2 r1 rolling r2 [2 draining]")
    world.drained("chat/2")
    world.expect({"chat": "2/2 r1 rolling r2 [4 loading]", "chat/2": "CANCELLED", "chat/4": "runs n1"})
    world.probes("chat/4")
    world.expect(chat="2/2 r2 [1 draining]")
    world.drained("chat/1")
    world.expect({"chat": "2/2 r2", "chat/1": "CANCELLED"})
    assert phases(world) == {1: "retired", 2: "serving"}


def test_with_unavailable_ones_old_replicas_go_first() -> None:
    world = served()
    world.serve("chat", "2", surge="0", unavailable="1")
    world.expect(chat="1/2 r1 rolling r2 [2 draining]")
    world.drained("chat/2")
    world.expect({"chat": "1/2 r1 rolling r2 [3 loading]", "chat/2": "CANCELLED", "chat/3": "runs n1"})


@pytest.mark.parametrize(
    ("surge", "unavailable", "wanted", "expected"),
    [
        (Amount(1), Amount(0), 3, (1, 0)),
        (Amount(25, percent=True), Amount(25, percent=True), 10, (3, 2)),
        (Amount(25, percent=True), Amount(25, percent=True), 1, (1, 0)),
        (Amount(0), Amount(25, percent=True), 3, (0, 1)),
        (Amount(100, percent=True), Amount(0), 4, (4, 0)),
    ],
)
def test_per_cent_are_rounded_as_kubernetes_does(
    surge: Amount, unavailable: Amount, wanted: int, expected: tuple[int, int]
) -> None:
    assert tuple(leeway(Updating(surge=surge, unavailable=unavailable), wanted)) == expected


def test_a_revision_that_does_not_get_ready_in_time_is_given_up() -> None:
    world = served(ready_within_s=100.0)
    world.serve("chat", "2", ready_within_s=100.0)
    world.settle()
    world.wait(101)
    world.expect({"chat/3": "CANCELLED"})
    assert phases(world) == {1: "serving", 2: "failed"}
    assert told(world) == ["Revision 2 was given up: no more than 0 of its replicas got ready in 100 s."]


def test_a_revision_whose_replica_never_starts_is_given_up_at_once() -> None:
    world = served()
    world.serve("chat", "2")
    world.probes("chat/3", health="dead", why="GET /health: connection refused, 1800 times")
    world.expect({"chat/3": "CANCELLED"})
    assert phases(world) == {1: "serving", 2: "failed"}


def test_a_crash_loop_counts_towards_the_time_to_get_ready() -> None:
    world = served(ready_within_s=60.0)
    world.serve("chat", "2", ready_within_s=60.0)
    world.settle()
    for _ in range(200):
        for label in [label for label, text in world.described().items() if text.startswith("runs")]:
            if label not in ("chat/1", "chat/2"):
                world.finish(label, 3)
        world.wait(1)
    assert phases(world) == {1: "serving", 2: "failed"}
    assert world.described()["chat"] == "2/2 r1"
    assert "exit code 3" in world.state.services["chat"].revisions[2].why


def test_half_a_rollout_goes_back_within_surge_and_unavailable() -> None:
    world = served(replicas="4")
    world.serve("chat", "4")
    for number in (5, 6):
        world.probes(f"chat/{number}")
        world.wait(61)
    world.probes("chat/7", health="dead", why="no")
    world.expect(
        {f"chat/{number}": "CANCELLED" for number in (3, 4, 7)}
        | {"chat/5": "runs n1", "chat/6": "runs n1", "chat/8": "runs n1"}
        | {"chat": "4/4 r1 [8 loading]"}
    )
    world.probes("chat/8")
    world.wait(61)
    world.probes("chat/9")
    world.wait(61)
    world.expect(
        {"chat": "4/4 r1", "chat/5": "CANCELLED", "chat/6": "CANCELLED", "chat/9": "runs n1"},
    )


def test_without_room_for_one_more_it_says_so_and_goes_one_by_one() -> None:
    world = served("2x1")
    world.serve("chat", "2")
    world.expect({"chat": "2/2 r1 rolling r2 [3 waiting]", "chat/3": "waits Resources"})
    world.wait(11)
    world.expect(chat="1/2 r1 rolling r2 [2 draining] [3 waiting]")
    assert any("goes one by one" in each for each in told(world))
    world.drained("chat/2")
    world.expect(
        {"chat": "1/2 r1 rolling r2 [3 loading] [4 waiting]", "chat/2": "CANCELLED"}
        | {"chat/3": "runs n2", "chat/4": "waits Resources"}
    )
    world.wait(100)
    world.expect()
    world.probes("chat/3")
    world.expect(chat="1/2 r1 rolling r2 [1 draining] [4 waiting]")


def test_a_canary_has_its_part_until_it_is_promoted() -> None:
    world = served(replicas="4")
    world.serve("chat", "4", canary=25)
    world.expect({"chat": "4/4 r1 canary r2 [5 loading]", "chat/5": "runs n1"})
    world.probes("chat/5")
    world.expect(chat="4/4 r1 canary r2 [4 draining]")
    world.wait(61)
    world.serving(services.promote, "chat")
    world.expect({"chat": "4/4 r1 rolling r2 [6 loading]", "chat/4": "CANCELLED", "chat/6": "runs n1"})
    for number in (6, 7, 8):
        world.probes(f"chat/{number}")
        world.wait(61)
    world.settle()
    assert world.described()["chat"] == "4/4 r2"


def test_a_canary_is_rolled_back() -> None:
    world = served()
    world.serve("chat", "2", canary=10)
    world.probes("chat/3")
    world.expect({"chat": "3/2 r1 canary r2", "chat/3": "runs n1"})
    world.serving(services.rollback, "chat")
    world.expect(chat="2/2 r1 [3 draining]")
    with world.refused(Why.NOTHING_TO_PROMOTE):
        world.serving(services.promote, "chat")


def test_a_settled_revision_is_rolled_back_to_the_one_before() -> None:
    world = served(replicas="1")
    world.serve("chat", "1")
    world.probes("chat/2")
    world.wait(61)
    world.serving(services.rollback, "chat")
    world.probes("chat/3")
    world.wait(61)
    world.expect({"chat/1": "CANCELLED", "chat/2": "CANCELLED", "chat/3": "runs n1"})
    assert phases(world) == {1: "serving", 2: "retired"}
    with world.refused(Why.INVALID_REVISION):
        world.serving(services.rollback, "chat", 7)
    with world.refused(Why.NOTHING_TO_ROLL_BACK):
        world.serving(services.rollback, "chat", 1)


def test_a_restart_replaces_every_replica() -> None:
    world = served(replicas="1")
    world.serving(services.restart, "chat")
    world.probes("chat/2")
    world.wait(61)
    world.expect({"chat": "1/1 r2", "chat/1": "CANCELLED", "chat/2": "runs n1"})


def test_the_last_ten_revisions_are_kept() -> None:
    world = served(replicas="1")
    for _ in range(12):
        world.serve("chat", "1")
        world.probes("chat")
        world.wait(61)
    assert list(world.state.services["chat"].revisions) == list(range(4, 14))
    assert world.state.services["chat"].revisions[13].phase is RevisionLife.SERVING


def test_the_time_to_get_ready_begins_when_a_replica_does() -> None:
    world = served(ready_within_s=60.0)
    world.serve("chat", "2", ready_within_s=60.0)
    world.record(settled(world.state, world.now))
    world.hold("chat/3")
    world.wait(500)
    assert phases(world) == {1: "serving", 2: "rolling"}
    world.release("chat/3")
    world.wait(59)
    assert phases(world) == {1: "serving", 2: "rolling"}
    world.wait(2)
    assert phases(world) == {1: "serving", 2: "failed"}


def test_an_update_for_which_others_left_in_vain_goes_back() -> None:
    world = Scenario("1x8")
    world.serve("chat", "1", cpus=4)
    world.probes("chat")
    world.settle()
    world.submit("train", cpus=4, requeue=False, user="bob")
    world.serve("chat", "1", cpus=8, ready_within_s=600.0)
    world.wait(80)
    assert world.described()["chat"] == "0/1 r1 rolling r2 [2 waiting]"
    world.wait(600)
    assert phases(world) == {1: "serving", 2: "failed"}
    assert world.described()["chat/3"] == "runs n1"


def test_time_without_a_daemon_is_not_a_revisions_time_to_get_ready() -> None:
    """What got ready meanwhile is heard when the daemon is back, after its first look at the service."""
    world = served(ready_within_s=100.0)
    world.serve("chat", "2", ready_within_s=100.0)
    world.settle()
    world.now += 5000
    world.state.awake_since = world.now
    world.wait(99)
    assert phases(world) == {1: "serving", 2: "rolling"}
    world.probes("chat/3")
    world.wait(1)
    assert phases(world) == {1: "serving", 2: "rolling"}
    world.wait(100)
    assert phases(world) == {1: "serving", 2: "failed"}


# -- going back ------------------------------------------------------------------------------------------------------


def test_what_failed_says_no_more_how_many_are_wanted() -> None:
    world = served(ready_within_s=100.0)
    world.serve("chat", "4", ready_within_s=100.0)
    world.settle()
    world.wait(101)
    world.probes("chat")
    world.wait(61)
    service = world.state.services["chat"]
    assert (service.wanted, service.wanted_why) == (2, "revision 1 serves on")
    assert world.described()["chat"] == "2/2 r1"


def test_what_somebody_said_of_the_number_outlives_an_update_that_failed() -> None:
    world = served(ready_within_s=100.0)
    world.serve("chat", "4", ready_within_s=100.0)
    world.settle()
    world.serving(services.scale, "chat", 3)
    world.wait(101)
    service = world.state.services["chat"]
    assert (service.wanted, service.wanted_why) == (3, "scaled to 3 by alice")


def updated(times: int) -> Scenario:
    """A service whose newest revision has taken the place of those before."""
    world = served(replicas="1")
    for _ in range(times):
        world.serve("chat", "1")
        world.probes("chat")
        world.wait(61)
    return world


def test_a_second_rollback_does_not_undo_the_first() -> None:
    world = updated(2)
    world.serving(services.rollback, "chat")
    with pytest.raises(Refusal) as refused:
        world.serving(services.rollback, "chat")
    assert refused.value.hint == (
        "service chat is on its way back to revision 2 already; to stay with revision 3: bireme service rollback chat 3"
    )
    world.probes("chat")
    world.wait(61)
    assert phases(world) == {1: "retired", 2: "serving", 3: "retired"}
    world.serving(services.rollback, "chat")
    world.probes("chat")
    world.wait(61)
    assert phases(world) == {1: "serving", 2: "retired", 3: "retired"}
    with pytest.raises(Refusal) as refused:
        world.serving(services.rollback, "chat")
    assert refused.value.hint == "service chat has no revision before 1 that served; there are: 1, 2, 3"


def test_a_rollback_is_given_up_for_the_revision_that_serves() -> None:
    world = updated(1)
    world.serving(services.rollback, "chat")
    world.settle()
    world.serving(services.rollback, "chat", 2)
    world.wait(61)
    assert phases(world) == {1: "retired", 2: "serving"}
    assert world.described()["chat"] == "1/1 r2"


# -- what is lost while a revision is rolled out ---------------------------------------------------------------------


def lost(world: Scenario, *labels: str) -> None:
    """Their processes are killed."""
    for label in labels:
        world.finish(label, signal=9)


def test_a_good_replica_that_is_lost_in_an_update_is_replaced_by_its_own_revision() -> None:
    world = served(replicas="3")
    world.serve("chat", "3")
    world.expect({"chat": "3/3 r1 rolling r2 [4 loading]", "chat/4": "runs n1"})
    lost(world, "chat/1")
    world.expect({"chat": "2/3 r1 rolling r2 [4 loading] [5 loading]", "chat/1": "FAILED 0:9", "chat/5": "runs n1"})
    assert world.state.services["chat"].replicas[5].revision == 1
    world.probes("chat/5")
    world.expect(chat="3/3 r1 rolling r2 [4 loading]")


def test_an_update_whose_nodes_are_lost_keeps_what_is_proven() -> None:
    """Three nodes go one after the other: a revision that never gets ready takes none of their replicas' places."""
    world = served("7x4", replicas="3", cpus=4)
    world.serve("chat", "3", cpus=4)
    world.settle()
    for node in [world.described()[f"chat/{number}"].split()[1] for number in (1, 2, 3)]:
        world.lose(node)
        world.wait(301)
        world.probes(*(f"chat/{number}" for number in proven(world)))
        world.settle()
        assert world.described()["chat"].startswith("3/3 r1 rolling r2")
        assert len(proven(world)) == 3
    world.wait(2400)
    assert phases(world) == {1: "serving", 2: "failed"}
    assert world.described()["chat"] == "3/3 r1"


def proven(world: Scenario) -> list[int]:
    """Replicas of the revision that serves, or is to."""
    return [each.number for each in world.state.services["chat"].replicas.values() if each.revision == 1]


def test_what_comes_back_goes_when_the_new_revision_has_taken_its_place() -> None:
    world = served(replicas="2")
    world.serve("chat", "2")
    world.settle()
    lost(world, "chat/1")
    world.settle()
    world.shown = world.described()
    world.probes("chat/3")
    world.expect({"chat": "2/2 r1 rolling r2 [5 loading]", "chat/4": "CANCELLED", "chat/5": "runs n1"})
    world.probes("chat/5")
    world.wait(61)
    world.expect({"chat": "2/2 r2", "chat/2": "CANCELLED"})


def test_a_new_replica_that_waits_for_room_lets_the_lost_one_before_it() -> None:
    world = served("3x4", replicas="3", cpus=4)
    world.serve("chat", "3", cpus=4)
    world.expect({"chat": "3/3 r1 rolling r2 [4 waiting]", "chat/4": "waits Resources"})
    lost(world, "chat/2")
    world.expect(
        {"chat": "2/3 r1 rolling r2 [5 loading] [6 waiting]", "chat/2": "FAILED 0:9", "chat/4": "CANCELLED"}
        | {"chat/5": "runs n2", "chat/6": "waits Resources"}
    )
    assert world.state.services["chat"].replicas[5].revision == 1


def test_a_new_replica_gives_its_room_where_too_few_good_ones_are_left() -> None:
    world = served("4x4", replicas="3", cpus=4)
    world.serve("chat", "3", cpus=4)
    world.settle()
    for number in (1, 2):
        world.lose(world.described()[f"chat/{number}"].split()[1])
    world.wait(301)
    world.shown = world.described()
    assert world.shown["chat"] == "1/3 r1 rolling r2 [4 loading] [5 waiting] [6 waiting]"
    world.wait(11)
    world.expect(
        {"chat": "1/3 r1 rolling r2 [5 loading] [6 waiting] [7 waiting]"}
        | {"chat/4": "CANCELLED", "chat/5": "runs n4", "chat/6": "waits Resources", "chat/7": "waits Priority"}
    )


def test_the_one_that_made_room_does_not_come_back_but_others_do() -> None:
    """One by one on a full cluster: no flapping, and never fewer than one below what is wanted."""
    world = served("3x4", replicas="3", cpus=4, ready_within_s=600.0)
    world.serve("chat", "3", cpus=4, ready_within_s=600.0)
    world.wait(11)
    world.drained("chat/3")
    world.settle()
    world.shown = world.described()
    assert world.shown["chat"] == "2/3 r1 rolling r2 [4 loading] [5 waiting]"
    world.wait(100)
    world.expect()
    lost(world, "chat/1")
    world.expect(
        {"chat": "1/3 r1 rolling r2 [4 loading] [6 loading] [7 waiting]", "chat/1": "FAILED 0:9"}
        | {"chat/5": "CANCELLED", "chat/6": "runs n1", "chat/7": "waits Resources"}
    )
    assert world.state.services["chat"].replicas[6].revision == 1
    world.probes("chat/6")
    world.wait(600)
    assert phases(world) == {1: "serving", 2: "failed"}
    world.probes("chat/8")
    world.settle()
    assert world.described()["chat"] == "3/3 r1"


def test_a_larger_revision_on_a_full_cluster_does_not_flap() -> None:
    """What made room would fit where the new one does not yet: it stays away until the new one is given up."""
    world = served("1x8", cpus=2)
    world.submit("train", cpus=4, requeue=False, user="bob")
    world.settle()
    world.serve("chat", "2", cpus=4, ready_within_s=600.0)
    world.wait(100)
    world.shown = world.described()
    assert world.shown["chat"] == "1/2 r1 rolling r2 [3 waiting] [4 waiting]"
    world.wait(300)
    world.expect({"chat/2": "gone"})


def test_an_update_may_be_short_of_as_many_as_it_says() -> None:
    world = served(replicas="3")
    world.serve("chat", "3", unavailable="1")
    world.settle()
    world.drained("chat/3")
    world.settle()
    assert proven(world) == [1, 2]
    lost(world, "chat/1")
    world.settle()
    assert proven(world) == [2, 6]


def test_a_fix_for_what_crashes_is_not_kept_out_by_it() -> None:
    """Also on a full cluster: what crashes again and again is held back, and the fix has its room."""
    world = served("2x4", cpus=4)
    world.serve("chat", "2", cpus=4)
    for _ in range(60):
        for label, text in world.described().items():
            if text.startswith("runs") and world.job(label).spec.replica.revision == 1:
                world.finish(label, 1)
        world.probes(*(label for label, text in world.described().items() if text.startswith("runs")))
        world.wait(5)
    assert phases(world) == {1: "retired", 2: "serving"}
    assert world.described()["chat"] == "2/2 r2"


def test_what_has_no_replica_is_updated_without_one_of_the_old_revision() -> None:
    world = served(replicas="0-2")
    world.record(services.advised(world.state, "chat", 0, "nobody asks for it"))
    world.wait(61)
    world.shown = world.described()
    world.serve("chat", "0-2")
    world.expect({"chat": "0/1 r1 rolling r2 [2 loading]", "chat/2": "runs n1"})


def test_a_rollback_to_what_has_served_adds_no_more_of_what_it_leaves() -> None:
    world = served(replicas="2")
    world.serve("chat", "2")
    for number in (3, 4):
        world.probes(f"chat/{number}")
        world.wait(61)
    assert phases(world) == {1: "retired", 2: "serving"}
    world.serving(services.rollback, "chat")
    world.settle()
    lost(world, "chat/3")
    world.settle()
    added = [each.revision for each in world.state.services["chat"].replicas.values() if each.number > 4]
    assert added == [1, 1]


def test_a_canary_that_never_gets_ready_takes_no_good_replicas_place() -> None:
    world = served(replicas="4")
    world.serve("chat", "4", canary=25)
    world.settle()
    lost(world, "chat/1")
    world.settle()
    world.probes("chat/6")
    world.settle()
    assert world.described()["chat"] == "4/4 r1 canary r2 [5 loading]"
    assert world.state.services["chat"].replicas[6].revision == 1


def test_no_old_replica_ends_before_the_router_has_heard_of_the_new_one() -> None:
    world = served(drain_s=10.0)
    world.routes = False
    world.serve("chat", "2", drain_s=10.0)
    world.probes("chat/3")
    world.expect({"chat": "2/2 r1 rolling r2 [2 draining]", "chat/3": "runs n1"})
    world.wait(600)
    world.expect()
    assert told(world) == [
        "Revision 2 is taking the place of revision 1.",
        "Replica 2 (job 2) is to go, and stays until the router knows of it: revision 2 takes its place.",
    ]
    world.withdrawn("chat/2")
    world.wait(9)
    world.expect()
    world.wait(2)
    world.expect({"chat": "2/2 r1 rolling r2 [4 loading]", "chat/2": "CANCELLED", "chat/4": "runs n1"})


def test_a_stopped_service_ends_when_nobody_sends_it_requests() -> None:
    world = served(drain_s=10.0)
    world.routes = False
    world.serving(services.stop, "chat")
    world.expect(chat="stopping 0/0 r1 [1 draining] [2 draining]")
    world.wait(600)
    world.expect()
    world.withdrawn("chat/1")
    world.withdrawn("chat/2")
    world.wait(10)
    world.expect({"chat": "gone", "chat/1": "CANCELLED", "chat/2": "CANCELLED"})


def test_a_replica_that_never_took_requests_waits_for_no_router() -> None:
    world = served()
    world.routes = False
    world.serve("chat", "2")
    world.settle()
    world.serving(services.rollback, "chat")
    world.expect({"chat/3": "CANCELLED"})

"""Reservations: nodes set aside, who may use them, and what happens when they begin and end."""

from typing import Any

from bireme.core.model.cluster import Settings
from bireme.core.model.refusals import Why
from bireme.core.reservations.orders import (
    ReservationOrder,
    create_reservation,
    delete_reservation,
    update_reservation,
)
from bireme.store.snapshots import decode_state, encode_state, pack
from bireme.testing.scenario import Scenario, caller_named

MINUTE, HOUR, DAY = 60, 3600, 86_400


def reserve(world: Scenario, name: str = "r", *, after_s: float = 0, for_s: float = HOUR, **order: Any) -> None:
    """As root; for alice unless others are named."""
    who = order if {"users", "accounts", "gids"} & order.keys() else {"users": ("alice",), **order}
    begin = world.now + after_s
    asked = ReservationOrder(begin=begin, end=begin + for_s, **who)
    world.record(create_reservation(world.state, caller_named("root"), name, asked, world.now))


def test_reserved_nodes_are_only_for_its_jobs() -> None:
    world = Scenario("2x8")
    reserve(world, nodes=("n1",))
    world.submit("outside", cpus=8, user="bob", time_s=HOUR)
    world.submit("too much", cpus=8, user="bob", time_s=HOUR)
    world.submit("inside", cpus=8, reservation="r", time_s=MINUTE)
    world.expect({"outside": "runs n2", "too much": "waits Resources", "inside": "runs n1"})


def test_a_job_that_outlives_its_reservation_and_is_queued_again_needs_none() -> None:
    world = Scenario("1x8")
    reserve(world, for_s=HOUR, nodes=("n1",), flags=("FLEX",))
    world.submit("long", reservation="r", time_s=3 * HOUR, requeue=True)
    world.expect(long="runs n1")
    world.wait(HOUR + 1)
    assert world.job("long").spec.reservation == ""
    world.requeue("long", user="root")
    world.wait(10 * MINUTE)
    assert world.job("long").generation == 2
    assert world.described()["long"] == "runs n1"


def test_a_job_with_a_least_time_ends_before_the_reservation_begins() -> None:
    world = Scenario("1x8")
    reserve(world, after_s=HOUR, nodes=("n1",))
    world.submit("flexible", cpus=8, user="bob", time_s=3 * HOUR, time_min_s=10 * MINUTE)
    world.expect(flexible="runs n1")
    assert world.job("flexible").spec.time_limit_s == HOUR


def test_a_job_may_use_a_node_until_its_reservation_begins() -> None:
    world = Scenario("1x8")
    reserve(world, after_s=HOUR, nodes=("n1",))
    world.submit("short", cpus=4, user="bob", time_s=HOUR)
    world.submit("long", cpus=4, user="bob", time_s=HOUR + MINUTE)
    world.expect(short="runs n1", long="waits ReqNodeNotAvail")
    assert world.state.verdicts[world.id_of("long")].expected_start == world.now + 2 * HOUR


def test_jobs_in_a_reservation_wait_until_it_begins() -> None:
    world = Scenario("2x8")
    reserve(world, after_s=HOUR, nodes=("n2",))
    world.submit("early", cpus=1, reservation="r", time_s=MINUTE)
    world.expect(early="waits Reservation")
    world.wait(HOUR)
    world.expect(early="runs n2")


def test_flex_jobs_begin_before_and_use_other_nodes() -> None:
    world = Scenario("2x8")
    reserve(world, after_s=HOUR, nodes=("n2",), flags=("FLEX",))
    world.submit("early", nodes=2, cpus=8, reservation="r", time_s=3 * HOUR)
    world.expect(early="runs n[1-2]")


def test_magnetic_reservations_draw_jobs_that_did_not_ask() -> None:
    world = Scenario("1x8")
    reserve(world, nodes=("n1",), flags=("MAGNETIC",))
    world.submit("hers", cpus=4, time_s=HOUR)
    world.submit("his", cpus=4, user="bob", time_s=HOUR)
    world.expect(hers="runs n1", his="waits ReqNodeNotAvail")


def test_when_it_ends_its_jobs_end_and_those_that_wait_are_held() -> None:
    world = Scenario("1x8")
    reserve(world, nodes=("n1",))
    world.submit("running", cpus=8, reservation="r", time_s=DAY)
    world.submit("waiting", cpus=8, reservation="r", time_s=DAY)
    world.expect(running="runs n1", waiting="waits Resources")
    world.wait(HOUR)
    world.expect(running="TIMEOUT", waiting="waits ReservationDeleted")
    assert not world.state.reservations
    world.release("waiting")
    world.expect(waiting="runs n1")


def test_jobs_may_overrun_for_a_while() -> None:
    world = Scenario("1x8", settings=Settings(resv_over_run_s=10 * MINUTE, memory_is_consumable=False))
    reserve(world, nodes=("n1",), flags=("NO_HOLD_JOBS_AFTER_END",))
    world.submit("running", cpus=8, reservation="r", time_s=DAY)
    world.submit("waiting", cpus=8, reservation="r", time_s=DAY)
    world.expect(running="runs n1", waiting="waits Resources")
    world.wait(HOUR + 9 * MINUTE)
    world.expect(waiting="waits Reservation")
    world.wait(MINUTE)
    world.expect(running="TIMEOUT", waiting="runs n1")


def test_daily_reservations_come_back() -> None:
    world = Scenario("1x8")
    reserve(world, nodes=("n1",), flags=("DAILY",))
    world.submit("today", cpus=8, reservation="r", time_s=HOUR)
    world.submit("tomorrow", cpus=8, reservation="r", time_s=HOUR)
    world.submit("between", cpus=8, user="bob", time_s=23 * HOUR)
    world.submit("never between", cpus=8, user="bob", time_s=24 * HOUR)
    world.expect(
        {
            "today": "runs n1",
            "tomorrow": "waits Resources",
            "between": "waits ReqNodeNotAvail",
            "never between": "waits ReqNodeNotAvail",
        }
    )
    world.wait(HOUR)
    world.expect({"today": "TIMEOUT", "between": "runs n1", "tomorrow": "waits Reservation"})
    world.finish("between")
    world.wait(23 * HOUR)
    world.expect({"today": "gone", "between": "gone", "tomorrow": "runs n1"})


def test_weekday_and_weekend_occurrences() -> None:
    friday = 1_000_000_000.0 + 5 * DAY  # 2001-09-14
    world = Scenario("2x8", now=friday)
    reserve(world, "work", nodes=("n1",), flags=("WEEKDAY",))
    reserve(world, "rest", nodes=("n2",), flags=("WEEKEND",))
    world.wait(HOUR)
    assert world.state.reservations["work"].begin == friday + 3 * DAY
    assert world.state.reservations["rest"].begin == friday + DAY


def test_maintenance_closes_nodes_to_other_reservations_too() -> None:
    world = Scenario("1x8")
    reserve(world, nodes=("n1",), for_s=DAY)
    reserve(world, "repair", users=("root",), nodes=("n1",), after_s=HOUR, flags=("MAINT",))
    world.submit("short", cpus=4, reservation="r", time_s=HOUR)
    world.submit("long", cpus=4, reservation="r", time_s=2 * HOUR)
    world.expect(short="runs n1", long="waits ReqNodeNotAvail")


def test_a_reservation_that_nobody_uses_is_purged() -> None:
    world = Scenario("1x8")
    reserve(world, nodes=("n1",), flags=("PURGE_COMP",), purge_after_s=10 * MINUTE)
    world.submit("only", cpus=8, reservation="r", time_s=HOUR)
    world.expect(only="runs n1")
    world.wait(15 * MINUTE)
    world.finish("only")
    world.wait(9 * MINUTE)
    assert "r" in world.state.reservations
    world.wait(MINUTE)
    assert not world.state.reservations


def test_nodes_are_chosen_when_only_a_number_is_given() -> None:
    world = Scenario("4x8")
    world.submit("running", cpus=8, on="n1", time_s=2 * HOUR)
    world.expect(running="runs n1")
    reserve(world, "a", nodes=("n2",))
    reserve(world, "b", node_count=2)
    assert world.state.reservations["b"].nodes == ("n3", "n4")
    with world.refused(Why.NODES_BUSY):
        reserve(world, "c", node_count=1)
    reserve(world, "d", node_count=1, after_s=2 * HOUR)
    assert world.state.reservations["d"].nodes == ("n2",), "idle ones first"


def test_what_cannot_be_reserved() -> None:
    world = Scenario("2x8")
    world.submit("running", cpus=8, on="n1", time_s=2 * HOUR)
    world.expect(running="runs n1")
    with world.refused(Why.NODES_BUSY):
        reserve(world, nodes=("n1",))
    reserve(world, nodes=("n1",), flags=("IGNORE_JOBS",))
    with world.refused(Why.RESERVATION_OVERLAP):
        reserve(world, "again", nodes=("n1", "n2"))
    with world.refused(Why.RESERVATION_NAME_DUP):
        reserve(world, nodes=("n2",))
    with world.refused(Why.RESERVATION_EMPTY):
        reserve(world, "nobody", users=(), nodes=("n2",))
    with world.refused(Why.INVALID_NODE_NAME):
        reserve(world, "where", nodes=("n9",))
    with world.refused(Why.INVALID_TIME_VALUE):
        reserve(world, "past", after_s=-DAY, nodes=("n2",))
    with world.refused(Why.RESERVATION_INVALID):
        reserve(world, "a,b", nodes=("n2",))
    with world.refused(Why.NOT_SUPPORTED):
        reserve(world, "flagged", nodes=("n2",), flags=("SOMETIMES",))
    with world.refused(Why.INVALID_FEATURE):
        reserve(world, "featured", node_count=1, features="a&&b")
    with world.refused(Why.INVALID_TIME_VALUE):
        reserve(world, "hourly", nodes=("n2",), for_s=2 * HOUR, flags=("HOURLY",))
    reserve(world, "over", nodes=("n1",), flags=("OVERLAP", "IGNORE_JOBS"))


def test_who_may_use_one() -> None:
    world = Scenario("2x8")
    reserve(world, "hers", nodes=("n1",))
    reserve(world, "others", users=("-alice",), nodes=("n2",))
    with world.refused(Why.RESERVATION_INVALID):
        world.submit("a", reservation="nosuch")
    with world.refused(Why.RESERVATION_ACCESS):
        world.submit("a", reservation="hers", user="bob")
    with world.refused(Why.RESERVATION_ACCESS):
        world.submit("a", reservation="others")
    world.submit("a", reservation="hers")
    world.submit("b", reservation="others", user="bob")
    world.expect(a="runs n1", b="runs n2")


def test_accounts() -> None:
    world = Scenario("1x8")
    reserve(world, accounts=("physics",), nodes=("n1",))
    with world.refused(Why.RESERVATION_ACCESS):
        world.submit("a", reservation="r", account="chemistry")
    world.submit("a", reservation="r", account="physics")
    world.expect(a="runs n1")


def test_a_job_can_be_moved_into_a_reservation() -> None:
    world = Scenario("1x8")
    reserve(world, nodes=("n1",))
    world.submit("a", cpus=8, time_s=HOUR)
    world.expect(a="waits ReqNodeNotAvail")
    with world.refused(Why.RESERVATION_INVALID):
        world.update("a", reservation="nosuch")
    world.update("a", reservation="r")
    world.expect(a="runs n1")


def test_changing_and_deleting() -> None:
    world = Scenario("2x8")
    root = caller_named("root")
    reserve(world, after_s=HOUR, nodes=("n1",))
    change = ReservationOrder(users=("+bob",), duration_s=2 * HOUR, nodes=("n2",), flags=("+DAILY",))
    world.record(update_reservation(world.state, root, "r", change, world.now))
    changed = world.state.reservations["r"]
    assert changed.users == ("alice", "bob")
    assert changed.nodes == ("n2",)
    assert changed.end - changed.begin == 2 * HOUR
    assert [flag.value for flag in changed.flags] == ["DAILY", "SPEC_NODES"]
    with world.refused(Why.RESERVATION_EMPTY):
        update_reservation(world.state, root, "r", ReservationOrder(users=("-alice", "-bob")), world.now)
    world.submit("in it", reservation="r")
    with world.refused(Why.RESERVATION_BUSY):
        delete_reservation(world.state, root, "r")
    world.cancel("in it")
    with world.refused(Why.ACCESS_DENIED):
        delete_reservation(world.state, caller_named("alice"), "r")
    world.record(delete_reservation(world.state, root, "r"))
    assert not world.state.reservations


def test_jobs_inside_do_not_wait_for_those_outside() -> None:
    world = Scenario("2x8")
    reserve(world, nodes=("n2",))
    world.submit("running", cpus=8, user="bob", time_s=HOUR)
    world.submit("large", nodes=2, cpus=8, user="bob", time_s=DAY)
    world.submit("inside", cpus=8, reservation="r", time_s=DAY)
    world.expect(running="runs n1", large="waits ReqNodeNotAvail", inside="runs n2")
    assert world.state.verdicts[world.id_of("large")].expected_start is not None


def test_a_promise_does_not_outlive_a_reservation_made_since() -> None:
    world = Scenario("1x8")
    world.submit("running", cpus=8, user="bob", time_s=HOUR)
    world.submit("next", cpus=8, user="bob", time_s=HOUR)
    world.expect(running="runs n1", next="waits Resources")
    reserve(world, after_s=HOUR, nodes=("n1",))
    world.settle()
    assert world.state.verdicts[world.id_of("next")].expected_start == world.now + 2 * HOUR


def test_a_job_that_its_reservation_cannot_hold_is_refused_or_waits_in_vain() -> None:
    world = Scenario("2x8", partitions={"main": {}, "other": {"nodes": "n2"}})
    reserve(world, nodes=("n1",))
    with world.refused(Why.NODE_CONFIG_UNAVAILABLE):
        world.submit("large", nodes=2, reservation="r")
    with world.refused(Why.NODE_CONFIG_UNAVAILABLE):
        world.submit("elsewhere", partition="other", reservation="r")
    reserve(world, "later", nodes=("n1",), after_s=2 * HOUR)
    world.submit("large", nodes=2, reservation="later")
    world.expect(large="waits Reservation")
    world.wait(2 * HOUR)
    world.expect(large="waits BadConstraints")


def test_an_array_loses_its_reservation_as_a_whole() -> None:
    world = Scenario("1x8")
    reserve(world, nodes=("n1",))
    world.submit("a", array="1-3", cpus=8, reservation="r", time_s=DAY)
    world.expect({"a_1": "runs n1", "a_[2-3]": "waits Resources"})
    world.wait(HOUR)
    world.expect({"a_1": "TIMEOUT", "a_[2-3]": "waits ReservationDeleted"})
    world.release("a")
    world.expect({"a_2": "runs n1", "a_[3]": "waits Resources"})


def test_gangs_of_several_components_stay_inside() -> None:
    world = Scenario("3x8")
    reserve(world, nodes=("n2", "n3"), after_s=HOUR)
    world.submit_het("pair", {"cpus": 8, "reservation": "r", "time_s": HOUR}, {"cpus": 8, "reservation": "r"})
    world.expect({"pair": "waits Reservation", "pair+1": "waits Reservation"})
    world.wait(HOUR)
    world.expect({"pair": "runs n2", "pair+1": "runs n3"})


def test_the_journal_and_snapshots_keep_them() -> None:
    world = Scenario("2x8")
    reserve(world, nodes=("n1",), flags=("DAILY", "PURGE_COMP"), purge_after_s=DAY)
    reserve(world, "gone", nodes=("n2",), for_s=MINUTE)
    world.wait(2 * HOUR)
    assert list(world.state.reservations) == ["r"]
    assert world.replayed().reservations == world.state.reservations
    assert decode_state(pack(encode_state(world.state))).reservations == world.state.reservations


def test_no_slot_is_promised_after_the_end_of_a_reservation() -> None:
    world = Scenario("1x8")
    reserve(world, nodes=("n1",))
    world.submit("running", cpus=8, reservation="r", time_s=DAY)
    world.submit("too late", cpus=8, reservation="r", time_s=DAY)
    world.submit("after it", cpus=8, user="bob", time_s=HOUR)
    world.expect({"running": "runs n1", "too late": "waits Resources", "after it": "waits ReqNodeNotAvail"})
    assert world.state.verdicts[world.id_of("too late")].expected_start is None
    assert world.state.verdicts[world.id_of("after it")].expected_start == world.now + HOUR


# -- REPLACE and REPLACE_DOWN ----------------------------------------------------------------------------------------


def nodes_of(world: Scenario) -> tuple[str, ...]:
    world.settle()
    return world.state.reservations["r"].nodes


def test_replace_keeps_idle_nodes_in_the_reservation() -> None:
    world = Scenario("4x8")
    reserve(world, node_count=1, flags=("REPLACE",))
    assert nodes_of(world) == ("n1",)
    world.submit("inside", cpus=1, reservation="r", time_s=MINUTE)
    world.expect(inside="runs n1")
    assert nodes_of(world) == ("n2",)
    world.submit("outside", cpus=8, user="bob", nodes=2, time_s=MINUTE)
    world.expect(outside="runs n[3-4]")
    world.submit("second", cpus=1, reservation="r", time_s=MINUTE)
    world.expect(second="runs n2")
    assert nodes_of(world) == ("n2",), "there is no idle node to take instead"
    world.finish("outside")
    assert nodes_of(world) == ("n3",)


def test_replace_down_exchanges_only_what_is_down() -> None:
    world = Scenario("4x8")
    reserve(world, node_count=2, flags=("REPLACE_DOWN",))
    world.submit("inside", cpus=1, reservation="r", time_s=HOUR)
    world.expect(inside="runs n1")
    assert nodes_of(world) == ("n1", "n2")
    world.node("n2", "DRAIN")
    assert nodes_of(world) == ("n1", "n3")


def test_named_nodes_and_those_of_other_reservations_are_not_exchanged() -> None:
    world = Scenario("3x8")
    reserve(world, "other", nodes=("n3",))
    reserve(world, nodes=("n1",), flags=("REPLACE_DOWN",))
    world.node("n1", "DRAIN")
    assert nodes_of(world) == ("n1",)
    world.record(delete_reservation(world.state, caller_named("root"), "r"))
    reserve(world, node_count=1, flags=("REPLACE_DOWN",))
    assert nodes_of(world) == ("n2",)
    world.node("n2", "DRAIN")
    assert nodes_of(world) == ("n2",)

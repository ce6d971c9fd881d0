"""priority/multifactor: who goes first, when that changes, and what people may do about it."""

from dataclasses import replace
from typing import Any

import pytest

from bireme.core.jobs import ranking
from bireme.core.model.accounts import Account, Association, Limits, Qos, User
from bireme.core.model.cluster import PrioritySettings, Settings
from bireme.core.model.events import AccountsChanged
from bireme.core.model.refusals import Why
from bireme.testing.scenario import Scenario, caller_named


def weighed(*flags: str, **weights: Any) -> Settings:
    priority = PrioritySettings(multifactor=True, calc_period_s=60, **weights)
    return Settings(priority=priority, priority_flags=flags, memory_is_consumable=False)


def full(settings: Settings, **options: Any) -> Scenario:
    """One node of 8 CPUs that somebody fills for an hour."""
    world = Scenario("1x8", settings=settings, **options)
    world.submit("filler", user="root", cpus=8, time_s=3600)
    world.expect(filler="runs n1")
    return world


def priority(world: Scenario, label: str) -> int:
    return world.job(label).priority


def test_a_qos_with_a_higher_priority_goes_first() -> None:
    world = full(weighed(weight_qos=1000))
    world.record([AccountsChanged(qos=(Qos(id=2, name="high", priority=10), Qos(id=3, name="low", priority=5)))])
    world.submit("plain", cpus=8)
    world.submit("low", cpus=8, qos="low")
    world.submit("high", cpus=8, qos="high")
    world.finish("filler")
    world.expect(filler="COMPLETED", high="runs n1", low="waits Resources", plain="waits Priority")
    assert [priority(world, label) for label in ("plain", "low", "high")] == [1, 500, 1000]


def test_who_waits_longer_goes_first_though_a_bigger_job_came_later() -> None:
    world = full(weighed(weight_age=10_000, max_age_s=1000, weight_job_size=600))
    world.submit("small", cpus=1, time_s=7200)
    world.wait(300)
    world.submit("big", cpus=8)
    assert (priority(world, "small"), priority(world, "big")) == (3000 + (600 * 9) // 16, 600)


def test_priorities_grow_with_every_period_and_not_between() -> None:
    world = full(weighed(weight_age=1000, max_age_s=1000))
    world.submit("waits", cpus=8)
    world.settle()
    seen = []
    for _ in range(3):
        world.wait(30)
        seen.append(priority(world, "waits"))
    assert seen == [1, 60, 60]


def test_what_is_held_does_not_age_and_is_weighed_when_released() -> None:
    world = full(weighed(weight_age=1000, max_age_s=1000))
    world.submit("held", cpus=8, hold=True)
    world.wait(500)
    assert priority(world, "held") == 1
    world.release("held")
    world.wait(120)
    assert priority(world, "held") == 120


def test_the_user_who_used_less_goes_first() -> None:
    world = Scenario("1x8", settings=weighed(weight_fair_share=1000))
    world.record([two_users()])
    world.submit("greedy", user="alice", account="ml", cpus=8, time_s=3600)
    world.expect(greedy="runs n1")
    world.wait(600)
    world.submit("again", user="alice", account="ml", cpus=8)
    world.submit("first", user="bob", account="ml", cpus=8)
    world.finish("greedy")
    world.expect(greedy="COMPLETED", first="runs n1", again="waits Resources")
    assert priority(world, "first") > priority(world, "again")


def two_users() -> AccountsChanged:
    return AccountsChanged(
        accounts=(Account(name="ml"),),
        users=tuple(User(name=name, default_account="ml") for name in ("alice", "bob")),
        associations=(
            Association(id=10, account="ml", parent="root"),
            Association(id=11, account="ml", user="alice"),
            Association(id=12, account="ml", user="bob"),
        ),
    )


def test_a_partitions_factor_counts_and_follows_an_update() -> None:
    partitions = {"main": {"priority_job_factor": 1}, "urgent": {"priority_job_factor": 4}}
    world = full(weighed(weight_partition=1000), partitions=partitions)
    world.submit("plain", cpus=8)
    world.submit("urgent", cpus=8, partition="urgent")
    world.submit("both", cpus=8, partition="main,urgent")
    world.settle()
    assert [priority(world, label) for label in ("plain", "urgent", "both")] == [250, 1000, 1000]
    assert world.state.partition_priorities == {world.id_of("both"): {"main": 250, "urgent": 1000}}
    world.partition("main", priority_job_factor=8)
    world.settle()
    assert [priority(world, label) for label in ("plain", "urgent", "both")] == [1000, 500, 1000]


def test_an_operators_priority_stays_until_the_job_is_released() -> None:
    world = full(weighed(weight_age=1000, max_age_s=1000))
    world.submit("job", cpus=8)
    world.update("job", user="root", priority=77)
    world.wait(200)
    assert priority(world, "job") == 77
    world.release("job", user="root")
    world.wait(60)
    assert priority(world, "job") == 260


def test_nice_and_site_factor_are_weighed_at_once() -> None:
    world = full(weighed(weight_job_size=1000))
    world.submit("job", cpus=8)
    world.update("job", nice=100)
    assert priority(world, "job") == 900
    world.update("job", user="root", site_factor=50)
    assert priority(world, "job") == 950
    with world.refused(Why.ACCESS_DENIED):
        world.update("job", site_factor=51)
    with world.refused(Why.ACCESS_DENIED):
        world.update("job", priority=5000)
    with world.refused(Why.ACCESS_DENIED):
        world.update("job", nice=99)


# -- scontrol top ----------------------------------------------------------------------------------------------------


def lined_up(**raw: str) -> Scenario:
    world = full(weighed(weight_job_size=8000), raw=raw)
    for label, nice in (("a", 0), ("b", 1000), ("c", 2000), ("d", 3000)):
        world.submit(label, cpus=8, nice=nice)
    world.settle()
    return world


def top(world: Scenario, *labels: str, user: str = "root") -> None:
    world.record(ranking.top(world.state, caller_named(user), [world.job(label) for label in labels]))


def test_top_takes_the_highest_places_and_the_others_pay_for_it_alike() -> None:
    world = lined_up()
    top(world, "d", "c")
    ranks = {label: priority(world, label) for label in "abcd"}
    # d gains 3000 and c 1000: a and b lose half of it each
    assert ranks == {"d": 8000, "c": 7000, "a": 6000, "b": 5000}
    assert sum(world.job(label).spec.nice for label in "abcd") == 6000
    world.wait(120)
    assert {label: priority(world, label) for label in "abcd"} == ranks


def test_top_touches_only_the_jobs_of_the_same_user_account_partition_and_qos() -> None:
    world = lined_up()
    world.submit("other", user="bob", cpus=8)
    world.submit("elsewhere", cpus=8, qos="high")
    before = priority(world, "other"), priority(world, "elsewhere")
    top(world, "d")
    assert (priority(world, "other"), priority(world, "elsewhere")) == before


def test_users_may_reorder_their_jobs_where_the_cluster_lets_them() -> None:
    with lined_up().refused(Why.ACCESS_DENIED):
        top(lined_up(), "d", user="alice")
    world = lined_up(SchedulerParameters="bf_continue,enable_user_top")
    top(world, "d", user="alice")
    assert priority(world, "d") == 8000
    with world.refused(Why.ACCESS_DENIED):
        top(world, "a", user="bob")


@pytest.mark.parametrize(
    ("why", "change"),
    [
        (Why.JOB_HELD, {"hold": True}),
        (Why.PARTITION_CONFIG_UNAVAILABLE, {"partition": "main,urgent"}),
    ],
)
def test_top_refuses_what_has_no_place_in_the_queue(why: Why, change: dict[str, Any]) -> None:
    world = full(weighed(weight_job_size=8000), partitions={"main": {}, "urgent": {}})
    world.submit("job", cpus=8, **change)
    with world.refused(why):
        top(world, "job")
    with world.refused(Why.JOB_NOT_PENDING):
        top(world, "filler")


def test_top_moves_a_priority_that_an_operator_had_set() -> None:
    world = lined_up()
    world.update("d", user="root", priority=100)
    top(world, "d")
    assert (priority(world, "d"), world.job("d").spec.priority) == (8000, 8000)


# -- basic -----------------------------------------------------------------------------------------------------------


def test_basic_priorities_do_not_change_with_time_or_release() -> None:
    world = full(replace(Settings(), memory_is_consumable=False))
    world.submit("job", cpus=8, hold=True)
    before = priority(world, "job")
    world.release("job")
    world.wait(7200)
    assert priority(world, "job") == before


def test_a_job_with_two_partitions_has_in_each_the_priority_that_it_has_there() -> None:
    partitions = {"main": {"nodes": "n1"}, "urgent": {"nodes": "n2", "priority_job_factor": 10}}
    world = Scenario("2x8", settings=weighed(weight_partition=1000), partitions=partitions)
    world.submit("filler", cpus=8, partition="urgent", time_s=3600)
    world.submit("filler2", cpus=8, time_s=60)
    world.expect(filler="runs n2", filler2="runs n1")
    world.submit("first", cpus=8, nice=-10, time_s=3600, user="root")
    world.submit("both", cpus=8, partition="main,urgent", time_s=3600)
    world.expect(first="waits Resources", both="waits Resources,Priority")
    assert priority(world, "both") > priority(world, "first"), "its highest is the one of urgent, which is full"
    world.finish("filler2")
    world.expect(filler2="COMPLETED", first="runs n1", both="waits Resources,Resources")


def ages(world: Scenario, *labels: str) -> list[int]:
    world.settle()
    return [priority(world, label) for label in labels]


def limited_ages(**limits: Any) -> Scenario:
    settings = weighed(weight_age=1000, max_age_s=1000)
    world = full(replace(settings, accounting_enforce=("associations", "limits", "qos")))
    world.record([AccountsChanged(qos=(replace(world.state.accounts.qos["normal"], limits=Limits(**limits)),))])
    return world


def test_only_so_many_waiting_jobs_grow_older() -> None:
    """GrpJobsAccrue: the next one begins, at age 0, when one of them has started."""
    world = limited_ages(grp_jobs_accrue=2)
    for label in ("one", "two", "three", "four"):
        world.submit(label, cpus=8, user="root", qos="normal")
    world.wait(300)
    assert ages(world, "one", "two", "three", "four") == [300, 300, 1, 1]
    world.finish("filler")
    world.wait(60)
    assert "runs" in world.described()["one"]
    assert ages(world, "two", "three", "four") == [360, 60, 1]


def test_ages_count_again_when_the_limit_is_taken_away() -> None:
    world = limited_ages(max_jobs_accrue_per_user=1)
    for label in ("one", "two"):
        world.submit(label, cpus=8, user="root", qos="normal")
    world.wait(300)
    assert ages(world, "one", "two") == [300, 1]
    world.record([AccountsChanged(qos=(replace(world.state.accounts.qos["normal"], limits=Limits()),))])
    world.wait(300)
    assert ages(world, "one", "two") == [600, 300]


def test_a_job_that_was_held_grows_older_anew_and_in_its_turn() -> None:
    world = limited_ages(max_jobs_accrue_per_user=1)
    for label in ("one", "two"):
        world.submit(label, cpus=8, user="root", qos="normal")
    world.wait(300)
    world.hold("one", user="root")
    world.wait(120)
    world.release("one", user="root")
    world.wait(120)
    assert ages(world, "one", "two") == [1, 240], "the second took its place when it was held"


def test_accrue_always_ignores_the_limits_on_ages() -> None:
    settings = weighed("ACCRUE_ALWAYS", weight_age=1000, max_age_s=1000)
    world = full(replace(settings, accounting_enforce=("associations", "limits", "qos")))
    world.record(
        [AccountsChanged(qos=(replace(world.state.accounts.qos["normal"], limits=Limits(grp_jobs_accrue=1)),))]
    )
    for label in ("one", "two"):
        world.submit(label, cpus=8, user="root", qos="normal")
    world.wait(300)
    assert ages(world, "one", "two") == [300, 300]

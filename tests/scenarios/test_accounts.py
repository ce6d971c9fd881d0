"""Accounts and QOS: who may submit to what, what jobs cost whom, and that it all survives a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bireme.core.accounting.usage import BILLING, WALL
from bireme.core.accounts.bookkeeping import change_accounts
from bireme.core.model.cluster import Settings
from bireme.core.model.events import ClusterConfigured
from bireme.core.model.jobs import Running, Starting
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.priority.fair_share import fair_share, standings
from bireme.slurm.accounts.words import add_order, delete_order, modify_order
from bireme.slurm.records.jobs import job_record
from bireme.slurm.records.partitions import partition_record
from bireme.store.snapshots import decode_state, encode_state, pack
from bireme.testing.scenario import USERS, Scenario

ENFORCED = ("associations", "qos")
BOOK = (
    "add account lab fairshare=3",
    "add account guests",
    "add user alice account=lab",
    "add user bob account=guests",
)


def enforcing(*words: str, **settings: Any) -> Scenario:
    world = Scenario("2x8", settings=Settings(accounting_enforce=words, **settings))
    sacctmgr(world, *BOOK)
    return world


def sacctmgr(world: Scenario, *commands: str, user: str = "root") -> None:
    readers = {"add": lambda *a: add_order(*a)[0], "modify": modify_order, "delete": lambda *a: delete_order(*a)[0]}
    for command in commands:
        verb, entity, *words = command.split()
        order = readers[verb](entity, words)  # type: ignore[no-untyped-call, operator]
        uid = USERS.get(user, 1)
        events, _ = change_accounts(world.state, Caller(uid, uid, user, admin=user == "root"), [order])
        world.record(events)


def association(world: Scenario, account: str, user: str = "") -> int:
    found = world.state.accounts.find(account, user)
    assert found is not None
    return found.id


def used(world: Scenario, account: str, user: str = "", name: str = BILLING) -> float:
    return world.state.usage.of_association(association(world, account, user), name, world.now)


# -- who may -----------------------------------------------------------------------------------------------------------


def test_a_job_goes_to_its_users_default_account_and_qos() -> None:
    world = enforcing(*ENFORCED)
    world.submit("a")
    assert (world.job("a").spec.account, world.job("a").spec.qos) == ("lab", "normal")


def test_an_account_that_is_not_ones_own_is_refused() -> None:
    world = enforcing("associations")
    for account in ("guests", "nosuch"):
        with world.refused(Why.INVALID_ACCOUNT):
            world.submit("a", account=account)


def test_whoever_is_in_no_account_is_refused() -> None:
    world = enforcing("associations")
    sacctmgr(world, "delete user bob")
    with pytest.raises(Refusal) as caught:
        world.submit("b", user="bob")
    assert caught.value.message == "Invalid account or account/partition combination specified"
    assert "sacctmgr add user bob" in caught.value.hint


def test_an_association_may_be_for_one_partition_only() -> None:
    world = Scenario("2x8", partitions={"gpu": {}, "cpu": {}}, settings=Settings(accounting_enforce=("associations",)))
    sacctmgr(world, "add account lab", "add user alice account=lab partition=gpu")
    world.submit("g", partition="gpu")
    with world.refused(Why.INVALID_ACCOUNT):
        world.submit("c", partition="cpu")


def test_a_qos_must_exist_and_be_allowed() -> None:
    world = enforcing(*ENFORCED)
    sacctmgr(world, "add qos high")
    for qos in ("high", "nosuch"):
        with world.refused(Why.INVALID_QOS):
            world.submit("a", qos=qos)
    sacctmgr(world, "modify user alice set qos+=high")
    world.submit("a", qos="HIGH")  # names are in small letters in the book
    assert world.job("a").spec.qos == "high"


def test_without_enforcement_anything_is_recorded_as_asked() -> None:
    world = Scenario("1x8")
    world.submit("a", account="anything", qos="whatever")
    assert (world.job("a").spec.account, world.job("a").spec.qos) == ("anything", "whatever")
    world.submit("b")
    assert (world.job("b").spec.account, world.job("b").spec.qos) == ("", "normal")


def test_an_updated_account_is_checked_too() -> None:
    world = enforcing(*ENFORCED)
    world.submit("a", hold=True)
    with world.refused(Why.INVALID_ACCOUNT):
        world.update("a", account="guests")
    with world.refused(Why.INVALID_QOS):
        world.update("a", qos="nosuch")


def test_nothing_is_deleted_while_its_jobs_live() -> None:
    world = enforcing(*ENFORCED)
    world.submit("a")
    world.settle()
    with world.refused(Why.ERROR):
        sacctmgr(world, "delete user alice")
    world.finish("a")
    sacctmgr(world, "delete user alice")


# -- who may change the book -------------------------------------------------------------------------------------------


def test_users_may_not_change_the_book() -> None:
    world = enforcing(*ENFORCED)
    for command in ("add account mine", "modify user alice set maxjobs=99", "add qos mine", "delete user bob"):
        with world.refused(Why.ACCESS_DENIED):
            sacctmgr(world, command, user="alice")


def test_users_may_choose_their_own_default_account() -> None:
    world = enforcing(*ENFORCED)
    sacctmgr(world, "add user alice account=guests")
    sacctmgr(world, "modify user alice set defaultaccount=guests", user="alice")
    assert world.state.accounts.default_account("alice") == "guests"
    with world.refused(Why.ACCESS_DENIED):
        sacctmgr(world, "modify user bob set defaultaccount=guests", user="alice")


def test_coordinators_rule_below_their_account_only() -> None:
    world = enforcing(*ENFORCED)
    sacctmgr(world, "add coordinator account=lab names=alice")
    sacctmgr(world, "add account team parent=lab", "add user bob account=team", user="alice")
    sacctmgr(world, "modify user bob where account=team set maxjobs=3", user="alice")
    for command in (
        "add account top",
        "add user alice account=guests",
        "modify account lab set fairshare=999",
        "modify user bob set adminlevel=administrator",
    ):
        with world.refused(Why.ACCESS_DENIED):
            sacctmgr(world, command, user="alice")


def test_operators_may_do_all_but_qos_and_admin_levels() -> None:
    world = enforcing(*ENFORCED)
    sacctmgr(world, "modify user alice set adminlevel=operator")
    sacctmgr(world, "add account x", user="alice")
    for command in ("add qos q", "modify user alice set adminlevel=administrator"):
        with world.refused(Why.ACCESS_DENIED):
            sacctmgr(world, command, user="alice")


# -- what it costs -----------------------------------------------------------------------------------------------------


def running_are_charged(world: Scenario) -> bool:
    running = {job.id for job in world.state.holding.values() if isinstance(job.phase, Starting | Running)}
    return world.state.usage.charges.keys() == running


def test_a_running_job_is_charged_to_its_account_and_everything_above() -> None:
    world = enforcing(*ENFORCED, priority_decay_half_life_s=None)
    world.submit("a", cpus=4)
    world.settle()
    world.wait(100)
    assert used(world, "lab", "alice") == used(world, "lab") == used(world, "root") == 400.0
    assert used(world, "lab", "alice", WALL) == 100.0
    assert used(world, "guests") == 0.0
    assert running_are_charged(world)
    world.finish("a")
    world.wait(1000)
    assert used(world, "lab") == 400.0
    assert running_are_charged(world)


def test_waiting_and_suspended_time_costs_nothing() -> None:
    world = enforcing(*ENFORCED, priority_decay_half_life_s=None)
    world.submit("a", cpus=8, begin_at=world.now + 50)
    world.wait(60)  # ran 10 s
    world.suspend("a")
    world.wait(100)
    assert used(world, "lab") == 80.0
    world.resume("a")
    world.wait(10)
    assert used(world, "lab") == 160.0
    assert running_are_charged(world)


def test_usage_fades_with_the_half_life() -> None:
    world = enforcing(*ENFORCED, priority_decay_half_life_s=3600)
    world.submit("a")
    world.settle()
    world.wait(60)
    world.finish("a")
    before = used(world, "lab")
    world.wait(3600)
    assert used(world, "lab") == pytest.approx(before / 2)


def test_a_qos_has_its_price() -> None:
    world = enforcing(*ENFORCED, priority_decay_half_life_s=None)
    sacctmgr(world, "add qos night usagefactor=0.5", "modify user alice set qos+=night")
    world.submit("a", qos="night", cpus=2)
    world.settle()
    world.wait(100)
    assert used(world, "lab") == 100.0
    assert world.state.usage.of_qos("night", BILLING, world.now) == 100.0


def test_billing_weights_of_the_partition_count_and_are_shown() -> None:
    partitions = {"main": {"tres_billing_weights": (("cpu", 1.0), ("gres/gpu", 10.0))}}
    world = Scenario("1x8:h100", partitions=partitions, settings=Settings(priority_decay_half_life_s=None))
    sacctmgr(world, *BOOK)
    world.submit("a", cpus=2, gpus=3)
    world.settle()
    world.wait(10)
    assert used(world, "lab") == 320.0
    assert job_record(world.state, world.job("a"), world.now)["tres_allocated"]["billing"] == 32
    whole = partition_record(world.state, world.state.partitions["main"])["tres"]
    assert whole["billing"] == whole["cpu"] + 10 * whole["gres/gpu"] == whole["cpu"] + 80


def test_whoever_used_less_than_their_share_goes_first() -> None:
    world = enforcing(*ENFORCED)
    world.submit("a", cpus=3)
    world.submit("b", cpus=3, user="bob")
    world.settle()
    world.wait(100)
    factors = fair_share(world.state.accounts, world.state.usage, world.now, world.state.config.settings)
    # equal use, but the lab has three times the guests' shares
    assert factors[association(world, "lab", "alice")] > factors[association(world, "guests", "bob")]
    classic = replace(world.state.config.settings, priority_flags=("NO_FAIR_TREE",))
    found = standings(world.state.accounts, world.state.usage, world.now, classic)
    alice = found[association(world, "lab", "alice")]
    assert alice.norm_shares == pytest.approx(3 / 5)  # lab 3, guests 1, root's own user 1
    assert alice.factor == pytest.approx(2 ** (-0.5 / 0.6))


def test_usage_begins_anew_with_every_period() -> None:
    settings = Settings(priority_decay_half_life_s=None, priority_usage_reset_period="DAILY")
    world = Scenario("1x8", now=86_400.0 * 20_000 - 50, settings=settings)
    sacctmgr(world, *BOOK)
    world.submit("a")
    world.wait(100)  # midnight is in the middle
    assert used(world, "lab") == 50.0


def test_an_operator_may_wipe_what_one_account_used() -> None:
    world = enforcing(*ENFORCED, priority_decay_half_life_s=None)
    world.submit("a")
    world.submit("b", user="bob")
    world.settle()
    world.wait(100)
    sacctmgr(world, "modify account lab set rawusage=0")
    assert (used(world, "lab"), used(world, "lab", "alice"), used(world, "root")) == (0.0, 0.0, 100.0)
    world.wait(10)
    assert (used(world, "lab"), used(world, "root")) == (10.0, 120.0)


def test_a_changed_half_life_keeps_what_was_used() -> None:
    world = enforcing(*ENFORCED, priority_decay_half_life_s=None)
    world.submit("a")
    world.wait(100)
    config = world.state.config
    settings = replace(config.settings, priority_decay_half_life_s=100)
    world.record([ClusterConfigured(replace(config, settings=settings))])
    assert used(world, "lab") == 100.0


def test_book_and_usage_survive_a_snapshot_and_a_replay() -> None:
    world = enforcing(*ENFORCED)
    sacctmgr(world, "add qos high flags=NoDecay", "modify user alice set qos+=high maxtres=cpu=4")
    world.submit("a", qos="high")
    world.settle()
    world.wait(100)
    restored = decode_state(pack(encode_state(world.state)))
    for state in (restored, world.replayed()):
        assert state.accounts == world.state.accounts
        assert state.usage == world.state.usage

"""The file of `bireme snapshot`: planned again it gives the same plan, and what is private is not in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest

from bireme.core.accounting.book import AccountBook
from bireme.core.model.accounts import Account, Association, User
from bireme.core.model.events import AccountsChanged
from bireme.core.model.jobs import RULES, JobSpec, WarningSignal
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.reservations.orders import ReservationOrder, create_reservation
from bireme.slurm.records.plans import plan_record
from bireme.store.planning_input import NotASnapshotError, decode_input, encode_input, with_decided
from bireme.testing.scenario import Scenario, caller_named

HOUR = 3600


def world() -> Scenario:
    made = Scenario("2x8:h100", raw={"SchedulerType": "sched/backfill", "StoragePass": "hunter2"})
    made.submit("running", gpus=8, time_s=HOUR, comment="secret-comment", work_dir="/secret/home")
    made.settle()
    made.submit("secret-project", nodes=2, gpus_per_node=8, time_s=HOUR, argv=("--token=secret-token",))
    made.submit("array", array="1-3%1", cpus=1, user="bob")
    made.submit_het("het", {"cpus": 1}, {"cpus": 2}, user="bob")
    return made


def decided(data: bytes) -> dict[str, object]:
    taken = decode_input(data)
    return plan_record(plan(Snapshot(taken.state, taken.state.config.settings.policy, taken.now)))


@pytest.mark.parametrize("anonymise", [False, True])
def test_the_same_is_decided_from_the_file(anonymise: bool) -> None:
    made = world()
    live = plan_record(plan(Snapshot(made.state, made.state.config.settings.policy, made.now)))
    assert live["waits"]
    assert decided(encode_input(made.state, made.now, "1", anonymise=anonymise)) == live


def test_what_is_private_is_not_in_it() -> None:
    made = world()
    before = made.described()
    text = encode_input(made.state, made.now, "1").decode()
    assert "secret-project" in text
    for word in ("secret-comment", "/secret/home", "secret-token", "hunter2", '"script"'):
        assert word not in text
    assert made.described() == before


def test_other_names_are_the_same_for_the_same_thing() -> None:
    made = world()
    data = encode_input(made.state, made.now, "1", anonymise=True)
    for word in (b"alice", b"bob", b"secret"):
        assert word not in data
    state = decode_input(data).state
    owners = [state.jobs[job_id].spec.owner.user for job_id in sorted(state.jobs)]
    assert owners == ["user1", "user1", "user2", "user2", "user2"]


def test_accounts_keep_their_tree_under_other_names() -> None:
    made = world()
    change = AccountsChanged(
        accounts=(Account(name="physics", description="top secret"),),
        users=(User(name="alice", default_account="physics"),),
        associations=(
            Association(id=10, account="physics", parent="root"),
            Association(id=11, account="physics", user="alice"),
        ),
    )
    made.record([change])
    data = encode_input(made.state, made.now, "1", anonymise=True)
    for word in (b"physics", b"alice", b"top secret"):
        assert word not in data
    book: AccountBook = decode_input(data).state.accounts
    assert [each.id for each in book.chain(11)] == [each.id for each in made.state.accounts.chain(11)]


def test_reservations_are_for_the_same_people_under_other_names() -> None:
    made = Scenario("1x8")
    order = ReservationOrder(begin=made.now, end=made.now + HOUR, nodes=("n1",), users=("alice",))
    made.record(create_reservation(made.state, caller_named("root"), "r", order, made.now))
    made.submit("inside", reservation="r", time_s=60)
    made.submit("outside", user="bob", time_s=60)
    data = encode_input(made.state, made.now, "1", anonymise=True)
    assert b"alice" not in data
    assert decided(data) == plan_record(plan(Snapshot(made.state, made.state.config.settings.policy, made.now)))


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not rule.planned and name != "workload"])
def test_what_is_only_carried_is_left_out(name: str) -> None:
    made = Scenario("1x8")
    given = {"umask": 0o077, "process_nice": 5, "open_append": True, "get_user_env": True}.get(name, "secret")
    if name in ("argv", "mail_type", "step_defaults", "ignored"):
        given = (("A", "secret"),) if name == "step_defaults" else ("secret",)
    made.submit("job", user="root", **{name: WarningSignal(10) if name == "warning" else given})
    spec = decode_input(encode_input(made.state, made.now, "1")).state.jobs[1].spec
    assert getattr(spec, name) == next(each.default for each in fields(JobSpec) if each.name == name)


def test_decisions_are_kept_beside_it() -> None:
    made = world()
    data = with_decided(encode_input(made.state, made.now, "1"), {"starts": []})
    assert decode_input(data).decided == {"starts": []}
    assert decode_input(with_decided(data, {"waits": []})).decided == {"waits": []}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda _: b"hello", "not made by"),
        (lambda _: b"", "not made by"),
        (lambda _: b"[]\n", "not made by"),
        (lambda data: data.replace(b'"bireme_snapshot":1', b'"bireme_snapshot":9'), "format 9"),
        (lambda data: data[: len(data) // 2], "cut short"),
        (lambda data: data.partition(b"\n")[0], "cut short"),
        (lambda data: data.replace(b'"now":', b'"then":', 1), "cut short"),
    ],
)
def test_a_file_of_another_kind_is_told_so(spoil: Callable[[bytes], bytes], says: str) -> None:
    made = world()
    with pytest.raises(NotASnapshotError, match=says):
        decode_input(spoil(encode_input(made.state, made.now, "1")))

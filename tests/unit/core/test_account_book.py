"""What may be done to the account book, and what follows from where things stand in it."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.accounting import orders as o
from bireme.core.accounting.book import AccountBook
from bireme.core.accounting.changes import carry_out
from bireme.core.accounting.edits import AssociationEdit, BookError, LimitsEdit, QosEdit
from bireme.core.model.accounts import Limits, QosFlag
from bireme.slurm.accounts.words import add_order, delete_order, modify_order
from bireme.store import codec


def book_of(*commands: str, book: AccountBook | None = None, jobs: list[str] | None = None) -> AccountBook:
    """The book after sacctmgr's commands, words separated by blanks."""
    book = book or AccountBook()
    for command in commands:
        verb, entity, *words = command.split()
        if verb == "add":
            order: o.Order = add_order(entity, words)[0]
        elif verb == "modify":
            order = modify_order(entity, words)
        else:
            order = delete_order(entity, words)[0]
        book = book.changed(carry_out(book, order, lambda _: jobs or [], "oar").change)
    return book


SCIENCE = ("add account science fairshare=40", "add account phys,chem parent=science", "add user ann account=phys")


def refused(*commands: str, book: AccountBook, jobs: list[str] | None = None) -> str:
    with pytest.raises(BookError) as caught:
        book_of(*commands, book=book, jobs=jobs)
    return str(caught.value)


def effective(book: AccountBook, account: str, user: str = "", partition: str = "") -> Limits:
    found = book.find(account, user, partition)
    assert found is not None
    return book.limits_of(found.id)


def test_a_new_book_is_slurms_new_database() -> None:
    book = AccountBook()
    assert [each.key for _, each in book.tree()] == [("root", "", ""), ("root", "root", "")]
    assert list(book.qos) == ["normal"]


def test_accounts_hang_under_their_parents() -> None:
    book = book_of(*SCIENCE)
    found = book.find("phys", "ann")
    assert found is not None
    assert [each.account for each in book.chain(found.id)] == ["phys", "phys", "science", "root"]
    assert book.default_account("ann") == "phys"


def test_limits_on_each_job_are_inherited_and_group_limits_are_not() -> None:
    book = book_of(
        *SCIENCE,
        "modify account science set maxjobs=9 maxtres=cpu=8,node=2 grpjobs=50",
        "modify account phys set maxtres=cpu=4 maxwall=60",
    )
    limits = effective(book, "phys", "ann")
    assert limits.max_jobs_per_user == 9
    assert limits.max_tres_per_job == (("cpu", 4), ("node", 2))
    assert limits.max_wall_s == 3600
    assert limits.grp_jobs is None
    assert effective(book, "science").grp_jobs == 50


def test_minus_one_clears_a_limit() -> None:
    book = book_of(*SCIENCE, "modify user ann set maxjobs=3 maxtres=cpu=4,mem=1G")
    book = book_of("modify user ann set maxjobs=-1 maxtres=cpu=-1", book=book)
    limits = effective(book, "phys", "ann")
    assert limits.max_jobs_per_user is None
    assert limits.max_tres_per_job == (("mem", 1024),)


def test_qos_lists_are_inherited_replaced_and_changed() -> None:
    book = book_of(*SCIENCE, "add qos high,low", "modify account science set qos+=high")
    ann = book.find("phys", "ann")
    assert ann is not None
    assert book.qos_of(ann.id) == ("normal", "high")
    book = book_of("modify user ann set qos-=normal", book=book)
    assert book.qos_of(ann.id) == ("high",)
    assert book.default_qos_of(ann.id) == "high"  # the only one
    book = book_of("modify user ann set qos=low,high", "modify user ann set defaultqos=low", book=book)
    assert book.qos_of(ann.id) == ("low", "high")
    assert book.default_qos_of(ann.id) == "low"
    book = book_of("modify user ann set defaultqos=-1", "modify user ann set qos=", book=book)
    assert book.qos_of(ann.id) == ("normal", "high")
    assert book.default_qos_of(ann.id) == "normal"


def test_a_default_qos_must_be_allowed() -> None:
    book = book_of(*SCIENCE, "add qos high")
    assert "don't have access to their default qos" in refused("modify user ann set defaultqos=high", book=book)
    book = book_of("modify user ann set qos+=high", "modify user ann set defaultqos=high", book=book)
    assert "don't have access to their default qos" in refused("modify user ann set qos-=high", book=book)


def test_a_partition_can_have_its_own_association() -> None:
    book = book_of(*SCIENCE, "add user ann account=phys partition=gpu maxjobs=2")
    assert book.for_job("phys", "ann", "gpu") == book.find("phys", "ann", "gpu")
    assert book.for_job("phys", "ann", "cpu") == book.find("phys", "ann")
    assert book.for_job("chem", "ann", "gpu") is None


def test_an_account_put_under_its_own_child_changes_places_with_it() -> None:
    book = book_of(*SCIENCE, "modify account science set parent=phys")
    phys, science = book.find("phys"), book.find("science")
    assert phys is not None
    assert science is not None
    assert (phys.parent, science.parent) == ("root", "phys")
    assert len(book.tree()) == len(book.associations)  # one tree: nothing is lost in a loop


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("modify account phys set parent=phys", "loop"),
        ("modify account root set parent=phys", "loop"),
        ("modify account phys set parent=nosuch", "Parent account 'nosuch' doesn't exist"),
        ("modify account phys set fairshare=-5", "Bad Fairshare value: -5"),
        ("modify user nobody set maxjobs=1", "Nothing modified"),
        ("modify user ann set defaultaccount=chem", "aren't associated with new default account 'chem'"),
        ("modify user ann set qos=nosuch", "You gave a bad qos 'nosuch'. Valid QOS's are normal"),
        ("modify qos normal set preempt=normal", "QOS Preemption loop detected"),
        ("modify qos normal set preempt=nosuch", "You gave a bad qos 'nosuch'"),
        ("add account phys", "Nothing new added"),
        ("add account x parent=nosuch", "Parent account 'nosuch' doesn't exist on cluster oar"),
        ("add user bob", "Need name of account to add user to"),
        ("add user bob account=nosuch", "This account 'nosuch' doesn't exist"),
        ("add user ann account=phys", "Nothing new added"),
        ("add coordinator account=nosuch names=ann", "non-existent account 'nosuch'"),
        ("delete account root", "not allowed to remove the root account"),
        ("delete account phys", "can not remove the default account of a user"),
        ("delete account nosuch", "Nothing deleted"),
        ("delete user nobody", "Nothing deleted"),
        ("delete qos nosuch", "Nothing deleted"),
    ],
)
def test_what_sacctmgr_refuses(command: str, message: str) -> None:
    assert message in refused(command, book=book_of(*SCIENCE))


def test_qos_may_not_preempt_one_another_in_a_circle() -> None:
    book = book_of("add qos a", "add qos b preempt=a", "add qos c preempt=b")
    assert "loop" in refused("modify qos a set preempt=c", book=book)


def test_nothing_is_deleted_under_a_job() -> None:
    book = book_of(*SCIENCE)
    assert "Job(s) active" in refused("delete user ann", book=book, jobs=["JobID = 7"])


def test_a_deleted_account_takes_everything_below_along() -> None:
    book = book_of(*SCIENCE, "delete user ann", "delete account science")
    assert [each.account for each in book.associations.values()] == ["root", "root"]
    assert list(book.accounts) == ["root"]


def test_ids_are_never_used_twice() -> None:
    book = book_of(*SCIENCE)
    before = book.find("phys", "ann")
    book = book_of("delete user ann", "add user ann account=phys", book=book)
    after = book.find("phys", "ann")
    assert before is not None
    assert after is not None
    assert after.id > before.id


def test_a_deleted_qos_is_nobodys_any_more() -> None:
    book = book_of(
        *SCIENCE,
        "add qos a",
        "add qos b preempt=a",
        "modify user ann set qos=a,b",
        "modify user ann set defaultqos=a",
        "delete qos a",
    )
    ann = book.find("phys", "ann")
    assert ann is not None
    assert (ann.qos, ann.default_qos) == (("b",), "")
    assert book.qos["b"].preempt == ()


def test_coordinators_come_and_go() -> None:
    book = book_of(*SCIENCE, "add coordinator account=science names=ann")
    assert book.accounts["science"].coordinators == ("ann",)
    book = book_of("delete coordinator account=science names=ann", book=book)
    assert book.accounts["science"].coordinators == ()


def test_words_of_a_qos() -> None:
    book = book_of(
        "add qos high priority=100 flags=denyon,NoDecay maxjobs=3 maxtrespu=gres/gpu=8 mintres=cpu=2"
        " usagefactor=2.5 gracetime=30 preemptmode=requeue limitfactor=1.5 maxsubmitpa=7 grpwall=1-0"
    )
    qos = book.qos["high"]
    assert qos.flags == (QosFlag.DENY_ON_LIMIT, QosFlag.NO_DECAY)
    assert qos.limits == Limits(
        max_jobs_per_user=3,
        max_tres_per_user=(("gres/gpu", 8),),
        min_tres_per_job=(("cpu", 2),),
        max_submit_per_account=7,
        grp_wall_s=86_400,
    )
    assert (qos.priority, qos.usage_factor, qos.grace_s, qos.preempt_mode, qos.limit_factor) == (
        100, 2.5, 30, "REQUEUE", 1.5,
    )  # fmt: skip
    book = book_of("modify qos high set flags-=NoDecay usagefactor=-1", book=book)
    assert (book.qos["high"].flags, book.qos["high"].usage_factor) == ((QosFlag.DENY_ON_LIMIT,), 1.0)


@pytest.mark.parametrize(
    "order",
    [
        o.AddAccounts(names=("a",), edit=AssociationEdit(shares="parent", qos=("+x",))),
        o.ModifyUsers(
            where=o.Which(users=("a",)),
            edit=AssociationEdit(limits=LimitsEdit(counts={"grp_jobs": 3}, tres={"grp_tres": {"cpu": -1}})),
        ),
        o.AddQos(names=("q",), edit=QosEdit(usage_factor=0.5, flags=("NoDecay",))),
        o.DeleteCoordinators(users=("u",), accounts=("a",)),
    ],
)
def test_orders_travel_as_json(order: Any) -> None:
    asked = o.Orders(orders=(order,), dry_run=True)
    assert codec.convert(o.Orders, codec.loads(codec.encode(asked))) == asked

"""QOS for priority classes of others: a line of who may preempt whom, beside what operators made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bireme.core.accounting.book import AccountBook
from bireme.core.accounting.edits import BookError
from bireme.core.accounting.ranks import DESCRIPTION, Rank, ranked
from bireme.core.model.accounts import Qos
from bireme.core.model.events import AccountsChanged

CLASSES = (Rank("high", 1000), Rank("service", 0.5), Rank("scavenger", -5), Rank("polite", 500, preempts=False))


def preempted(book: AccountBook) -> dict[str, set[str]]:
    return {name: set(qos.preempt) for name, qos in book.qos.items()}


def test_every_class_may_preempt_all_below_it() -> None:
    book = AccountBook().changed(ranked(AccountBook(), CLASSES))
    assert preempted(book) == {
        "normal": {"scavenger"},
        "high": {"service", "normal", "scavenger", "polite"},
        "service": {"normal", "scavenger"},
        "scavenger": set(),
        "polite": set(),
    }
    assert len({qos.id for qos in book.qos.values()}) == 5
    assert ranked(book, CLASSES) == AccountsChanged(), "what agrees already is not changed again"


def test_what_an_operator_made_stays_his() -> None:
    own = Qos(id=2, name="high", description="ours", preempt=("normal",))
    book = AccountBook().changed(AccountsChanged(qos=(own,)))
    after = book.changed(ranked(book, CLASSES))
    assert after.qos["high"] == own
    assert "high" not in after.qos["service"].preempt
    assert after.qos["service"].description == DESCRIPTION


def test_no_loop_is_made_through_an_operators_qos() -> None:
    book = AccountBook().changed(ranked(AccountBook(), CLASSES))
    normal = replace(book.qos["normal"], preempt=("own",))
    own = Qos(id=20, name="own", preempt=("high",))
    with pytest.raises(BookError, match="loop"):
        ranked(book.changed(AccountsChanged(qos=(normal, own))), CLASSES)

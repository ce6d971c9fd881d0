"""Lemons by how jobs ended, with few samples; and a loss that is no number."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from bireme.core.faults.detection import lemon, loss
from bireme.core.faults.detection.lemon import End, joined, suspects
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Place

NODES = tuple(f"n{number}" for number in range(16))


def pool(seed: int, ends: int, lemon_node: str = "", lemon_share: float = 0.6) -> list[End]:
    """Users whose jobs fail in 2 to 40 of 100 cases, anywhere; on the lemon also for its own reasons."""
    drawn = random.Random(seed)
    found = []
    for number in range(ends):
        user, node = drawn.randrange(8), drawn.choice(NODES)
        failed = drawn.random() < 0.02 + 0.05 * user
        failed = failed or (node == lemon_node and drawn.random() < lemon_share)
        found.append(End(600.0 * number, f"u{user}", f"job{number}", (node,), failed))
    return found


def named(ends: list[End]) -> list[str]:
    return [each.node for each in suspects(ends, Thresholds())]


def test_a_lemon_is_found_by_some_ends_on_it() -> None:
    found = [named(pool(seed, 640, "n3")) for seed in range(20)]
    assert all(each in ([], ["n3"]) for each in found), "never another one"
    assert sum(each == ["n3"] for each in found) >= 18, "640 ends are 40 a node"


def test_nodes_that_are_alike_are_never_lemons() -> None:
    assert [seed for seed in range(60) if named(pool(seed, 600))] == []


def test_the_stated_chance_of_a_false_alarm_holds() -> None:
    """Asked for one in twenty, in a hundred pools without a lemon there are few: the test is exact, or careful."""
    loose = replace(Thresholds(), lemon_one_in=20.0)
    alarms = sum(bool(suspects(pool(seed, 300), loose)) for seed in range(100))
    assert alarms <= 10


def test_a_user_whose_program_is_broken_makes_no_lemon() -> None:
    broken = [End(600.0 * n, "bob", f"try{n}", ("n3",), True) for n in range(50)]
    elsewhere = [End(600.0 * n, "alice", f"job{n}", (NODES[n % 16],), False) for n in range(200)]
    assert named([*broken, *elsewhere]) == [], "it is the user, not the node"
    again = [End(60.0 * n, "bob", "same", ("n3",), True) for n in range(50)]
    fine = [End(600.0 * n, "bob", f"fine{n}", ("n4",), False) for n in range(50)]
    assert named([*again, *fine, *elsewhere]) == [], "the same thing again and again counts once"


def test_many_short_jobs_are_few_values_that_say_the_same() -> None:
    ends = [replace(end, at=end.at / 200) for end in pool(1, 8000, "n3")]
    few = joined(ends)
    assert len(few) < len(ends) / 2
    assert suspects(few, Thresholds()) == suspects(ends, Thresholds()) != []
    assert joined(few) == few, "they are joined again every minute, with those that came"
    row = joined(End(0.01 * number, "alice", f"job{number}", ("n1",), False) for number in range(100_000))
    assert [(end.times, end.at) for end in row] == [(100_000, 0.0)]


def test_a_lemon_is_said_with_its_figures_and_gone_when_it_is_not_one() -> None:
    ends = pool(1, 800, "n3")
    (seen,) = lemon.judge(ends, (), Thresholds(), 1e6)
    assert isinstance(seen, o.TroubleSeen)
    assert seen.trouble.place == Place(node="n3")
    assert "users; as on other nodes it would be" in seen.trouble.quotes[0].text
    (gone,) = lemon.judge(pool(1, 800), ["n3"], Thresholds(), 1e6)
    assert isinstance(gone, o.TroubleGone)
    assert lemon.judge(ends, (), Thresholds(off=frozenset({"lemon"})), 1e6) == []


JOB = Place(job_id=42, generation=1)
ASKED = Thresholds(off=frozenset())


def test_a_loss_that_is_no_number_where_that_is_asked_for() -> None:
    (seen,) = loss.judge(JOB, {"train/loss": math.nan, "lr": 0.1}, ASKED, 1000.0)
    assert isinstance(seen, o.TroubleSeen)
    assert seen.trouble.cause == "nan_loss"
    assert "train/loss=nan" in seen.trouble.title
    assert loss.judge(JOB, {"train/loss": math.nan}, Thresholds(), 1000.0) == [], "it is off by default"


def test_a_loss_that_is_a_number_and_what_is_no_loss() -> None:
    (gone,) = loss.judge(JOB, {"train/loss": 2.5}, ASKED, 1000.0)
    assert isinstance(gone, o.TroubleGone)
    assert loss.judge(JOB, {"grad_norm": math.inf, "glossary": math.nan}, ASKED, 1000.0) == []

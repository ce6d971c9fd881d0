"""Fair share against Slurm's own test tree and worked example, and small cases of our own."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import pytest

from bireme.core.accounting.book import ROOT_ID, AccountBook
from bireme.core.model.accounts import Association
from bireme.core.priority.classic import classic
from bireme.core.priority.fair_tree import Standing, fair_tree

VECTORS = Path(__file__).resolve().parents[4] / "shared" / "data" / "vectors"


def vectors(name: str) -> Any:
    path = VECTORS / name
    if not path.exists():
        pytest.skip(f"needs {path.name} in ../shared/data/vectors")
    return json.loads(path.read_text())


def a_book(rows: dict[str, tuple[str, int | None]], used: dict[str, float]) -> tuple[AccountBook, dict[int, float]]:
    """Rows: `account` or `account/user` -> (parent account, shares). Used: raw usage of users, summed upwards here."""
    associations = {ROOT_ID: Association(id=ROOT_ID, account="root")}
    for number, (name, (parent, shares)) in enumerate(rows.items(), start=2):
        account, _, user = name.partition("/")
        above = "" if user else parent
        associations[number] = Association(id=number, account=account, user=user, parent=above, shares=shares)
    book = AccountBook(associations=associations)
    raw: dict[int, float] = {}
    for each in associations.values():
        for above in book.chain(each.id):
            raw[above.id] = raw.get(above.id, 0.0) + used.get(f"{each.account}/{each.user}", 0.0)
    return book, raw


def by_name(book: AccountBook, standings: dict[int, Standing]) -> dict[str, Standing]:
    return {f"{each.account}/{each.user}".rstrip("/"): standings[number] for number, each in book.associations.items()}


def test_slurms_own_tree_to_the_last_digit() -> None:
    data = vectors("fair_tree.json")
    accounts = {row["id"]: row["acct"] for row in data["associations"]}
    rows: dict[str, tuple[str, int | None]] = {}
    used: dict[str, float] = {}
    for row in data["associations"][1:]:
        name = f"{row['acct']}/{row['user']}" if row["user"] else row["acct"]
        rows[name] = (accounts[row["parent"]], int(row["shares"]) if row["shares"].isdigit() else None)
        used[name] = row["usage"]
    book, raw = a_book(rows, used)
    found = by_name(book, fair_tree(book, raw))
    assert len(data["expected"]) == len(found) == 35
    for row in data["expected"]:
        name = f"{row['account']}/{row['user']}".rstrip("/")
        seen = found[name]
        assert f"{raw[book.find(row['account'], row['user']).id]:.0f}" == row["raw_usage"], name  # type: ignore[union-attr]
        assert f"{seen.norm_shares:.6f}" == row["norm_shares"], name
        assert row["norm_usage"] in ("", f"{seen.norm_usage:.6f}"), name
        assert f"{seen.effective_usage:.6f}" == row["effectv_usage"], name
        assert ("" if seen.level_fs is None else f"{seen.level_fs:.6f}") == row["level_fs"], name
        assert ("" if seen.factor is None else f"{seen.factor:.6f}") == row["fairshare"], name


def test_slurms_worked_example_of_the_classic_formula() -> None:
    data = vectors("classic_fairshare.json")
    parents = {"A": "root", "D": "root", "B": "A", "C": "A", "E": "D", "F": "D"}
    rows: dict[str, tuple[str, int | None]] = {}
    used: dict[str, float] = {}
    for path, shares in data["shares"].items():
        above, _, name = path.rpartition("/")
        if name in parents:
            rows[name] = (parents[name], shares)
        else:
            rows[path] = (above, shares)
            used[path] = data["actual_usage"][name]
    book, raw = a_book(rows, used)
    raw[ROOT_ID] = 1.0  # the example's usage is a part of all usage
    found = {name.rpartition("/")[2]: each for name, each in by_name(book, classic(book, raw)).items()}
    for name, value in data["effective_usage"].items():
        assert found[name].effective_usage == pytest.approx(value, abs=5e-5), name
    for name, value in data["norm_shares"].items():
        assert found[name].norm_shares == pytest.approx(value, abs=1e-12), name
    for name, value in data["fairshare"].items():
        assert f"{found[name].factor:.6f}" == f"{value:.6f}", name


def test_the_least_served_account_comes_first() -> None:
    book, raw = a_book(
        {"a": ("root", 1), "b": ("root", 1), "a/ann": ("a", 1), "b/bob": ("b", 1)}, {"a/ann": 30.0, "b/bob": 10.0}
    )
    found = by_name(book, fair_tree(book, raw))
    assert (found["a/ann"].factor, found["b/bob"].factor) == (0.5, 1.0)


def test_an_account_cannot_be_hurt_by_the_users_of_another() -> None:
    """The heaviest user of the better account still comes before the lightest one of the other."""
    rows: dict[str, tuple[str, int | None]] = {"a": ("root", 1), "b": ("root", 1)}
    rows |= {"a/hog": ("a", 1), "a/idle": ("a", 1), "b/light": ("b", 1), "b/none": ("b", 1)}
    book, raw = a_book(rows, {"a/hog": 40.0, "b/light": 60.0})
    found = by_name(book, fair_tree(book, raw))
    assert found["a/hog"].factor == 0.75
    assert found["b/none"].factor == 0.5


def test_nothing_used_is_a_tie_of_all() -> None:
    book, raw = a_book({"a": ("root", 3), "a/x": ("a", 1), "a/y": ("a", 9)}, {})
    found = by_name(book, fair_tree(book, raw))
    assert found["a/x"].factor == found["a/y"].factor == 1.0


def test_zero_shares_come_last() -> None:
    book, raw = a_book({"a": ("root", 1), "a/x": ("a", 0), "a/y": ("a", 1)}, {"a/y": 100.0})
    found = by_name(book, fair_tree(book, raw))
    assert (found["a/y"].factor, found["a/x"].factor) == (1.0, 0.5)


@pytest.mark.parametrize(("method", "factor"), [(fair_tree, None), (classic, 0.5)])
def test_a_tree_of_root_alone(method: Any, factor: float | None) -> None:
    book = AccountBook(associations={ROOT_ID: Association(id=ROOT_ID, account="root")})
    assert [each.factor for each in method(book, {}).values()] == [factor]


def test_classic_with_parent_shares_as_slurm_computes_it() -> None:
    """Such an account or user stands as the account above does, by its own usage; its children compete up there."""
    rows: dict[str, tuple[str, int | None]] = {"science": ("root", 40), "other": ("root", 11)}
    rows |= {"chem": ("science", None), "chem/bob": ("chem", 9), "chem/cat": ("chem", 1)}
    rows |= {"phys": ("science", None), "phys/ann": ("phys", 4), "phys/bob": ("phys", None), "other/bob": ("other", 1)}
    used = {"chem/cat": 129.241, "phys/ann": 172.322, "phys/bob": 86.161, "other/bob": 612.276}
    book, raw = a_book(rows, used)
    found = by_name(book, classic(book, raw))
    science = found["science"]
    assert science.effective_usage == pytest.approx(0.387724)
    assert found["chem"].norm_usage == pytest.approx(0.129241)
    for name in ("chem", "phys", "phys/bob"):
        assert (found[name].effective_usage, found[name].factor) == (science.effective_usage, science.factor)
    assert found["chem/bob"].effective_usage == pytest.approx(science.effective_usage * 9 / 14)
    assert found["chem/cat"].effective_usage == pytest.approx(0.129241 + (science.effective_usage - 0.129241) / 14)


@pytest.mark.parametrize("method", [fair_tree, classic])
def test_every_association_has_a_standing(method: Any) -> None:
    rows: dict[str, tuple[str, int | None]] = {"a": ("root", None), "b": ("a", None), "c": ("b", 3), "b/x": ("b", None)}
    book, raw = a_book(rows | {"c/y": ("c", 1)}, {"c/y": 5.0})
    assert method(book, raw).keys() == book.associations.keys()


def test_depth_oblivious_draws_a_child_towards_its_ancestors_only_when_it_is_better_than_they() -> None:
    """Slurm's example: the account has used twice its half, one child two thirds of its part, the other three times."""
    rows: dict[str, tuple[str, int | None]] = {
        "a": ("root", 50),
        "b": ("root", 50),
        "a/frugal": ("a", 3),
        "a/greedy": ("a", 4),
        "b/other": ("b", 1),
    }
    whole = 1400.0  # a has used all of it: R = 1 / 0.5 = 2
    used = {"a/frugal": whole / 7, "a/greedy": whole * 6 / 7}
    book, raw = a_book(rows, used)
    found = by_name(book, classic(book, raw, depth_oblivious=True))
    assert found["a"].factor == pytest.approx(2**-2)
    k = 1 / (1 + (5 * log(2)) ** 2)
    assert found["a/frugal"].factor == pytest.approx(2 ** -(2 * (1 / 3) ** k))
    assert found["a/greedy"].factor == pytest.approx(2**-3), "off balance as its ancestors, and more: its own ratio"
    assert found["b/other"].factor == 1.0


def test_depth_oblivious_and_classic_agree_on_the_first_level() -> None:
    rows: dict[str, tuple[str, int | None]] = {"a": ("root", 1), "b": ("root", 3), "a/u": ("a", 1), "b/v": ("b", 1)}
    book, raw = a_book(rows, {"a/u": 3.0, "b/v": 1.0})
    plain, oblivious = by_name(book, classic(book, raw)), by_name(book, classic(book, raw, depth_oblivious=True))
    for name in ("root", "a", "b"):
        assert plain[name] == oblivious[name]
    assert oblivious["a/u"].factor == pytest.approx(oblivious["a"].factor), "an only child is what its account is"

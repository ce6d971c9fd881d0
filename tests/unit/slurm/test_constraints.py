"""Feature expressions. What is accepted and refused is what Slurm 22.05's sbatch -C accepts and refuses."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.constraints import (
    AllOf,
    AnyOf,
    Constraint,
    Feature,
    OneForAll,
    Shares,
    expression_matches,
    parse_constraint,
)
from bireme.slurm.errors import SlurmSyntaxError

A, B, C = Feature("a"), Feature("b"), Feature("c")


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("a", A),
        ("a&b", AllOf((A, B))),
        ("a,b", AllOf((A, B))),
        ("a|b|c", AnyOf((A, B, C))),
        ("a|b&c", AllOf((AnyOf((A, B)), C))),
        ("a&b|c", AnyOf((AllOf((A, B)), C))),
        ("(a|b)&c", AllOf((AnyOf((A, B)), C))),
        ("a&(b|c)", AllOf((A, AnyOf((B, C))))),
        ("(a)", A),
        ("a*2", Feature("a", 2)),
        ("a*2&b", AllOf((Feature("a", 2), B))),
        ("(a&b)*2", AllOf((A, B), 2)),
        ("[a|b]", OneForAll((A, B))),
        ("[a]", OneForAll((A,))),
        ("[(a&b)|c]", OneForAll((AllOf((A, B)), C))),
        ("[a|b]&c", AllOf((OneForAll((A, B)), C))),
        ("[a*2&b*4]", Shares((Feature("a", 2), Feature("b", 4)))),
        ("[(a&b)*2&c*1]", Shares((AllOf((A, B), 2), Feature("c", 1)))),
        ("", AllOf(())),
        ("gpu-h100_80g.v2", Feature("gpu-h100_80g.v2")),
    ],
)
def test_reads_a_tree(text: str, root: object) -> None:
    assert parse_constraint(text).root == root


@pytest.mark.parametrize(
    "text",
    [
        *("&a", "|a", "a||b", "a b", "a *2", "[a", "a]", "(a", "a)", "()", "[]", "a(b)", "(a|b)(c)", '"a"', "!a"),
        *("a*0", "a*x", "a*", "((a|b)&c)", "a&(b*2|c)", "[a|b]&[b|c]", "[a|b]*2"),
        *("[a&b]", "[a*2|b*2]", "[a|b*2]", "[a*2&b]", "[(a|b)&c*2]", "[a*2&b*4|c*2]", "[a,b]"),
    ],
)
def test_refuses_what_sbatch_refuses(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Invalid feature specification"):
        parse_constraint(text)


@pytest.mark.parametrize(
    ("text", "features", "fits"),
    [
        ("a&b", "a b", True),
        ("a&b", "a", False),
        ("a|b", "b", True),
        ("a|b", "c", False),
        ("a|b&c", "a", False),
        ("(a|b)&c", "b c", True),
        ("a*2", "c", True),
        ("a*2&b", "b", True),
        ("a*2&b", "a", False),
        ("[a|b]", "b", True),
        ("[a|b]", "c", False),
        ("[a*2&b*4]", "b", True),
        ("[a*2&b*4]", "c", False),
        ("", "", True),
    ],
)
def test_says_which_nodes_may_take_part(text: str, features: str, fits: bool) -> None:
    assert parse_constraint(text).matches(set(features.split())) is fits


def test_counts_say_how_many_nodes_must_satisfy_what() -> None:
    constraint = parse_constraint("[(a|b)*1&c*2]")
    assert constraint.counts() == ((AnyOf((A, B), 1), 1), (Feature("c", 2), 2))
    one_of_two, _ = constraint.counts()[0]
    assert expression_matches(one_of_two, {"b"})
    assert not expression_matches(one_of_two, {"c"})
    assert parse_constraint("a&b").counts() == ()


def test_alternatives_are_tried_for_the_whole_job() -> None:
    constraint = parse_constraint("a&[rack1|rack2]")
    first, second = constraint.alternatives()
    assert first.matches({"a", "rack1"})
    assert not first.matches({"a", "rack2"})
    assert second.matches({"a", "rack2"})
    plain = parse_constraint("a")
    assert plain.alternatives() == (plain,)


def test_names_every_feature() -> None:
    assert parse_constraint("(a|b)&[c|d]").feature_names() == {"a", "b", "c", "d"}


@given(st.text() | st.text(alphabet="ab&|,*()[]12"))
def test_any_text_is_a_constraint_or_a_syntax_error(text: str) -> None:
    with contextlib.suppress(SlurmSyntaxError):
        assert isinstance(parse_constraint(text), Constraint)

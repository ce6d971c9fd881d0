"""getopt_long as the looking commands use it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.commands.optline import Opt, OptionLineError, aliases, options, read

TABLE = aliases(options("-o--format= -j--jobs[=] -l--long -h--noheader --array --array-unique -u--user="), users="user")


def test_table_notation() -> None:
    assert options("-o--format= -j--jobs[=] --array") == [
        Opt("o", "format", "required"),
        Opt("j", "jobs", "optional"),
        Opt("", "array"),
    ]


@pytest.mark.parametrize(
    ("line", "given_options", "words"),
    [
        ("-l x --noheader y", [("long", None), ("noheader", None)], ["x", "y"]),
        ("-lho%i", [("long", None), ("noheader", None), ("format", "%i")], []),
        ("--form=%i --fo %j", [("format", "%i"), ("format", "%j")], []),
        ("-j42 -j --jobs=7 --jobs", [("jobs", "42"), ("jobs", None), ("jobs", "7"), ("jobs", None)], []),
        ("--users a --use b", [("user", "a"), ("user", "b")], []),
        ("--array", [("array", None)], []),
        ("-l -- -h", [("long", None)], ["-h"]),
        ("-", [], ["-"]),
    ],
)
def test_reading(line: str, given_options: list[tuple[str, str | None]], words: list[str]) -> None:
    assert read(TABLE, line.split()) == (given_options, words)


def test_without_permutation_the_first_word_ends_the_options() -> None:
    assert read(TABLE, ["-l", "x", "-h"], permute=False) == ([("long", None)], ["x", "-h"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--nope", "unrecognized option '--nope'"),
        ("--arr", "option '--arr' is ambiguous; possibilities: '--array' '--array-unique'"),
        ("--long=1", "option '--long' doesn't allow an argument"),
        ("--user", "option '--user' requires an argument"),
        ("-u", "option requires an argument -- 'u'"),
        ("-lx", "invalid option -- 'x'"),
    ],
)
def test_refusals(line: str, message: str) -> None:
    with pytest.raises(OptionLineError) as refusal:
        read(TABLE, line.split())
    assert str(refusal.value) == message


@given(st.lists(st.text(alphabet="-=abljo%i 1", max_size=6), max_size=5))
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    try:
        _, rest = read(TABLE, words)
    except OptionLineError:
        return
    assert len(rest) <= len(words)

"""Prometheus' text: escaping, numbers, families in one piece, absence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bireme.exposition import Page, labelled, number


def test_a_family_is_in_one_piece_whenever_its_samples_come() -> None:
    page = Page()
    page.family("a", "gauge", "First.").add(1, {"x": 1})
    page.family("b_total", "counter", "Second.").add(2)
    page.family("a", "gauge", "First.").add(3, {"x": 2})
    assert page.text() == (
        '# HELP a First.\n# TYPE a gauge\na{x="1"} 1\na{x="2"} 3\n'
        "# HELP b_total Second.\n# TYPE b_total counter\nb_total 2\n"
    )


def test_a_family_without_samples_is_not_there() -> None:
    page = Page()
    page.family("a", "gauge", "Nothing of it was measured.").add(math.nan)
    assert page.text() == ""


def test_what_users_name_things_cannot_break_the_page() -> None:
    assert labelled({"name": 'a"} 1\nevil{x="\\'}) == '{name="a\\"} 1\\nevil{x=\\"\\\\"}'


def test_a_label_without_a_value_is_left_out() -> None:
    assert labelled({"gpu": 0, "GPU_I_ID": "", "node": "n1"}) == '{gpu="0",node="n1"}'
    assert labelled({"GPU_I_ID": ""}) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "1"), (False, "0"), (7, "7"), (7.0, "7"), (0.25, "0.25"), (-3.5, "-3.5"),
        (2.0**53, "9007199254740992.0"),
        (1e300, "1e+300"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (np.float64(0.5), "0.5"), (np.float64(4.0), "4"),
        (123456789012, "123456789012"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_prometheus_reads_them(value: float, text: str) -> None:
    assert number(value) == text
    assert float(text) == value

"""Metrics' pages and Prometheus' answers, read as numbers; and what is said of those that hold none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bireme.daemon.scaling.figures import NoFigure, metric_total, query_value

PAGE = b"""\
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a \\"b} c"} 3.0
vllm:num_requests_waiting{engine="1",model_name="d"} 1.5 1700000000000
vllm:num_requests_waiting_total 99
plain 2e1
broken NaN
huge{of="1"} 1e308
huge{of="2"} 1e308
"""


@pytest.mark.parametrize(("name", "total"), [("vllm:num_requests_waiting", 4.5), ("plain", 20.0)])
def test_all_samples_of_a_metric_are_added_up(name: str, total: float) -> None:
    assert metric_total(PAGE, name) == total
    assert metric_total(PAGE.rstrip(), name) == total


@pytest.mark.parametrize(
    ("name", "words"), [("vllm:num", "is not among"), ("lain", "is not among"), ("broken", "NaN"), ("huge", "Inf")]
)
def test_a_metric_that_is_not_there_or_no_number_is_said_to_be(name: str, words: str) -> None:
    with pytest.raises(NoFigure, match=words):
        metric_total(PAGE, name)


@pytest.mark.parametrize(
    "page",
    [b'x{a="b"} 1\n' * 180_000, b"x{" + b'a="b",' * 300_000 + b"} 1\n", b"xy 1\n" * 400_000],
    ids=["many samples", "a long one", "many that begin so"],
)
def test_of_a_page_that_is_made_to_be_long_no_more_is_read_than_of_others(page: bytes) -> None:
    with pytest.raises(NoFigure, match="sum them up there"):
        metric_total(page, "x")


def test_metrics_that_begin_with_its_name_do_not_count() -> None:
    assert metric_total(b"x_total 5\n" * 2_000 + b"x 3\n", "x") == 3.0


def answered(kind: str, result: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


def test_a_scalar_and_a_vector_of_one_are_numbers() -> None:
    assert query_value(answered("scalar", [1, "7.5"])) == 7.5
    assert query_value(answered("vector", [{"metric": {}, "value": [1, "3"]}])) == 3.0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "something else than JSON"),
        (b"[" * 200_000, "something else than JSON"),
        (b"[]", "did not answer the query"),
        (json.dumps({"status": "error", "error": "parse error"}).encode(), "refused the query: parse error"),
        (answered("vector", []), "has no data for the query"),
        (answered("vector", [{"value": [1, "1"]}] * 2), "2 answers: make it one, with sum"),
        (answered("vector", [{"value": [1, "NaN"]}]), "no number"),
        (answered("vector", [{"histogram": []}]), "something else than a number"),
        (answered("matrix", []), "answers with a matrix"),
        (json.dumps({"status": "success"}).encode(), "not with a number"),
    ],
)
def test_an_answer_without_a_number_says_why(body: bytes, words: str) -> None:
    with pytest.raises(NoFigure, match=words):
        query_value(body)

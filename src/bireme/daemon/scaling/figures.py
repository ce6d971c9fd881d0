"""What replicas export and what Prometheus answers, read as numbers. Pure: bytes in, a number or the reason why none.

Invariant: what is not a number is never made up.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any

_SAMPLE = re.compile(
    rb"(?:\{(?:[^\"}\n]|\"(?:[^\"\\\n]|\\.)*\")*\})?[^\S\n]+([^\s]+)(?:[^\S\n]+-?\d+)?[^\S\n]*(?:\n|\Z)"
)
"""What follows a metric's name on a line: labels, a value, a time."""


_BEHIND_A_NAME = (b"{", b" ", b"\t")


class NoFigure(ValueError):  # noqa: N818  (says what it is)
    """There is no number in it; the text says why."""


MOST_SAMPLES = 1_000
MOST_SAMPLED_BYTES = 128 * 1024
MOST_LINES = 10 * MOST_SAMPLES
"""Of one metric in one page. Who reads it has others wait meanwhile: so much takes a few milliseconds, and a metric
with more samples is none to scale by."""


def metric_total(text: bytes, name: str) -> float:
    """The sum of all samples of a metric, of one replica's page in Prometheus' text format. Raises NoFigure."""
    page, line = b"\n" + text, b"\n" + name.encode()
    found, at, lines, size = list[float](), page.find(line), 0, 0
    while at >= 0:
        end = page.find(b"\n", at + 1)
        end = len(page) if end < 0 else end + 1
        lines += 1
        if page[at + len(line) : at + len(line) + 1] in _BEHIND_A_NAME:  # else another metric's, that begins so
            size += end - at
            match = _SAMPLE.match(page, at + len(line), end) if size <= MOST_SAMPLED_BYTES else None
            if match is not None:
                found.append(_number(match[1]))
        if lines > MOST_LINES or len(found) > MOST_SAMPLES or size > MOST_SAMPLED_BYTES:
            raise NoFigure(
                f"one replica exports more than {MOST_SAMPLES} samples of it, or long ones: sum them up there"
            )
        at = page.find(line, end - 1)
    if not found:
        raise NoFigure("it is not among what is exported")
    if not isfinite(total := sum(found)):
        raise NoFigure("it is exported as no number (NaN or Inf)")
    return total


def query_value(body: bytes) -> float:
    """The number that Prometheus' HTTP API answered: a scalar, or a vector with one element. Raises NoFigure."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise NoFigure("Prometheus answered with something else than JSON") from None
    if not isinstance(answer, dict) or answer.get("status") != "success":
        said = str(answer.get("error", ""))[:200] if isinstance(answer, dict) else ""
        raise NoFigure(f"Prometheus refused the query: {said}" if said else "Prometheus did not answer the query")
    value = _element(answer.get("data"))
    if not isfinite(value):
        raise NoFigure("Prometheus answered with no number (NaN or Inf)")
    return value


def _element(data: Any) -> float:
    kind: Any = data.get("resultType") if isinstance(data, dict) else None
    result: Any = data.get("result") if isinstance(data, dict) else None
    try:
        if kind == "scalar":
            return float(result[1])
        if kind == "vector" and not result:
            raise NoFigure("Prometheus has no data for the query")
        if kind == "vector" and len(result) == 1:
            return float(result[0]["value"][1])
    except NoFigure:
        raise
    except (TypeError, ValueError, KeyError, IndexError):
        raise NoFigure("Prometheus answered with something else than a number") from None
    if kind == "vector":
        raise NoFigure(f"the query has {len(result)} answers: make it one, with sum(...) or max(...)")
    raise NoFigure(f"the query answers with a {kind}, not with a number: take one moment of it")


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")

"""Prometheus' text format, version 0.0.4: families of samples in, one page of text out. Pure.

Filled by `core/telemetry/exported` (what machines measure), `api/exporting` (what the daemon knows) and `router/loads`
(what services are asked). Below the core, since the router lives without it. A writer of our own and not
prometheus-client: on a page of 1,000 GPUs that takes ten times as long (`bench/exposition_writers.py`).
OpenMetrics is not offered: its counters must end in `_total`, dcgm-exporter's do not, and their names are what existing
dashboards ask for.

Invariants: a family is written once, in one piece, with its help and its type; a label's value is escaped; a value that
is no number is not written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

MEDIA = "text/plain; version=0.0.4; charset=utf-8"

Type = Literal["gauge", "counter", "histogram"]
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_IN_HELP = str.maketrans({"\\": "\\\\", "\n": "\\n"})


class Family:
    """All samples of one name."""

    __slots__ = ("_lines", "_name")

    def __init__(self, name: str, type_: Type, what: str) -> None:
        self._name = name
        self._lines = [f"# HELP {name} {what.translate(_IN_HELP)}", f"# TYPE {name} {type_}"]

    def add(self, value: float, labels: Mapping[str, object] | str = "", suffix: str = "") -> None:
        """One sample. `labels`: by name, or as `labelled` wrote them. `suffix`: of a histogram's parts."""
        if math.isnan(value):
            return
        text = labels if isinstance(labels, str) else labelled(labels)
        self._lines.append(f"{self._name}{suffix}{text} {number(value)}")

    @property
    def samples(self) -> int:
        """How many it has."""
        return len(self._lines) - 2

    def lines(self) -> list[str]:
        """None where it has no sample."""
        return self._lines if self.samples else []


class Page:
    """What one scrape is answered with."""

    __slots__ = ("_families",)

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def family(self, name: str, type_: Type, what: str) -> Family:
        """The one of this name."""
        found = self._families.get(name)
        if found is None:
            found = self._families[name] = Family(name, type_, what)
        return found

    def tell(self, name: str, type_: Type, what: str, samples: Iterable[tuple[Mapping[str, object], float]]) -> None:
        """A family with all of its samples."""
        family = self.family(name, type_, what)
        for labels, value in samples:
            family.add(value, labels)

    def text(self) -> str:
        """With a newline at its end, which Prometheus asks for."""
        lines = [line for family in self._families.values() for line in family.lines()]
        return "\n".join(lines) + "\n" if lines else ""


def labelled(labels: Mapping[str, object]) -> str:
    """`{gpu="0",UUID="GPU-a"}`. A label without a value is left out: to Prometheus that is the same."""
    pairs = [f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items() if value != ""]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def number(value: float) -> str:
    """A whole number without a fraction, so that counters are read as what was counted."""
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))

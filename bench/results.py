"""What a run found: rows, their targets, and how they are shown and stored.

Invariant: a row says whether it reached its target from its own figures; nobody sets that by hand.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HEADERS = ("section", "what", "value", "floor", "ratio", "target", "reached")


@dataclass(frozen=True, slots=True)
class Target:
    """What must be reached: `sense` is how the measured figure (or its ratio to the floor) compares with `bound`."""

    sense: str
    bound: float
    of_ratio: bool = False

    def reached(self, figure: float) -> bool:
        return {">=": figure >= self.bound, "<": figure < self.bound}[self.sense]


@dataclass(slots=True)
class Row:
    section: str
    name: str
    value: float
    unit: str
    floor: float | None = None
    """What the value is compared with, in the same unit."""
    target: Target | None = None
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    """Further figures for the JSON file: single measurements, percentiles."""

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        figure = self.ratio if self.target.of_ratio else self.value
        return figure is not None and self.target.reached(figure)

    def as_json(self) -> dict[str, Any]:
        return {
            "section": self.section,
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "floor": self.floor,
            "ratio": self.ratio,
            "target": _target_text(self),
            "reached": self.reached,
            "note": self.note,
            **({"details": self.details} if self.details else {}),
        }


@dataclass(slots=True)
class Report:
    facts: dict[str, Any]
    """Machine, versions, configurations, sizes of this run."""
    rows: list[Row] = field(default_factory=list)

    def write(self, folder: Path, name: str = "bench.json") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        document = {"facts": self.facts, "rows": [row.as_json() for row in self.rows]}
        path.write_text(json.dumps(document, indent=2) + "\n")
        return path

    def show(self) -> None:
        """A table with colours on a terminal; else one plain line per row, columns aligned."""
        cells = [_cells(row) for row in self.rows]
        if not sys.stdout.isatty():
            widths = [max(map(len, column)) for column in zip(HEADERS, *cells)]
            for line in (HEADERS, *cells):
                print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
            return
        table = Table(*HEADERS)
        for row, line in zip(self.rows, cells):
            table.add_row(*line, style={True: "green", False: "red", None: None}[row.reached])
        Console().print(table)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.section,
        row.name,
        _figure(row.value, row.unit),
        _figure(row.floor, row.unit) if row.floor is not None else "",
        f"{row.ratio:.2f}" if row.ratio is not None else "",
        _target_text(row),
        {True: "yes", False: "NO", None: ""}[row.reached],
    )


def _target_text(row: Row) -> str:
    if row.target is None:
        return ""
    bound = f"{row.target.bound:g} x floor" if row.target.of_ratio else _figure(row.target.bound, row.unit)
    return f"{row.target.sense} {bound}"


def _figure(value: float, unit: str) -> str:
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f} {unit}"

"""A field: one thing a format can ask for. Tables of these are what `-o` letters and `-O` names are looked up in.

`needs` names the record's keys that `text` reads, so that a command asks the API for these and no others.
Invariant (tested): a field reads nothing that it does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from bireme.slurm.formats.layout import PercentFormat, Spec, cell, escaped
from bireme.slurm.formats.values import Context
from bireme.slurm.formats.visible import visible

Text = Callable[[Any, Context], str]
SortKey = Callable[[Any, Context], Any]
Measure = Callable[[int], None]
"""Told how long a line will be before it is made; raises where that is too long."""


def any_length(letters: int) -> None:
    """A `Measure` that every line passes."""


class Field(NamedTuple):
    letter: str
    """For -o; empty when only -O has it."""
    names: tuple[str, ...]
    """For -O, lower case."""
    header: str
    needs: tuple[str, ...]
    text: Text
    key: SortKey | None = None
    """What it sorts by; its text when None."""
    cut: bool = True
    """False: a value longer than the column is shown whole (squeue's durations); the header is cut all the same."""


class FieldTable:
    """Fields by letter and by name, for one kind of record."""

    def __init__(self, kind: str, fields: Iterable[Field]) -> None:
        self.kind = kind
        self.fields = tuple(fields)
        self.by_letter = {field.letter: field for field in self.fields if field.letter}
        self.by_name = {name: field for field in self.fields for name in field.names}

    def in_letter_order(self) -> list[Field]:
        """As `%all` shows them: small letters first."""
        letters = sorted(self.by_letter, key=lambda letter: (letter.isupper(), letter))
        return [self.by_letter[letter] for letter in letters]


class Plan(NamedTuple):
    """A format, ready to print: the lines' templates and the fields that fill them."""

    header_template: str
    template: str
    fields: list[Field]
    complaints: list[str]
    """Types that no table knows; the rest of the format still prints, as in Slurm."""

    def needs(self) -> set[str]:
        return {need for field in self.fields for need in field.needs}

    def header(self) -> str:
        return self.header_template % tuple(field.header for field in self.fields)

    def lines(self, records: Sequence[Any], context: Context, measure: Measure = any_length) -> list[str]:
        template = self.template
        texts = [field.text for field in self.fields]
        lines: list[str] = []
        for record in records:
            values = [text(record, context) for text in texts]
            measure(sum(map(len, values)))
            line = template % tuple(values)
            # One look at the line instead of one at each value: nearly always there is nothing to hide.
            lines.append(line if line.isprintable() else template % tuple(map(visible, values)))
        return lines


def plan_percent(form: PercentFormat, table: FieldTable, complaint: str) -> Plan:
    """Looks the letters up; an unknown one stays in the line as it was written."""
    header = template = escaped(form.prefix)
    fields: list[Field] = []
    complaints: list[str] = []
    for spec in form.specs:
        found = table.in_letter_order() if spec.type == "all" else [table.by_letter.get(spec.type)]
        if found == [None]:
            complaints.append(f"{complaint}: {spec.type}")
            header += escaped(f"%{spec.type}{spec.suffix}")
            template += escaped(f"%{spec.type}{spec.suffix}")
            continue
        known = [field for field in found if field is not None]
        header += "|".join(cell(spec.width, spec.right) for _ in known) + escaped(spec.suffix)
        template += "|".join(cell(spec.width, spec.right, cut=field.cut) for field in known) + escaped(spec.suffix)
        fields.extend(known)
    return Plan(header, template, fields, complaints)


def plan_named(specs: Sequence[Spec], table: FieldTable, complaint: str) -> Plan:
    """Looks the names up; an unknown one is left out."""
    header = template = ""
    fields: list[Field] = []
    complaints: list[str] = []
    for spec in specs:
        field = table.by_name.get(spec.type)
        if field is None:
            complaints.append(f"{complaint}: {spec.type}")
            continue
        header += cell(spec.width, spec.right) + escaped(spec.suffix)
        template += cell(spec.width, spec.right, cut=field.cut) + escaped(spec.suffix)
        fields.append(field)
    return Plan(header, template, fields, complaints)


class SortSpec(NamedTuple):
    letter: str
    descending: bool = False
    as_configured: bool = False
    """sinfo's `#P`: partitions in the order of slurm.conf."""


def parse_sort(text: str) -> list[SortSpec]:
    """`P,t,-p`; blanks are nothing."""
    specs: list[SortSpec] = []
    for item in text.split(","):
        word = item.strip()
        descending = word.startswith("-")
        word = word.lstrip("+-")
        hashed = word.startswith("#")
        word = word.lstrip("#")
        specs.extend(SortSpec(letter, descending, hashed) for letter in word)
    return specs


def sort_records(records: list[Any], specs: Sequence[SortSpec], table: FieldTable, context: Context) -> None:
    """Sorts in place by the first spec, then the next; stable, and silent about letters it does not know."""
    for spec in reversed(specs):
        field = table.by_letter.get(spec.letter)
        if field is None:
            continue
        key = field.key or field.text
        records.sort(key=lambda record, key=key: key(record, context), reverse=spec.descending)  # type: ignore[misc]


def unknown_sorts(specs: Sequence[SortSpec], table: FieldTable) -> list[str]:
    return [spec.letter for spec in specs if spec.letter not in table.by_letter]

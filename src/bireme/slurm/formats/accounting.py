"""The tables of sacct and sstat: fixed widths with `+` where a value was cut, dashes under the header, `-p` and `-P`.

What the fields mean is in `sacct_fields` and `sstat_fields`. Invariant: with -p or -P nothing is ever cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats.fields import Measure, any_length
from bireme.slurm.formats.layout import parse_accounting
from bireme.slurm.formats.values import Context
from bireme.slurm.formats.visible import visible

AccountingText = Callable[[Any, Context], str]


class AccountingField(NamedTuple):
    """A column that sacct, sshare or sacctmgr can print."""

    name: str
    width: int
    text: AccountingText
    left: bool = False
    plain_cut: bool = False
    """Times are cut without the `+`."""
    needs: tuple[str, ...] = ()
    """Of sacct: keys of a job's record that `text` reads, beside those that every line needs."""


class AccountingColumn(NamedTuple):
    field: AccountingField
    width: int
    left: bool


def field_map(fields: Iterable[AccountingField]) -> dict[str, AccountingField]:
    return {field.name.lower(): field for field in fields}


def choose_columns(
    text: str, fields: Mapping[str, AccountingField], aliases: Mapping[str, str]
) -> list[AccountingColumn]:
    """The columns of a --format; names may be shortened to a beginning, and the first field so named wins."""
    columns: list[AccountingColumn] = []
    for spec in parse_accounting(text):
        name = aliases.get(spec.type.lower(), spec.type.lower())
        if name == "all":
            columns.extend(AccountingColumn(field, field.width, field.left) for field in fields.values())
            continue
        field = fields.get(name) or next((field for key, field in fields.items() if key.startswith(name)), None)
        if field is None:
            raise SlurmSyntaxError(f'Invalid field requested: "{spec.type}"')
        # A width of one's own also sets the side: JobID is left by itself, but JobID%20 is right.
        left = spec.left if spec.width else field.left
        columns.append(AccountingColumn(field, spec.width or field.width, left))
    return columns


def fixed_lines(
    columns: Sequence[AccountingColumn], rows: Iterable[Any], context: Context, *, header: bool = True
) -> list[str]:
    """Columns with a blank after each, as sacct pads them."""
    template = "".join(f"%{'-' if column.left else ''}{column.width}s " for column in columns)
    lines: list[str] = []
    if header:
        lines.append(template % tuple(column.field.name[: column.width] for column in columns))
        lines.append(template % tuple("-" * column.width for column in columns))
    lines.extend(template % tuple(_fitted(column, row, context) for column in columns) for row in rows)
    return lines


def _fitted(column: AccountingColumn, row: Any, context: Context) -> str:
    text = visible(column.field.text(row, context))
    if len(text) <= column.width:
        return text
    if column.field.plain_cut:
        return text[: column.width]
    return text[: column.width - 1] + "+"


def parsable_lines(
    columns: Sequence[AccountingColumn], rows: Iterable[Any], context: Context, *,
    header: bool = True, delimiter: str = "|", ending: bool = False, measure: Measure = any_length,
) -> list[str]:  # fmt: skip
    """-P, and -p with its delimiter at the end of each line too."""
    end = delimiter if ending else ""
    lines = [delimiter.join(column.field.name for column in columns) + end] if header else []
    texts = [column.field.text for column in columns]
    for row in rows:
        values = [text(row, context) for text in texts]
        measure(sum(map(len, values)))
        lines.append(delimiter.join(map(visible, values)) + end)
    return lines


def name_lines(fields: Iterable[AccountingField]) -> list[str]:
    """--helpformat: the names, four to a line."""
    names = [field.name for field in fields]
    return ["".join(f"{name:<20}" for name in names[at : at + 4])[:79] for at in range(0, len(names), 4)]

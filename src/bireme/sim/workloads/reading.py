"""A workload by its name: a file of any format that is known (plain or .gz), `generate:...` or `jobs:...`.

The format is what the first line says it is. Called by the command line; the only module here that opens files.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator

from bireme.sim.workloads import described, generator, history, sacct, swf, tables
from bireme.sim.workloads.trace import BadTraceError, Problem, Row, Workload, gather

GZIP = b"\x1f\x8b"


def read_workload(name: str, *, skip_bad: bool = False) -> Workload:
    """Raises BadTraceError, BadGeneratorError, BadDescriptionError or OSError."""
    if name.startswith(generator.PREFIX):
        return generator.generate(generator.parse(name))
    if name.startswith(described.PREFIX):
        return described.read(name)
    lines, cut = read_lines(name)
    first = lines[0] if lines else ""
    heading = [cell.strip().lower() for cell in first.split(",")]
    table = next((each for each in tables.TABLES if set(each.columns) <= set(heading)), None)
    rows: Iterator[Row]
    hint = ""
    remarks: tuple[str, ...] = ()
    if table is not None:
        rows, remarks = tables.rows(lines, table), (table.remark,)
    elif "|" in first:
        rows = _of_sacct(name, lines)
    elif first.startswith(";") or len(first.split()) == swf.FIELDS:
        known = swf.header(lines)
        rows, hint = swf.rows(lines, float(known.get("UnixStartTime", 0))), swf.cluster_hint(known)
    else:
        what = "an SWF log, a `sacct -P` dump with its heading, or a Philly, ITP or openb table"
        raise BadTraceError([Problem(name, 1, f"not a trace that is known: {what}")], hint="")
    return gather(name, _with_cut(rows, len(lines), cut), skip_bad=skip_bad, cluster_hint=hint, remarks=remarks)


def workload_of_history(records: Iterable[history.Record], source: str) -> Workload:
    """Jobs that never ran are left out: nobody knows how long they would have run."""
    return gather(source, history.rows(records), skip_bad=True)


def _of_sacct(name: str, lines: Iterable[str]) -> Iterator[Row]:
    try:
        yield from sacct.rows(lines)
    except sacct.MissingColumnError as error:
        raise BadTraceError([Problem(name, 1, str(error))], hint="") from error


def _with_cut(rows: Iterator[Row], last: int, cut: str) -> Iterator[Row]:
    yield from rows
    if cut:
        yield last, cut


def read_lines(path: str) -> tuple[list[str], str]:
    """The file's lines, and what is wrong with its end."""
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP
    opened: Callable[..., Iterable[str]] = gzip.open if packed else open
    lines: list[str] = []
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="") as file:  # type: ignore[attr-defined]
            for line in file:
                lines.append(line)
    except (EOFError, zlib.error):
        return lines, "the compressed file ends here, in the middle: copy it again"
    return lines, ""

"""Public GPU traces that are tables with a heading: Philly, ITP, and Alibaba's openb pod list.

Each has one function that turns a row into a job; which of them a file is, its heading says.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from bireme.sim.workloads.trace import Row, TraceJob

Cells = dict[str, str]
MILLI = 1000


class UnreadableError(ValueError):
    """A cell is not what its column promises; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[str, ...]
    """The heading must have these."""
    read: Callable[[Cells], TraceJob]
    remark: str


def rows(lines: Iterable[str], table: Table) -> Iterator[Row]:
    reader = csv.reader(lines)
    names = next(reader, [])
    for cells in reader:
        line = reader.line_num
        if not cells:
            continue
        if len(cells) != len(names):
            yield line, f"{len(cells)} of {len(names)} columns: the line is cut short"
            continue
        try:
            yield line, table.read(dict(zip(names, cells)) | {"line": str(line)})
        except UnreadableError as error:
            yield line, str(error)


def _number(cells: Cells, name: str) -> float:
    try:
        return float(cells[name])
    except ValueError:
        text = cells[name]
        what = "is empty" if not text else f"{text!r} is not a number (seconds and counts have no unit here)"
        raise UnreadableError(f"{name}: {what}") from None


def _count(cells: Cells, name: str) -> int:
    value = _number(cells, name)
    if value != int(value):
        raise UnreadableError(f"{name}: {cells[name]} is not a whole number")
    return int(value)


def _philly(cells: Cells) -> TraceJob:
    try:
        submit = datetime.fromisoformat(cells["timestamp"]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise UnreadableError(f"timestamp: {cells['timestamp']!r} is not a time (2017-10-09 07:01:55)") from None
    run_s, gpus = _number(cells, "duration"), _count(cells, "num_gpus")
    if abs(run_s * gpus - _number(cells, "gpu_time")) > max(1.0, run_s * gpus * 0.01):
        raise UnreadableError("gpu_time is not duration x num_gpus: are the units mixed?")
    # The public table has no users: a virtual cluster is a team, and that is who is treated fairly here.
    team = cells["cluster"]
    return TraceJob(
        submit=submit, run_s=run_s, gpus=gpus, user=team, account=team, partition=team, line=int(cells["line"])
    )


def _itp(cells: Cells) -> TraceJob:
    return TraceJob(
        submit=_number(cells, "submission_time"),
        run_s=_number(cells, "duration"),
        gpus=_count(cells, "num_gpu"),
        name=cells["job_id"][:8],
        line=int(cells["line"]),
    )


def _openb(cells: Cells) -> TraceJob:
    if not cells["scheduled_time"]:
        raise UnreadableError("it was never scheduled: its run time is not known")
    gpus, milli = _count(cells, "num_gpu"), _count(cells, "gpu_milli")
    if gpus and not 0 < milli <= MILLI:
        raise UnreadableError(f"gpu_milli: {milli} is not in 1..{MILLI}")
    submit = _number(cells, "creation_time")
    return TraceJob(
        submit=submit,
        run_s=_number(cells, "deletion_time") - _number(cells, "scheduled_time"),
        nodes=1,
        cpus=-(-_count(cells, "cpu_milli") // MILLI),
        memory_mib=_count(cells, "memory_mib"),
        gpus=gpus,
        gpu_milli=milli if gpus else MILLI,
        gpu_types=tuple(cells["gpu_spec"].lower().split("|")) if cells["gpu_spec"] else (),
        user=cells["qos"].lower() or "user",
        account=cells["qos"].lower(),
        name=cells["name"],
        exit_code=1 if cells["pod_phase"] == "Failed" else 0,
        waited_s=_number(cells, "scheduled_time") - submit,
        line=int(cells["line"]),
    )


TABLES = (
    Table(
        "philly",
        ("timestamp", "duration", "num_gpus", "gpu_time", "cluster"),
        _philly,
        "Philly's public table names no users and no time limits; each virtual cluster is one partition and one user.",
    ),
    Table("itp", ("job_id", "submission_time", "duration", "num_gpu"), _itp, "ITP's tables name no users."),
    Table(
        "openb",
        ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "creation_time", "deletion_time"),
        _openb,
        "openb names no users: the pods' QOS class stands for the account.",
    ),
)

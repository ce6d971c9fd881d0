"""sacct asks for the keys that it reads: every column names all of those that its text looks at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bireme.slurm.formats.accounting import AccountingField
from bireme.slurm.formats.sacct_fields import IN_EVERY_LINE, SACCT_FIELDS, Row
from bireme.slurm.formats.values import Context

TRES = {"cpu": 4, "mem": 1024, "gres/gpu": 2, "gres/gpu:h100": 2}
WHOLE: dict[str, Any] = {
    "job_id": 7, "array_job_id": 7, "array_task_id": None, "array_tasks": "1-3%2", "het_job_id": None,
    "state": "COMPLETING", "base_state": "FAILED", "cancelled_by": 3, "start_time": 10.0, "end_time": 20.0,
    "eligible_time": 5.0, "submit_time": 4.0, "elapsed_s": 10, "tres_allocated": TRES, "tres_requested": TRES,
    "num_cpus": 4, "node_count": 2, "nodes_min": 2, "node_list": "n[1-2]", "time_limit_s": 60, "usage": {},
}  # fmt: skip
CONTEXT = Context(30.0, str)
STEP: dict[str, Any] = {"step_id": 0, "state": "CANCELLED", "usage": {}, "tres_allocated": TRES, "num_cpus": 2}


class Read(dict[str, Any]):
    """A record that remembers what was looked for in it."""

    def __init__(self, record: dict[str, Any]) -> None:
        super().__init__(record)
        self.keys_read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.keys_read.add(key)
        return super().__getitem__(key)


def records() -> Iterator[dict[str, Any]]:
    """All there is, each thing missing in turn, nothing but what is always there, and other states and ids."""
    yield WHOLE
    for key in WHOLE.keys() - {"job_id", "state"}:
        yield {**WHOLE, key: None}
    yield {"job_id": 7, "state": "PENDING"}
    for more in ({"state": "CANCELLED"}, {"state": "RUNNING"}, {"array_task_id": 3}, {"array_tasks": ""}):
        yield {**WHOLE, **more}
    yield {**WHOLE, "array_tasks": "", "het_job_id": 7, "het_offset": 1}


def keys_read(field: AccountingField) -> set[str]:
    read: set[str] = set()
    for record in records():
        for step in (None, STEP):
            seen = Read(record)
            field.text(Row(seen, step), CONTEXT)
            read |= seen.keys_read
    return read


@pytest.mark.parametrize("field", SACCT_FIELDS.values(), ids=lambda field: field.name)
def test_a_column_names_what_it_reads_and_nothing_else(field: AccountingField) -> None:
    read = keys_read(field)
    assert read <= {*IN_EVERY_LINE, *field.needs, "steps"}
    assert set(field.needs) <= read

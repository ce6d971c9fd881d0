"""How `--json` writes a field of the table of job fields as its form says; for squeue's jobs and sacct's alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bireme.slurm.formats.values import Record, tres_per
from bireme.slurm.job_fields.row import Form, JobField
from bireme.slurm.json_shapes.envelope import stamp

Write = Callable[[Record], Any]


def text_of(job: Record, key: str) -> str:
    value = job.get(key)
    return "" if value is None else str(value)


def tres_of(text: str | None) -> str:
    """Since 23.11 Slurm writes `gres/gpu:2` where 22.05 wrote `gres:gpu:2`."""
    return tres_per(text).replace("gres:", "gres/")


def by_form(field: JobField) -> Write:
    """The value of a job's record, as its form is written. Every key is always there: nothing is written as nothing."""
    key = field.record
    match field.shown_form:
        case Form.FLAG | Form.CHOICE:
            return lambda job: bool(job.get(key))
        case Form.NUMBER | Form.COUNT | Form.MEMORY | Form.LIMIT:
            return lambda job: job.get(key) or 0
        case Form.MOMENT:
            return lambda job: stamp(job.get(key))
        case Form.GRES | Form.GPUS:
            return lambda job: tres_of(job.get(key))
        case _:
            return lambda job: text_of(job, key)

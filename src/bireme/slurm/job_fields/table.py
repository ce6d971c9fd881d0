"""The whole table of a job's fields: all rows in one order, and what consumers look up in it.

Invariant (tested): every field of JobSpec and ResourceRequest has one row, and no two rows share a name in any place.
"""

from __future__ import annotations

from collections.abc import Iterable

from bireme.slurm.job_fields.amounts import GPU_ROWS, RESOURCE_ROWS
from bireme.slurm.job_fields.containers import CONTAINER_ROWS
from bireme.slurm.job_fields.identity import BATCH_ROWS, END_ROWS, FILE_ROWS, IDENTITY_ROWS, UNASKED_ROWS
from bireme.slurm.job_fields.row import JobField, Place, Row
from bireme.slurm.job_fields.where_and_when import PLACEMENT_ROWS, TIME_ROWS
from bireme.slurm.options.catalogue.table import Option

JOB_ROWS: tuple[Row, ...] = (
    *RESOURCE_ROWS,
    *GPU_ROWS,
    *PLACEMENT_ROWS,
    *TIME_ROWS,
    *IDENTITY_ROWS,
    *FILE_ROWS,
    *END_ROWS,
    *BATCH_ROWS,
    *UNASKED_ROWS,
)
"""In the order of `sbatch --help`. Those of containers come after srun's own options there."""
FIELDS: tuple[JobField, ...] = tuple(row for row in (*JOB_ROWS, *CONTAINER_ROWS) if isinstance(row, JobField))


def options_in(rows: Iterable[Row]) -> tuple[Option, ...]:
    """The options that rows have, in their order."""
    options = (row.option if isinstance(row, JobField) else row for row in rows)
    return tuple(option for option in options if option is not None)


def with_own(place: Place) -> tuple[JobField, ...]:
    """The fields that have a function of their own in this place."""
    return tuple(field for field in FIELDS if place in field.own)

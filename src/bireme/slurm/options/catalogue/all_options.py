"""Every option of sbatch, srun and salloc, as data: Slurm 22.05's man pages, what newer releases added, and Pyxis'.

A row reads like a man page: letter, `name=VALUE` or `name[=VALUE]` or `name`, who knows it, what its value is, and
the environment variables. `env="ACCOUNT"` means SBATCH_ACCOUNT, SLURM_ACCOUNT (srun) and SALLOC_ACCOUNT. A row with
`ignored` is accepted, and the text says why it is not applied yet. Used by `getopt`, `layers`, `help`.
"""

from __future__ import annotations

from types import MappingProxyType

from bireme.slurm.job_fields.containers import CONTAINER_ROWS
from bireme.slurm.job_fields.table import JOB_ROWS, options_in
from bireme.slurm.options.catalogue.launch_rows import COMMAND_ROWS, LAUNCH_ROWS
from bireme.slurm.options.catalogue.table import Command, Option, OptionTable

OPTIONS: tuple[Option, ...] = (*options_in(JOB_ROWS), *LAUNCH_ROWS, *options_in(CONTAINER_ROWS), *COMMAND_ROWS)
TABLES = MappingProxyType({command: OptionTable(command, OPTIONS) for command in Command})
"""The table of each command."""

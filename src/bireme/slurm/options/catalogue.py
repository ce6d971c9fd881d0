"""Every option of sbatch, srun and salloc, as data: Slurm 22.05's man pages, what newer releases added, and Pyxis'.

A row reads like a man page: letter, `name=VALUE` or `name[=VALUE]` or `name`, who knows it, what its value is, and
the environment variables. `env="ACCOUNT"` means SBATCH_ACCOUNT, SLURM_ACCOUNT (srun) and SALLOC_ACCOUNT. A row with
`ignored` is accepted, and the text says why it is not applied yet. Used by `getopt`, `layers`, `help`.
"""

from __future__ import annotations

from types import MappingProxyType

from bireme.slurm.options.job_rows import JOB_ROWS
from bireme.slurm.options.launch_rows import LAUNCH_ROWS
from bireme.slurm.options.table import Command, Option, OptionTable

OPTIONS: tuple[Option, ...] = (*JOB_ROWS, *LAUNCH_ROWS)
TABLES = MappingProxyType({command: OptionTable(command, OPTIONS) for command in Command})
"""The table of each command."""

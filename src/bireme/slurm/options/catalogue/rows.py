"""How a row of the option catalogue is written: `option("A", "account=NAME", ...)`.

Used by `slurm/job_fields`, where a row of a job's field has its option, and by `launch_rows`.
"""

from __future__ import annotations

import re

from bireme.slurm.options.catalogue.table import Arity, Command, Kind, Option

ALL = (Command.SBATCH, Command.SRUN, Command.SALLOC)
SBATCH = (Command.SBATCH,)
SRUN = (Command.SRUN,)
SALLOC = (Command.SALLOC,)
SUBMIT = (Command.SBATCH, Command.SALLOC)
OUTPUT = (Command.SBATCH, Command.SRUN)
TERMINAL = (Command.SRUN, Command.SALLOC)

_PREFIX = {Command.SBATCH: "SBATCH_", Command.SRUN: "SLURM_", Command.SALLOC: "SALLOC_"}
_SIGNATURE = re.compile(r"(?P<name>[a-z0-9-]+)(?:(?P<optional>\[=(?P<some>.+)\])|=(?P<value>.+))?")


def option(
    short: str,
    signature: str,
    commands: tuple[Command, ...],
    kind: Kind,
    section: str,
    summary: str,
    *,
    env: str = "",
    variables: dict[Command, tuple[str, ...]] | None = None,
    ignored: str = "",
    elsewhere: dict[str, str] | None = None,
    alias_of: str = "",
) -> Option:
    """One row. `variables` overrides, command by command, what `env` would name."""
    match = _SIGNATURE.fullmatch(signature)
    assert match is not None, signature
    arity = Arity.OPTIONAL if match["optional"] else Arity.REQUIRED if match["value"] else Arity.NONE
    named = {command: (_PREFIX[command] + env,) for command in commands} if env else {}
    return Option(
        name=match["name"],
        short=short,
        arity=arity,
        argument=match["some"] or match["value"] or "",
        kind=kind,
        commands=frozenset(commands),
        variables={**named, **(variables or {})},
        summary=summary,
        section=section,
        ignored=ignored,
        elsewhere=elsewhere or {},
        alias_of=alias_of,
    )

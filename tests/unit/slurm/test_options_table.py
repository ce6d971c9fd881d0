"""The option tables: complete, consistent, and self-explaining."""

import pytest

from bireme.slurm.job_fields.containers import CONTAINERS
from bireme.slurm.options.catalogue.all_options import OPTIONS, TABLES
from bireme.slurm.options.catalogue.help import help_text, usage_text
from bireme.slurm.options.catalogue.table import Arity, Command, Kind
from bireme.slurm.options.values import PARSERS

# The options that people write in public batch scripts, most used first.
USED_IN_THE_WILD = """
time job-name output nodes cpus-per-task partition error ntasks-per-node ntasks gres mem account hint qos constraint
mem-per-cpu exclusive reservation gpus-per-node array mail-type mem-per-gpu wait-all-nodes gpus-per-task mail-user
export open-mode signal ntasks-per-core clusters requeue tasks-per-node ntasks-per-socket gres-flags deadline
no-requeue gpus dependency exclude cpus-per-gpu het-group overcommit cluster nodelist distribution tmp ntasks-per-gpu
"""
PYXIS = """
container-image container-mounts container-workdir container-name container-save container-mount-home
no-container-mount-home container-remap-root container-entrypoint container-writable
"""
NEWER = """
tres-per-task tres-bind resv-ports oom-kill-step segment consolidate-segments prefer container-id stepmgr gpu-freq
export-file external
"""


def test_every_option_of_the_manual_is_known() -> None:
    # sbatch(1), srun(1) and salloc(1) of Slurm 22.05 list 103, 128 and 94; newer releases and Pyxis added the rest.
    assert len(TABLES[Command.SBATCH].options) >= 114
    assert len(TABLES[Command.SRUN].options) >= 138
    assert len(TABLES[Command.SALLOC].options) >= 101


@pytest.mark.parametrize("name", f"{USED_IN_THE_WILD} {PYXIS} {NEWER}".split())
def test_sbatch_knows(name: str) -> None:
    option = TABLES[Command.SBATCH][name]
    assert option.honoured or len(option.ignored.split()) >= 3, "an option that is not applied says why"


@pytest.mark.parametrize(("command", "count"), [(Command.SBATCH, 27), (Command.SRUN, 30), (Command.SALLOC, 20)])
def test_short_letters(command: Command, count: int) -> None:
    assert sum(1 for option in TABLES[command].options if option.short) >= count


def test_wait_is_a_flag_for_sbatch_and_takes_seconds_for_srun() -> None:
    assert TABLES[Command.SBATCH]["wait"].arity is Arity.NONE
    assert TABLES[Command.SRUN]["wait"].arity is Arity.REQUIRED
    assert TABLES[Command.SBATCH].with_letter("W") is TABLES[Command.SBATCH]["wait"]


def test_variables_carry_the_prefix_of_their_command() -> None:
    prefixes = {
        Command.SBATCH: ("SBATCH_", "SLURM_HINT", "SLURM_CLUSTERS"),
        Command.SRUN: ("SLURM_", "SRUN_", "SLURMD_DEBUG"),
        Command.SALLOC: ("SALLOC_", "SLURM_HINT", "SLURM_CLUSTERS"),
    }
    for option in OPTIONS:
        for command, variables in option.variables.items():
            assert command in option.commands
            allowed = (*prefixes[command], *(("PYXIS_",) if option.section == CONTAINERS else ()))
            assert all(name.startswith(allowed) for name in variables), option.name


def test_every_kind_of_value_has_a_parser() -> None:
    assert {option.kind for option in OPTIONS} <= {*PARSERS, Kind.FLAG}


def test_an_alias_stands_for_an_option_of_the_same_command() -> None:
    for option in OPTIONS:
        if option.alias_of:
            assert all(option.alias_of in TABLES[command] for command in option.commands), option.name


@pytest.mark.parametrize("command", list(Command))
def test_help_lists_every_option_once_and_fits_the_screen(command: Command) -> None:
    text = help_text(command)
    for option in TABLES[command].options:
        assert f"--{option.name}" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert text.startswith(f"Usage: {command} ")
    assert usage_text(command).startswith(f"Usage: {command} [--")

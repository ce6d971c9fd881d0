"""`srun` and `salloc` from their arguments to what they ask of the cluster, files and cluster aside.

srun inside a job makes a step; outside one it makes a job first and the step in it. Each component of a
heterogeneous command line is read on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bireme.slurm.options.arbitrary import name_hosts
from bireme.slurm.options.catalogue.help import notices
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import fatal
from bireme.slurm.options.job import JobRequest, build_het_specs
from bireme.slurm.options.layers import Options, resolve
from bireme.slurm.options.step import StepRequest, build_step_spec


@dataclass(frozen=True, slots=True)
class RunSubmission:
    """What one srun asks for. `jobs` is empty when it runs inside a job."""

    jobs: tuple[JobRequest, ...]
    steps: tuple[StepRequest, ...]
    options: tuple[Options, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllocationSubmission:
    """What one salloc asks for. The program to run is the last component's words; empty is the user's shell."""

    jobs: tuple[JobRequest, ...]
    program: tuple[str, ...]
    options: tuple[Options, ...]
    notices: tuple[str, ...]


def read_run(argv: Sequence[str], context: SubmitContext) -> RunSubmission:
    """What `srun argv` asks for."""
    environment = context.environment
    inside = bool(environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID"))
    components = resolve(Command.SRUN, argv, environment, context.moment(Command.SRUN), inside_job=inside)
    name_hosts(components, context, inside_job=inside)
    if not components[0].words:  # `srun -n4 : -n2 program`: the program is the same for all
        for options in components:
            options.words = options.words or components[-1].words
    steps = tuple(build_step_spec(options, context) for options in components)
    _refuse_one_group_twice(steps)
    needs_job = steps[0].job_id is None
    jobs = build_het_specs(components, context) if needs_job else ()
    said = [warning for request in jobs or steps for warning in request.warnings]
    remarks = [*said, *(notice for options in components for notice in notices(options))]
    return RunSubmission(jobs, steps, components, tuple(dict.fromkeys(remarks)))


def _refuse_one_group_twice(steps: Sequence[StepRequest]) -> None:
    """Each component of the line is for other components of the job; without --het-group for the one of its place."""
    groups = [group for index, step in enumerate(steps) for group in step.het_group or (index,)]
    if len(steps) > 1 and len(set(groups)) < len(groups):
        raise fatal("Duplicate het groups in single srun not supported")


def read_allocation(argv: Sequence[str], context: SubmitContext) -> AllocationSubmission:
    """What `salloc argv` asks for."""
    moment = context.moment(Command.SALLOC)
    components = resolve(Command.SALLOC, argv, context.environment, moment)
    name_hosts(components, context)
    program = components[-1].words
    for options in components:
        options.words = program
    jobs = build_het_specs(components, context)
    remarks = [warning for job in jobs for warning in job.warnings]
    remarks += [notice for options in components for notice in notices(options)]
    return AllocationSubmission(jobs, program, components, tuple(dict.fromkeys(remarks)))

"""From options to `JobSpec`: the last step of `sbatch`, `salloc` and an `srun` that needs its own allocation.

Pure. The caller has read the script and the files that options name; the blob ids of script and environment are
filled in by whoever stores them. `JobRequest.warnings` are Slurm's own remarks, to be printed as `sbatch: ...`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from bireme.core.model.jobs import JobSpec
from bireme.slurm.job_fields.table import FIELDS
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import refused
from bireme.slurm.options.given import Asked, fields_of_job
from bireme.slurm.options.layers import Options
from bireme.slurm.options.resources import resources_of

_OF_ALL_COMPONENTS = tuple(field.option.name for field in FIELDS if field.option and field.inherited)
"""Options that a component of a heterogeneous job takes over from the one before it, unless it has its own."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as it is sent to the cluster, less the script's text."""

    spec: JobSpec
    environment: dict[str, str]
    warnings: tuple[str, ...] = ()


def build_job_spec(options: Options, context: SubmitContext, *, het_component: int | None = None) -> JobRequest:
    """The job that these options ask for. `options.words` is the script (sbatch) or the program, with arguments."""
    if "wrap" in options and options.words:
        raise refused("Script arguments not permitted with --wrap option")
    asked = Asked(options, context, het_component)
    resources = resources_of(asked)
    spec = JobSpec(resources=resources.request, **fields_of_job(asked))
    return JobRequest(spec, asked.environment.environment, tuple(resources.warnings))


def build_het_specs(components: tuple[Options, ...], context: SubmitContext) -> tuple[JobRequest, ...]:
    """One request for each component; an ordinary job is one request with no component number.

    The script, its arguments and the names of the output files are the first component's.
    """
    if len(components) == 1:
        return (build_job_spec(components[0], context),)
    # Of a script's components only the one that the command line also speaks of carries the script's name.
    words = next((options.words for options in reversed(components) if options.words), components[-1].words)
    for options in components:
        options.words = words if options.command is Command.SBATCH else options.words
    wrapped = next((options.settings["wrap"] for options in components if "wrap" in options), None)
    if wrapped is not None:
        for options in components:
            options.settings["wrap"] = wrapped
    for before, options in pairwise(components):
        for name in _OF_ALL_COMPONENTS:
            if name in before and name not in options:
                options.settings[name] = before.settings[name]
    return tuple(build_job_spec(options, context, het_component=index) for index, options in enumerate(components))

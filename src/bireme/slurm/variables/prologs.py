"""Variables of Prolog and Epilog, which run on a node as the administrator.

TaskProlog and TaskEpilog see the task's own environment instead (`steps`). Called by the engine.
Invariant: nothing of the user's environment is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bireme.core.model.jobs import Job
from bireme.core.model.resources import Allocation, ExitStatus
from bireme.slurm.counts import compress_counts
from bireme.slurm.hostlist import compress
from bireme.slurm.variables.allocation import Variables, gpu_variables, owner_variables
from bireme.slurm.variables.cluster import ClusterFacts


class ScriptContext(StrEnum):
    """SLURM_SCRIPT_CONTEXT."""

    PROLOG = "prolog_slurmd"
    EPILOG = "epilog_slurmd"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """The job's files with their patterns expanded."""

    std_in: str = "/dev/null"
    std_out: str = ""
    std_err: str = ""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How the job ended, which only epilogs know."""

    status: ExitStatus
    worst_step: ExitStatus


def prolog_variables(
    job: Job, allocation: Allocation, node: str, facts: ClusterFacts, files: JobFiles, *, end: JobEnd | None = None
) -> Variables:
    """For Prolog on one node, or Epilog when `end` is given."""
    variables = _common(job, allocation, facts, files)
    variables.update(
        SLURMD_NODENAME=node,
        SLURM_NODELIST=compress(allocation.node_names),
        SLURM_SCRIPT_CONTEXT=ScriptContext.EPILOG if end else ScriptContext.PROLOG,
        SLURM_UID=str(job.spec.owner.uid),
    )
    if facts.source:
        variables["SLURM_CONF"] = facts.source
    gpus = gpu_variables(allocation.share_on(node), facts, "SLURM_JOB_GPUS")
    gpus.pop("SLURM_GPUS_ON_NODE", None)
    variables.update(gpus)
    if end:
        variables.update(_end_variables(end))
    return variables


def wait_status(status: ExitStatus) -> int:
    """As wait(2) gives it: the exit code in the high byte, the signal in the low one."""
    return status.code << 8 | status.signal


def _end_variables(end: JobEnd) -> Variables:
    return {
        "SLURM_JOB_DERIVED_EC": str(wait_status(end.worst_step)),
        "SLURM_JOB_EXIT_CODE": str(wait_status(end.status)),
        "SLURM_JOB_EXIT_CODE2": str(end.status),
    }


def _common(job: Job, allocation: Allocation, facts: ClusterFacts, files: JobFiles) -> Variables:
    spec = job.spec
    variables = {
        "SLURM_CLUSTER_NAME": facts.name,
        "SLURM_JOBID": str(job.id),
        "SLURM_JOB_CPUS_PER_NODE": compress_counts([share.cpus for share in allocation.shares]),
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOB_NUM_NODES": str(len(allocation.shares)),
        "SLURM_JOB_PARTITION": allocation.partition,
        "SLURM_JOB_RESTART_COUNT": str(job.restarts),
        "SLURM_JOB_WORK_DIR": spec.work_dir,
    }
    variables.update(owner_variables(spec))
    only_if_set: Sequence[tuple[str, str]] = (
        ("SLURM_JOB_ACCOUNT", spec.account),
        ("SLURM_JOB_COMMENT", spec.comment),
        ("SLURM_JOB_CONSTRAINTS", spec.resources.constraint),
        ("SLURM_JOB_RESERVATION", spec.reservation),
        ("SLURM_JOB_STDERR", files.std_err),
        ("SLURM_JOB_STDIN", files.std_in),
        ("SLURM_JOB_STDOUT", files.std_out),
    )
    variables.update({name: value for name, value in only_if_set if value})
    return variables

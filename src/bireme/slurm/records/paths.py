"""Where a batch job's standard streams go: patterns expanded, relative to its working directory. Opens nothing."""

from __future__ import annotations

from functools import lru_cache
from posixpath import join

from bireme.core.model.jobs import Job, JobKind
from bireme.core.model.resources import Allocation
from bireme.slurm.filenames import FilenameValues, default_output, expand_filename


def stream_paths(job: Job, allocation: Allocation | None) -> tuple[str, str, str]:
    """(stdin, stdout, stderr) of the batch script; empty for an interactive job, whose streams are a terminal's.

    While it waits, `%N` and an array's `%a` have no meaning yet.
    """
    spec = job.spec
    if spec.kind is not JobKind.BATCH:
        return "", "", ""
    values = _values(job, allocation)

    def path(pattern: str) -> str:
        return _fixed(spec.work_dir, pattern) or join(spec.work_dir, expand_filename(pattern, values))

    out = path(spec.std_out or default_output(job.array is not None))
    return path(spec.std_in) if spec.std_in else "/dev/null", out, path(spec.std_err) if spec.std_err else out


def checkpoint_path(job: Job) -> str:
    """Where it says that its checkpoints lie, the words of the pattern filled in; empty: it does not say."""
    pattern = job.spec.checkpoint_path
    if not pattern:
        return ""
    return _fixed(job.spec.work_dir, pattern) or join(job.spec.work_dir, expand_filename(pattern, _values(job, None)))


def _values(job: Job, allocation: Allocation | None) -> FilenameValues:
    return FilenameValues(
        job_id=job.id,
        array_job_id=job.array_job_id,
        array_task_id=job.task_id,
        node=allocation.first_node if allocation else "",
        user=job.spec.owner.user,
        job_name=job.spec.name,
    )


@lru_cache(maxsize=256)
def _fixed(work_dir: str, pattern: str) -> str:
    """The path of a pattern that is the same for every job; empty where it depends on the job."""
    return "" if "%" in pattern or "\\" in pattern else join(work_dir, pattern)

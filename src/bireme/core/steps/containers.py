"""The container of a step in an allocation that has no script: what salloc was asked for holds for its sruns. Pure.

Called when a step is made (`creation`). A batch script is itself what runs in its job's container, and so is the step
of an srun that made its job; further steps run where they say. salloc's allocation has nothing else that its options
could be about, so its steps have them, each option for itself, where srun names no other.
Invariant: what srun says wins.
"""

from __future__ import annotations

from dataclasses import replace

from bireme.core.model.jobs import Job, JobKind
from bireme.core.model.steps import StepSpec

_WHAT = ("container_image", "container_bundle")
_HOW = (
    *("container_mounts", "container_workdir", "container_name", "container_save", "container_env"),
    *("container_mount_home", "container_remap_root", "container_entrypoint", "container_writable"),
)


def in_container_of(job: Job, step: StepSpec) -> StepSpec:
    """The step with all that its allocation says of containers and it does not."""
    spec = job.spec
    if spec.kind is not JobKind.INTERACTIVE or not any(getattr(spec, name) for name in (*_WHAT, "container_name")):
        return step
    if _is_of_an_srun(job):
        return step
    names = _HOW if any(getattr(step, name) for name in _WHAT) else (*_WHAT, *_HOW)
    taken_over = {name: getattr(spec, name) for name in names if getattr(step, name) in ("", None)}
    return replace(step, **taken_over)


def _is_of_an_srun(job: Job) -> bool:
    """Whether one command made the job and a step of it, within which others are asked for."""
    line = job.spec.submit_line
    return bool(line) and any(step.spec.submit_line == line for step in job.steps.values())

"""The job and step ids people read and type: `42`, `42_7`, `42_[0-31%4]`, `42+1`, `42_7.batch`.

Called by every command that prints or filters jobs. Invariant: an id printed for one task, component or step
selects exactly it when typed back.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats.values import Record

SHOWN_TASKS = 64
LARGEST_TASK_ID = 4_000_000


def job_label(job: Record, bitstr_len: int = SHOWN_TASKS) -> str:
    """What squeue's %i prints."""
    task = job.get("array_task_id")
    if task is not None:
        return f"{job['array_job_id']}_{task}"
    tasks = job.get("array_tasks")
    if tasks:
        return f"{job.get('array_job_id') or job['job_id']}_[{waiting_tasks(job, bitstr_len)}]"
    het = job.get("het_job_id")
    if het:
        return f"{het}+{job.get('het_offset') or 0}"
    return str(job["job_id"])


def waiting_tasks(job: Record, bitstr_len: int = SHOWN_TASKS) -> str:
    """The task list of an array's waiting part, cut as Slurm cuts it, with its throttle: `2-31%4`."""
    text, _, written = str(job.get("array_tasks") or "").partition("%")
    if bitstr_len and len(text) >= bitstr_len:
        text = text[: bitstr_len - 4] + "..."
    throttle = job.get("array_throttle") or written
    return f"{text}%{throttle}" if throttle else text


def label_in_steps(job: Record) -> str:
    """A step's job in `squeue -s` and `scontrol show step`: a component of a heterogeneous job by its own id."""
    return str(job["job_id"]) if job.get("het_job_id") else job_label(job)


def step_label(job: Record, step_id: int | str) -> str:
    """`42.0`, `42_7.batch`."""
    return f"{job_label(job)}.{step_id}"


def expand_tasks(text: str) -> list[int]:
    """`0-3,8-12:2%4` to task ids, those that an array can have."""
    tasks: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = _TASK_RANGE.fullmatch(part.strip())
        if match is None:
            continue
        first, last, step = match.groups()
        if int(last or first) > LARGEST_TASK_ID or len(tasks) > LARGEST_TASK_ID or step == "0":
            raise SlurmSyntaxError(f"Invalid job id: [{text[:80]}] has task ids above {LARGEST_TASK_ID}")
        tasks.extend(range(int(first), int(last or first) + 1, int(step or 1)))
    return tasks


_ID = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\]|[\[\]])+")
_TASK_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")
_JOB = re.compile(
    r"([0-9]{1,18})(?:_(?:([0-9]{1,18})|\[([0-9,:%-]+)\]|(\*)))?(?:\+([0-9]{1,18}))?(?:\.([A-Za-z]+|[0-9]{1,18}))?"
)


class Tasks(tuple[int, ...]):
    """Task ids in the order in which they were typed, looked up at once however many there are."""

    @functools.cached_property
    def as_set(self) -> frozenset[int]:
        return frozenset(self)


class JobSelector(NamedTuple):
    """One id as typed. `tasks` empty: the whole job or array."""

    job_id: int
    tasks: Tasks = Tasks()
    het_offset: int | None = None
    step: str | None = None

    def matches(self, job: Record) -> bool:
        if self.het_offset is not None:
            return bool(job.get("het_job_id") == self.job_id and job.get("het_offset") == self.het_offset)
        if self.tasks:
            return job.get("array_job_id") == self.job_id and self._has_task(job)
        return self.job_id in (job["job_id"], job.get("array_job_id"), job.get("het_job_id"))

    def _has_task(self, job: Record) -> bool:
        task = job.get("array_task_id")
        wanted = self.tasks.as_set
        if task is not None:
            return task in wanted
        return not wanted.isdisjoint(expand_tasks(str(job.get("array_tasks") or "")))

    @property
    def label(self) -> str:
        """The job as the API wants it in a path."""
        if self.het_offset is not None:
            return f"{self.job_id}+{self.het_offset}"
        return f"{self.job_id}_{self.tasks[0]}" if len(self.tasks) == 1 else str(self.job_id)


def parse_selector(text: str) -> JobSelector:
    match = _JOB.fullmatch(text.strip())
    if match is None:
        raise SlurmSyntaxError(f"Invalid job id: {text}")
    job_id, task, tasks, _, offset, step = match.groups()
    chosen = Tasks((int(task),) if task is not None else expand_tasks(tasks or ""))
    return JobSelector(int(job_id), chosen, int(offset) if offset is not None else None, step)


def split_ids(text: str) -> list[str]:
    """A comma list of ids; commas inside brackets belong to an id."""
    return [item for item in _ID.findall(text) if item.strip()]


def parse_selectors(text: str) -> list[JobSelector]:
    return [parse_selector(item) for item in split_ids(text)]

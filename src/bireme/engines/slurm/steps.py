"""Steps that run (`scontrol --oneliner show step`): the queue tells of jobs only, the database of steps that ended.

Pure but for the local time zone. Called by the mirror. Invariant: what cannot be read is no step, never an error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping

from bireme.core.model.steps import Step, StepNode, StepSpec, StepState
from bireme.engines.slurm.values import part
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand

_PAIR = re.compile(r"(\w+)=(\S*)")


def running_steps(written: str, job_ids: Mapping[str, int]) -> dict[int, tuple[Step, ...]]:
    """By job, numbered steps only: the script itself is known from its job. `job_ids`: label (`42`, `42_7`) -> id."""
    found: dict[int, list[Step]] = {}
    for step in _steps(written, job_ids):
        found.setdefault(step.job_id, []).append(step)
    return {job_id: tuple(sorted(steps, key=lambda step: step.id)) for job_id, steps in found.items()}


def _steps(written: str, job_ids: Mapping[str, int]) -> Iterator[Step]:
    for line in written.splitlines():
        said = dict(_PAIR.findall(line))
        label, _, number = said.get("StepId", "").rpartition(".")
        job_id = job_ids.get(label)
        if job_id is None or not number.isdigit() or said.get("State", "RUNNING") != "RUNNING":
            continue
        started = _moment(said.get("StartTime", ""))
        yield Step(
            job_id,
            int(number),
            StepSpec(name=said.get("Name", ""), ntasks=_count(said, "Tasks")),
            _nodes(said),
            created_at=started,
            state=StepState.RUNNING,
            started_at=started,
        )


def _nodes(said: Mapping[str, str]) -> tuple[StepNode, ...]:
    """Tasks and CPUs are told in all: each node has its part."""
    try:
        names = expand(said.get("NodeList", ""))
    except SlurmSyntaxError:
        names = []
    places, first = [], 0
    for place, name in enumerate(names):
        tasks = part(_count(said, "Tasks"), len(names), place)
        cpus = part(_count(said, "CPUs"), len(names), place)
        places.append(StepNode(name, tuple(range(first, first + tasks)), cpus))
        first += tasks
    return tuple(places)


def _count(said: Mapping[str, str], key: str) -> int:
    return int(said[key]) if said.get(key, "").isdigit() else 0


def _moment(written: str) -> float:
    try:
        return time.mktime(time.strptime(written, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0.0

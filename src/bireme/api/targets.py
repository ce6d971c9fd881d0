"""Job ids as people write them, in paths and filters: `42`, `42_7`, `42_[1-3,5]`, `42+1`.

Invariant: what is not such an id is Slurm's "Invalid job id specified", never an exception of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.core.lifecycle.refusals import Refusal, Why
from bireme.core.lifecycle.requests import Target

_ONE = re.compile(r"(\d{1,10})(?:_(\d{1,10})|\+(\d{1,5})|_\[([0-9,:%-]+)\])?(?:\.(\d{1,10}))?", re.ASCII)
_MOST_TASKS = 4_000_001
_MOST_RANGES = 10_000


def one_target(text: str) -> Target:
    """The single job, task or component that `text` names."""
    targets = list(targets_of(text))
    if len(targets) != 1:
        raise Refusal(Why.INVALID_JOB_ID)
    return targets[0]


def targets_of(text: str) -> Iterator[Target]:
    """Every job, task or component in a comma-separated list."""
    for item in re.split(r",(?![^\[]*\])", text):
        if item.strip():
            yield from _targets_of_item(item.strip())


def named_target(text: str) -> Target:
    """What one word names, with ranges of tasks as they are written: `42_[0-49999]` is not spelled out."""
    match = _ONE.fullmatch(text.strip())
    if match is None or match[5] is not None:
        raise Refusal(Why.INVALID_JOB_ID, f"{text!r} is not a job id")
    if match[4] is None:
        return one_target(text)
    return Target(int(match[1]), tasks=tuple(_task_ranges(match[4])))


def _targets_of_item(text: str) -> Iterator[Target]:
    match = _ONE.fullmatch(text)
    if match is None:
        raise Refusal(Why.INVALID_JOB_ID, f"{text!r} is not a job id")
    job, task, offset, tasks, step = match.groups()
    step_id = int(step) if step else None
    if tasks:
        for task_id in _task_ids(tasks):
            yield Target(int(job), task_id=task_id, step_id=step_id)
    else:
        yield Target(
            int(job),
            task_id=int(task) if task else None,
            step_id=step_id,
            het_offset=int(offset) if offset else None,
        )


def _task_ids(text: str) -> Iterator[int]:
    for first, last, stride in _task_ranges(text):
        yield from range(first, last + 1, stride)


def _task_ranges(text: str) -> Iterator[tuple[int, int, int]]:
    parts = text.partition("%")[0].split(",")
    if len(parts) > _MOST_RANGES:
        raise Refusal(Why.INVALID_JOB_ID, f"a list of more than {_MOST_RANGES:,} ranges of array tasks")
    for part in parts:
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            raise Refusal(Why.INVALID_JOB_ID, f"[{text}] is not a list of array tasks")
        first, last, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not first <= last < _MOST_TASKS or not stride:
            raise Refusal(Why.INVALID_JOB_ID, f"[{text}] is not a list of array tasks")
        yield first, last, stride

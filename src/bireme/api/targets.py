"""Job ids as people write them, in paths, filters and orders: `42`, `42_7`, `42_[1-3,5]`, `42+1`.

`one_target` and `targets_of` are for orders, which are carried out one by one; `named_jobs` is for filters, which only
ask of a job whether it is meant, so that a range of a million tasks costs no more than one task.

Invariants: what is not such an id is Slurm's "Invalid job id specified", never an exception of ours; nothing is counted
out before it is known how much it is (`MOST_TARGETS`), and reading takes time in proportion to the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from bireme.core.jobs.requests import Target
from bireme.core.jobs.submission import LARGEST_TASK_ID
from bireme.core.model.jobs import ArrayWaiting, Job
from bireme.core.model.refusals import Refusal, Why

MOST_TARGETS = 100_000
"""So many jobs and tasks one order may name; whole arrays count as one."""
MOST_ORDERED = 10_000
"""So many ranges of tasks one word of an order may have."""
MOST_RANGES = 1_000
"""So many ranges of tasks one filter may have, once those that touch are joined ..."""
MOST_STRIDES = 32
"""... and so many with a step (`0-100:2`): each of these is tried for each task."""

_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\]|[\[\]])+")
_ONE = re.compile(r"(\d{1,10})(?:_(\d{1,10})|\+(\d{1,5})|_\[([0-9,:%-]+)\])?(?:\.(\d{1,10}))?", re.ASCII)
_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?", re.ASCII)


def one_target(text: str) -> Target:
    """The single job, task or component that `text` names."""
    items = list(_items(text))
    targets = list(islice(items[0].targets(), 2)) if len(items) == 1 else []
    if len(targets) != 1:
        raise Refusal(Why.INVALID_JOB_ID)
    return targets[0]


def targets_of(text: str, most: int = MOST_TARGETS) -> Iterator[Target]:
    """Every job, task or component in a comma-separated list, at most `most`."""
    items = list(_items(text))
    count = sum(sum(map(len, item.tasks)) or 1 for item in items)
    if count > most:
        hint = f"{_short(text)} names {count} jobs and tasks, at most {most} at once: name whole arrays, or fewer"
        raise Refusal(Why.INVALID_JOB_ID, hint)
    return (target for item in items for target in item.targets())


def named_target(text: str) -> Target:
    """What one word names, with ranges of tasks as they are written: `42_[0-49999]` is not spelled out."""
    items = list(_items(text))
    if len(items) != 1 or items[0].step_id is not None or not all(items[0].tasks):
        raise Refusal(Why.INVALID_JOB_ID, f"{_short(text)} is not a job id")
    if len(items[0].tasks) > MOST_ORDERED:
        raise Refusal(Why.INVALID_JOB_ID, f"a list of more than {MOST_ORDERED:,} ranges of array tasks")
    if "[" not in text:
        return next(items[0].targets())
    return Target(items[0].job_id, tasks=tuple((each[0], each[-1], each.step) for each in items[0].tasks))


def all_targets(texts: Iterable[str]) -> Iterator[Target]:
    """The targets that several lists name, which have one limit together."""
    left = MOST_TARGETS
    for text in texts:
        found = list(targets_of(text, left))
        left -= len(found)
        yield from found


def named_jobs(text: str) -> NamedJobs | None:
    """What a filter's comma-separated list means; None where it is empty."""
    named = NamedJobs()
    for item in _items(text):
        if item.tasks:
            named.tasks.setdefault(item.job_id, []).extend(item.tasks)
        elif item.het_offset is not None:
            named.components.add((item.job_id, item.het_offset))
        else:
            named.whole.add(item.job_id)
    ranges, strides = named.settle()
    if ranges > MOST_RANGES or strides > MOST_STRIDES:
        hint = f"at most {MOST_RANGES} ranges of tasks, {MOST_STRIDES} of them with a step: ask for the whole array"
        raise Refusal(Why.INVALID_JOB_ID, hint)
    return named if named else None


@dataclass(slots=True)
class NamedJobs:
    """The jobs that a filter names: whole ones (with their tasks and components), tasks of arrays, components."""

    whole: set[int] = field(default_factory=set)
    components: set[tuple[int, int]] = field(default_factory=set)
    tasks: dict[int, list[range]] = field(default_factory=dict)
    """By array: ranges; once settled, those without a step are in order and do not overlap."""
    _ends: dict[int, tuple[list[int], list[range], list[range]]] = field(default_factory=dict)
    """By array: (first ids of the ranges without a step, these ranges, those with a step)."""

    def __bool__(self) -> bool:
        return bool(self.whole or self.components or self.tasks)

    def numbers(self) -> set[int]:
        """Of the jobs, arrays and heterogeneous jobs that are named, whole or in part."""
        return {*self.whole, *(job_id for job_id, _ in self.components), *self.tasks}

    def settle(self) -> tuple[int, int]:
        """Joins what overlaps, so that a task is looked up and not compared with every range.

        How many ranges there are then, and how many of them have a step.
        """
        for array_job_id, ranges in self.tasks.items():
            plain = _joined(each for each in ranges if each.step == 1)
            stepped = [each for each in ranges if each.step != 1]
            self._ends[array_job_id] = ([each.start for each in plain], plain, stepped)
            self.tasks[array_job_id] = [*plain, *stepped]
        left = [each for ranges in self.tasks.values() for each in ranges]
        return len(left), sum(each.step != 1 for each in left)

    def mean(self, job: Job) -> bool:
        """Whether `job` is one of them: itself, its array, its heterogeneous job, or one of its waiting tasks."""
        array = job.array_job_id
        if job.id in self.whole or array in self.whole or job.het_job_id in self.whole:
            return True
        if job.het_job_id is not None and (job.het_job_id, job.spec.het_component) in self.components:
            return True
        if array is None or array not in self.tasks:
            return False
        if isinstance(job.array, ArrayWaiting):
            return any(self._has(array, task) for task in job.array.waiting)
        return self._has(array, job.task_id or 0)

    def _has(self, array: int, task: int) -> bool:
        starts, plain, stepped = self._ends[array]
        place = bisect_right(starts, task) - 1
        return (place >= 0 and task in plain[place]) or any(task in each for each in stepped)


@dataclass(frozen=True, slots=True)
class _Item:
    """One id of a list; `tasks` are not counted out."""

    job_id: int
    tasks: tuple[range, ...] = ()
    step_id: int | None = None
    het_offset: int | None = None

    def targets(self) -> Iterator[Target]:
        if not self.tasks:
            yield Target(self.job_id, step_id=self.step_id, het_offset=self.het_offset)
        for task in (task for each in self.tasks for task in each):
            yield Target(self.job_id, task_id=task, step_id=self.step_id)


def _items(text: str) -> Iterator[_Item]:
    for item in _ITEM.findall(text):
        if item.strip():
            yield _item(item.strip())


def _item(text: str) -> _Item:
    match = _ONE.fullmatch(text)
    if match is None:
        raise Refusal(Why.INVALID_JOB_ID, f"{_short(text)} is not a job id")
    job, task, offset, tasks, step = match.groups()
    ranges = tuple(_ranges(tasks)) if tasks else ()
    if task:
        ranges = (range(int(task), int(task) + 1),)
    return _Item(int(job), ranges, int(step) if step else None, int(offset) if offset else None)


def _ranges(text: str) -> Iterator[range]:
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part)
        first, last, stride = (int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) if match else (0, 0, 0)
        if not stride or last > LARGEST_TASK_ID:
            raise Refusal(Why.INVALID_JOB_ID, f"[{_short(text)}] is not a list of array tasks")
        yield range(first, last + 1, stride)


def _joined(ranges: Iterable[range]) -> list[range]:
    joined: list[range] = []
    for each in sorted(ranges, key=lambda each: each.start):
        if joined and each.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, each.stop))
        elif each:
            joined.append(each)
    return joined


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")

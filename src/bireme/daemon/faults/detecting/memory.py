"""The newest figures of every GPU, node and task, as detectors need them: values of one round together.

Held by `keeper`, on the loop. Invariant: it holds nothing of a subject that nobody has told of for some minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bireme.core.telemetry.subjects import Subject
from bireme.ports import Sampled

KEPT_S = 300.0


@dataclass(slots=True)
class Newest:
    """What one subject's latest round said."""

    at: float
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class TaskName:
    """`JOB.GENERATION.STEP.TASK`; a batch script and what else is no numbered step has no rank."""

    job_id: int
    generation: int
    rank: int | None


def task_of(name: str) -> TaskName | None:
    """None: no name of a task."""
    words = name.split(".")
    if len(words) != 4 or not all(word.isascii() and word.isdigit() and len(word) < 16 for word in words[:2]):
        return None
    is_rank = all(word.isascii() and word.isdigit() and len(word) < 10 for word in words[2:])
    return TaskName(int(words[0]), int(words[1]), int(words[3]) if is_rank else None)


class Memory:
    def __init__(self) -> None:
        self.newest: dict[Subject, Newest] = {}
        self.tasks: dict[tuple[int, int], set[Subject]] = {}
        """Of each start of a job its tasks, and what they do on GPUs."""
        self.told_at: dict[str, float] = {}
        """By node: its newest round."""

    def take(self, samples: Sequence[Sampled]) -> list[Subject]:
        """A round. Those GPUs and nodes of which it told something new."""
        fresh: dict[Subject, None] = {}
        for sampled in samples:
            columns = list(sampled.values.items())
            for index, subject in enumerate(sampled.subjects):
                values = {name: value for name, column in columns if not math.isnan(value := float(column[index]))}
                self._put(subject, sampled.at, values)
                if subject.about in ("gpu", "node"):
                    fresh[subject] = None
        return list(fresh)

    def _put(self, subject: Subject, at: float, values: dict[str, float]) -> None:
        known = self.newest.get(subject)
        if known is not None and known.at > at:
            return  # a round that was kept while the daemon was away comes late
        if known is not None and known.at == at:
            known.values.update(values)
        else:
            self.newest[subject] = Newest(at, values)
        self.told_at[subject.node] = max(at, self.told_at.get(subject.node, at))
        if known is None and subject.about in ("task", "use"):
            task = task_of(subject.id.partition("@")[0])
            if task is not None:
                self.tasks.setdefault((task.job_id, task.generation), set()).add(subject)

    def of(self, subject: Subject, now: float, gap_s: float) -> Newest | None:
        """Nothing where it is old."""
        found = self.newest.get(subject)
        return found if found is not None and abs(now - found.at) <= gap_s else None

    def forget(self, now: float, starts: Iterable[tuple[int, int]]) -> None:
        """What is old, and tasks of other starts than these."""
        living = set(starts)
        for start in [start for start in self.tasks if start not in living]:
            for subject in self.tasks.pop(start):
                self.newest.pop(subject, None)
        for subject in [each for each, newest in self.newest.items() if now - newest.at > KEPT_S]:
            del self.newest[subject]
        for known in self.tasks.values():
            known.intersection_update(self.newest)

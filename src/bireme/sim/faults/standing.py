"""Where every job stands, read from the journal's events alone: a second, simpler reading beside `core/jobs`.

The judge (`judge.py`) asks it; nothing of the core is called, only its types are read. Lenient where the truth is a
matter of timing: what was once so counts as having been so. Invariant: it only listens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from bireme.core.model import events as e
from bireme.core.model.jobs import Dependency, DependencyKind, JobSpec
from bireme.core.model.resources import Allocation

GOOD = "COMPLETED"


@dataclass(slots=True)
class Standing:
    """One record of a job: an ordinary job, an array's waiting tasks, or a task that left them."""

    id: int
    spec: JobSpec
    submitted_at: float
    held: bool = False
    het: int | None = None
    """Its heterogeneous job, whose components live and end together."""
    array: int | None = None
    task: int | None = None
    waiting: set[int] = field(default_factory=set)
    """Tasks of an array that are still in its own record."""
    generation: int = 0
    allocation: Allocation | None = None
    """What it holds now."""
    allocated_at: float = 0.0
    started: bool = False
    ending: e.JobEnding | None = None
    suspended_since: float | None = None
    suspended_s: float = 0.0
    begun_at: list[float] = field(default_factory=list)
    """Every time that it was given something."""
    over: str = ""
    """The state word of its end; empty: it waits or runs."""
    ends: int = 0
    """How often it came to an end, each of which is a row of the history."""
    forgotten: bool = False
    unwanted: bool = False
    """Its cancel was answered, and nobody asked for it again."""
    requeued_seq: int = 0
    """The event that last asked for it again after its end."""
    hold_to_come: bool = False
    """It was answered that it will be held when it is queued again."""
    met: set[Dependency] = field(default_factory=set)
    """Conditions that were met at some time since it was submitted."""
    after: dict[Dependency, float] = field(default_factory=dict)
    """When the others of `after:JOB+TIME` began, as first seen since it was submitted."""

    @property
    def waits(self) -> bool:
        return not self.over and self.allocation is None


class Standings:
    def __init__(self) -> None:
        self.jobs: dict[int, Standing] = {}
        self.arrays: dict[int, dict[int, int]] = {}
        """Job ids of the tasks that left their array, by array and task."""

    # -- what the journal says -----------------------------------------------------------------------------------------

    def follow(self, recorded: e.Recorded) -> None:
        event = recorded.event
        handler = getattr(self, f"_{type(event).__name__}", None)
        if handler is not None:
            handler(event, recorded.at)
            if isinstance(event, e.JobRequeued):
                self.jobs[event.job_id].requeued_seq = recorded.seq
            self._look_at_conditions(recorded.at)

    def _JobSubmitted(self, event: e.JobSubmitted, at: float) -> None:  # noqa: N802  (named for the event)
        job = self.jobs[event.job_id] = Standing(event.job_id, event.spec, at, event.spec.hold, event.het_job_id)
        if event.spec.array is not None:
            job.array, job.waiting = job.id, set(event.spec.array.task_ids)
            self.arrays[job.id] = {}

    def _ArrayTaskSplit(self, event: e.ArrayTaskSplit, at: float) -> None:  # noqa: N802
        record = self.jobs[event.array_job_id]
        record.waiting.discard(event.task_id)
        self.arrays[record.id][event.task_id] = event.job_id
        if event.job_id == record.id:
            record.task = event.task_id
            return
        self.jobs[event.job_id] = Standing(
            event.job_id, record.spec, record.submitted_at, record.held, None, record.id, event.task_id,
            unwanted=record.unwanted, met=set(record.met), after=dict(record.after),
        )  # fmt: skip

    def _ArrayPartSplit(self, event: e.ArrayPartSplit, at: float) -> None:  # noqa: N802
        """Some waiting tasks under an id of their own: one record, as their array's."""
        record = self.jobs[event.array_job_id]
        tasks = {task for first, last, step in event.ranges for task in range(first, last + 1, step)}
        record.waiting -= tasks
        self.arrays[record.id].update(dict.fromkeys(tasks, event.job_id))
        self.jobs[event.job_id] = Standing(
            event.job_id, record.spec, record.submitted_at, record.held, None, record.id, None, tasks,
            unwanted=record.unwanted, met=set(record.met), after=dict(record.after),
        )  # fmt: skip

    def _JobUpdated(self, event: e.JobUpdated, at: float) -> None:  # noqa: N802
        self.jobs[event.job_id].spec = event.spec

    def _JobHeld(self, event: e.JobHeld, at: float) -> None:  # noqa: N802
        self.jobs[event.job_id].held = True

    def _JobReleased(self, event: e.JobReleased, at: float) -> None:  # noqa: N802
        self.jobs[event.job_id].held = False

    def _JobAllocated(self, event: e.JobAllocated, at: float) -> None:  # noqa: N802
        job = self.jobs[event.job_id]
        job.allocation, job.allocated_at, job.generation = event.allocation, at, event.allocation.generation
        job.ending, job.started = None, False
        job.suspended_since, job.suspended_s = None, 0.0
        job.begun_at.append(at)

    def _JobStarted(self, event: e.JobStarted, at: float) -> None:  # noqa: N802
        self.jobs[event.job_id].started = True

    def _JobSuspended(self, event: e.JobSuspended, at: float) -> None:  # noqa: N802
        self.jobs[event.job_id].suspended_since = at

    def _JobResumed(self, event: e.JobResumed, at: float) -> None:  # noqa: N802
        job = self.jobs[event.job_id]
        job.suspended_s += at - (at if job.suspended_since is None else job.suspended_since)
        job.suspended_since = None

    def _JobEnding(self, event: e.JobEnding, at: float) -> None:  # noqa: N802
        job = self.jobs[event.job_id]
        if job.ending is None or (job.ending.requeue and not event.requeue):
            job.ending = event

    def _JobLaunchFailed(self, event: e.JobLaunchFailed, at: float) -> None:  # noqa: N802
        job = self.jobs[event.job_id]
        job.allocation, job.held = None, job.held or event.hold

    def _JobEnded(self, event: e.JobEnded, at: float) -> None:  # noqa: N802
        job = self.jobs[event.job_id]
        assert job.ending is not None, f"job {job.id} ended, and nobody had said how"
        job.allocation, job.ends = None, job.ends + 1
        if job.ending.requeue:
            job.held = job.held or job.ending.hold or job.hold_to_come
            job.hold_to_come = False
        else:
            job.over = job.ending.outcome.state
        job.ending = None

    def _JobCancelled(self, event: e.JobCancelled, at: float) -> None:  # noqa: N802
        job = self.jobs[event.job_id]
        job.over, job.ends = event.outcome.state, job.ends + 1

    def _JobRequeued(self, event: e.JobRequeued, at: float) -> None:  # noqa: N802
        job = self.jobs[event.job_id]
        job.over, job.unwanted = "", False
        job.held = job.held or event.hold or job.hold_to_come
        job.hold_to_come = False

    def _JobForgotten(self, event: e.JobForgotten, at: float) -> None:  # noqa: N802
        self.jobs[event.job_id].forgotten = True

    # -- who is who ----------------------------------------------------------------------------------------------------

    def records(self, job_id: int) -> list[Standing]:
        """All that an id means to people: an array's record and its tasks, all of a heterogeneous job is one each."""
        ids = {job_id, *self.arrays.get(job_id, {}).values()}
        return [self.jobs[each] for each in sorted(ids) if each in self.jobs]

    def companions(self, job: Standing) -> list[Standing]:
        """Itself, and the other components of its heterogeneous job."""
        return [job] if job.het is None else [other for other in self.jobs.values() if other.het == job.het]

    def holding(self) -> list[Standing]:
        return [job for job in self.jobs.values() if job.allocation is not None]

    # -- conditions ----------------------------------------------------------------------------------------------------

    def _look_at_conditions(self, at: float) -> None:
        for job in self.jobs.values():
            if not job.waits:
                continue
            for item in job.spec.dependencies.items:
                if item not in job.met and item.kind is not DependencyKind.SINGLETON and self._is_met(job, item, at):
                    job.met.add(item)
            for item, begun in job.after.items():
                began = min(
                    begun, self._began(item, at)
                )  # again, after the clock was set back to before its first start
                job.after[item] = -inf if began + item.delay_s <= at else began  # once over it stays over

    def _is_met(self, job: Standing, item: Dependency, at: float) -> bool:
        others = self._targets(item)
        if not others:
            return True  # long over and forgotten, or never known: Slurm does not wait either
        if item.kind is DependencyKind.AFTER_CORR:
            return False  # by task, when it starts
        if item.kind is DependencyKind.AFTER:
            if all(each.begun_at or each.over for each in others) and not _some_wait(others):
                job.after.setdefault(item, self._began(item, at))
                return True
            return False
        if any(not each.over for each in others):
            return False
        good = all(each.over == GOOD for each in others)
        if item.kind is DependencyKind.AFTER_OK:
            return good
        return item.kind is DependencyKind.AFTER_ANY or not good

    def _began(self, item: Dependency, at: float) -> float:
        """When the last of those that are meant began last; who ended without a start, now."""
        return max(((each.begun_at or [at])[-1] for each in self._targets(item)), default=at)

    def _targets(self, item: Dependency) -> list[Standing]:
        if item.task_id is not None:
            task = self.arrays.get(item.job_id, {}).get(item.task_id, item.job_id)
            found = [self.jobs[task]] if task in self.jobs else []
        else:
            found = self.records(item.job_id)
        return [] if found and all(each.forgotten for each in found) else found

    def unmet(self, job: Standing, at: float) -> list[str]:
        """Conditions that keep the job from starting at that time."""
        wanted = job.spec.dependencies
        missing = [item for item in wanted.items if not self._holds_now(job, item, at)]
        enough = len(missing) < len(wanted.items) if wanted.any_suffices else not missing
        return [] if enough else [f"{item.kind}:{item.job_id}" for item in missing]

    def _holds_now(self, job: Standing, item: Dependency, at: float) -> bool:
        if item.kind is DependencyKind.SINGLETON:
            return not any(self._is_twin(job, other) for other in self.jobs.values())
        if item.kind is DependencyKind.AFTER_CORR:
            tasks = self.arrays.get(item.job_id)
            mate = self.jobs.get(tasks.get(job.task, -1)) if tasks is not None and job.task is not None else None
            return item in job.met or (mate is not None and mate.over == GOOD)
        begun = job.after.get(item)
        return item in job.met and (begun is None or begun + item.delay_s <= at)

    def _is_twin(self, job: Standing, other: Standing) -> bool:
        """Whether a job has this one's name and user, and holds something, or waits and was submitted before."""
        mine = (job.spec.name, job.spec.owner.uid)
        if other.over or (other.spec.name, other.spec.owner.uid) != mine:
            return False
        came, other_came = (each.array or each.het or each.id for each in (job, other))
        return other_came < came if other.waits else other_came != came

    def waited_for(self, job: Standing) -> list[int]:
        """Jobs that wait for its end."""
        ids = {job.id, job.array}
        return [
            other.id
            for other in self.jobs.values()
            if other.waits
            and any(item.job_id in ids and item not in other.met for item in other.spec.dependencies.items)
        ]

    def can_never_start(self, job: Standing) -> bool:
        """Whether a condition is lost for good: the other ended, and not as it should."""
        lost = [item for item in job.spec.dependencies.items if item not in job.met and self._is_lost(job, item)]
        return len(lost) == len(job.spec.dependencies.items) if job.spec.dependencies.any_suffices else bool(lost)

    def _is_lost(self, job: Standing, item: Dependency) -> bool:
        if item.kind is DependencyKind.AFTER_CORR:
            mates = [self.jobs[each] for each in self.arrays.get(item.job_id, {}).values()]
            return any(mate.over not in ("", GOOD) for mate in (*mates, *self.records(item.job_id)))
        others = self._targets(item)
        if item.kind is DependencyKind.AFTER_OK:
            return any(each.over not in ("", GOOD) for each in others)
        return item.kind is DependencyKind.AFTER_NOT_OK and all(each.over == GOOD for each in others)


def _some_wait(others: list[Standing]) -> bool:
    """Tasks that are still in their array's record have not begun."""
    return any(each.waiting and not each.over for each in others)

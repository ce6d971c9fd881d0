"""Follows Slurm's queue: looks at it again and again, and reports what changed.

All jobs are one call, all nodes another, now and then with the configuration, all steps a third; ended jobs are asked
of the accounting database together. Each has its own pace (`rounds`): after somebody used Bireme the queue is looked at
sooner, and whatever is slow or silent is asked later, alone. Jobs that nobody submitted through Bireme are followed
like the others. Not here: orders to Slurm (`engine`).
Invariant: what is reported as the whole queue came from one answer, complete.
"""

from __future__ import annotations

import asyncio
import logging
import pwd
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import ArrayTask, Finished, Job, JobSpec, Outcome, Pending, Running
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.model.sightings import UNSEEN_FIELDS, NodeCondition, Sighting, Standing
from bireme.engines.slurm.accounting import ended_job, told
from bireme.engines.slurm.cluster import condition, read_cluster
from bireme.engines.slurm.commands import Silent
from bireme.engines.slurm.jobs import JobReader, standing
from bireme.engines.slurm.queries import Source, version_warning
from bireme.engines.slurm.rounds import Round
from bireme.engines.slurm.steps import running_steps
from bireme.engines.slurm.values import Json, number, words
from bireme.ports import Report

log = logging.getLogger("bireme.engines.slurm")

_CHANGES_BY_ITSELF = ("last_sched_evaluation", "priority", "show_flags")
_OF_A_FORECAST = ("start_time", "end_time")
"""Of a job that waits: Slurm's guess, which changes with every pass."""
_OVERLAP_S = 120.0
"""Ended jobs are asked for from so long before the last time: slurmdbd hears of them with some delay."""
_SAME_RUN_S = 1.5
"""A requeued job is submitted anew, as far as the database is concerned."""
_NOBODY = 65534
_CATCH_UP_S = 1.0
_CATCH_UP_TRIES = 6
_CATCH_UP_MOST_S = 5.0
_STILL_NEW_S = 60.0
"""An end that is older is in the database, or will never be."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often Slurm is asked: while it is quick, and at the longest (`most`), however slow it is."""

    jobs_s: float = 5.0
    jobs_most_s: float = 30.0
    nodes_s: float = 30.0
    nodes_most_s: float = 120.0
    description_s: float = 300.0
    accounting_s: float = 60.0
    accounting_most_s: float = 600.0
    steps_s: float = 15.0
    steps_most_s: float = 120.0
    hurried_s: float = 1.0
    """After somebody submitted or ordered something, for `hurry_for_s`."""
    hurry_for_s: float = 10.0
    history_days: float = 7.0


@dataclass(slots=True)
class _Memory:
    """What was last heard of a job."""

    stable: Json
    seen: Sighting
    heard_at: float
    """When (monotonic seconds): an answer that was asked for earlier may not list it yet."""
    accounted: bool = False


class Mirror:
    def __init__(self, source: Source, pace: Pace | None = None, *, now: Callable[[], float] = time.time) -> None:
        self.source, self.pace, self._now = source, pace or Pace(), now
        self.report: Report = lambda _: None
        self.looked = asyncio.Event()
        """The whole queue was seen at least once."""
        self.version = ""
        pace = self.pace
        self.queue = Round("queue", pace.jobs_s, pace.jobs_most_s)
        self.nodes = Round("nodes", pace.nodes_s, pace.nodes_most_s)
        self.steps = Round("steps", pace.steps_s, pace.steps_most_s)
        self.history = Round("history", pace.accounting_s, pace.accounting_most_s)
        self._described = asyncio.Event()
        """The nodes were seen, without which no job can be read."""
        self._describe_at = self._hurry_until = 0.0
        self._config = ClusterConfig()
        self._reader = JobReader(self._config, user_name)
        self._conditions: dict[str, NodeCondition] = {}
        self._jobs: dict[int, _Memory] = {}
        self._tags: dict[str, int] = {}
        self._mine: dict[int, JobSpec] = {}
        """Submitted through Bireme and not yet seen in the queue."""
        self._lost: dict[int, Job] = {}
        self._accounted_until = self._caught_up_at = 0.0

    # -- the rounds --------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Never returns and never fails: each round goes on by itself, whatever becomes of the others."""
        async with asyncio.TaskGroup() as rounds:
            rounds.create_task(self.nodes.repeat(self.look_at_nodes), name="slurm nodes")
            rounds.create_task(self._after(self._described, self.queue, self.look_at_queue), name="slurm queue")
            rounds.create_task(self._after(self.looked, self.steps, self._look_at_steps), name="slurm steps")
            rounds.create_task(self._after(self.looked, self.history, self._look_at_history), name="slurm history")

    async def _after(self, known: asyncio.Event, round_: Round, look: Callable[[], Awaitable[None]]) -> None:
        """A round that can begin only when something else is known."""
        await known.wait()
        await round_.repeat(look)

    @property
    def problem(self) -> str:
        """What keeps it from following, in one sentence; empty while it follows."""
        followed = (self.queue.problem or self.nodes.problem, self.steps.problem, self.history.problem)
        return "; ".join(dict.fromkeys(filter(None, followed)))

    @property
    def ages(self) -> str:
        """How long ago each was asked for: "queue 2 s ago, nodes 14 s ago, ..."."""
        rounds = (self.queue, self.nodes, self.steps, self.history)
        return ", ".join(
            f"{each.name} never" if each.age_s is None else f"{each.name} {each.age_s:.0f} s ago" for each in rounds
        )

    def hurry(self) -> None:
        """Something was asked of Slurm through Bireme: its doing is to be seen soon."""
        self._hurry_until = time.monotonic() + self.pace.hurry_for_s
        self.queue.sooner(self.pace.hurried_s)

    def look_at_everything(self) -> None:
        """`scontrol reconfigure`: nodes and configuration too, at once."""
        self._describe_at = 0.0
        self.nodes.at_once()
        self.queue.at_once()

    def find(self, job: Job) -> None:
        """The queue no longer lists this job: how it ended is asked of the database, at once."""
        self._lost[job.id] = job
        self.history.sooner()

    # -- one look ----------------------------------------------------------------------------------------------------

    async def _find_version(self) -> None:
        self.version = await self.source.version()
        warning = version_warning(self.version)
        if warning:
            log.warning("%s", warning)

    async def look_at_nodes(self, *, again_soon: bool = False) -> None:
        async with self.nodes.asking(self.pace.hurried_s if again_soon else None):
            if not self.version:
                await self._find_version()
            nodes = await self.source.nodes()
            known = {node.name for node in self._config.nodes} == {str(node.get("name")) for node in nodes}
            describe = not known or time.monotonic() >= self._describe_at
            described = await self.source.described(nodes) if describe else None
        if described is not None:
            self._take_description(read_cluster(described))
        seen = {each.node: each for each in map(condition, nodes)}
        changed = [each for name, each in seen.items() if self._conditions.get(name) != each]
        self._conditions = seen
        if changed:
            self.report([o.NodeSeen(each, self._now()) for each in changed])
        self._described.set()

    def _take_description(self, config: ClusterConfig) -> None:
        self._describe_at = time.monotonic() + self.pace.description_s
        if config != self._config:
            self._config, self._reader = config, JobReader(config, user_name)
            self.report([o.ClusterSeen(config, self._now())])

    async def look_at_queue(self) -> None:
        asked_at = time.monotonic()
        async with self.queue.asking(self.pace.hurried_s if asked_at < self._hurry_until else None):
            listed = await self.source.jobs()
        standings = self._take_jobs(listed, {})
        for job_id in self._jobs.keys() - {_id_of(job) for job in listed}:
            if self._jobs[job_id].heard_at < asked_at:
                del self._jobs[job_id]
        self.report([o.QueueSeen(frozenset(self._jobs), tuple(standings), self._now())])
        self.looked.set()

    async def _look_at_steps(self) -> None:
        asked_at = time.monotonic()
        async with self.steps.asking():
            told = await self.source.steps() if self._any_runs() else ""
        # Of a job that the queue told news of meanwhile, the steps are those of before: it is asked again.
        older = {job_id: memory for job_id, memory in self._jobs.items() if memory.heard_at < asked_at}
        found = running_steps(told, {_label(memory.seen): job_id for job_id, memory in older.items()})
        seen: list[o.Observation] = []
        for job_id, memory in older.items():
            steps = found.get(job_id, ())
            if isinstance(memory.seen.phase, Running) and memory.seen.steps != steps:
                memory.seen = replace(memory.seen, steps=steps)
                seen.append(o.JobSeen(memory.seen, self._now()))
        if seen:
            self.report(seen)

    def _any_runs(self) -> bool:
        return any(isinstance(each.seen.phase, Running) for each in self._jobs.values())

    def _take_jobs(self, listed: Iterable[Json], specs: Mapping[int, JobSpec]) -> list[Standing]:
        """Reports what changed, ended jobs first: what they held, the others may hold by now."""
        changed: list[Sighting] = []
        standings: list[Standing] = []
        for job in listed:
            job_id = _id_of(job)
            stable = _stable(job)
            memory = self._jobs.get(job_id)
            if memory is None or memory.stable != stable:
                seen = self._sighting(job, specs.get(job_id) or self._mine.pop(job_id, None))
                if seen is None:
                    continue
                if memory is not None and isinstance(seen.phase, Running) and memory.seen.restarts == seen.restarts:
                    seen = replace(seen, steps=memory.seen.steps)
                memory = self._jobs[job_id] = _Memory(stable, seen, time.monotonic())
                changed.append(seen)
                if seen.key:
                    self._tags[seen.key] = job_id
            place = standing(job, memory.seen)
            if place is not None:
                standings.append(place)
        changed.sort(key=lambda seen: (not isinstance(seen.phase, Finished), not isinstance(seen.phase, Pending)))
        if changed:
            self.report([o.JobSeen(seen, self._now()) for seen in changed])
        return standings

    def _sighting(self, job: Json, spec: JobSpec | None) -> Sighting | None:
        try:
            seen = self._reader.sighting(job)
        except ValueError as error:
            log.warning("a job of Slurm's queue is left out: %s", error)
            return None
        if spec is not None:
            spec = _as_asked(spec)
            unseen = {name: getattr(spec, name) for name in UNSEEN_FIELDS if getattr(spec, name)}
            seen = replace(seen, spec=replace(seen.spec, **unseen))
        return seen

    async def refresh(self, job_ids: Sequence[int], specs: Sequence[JobSpec] = ()) -> None:
        """Looks at these jobs alone, at once. `specs`: of one that Bireme has just submitted, its components."""
        listed = await self.source.jobs(job_ids)
        wanted = set(job_ids)
        mine = [job for job in listed if wanted & {_id_of(job), *_leaders_of(job)}]
        standings = self._take_jobs(mine, {_id_of(job): _component(job, specs) for job in mine} if specs else {})
        self.report([o.QueueSeen(None, tuple(standings), self._now())])

    def expect(self, job_id: int, spec: JobSpec, tag: str) -> None:
        """Slurm has just accepted this job: it waits, and the next look says the rest. Costs no call."""
        if job_id in self._jobs:
            return
        now = self._now()
        default = next((partition.name for partition in self._config.partitions if partition.default), "")
        partitions = spec.partitions or ((default,) if default else ())
        waiting = spec.array.task_ids if spec.array else ()
        held = (reason(ReasonKind.JOB_HELD_USER),) if spec.hold else ()
        phase = Pending(now, held_by="user" if spec.hold else None, reasons=held)
        shown = replace(_as_asked(spec), partitions=partitions)
        seen = Sighting(job_id=job_id, spec=shown, submitted_at=now, phase=phase, waiting=waiting, key=tag)
        self._jobs[job_id] = _Memory({}, seen, time.monotonic())
        self._tags[tag] = job_id
        self._mine[job_id] = spec
        self.report([o.JobSeen(seen, now)])

    def tagged(self, tag: str) -> int | None:
        """The job that was submitted with this tag, as far as the queue was seen."""
        return self._tags.get(tag)

    # -- ended jobs --------------------------------------------------------------------------------------------------

    async def catch_up(self, job_ids: Sequence[int] = ()) -> None:
        """Asks the database for jobs that ended a moment ago: it hears of an end a little later than the queue.

        For named jobs it is asked a few times; for all of them once, and not again within a moment. Who waits for this
        does not wait for long: what a slow database says comes with the history's next round.
        """
        new = [job_id for job_id in job_ids if job_id not in self._jobs]
        if new:  # submitted past Bireme, since the last look; or of long ago
            with suppress(Silent):
                await self.refresh(new)
        for attempt in range(_CATCH_UP_TRIES if job_ids else 1):
            owed = self._unaccounted(job_ids)
            just_asked = not job_ids and time.monotonic() < self._caught_up_at + _CATCH_UP_S
            if not owed or just_asked or self.history.problem:
                return
            await asyncio.sleep(_CATCH_UP_S / 2 if attempt else 0.0)
            self._caught_up_at = time.monotonic()
            try:
                async with asyncio.timeout(_CATCH_UP_MOST_S):
                    ended = await self.source.ended(0.0, owed)
            except TimeoutError:
                self.history.unanswered(f"slurmdbd: no answer within {_CATCH_UP_MOST_S:g} s")
                return
            if ended is None:
                return
            self._take_ended(ended)

    def _unaccounted(self, job_ids: Sequence[int]) -> list[int]:
        wanted, since = set(job_ids), self._now() - _STILL_NEW_S
        return [
            job_id
            for job_id, memory in self._jobs.items()
            if isinstance(memory.seen.phase, Finished)
            and not memory.accounted
            and memory.seen.phase.ended_at >= since
            and (not wanted or wanted & {job_id, memory.seen.het_job_id, _array_id(memory.seen)})
        ]

    async def _look_at_history(self) -> None:
        asked_at, first = self._now(), not self._accounted_until
        since = asked_at - self.pace.history_days * 86_400 if first else self._accounted_until - _OVERLAP_S
        async with self.history.asking():
            ended = await self.source.ended(since)
            lost = await self._found_again()
        self._accounted_until = asked_at
        self._take_ended(ended or ())
        if lost:
            self.report([o.JobSeen(seen, asked_at) for seen in lost])

    def _take_ended(self, ended: Iterable[Json]) -> None:
        seen: list[o.Observation] = []
        for database in filter(None, (ended_job(job, identity_of) for job in ended)):
            memory = self._jobs.get(database.job_id)
            if memory is None or abs(memory.seen.submitted_at - database.submitted_at) > _SAME_RUN_S:
                seen.append(o.JobSeen(database, self._now(), past=True))
            elif isinstance(memory.seen.phase, Finished) and not memory.accounted:
                memory.seen, memory.accounted = told(memory.seen, database), True
                seen.append(o.JobSeen(memory.seen, self._now()))
        if seen:
            self.report(seen)

    async def _found_again(self) -> list[Sighting]:
        """How the jobs ended that the queue no longer lists. Where nothing knows it, that is what is said."""
        asked = dict(self._lost)
        lost = {job_id: job for job_id, job in asked.items() if job_id not in self._jobs}
        ended = (await self.source.ended(0.0, sorted(lost)) or ()) if lost else ()
        known = {seen.job_id: seen for seen in filter(None, (ended_job(job, identity_of) for job in ended))}
        for job_id in asked:
            self._lost.pop(job_id, None)
        return [known[job_id] if job_id in known else _unknown_end(job, self._now()) for job_id, job in lost.items()]


def _unknown_end(job: Job, now: float) -> Sighting:
    why = reason(ReasonKind.SYSTEM_FAILURE, said="Slurm does not know any more how it ended")
    started = getattr(job.phase, "started_at", None)
    phase = Finished(Outcome("FAILED", reason=why), now, started, job.allocation)
    return Sighting(
        job_id=job.id,
        spec=job.spec,
        submitted_at=job.submitted_at,
        phase=phase,
        restarts=job.restarts,
        task=job.array if isinstance(job.array, ArrayTask) else None,
        het_job_id=job.het_job_id,
        eligible_at=job.eligible_at,
    )


def _stable(job: Json) -> Json:
    """The job without what changes all the time and says nothing new."""
    waits = "PENDING" in words(job.get("job_state"))
    left_out = (*_CHANGES_BY_ITSELF, *(_OF_A_FORECAST if waits else ()))
    return {name: value for name, value in job.items() if name not in left_out}


def _label(seen: Sighting) -> str:
    """As scontrol writes the job before the number of a step."""
    if seen.task is not None:
        return f"{seen.task.array_job_id}_{seen.task.task_id}"
    return str(seen.job_id) if seen.het_job_id is None else f"{seen.het_job_id}+{seen.spec.het_component or 0}"


def _array_id(seen: Sighting) -> int | None:
    return seen.task.array_job_id if seen.task else None


def _component(job: Json, specs: Sequence[JobSpec]) -> JobSpec:
    return specs[min(number(job.get("het_job_offset")) or 0, len(specs) - 1)]


def _id_of(job: Json) -> int:
    return number(job.get("job_id")) or 0


def _leaders_of(job: Json) -> set[int]:
    """The array and the heterogeneous job that it is of."""
    return {number(job.get("array_job_id")) or 0, number(job.get("het_job_id")) or 0} - {0}


@cache
def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


@cache
def identity_of(user: str) -> tuple[int, int]:
    """(uid, gid) of a name; nobody's where this machine does not know it."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return _NOBODY, _NOBODY
    return entry.pw_uid, entry.pw_gid


def _as_asked(spec: JobSpec) -> JobSpec:
    """Of a job that Bireme submitted: who said --requeue has asked to be started again; Slurm shows its default too."""
    return replace(spec, requeue_asked=spec.requeue is True)

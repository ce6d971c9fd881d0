"""Looks at what was measured of jobs' GPUs, and tells the runtime who is idle: `IdlenessSeen`, never a figure.

The daemon makes it. Who is looked at is said by the policy in the state; since when somebody is idle by `figures`, in a
thread; what comes of it by `core/idle/judging`. What was decided goes to the operators' hook.
Invariants: of a job of which one GPU's figures are missing nothing is said, so that nothing can come of it; nothing
here waits for the disk or the hook but in tasks of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from bireme.core.idle.rules import exempt, rule_for, spared
from bireme.core.idle.shelves import NOTICES, policy_of
from bireme.core.idle.streaks import Measured
from bireme.core.idle.wording import found
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.cluster import NodeConfig
from bireme.core.model.idling.policy import IdleMode, IdlePolicy
from bireme.core.model.jobs import Job, Running
from bireme.core.model.reasons import ReasonKind
from bireme.core.state.state import State
from bireme.core.telemetry.attribution import Card, gpus_of, held_gpus
from bireme.daemon.cluster import Deciding
from bireme.daemon.hooks import Hook
from bireme.daemon.idle.figures import STEP_S, IdleFigures, Watched
from bireme.ports import Series, SeriesError

log = logging.getLogger("bireme.daemon")

_LOOKS_BACK_S = 600.0
"""Beyond what a rule needs."""
_MISSED_ROUNDS = 3.0
"""So many may be missing in between; after more, nothing is known of that time."""


class Gauges(Protocol):
    """What the keeper of idle GPUs reads of telemetry: the series, and which cards there are."""

    @property
    def series(self) -> Series | None: ...

    @property
    def cards(self) -> tuple[Card, ...]: ...


class IdleKeeper:
    """`gauges`: None while nothing is measured, by the settings. `interval_s`: how often gatherers look."""

    def __init__(
        self, cluster: Deciding, gauges: Callable[[], Gauges | None], interval_s: Callable[[], float], hook: Hook
    ) -> None:
        self._cluster, self._gauges, self._interval_s, self._hook = cluster, gauges, interval_s, hook
        self._figures = IdleFigures()
        self._unknown: dict[int, Measured] = {}
        self._resumed: dict[int, tuple[int, float, float]] = {}
        """Of jobs that were suspended: their start, for how long they were, and when they were first seen after it."""
        self.measured: dict[int, Measured] = {}
        """How jobs stood when they were last looked at."""
        self._task: asyncio.Task[None] | None = None
        self._leave: Callable[[], None] = lambda: None

    async def begin(self, policy: IdlePolicy) -> None:
        self._leave = self._cluster.subscribe(self._committed)
        await self.set_policy(policy)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="idle GPUs")

    async def close(self) -> None:
        self._leave()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._hook.close()

    async def set_policy(self, policy: IdlePolicy) -> None:
        """Journaled where it is another than it was."""

        def decide(state: State, now: float) -> list[e.Event]:
            return [e.IdlePolicySet(policy)] if policy_of(state) != policy else []

        await self._cluster.do("configuration", decide, own=True)

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def _gap_s(self) -> float:
        return max(_MISSED_ROUNDS * self._interval_s(), _MISSED_ROUNDS * STEP_S)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except SeriesError as error:
                log.warning("who is idle is not known: %s", error)
            except Exception:  # a bug must not end it for all jobs
                log.exception("the look at idle GPUs failed, and is made again")
            await asyncio.sleep(max(self._interval_s(), STEP_S / 2))

    async def look(self) -> None:
        """One look at everybody, and what it comes to is reported."""
        state, now, gauges = self._cluster.state, self._cluster.clock.now(), self._gauges()
        policy = policy_of(state)
        series = gauges.series if gauges is not None else None
        if policy.mode is IdleMode.OFF or gauges is None or series is None:
            self.measured = {}
            return
        self._unknown = {}
        self._resumed = {job_id: each for job_id, each in self._resumed.items() if job_id in state.holding}
        jobs = list(self._watched(state, policy, gauges.cards, now))
        seen = await asyncio.to_thread(self._figures.look, series, jobs, now, self._gap_s)
        self.measured = {**self._unknown, **seen}
        rules = {job.job_id: job for job in jobs}
        told = NOTICES.of(self._cluster.state)
        if policy.mode is not IdleMode.DRY_RUN or told:
            self._cluster.report(
                [
                    self._report(rules[each.job_id], each)
                    for each in seen.values()
                    if each.known and (each.since is not None or each.job_id in told)
                ]
            )

    def _watched(self, state: State, policy: IdlePolicy, cards: Sequence[Card], now: float) -> Iterator[Watched]:
        def config_of(node: str) -> NodeConfig | None:
            return state.nodes[node].config if node in state.nodes else None

        for job in state.holding.values():
            if not isinstance(job.phase, Running) or not gpus_of(job.phase.allocation):
                continue
            rule = rule_for(policy, job)
            if rule is None or spared(job) or exempt(rule, job):
                continue
            held = held_gpus(job.phase.allocation, config_of, cards)
            if len(held) < gpus_of(job.phase.allocation):
                unknown = "which GPUs it has is not known by their UUIDs"
                self._unknown[job.id] = Measured(
                    job_id=job.id, generation=job.generation, gpus=gpus_of(job.phase.allocation), why=unknown
                )
                continue
            notice = NOTICES.of(state).get(job.id)
            back = now - rule.idle_s - rule.grace_s - _LOOKS_BACK_S
            asks_from = min(back, notice.facts.since - STEP_S) if notice is not None else back
            begins = self._begins(job, job.phase, now)
            yield Watched(job.id, job.generation, held, rule.below_percent, rule.gpus, begins, asks_from)

    def _begins(self, job: Job, phase: Running, now: float) -> float:
        """One that was suspended counts from when it is first seen to go on: nobody wrote down when that was."""
        if not phase.suspended_s:
            return phase.started_at
        before = self._resumed.get(job.id)
        if before is None or before[:2] != (job.generation, phase.suspended_s):
            self._resumed[job.id] = before = job.generation, phase.suspended_s, now
        return before[2]

    def _report(self, job: Watched, seen: Measured) -> o.IdlenessSeen:
        return o.IdlenessSeen(
            job_id=seen.job_id,
            generation=seen.generation,
            at=seen.at,
            fresh_s=STEP_S + self._gap_s,
            below_percent=job.below_percent,
            of=job.of,
            since=seen.since,
            why=seen.why,
            gpus=seen.gpus,
            gpus_idle=seen.gpus_idle,
            percent=seen.percent,
            measure=seen.measure,
            memory_mib=seen.memory_mib,
        )

    # -- telling the hook --------------------------------------------------------------------------------------------

    def _committed(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            match recorded.event:
                case e.IdleNoticeGiven() as given:
                    self._hook.call(self._of_notice(given, recorded.at))
                case e.IdleNoticeWithdrawn(job_id, generation, why):
                    self._hook.call({"what": "withdrawn", **self._of_job(job_id, generation), "why": why})
                case e.JobEnding(job_id, generation, outcome) if (
                    outcome.reason is not None and outcome.reason.kind is ReasonKind.IDLE_GPUS
                ):
                    facts = {name: outcome.reason.fact(name) for name in ("rule", "policy", "gpus", "idle_s", "to")}
                    self._hook.call({"what": "ended", **self._of_job(job_id, generation), **facts})

    def _of_notice(self, given: e.IdleNoticeGiven, at: float) -> dict[str, Any]:
        facts = given.facts
        return {
            "what": "notice",
            **self._of_job(given.job_id, given.generation),
            "text": found(facts, at),
            "rule": facts.rule,
            "policy": facts.source,
            "since": facts.since,
            "gpus": facts.gpus,
            "gpus_idle": facts.gpus_idle,
            "below_percent": facts.below_percent,
            "percent": facts.percent,
            "measure": facts.measure,
            "memory_mib": facts.memory_mib,
            "action": given.action.value,
            "to": given.move_to or None,
            "act_at": given.act_at,
        }

    def _of_job(self, job_id: int, generation: int) -> dict[str, Any]:
        job = self._cluster.state.jobs.get(job_id)
        about: dict[str, Any] = {"job_id": job_id, "start": generation}
        if job is not None:
            owner = job.spec.owner
            about |= {"job": job.label, "user": owner.user, "uid": owner.uid, "account": job.spec.account}
            about |= {"partition": job.allocation.partition if job.allocation is not None else None}
        return about

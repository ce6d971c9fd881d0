"""Feeds detectors with what gatherers tell, and tells the kernel what they see: `TroubleSeen` and `TroubleGone`.

The daemon makes it. Every round comes here as it is heard (`heard`): events are judged at once, and so are figures of
single GPUs and nodes. What needs time or several machines (links that stay down, hangs, stragglers, lemons) is judged
every few seconds (`look`). The judges are `core/faults/detection`; what is remembered between two looks is `memory`.
Invariants: a figure that is missing makes no trouble; the kernel hears of a trouble once, and never hears a figure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from bireme.core.faults.detection import gauges, hang, kernel_lines, lemon, straggler, switches, xids
from bireme.core.faults.detection.hang import Pulse
from bireme.core.faults.detection.kernel_lines import Heard
from bireme.core.faults.detection.lemon import End
from bireme.core.faults.detection.streaks import Streak
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.faults.detection.told import Told
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Place
from bireme.core.state.state import State
from bireme.core.telemetry.subjects import Subject
from bireme.daemon.cluster import Cluster
from bireme.daemon.faults.detecting.jobs import Watched, gang_of, look_at, watched
from bireme.daemon.faults.detecting.losses import Losses
from bireme.daemon.faults.detecting.memory import Memory, task_of
from bireme.daemon.faults.detecting.places import Cards, Places
from bireme.daemon.faults.detecting.standing import StandingKeeper
from bireme.ports import Experiments, Happened, Sampled

log = logging.getLogger("bireme.daemon")

_MISSED_ROUNDS = 3.5
_LONG_GAP_S = 150.0
"""Some figures of a GPU are asked for once a minute."""
_LEMONS_S = 60.0
_USUAL_S = 20.0
_BREATH = 100
"""After so many GPUs or jobs the loop has its turn."""
_LONGEST_PAUSE_S = 5.0
_MOST_ENDS = 50_000
_DAY_S = 86_400.0


class DetectingKeeper:
    """`thresholds`, `interval_s` (how often gatherers look): as the settings in force say; `past`: how jobs ended since
    a time, called in a thread; `experiments`: what jobs told their trackers, None where nobody is asked; `is_here`:
    whether jobs' programs run on this machine."""

    def __init__(
        self,
        cluster: Cluster,
        cards: Cards,
        thresholds: Callable[[], Thresholds],
        interval_s: Callable[[], float],
        past: Callable[[float], Sequence[End]] = lambda _: (),
        experiments: Callable[[], Experiments | None] = lambda: None,
        is_here: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cluster, self._thresholds, self._interval_s, self._past = cluster, thresholds, interval_s, past
        self._cards = cards
        self._places = Places(lambda: cluster.state, cards)
        self._memory = Memory()
        self._streaks: dict[str, dict[gauges.Key, Streak]] = {}
        """By what they are about: a GPU, a node, the gang of a job."""
        self._peers: dict[str, gauges.Peers] = {}
        self._lines: dict[str, Heard] = {}
        self._pulses: dict[tuple[int, int], Pulse] = {}
        self._ends: list[End] = []
        self._ends_known = False
        """Those of before this daemon too: without them nobody is taken for well again."""
        self._new_ends = True
        self._lemons_at = 0.0
        self._usual_at = -_USUAL_S
        self._standing = StandingKeeper(cluster, is_here)
        self._losses = Losses(experiments, lambda: cluster.state)
        self._began_at = cluster.clock.now()
        self._task: asyncio.Task[None] | None = None
        self._leave: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._began_at = self._cluster.clock.now()
        self._leave = self._cluster.subscribe(self._committed)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="detectors")

    async def close(self) -> None:
        self._leave()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._standing.close()

    @property
    def _gap_s(self) -> float:
        return _MISSED_ROUNDS * max(self._interval_s(), 1.0)

    # -- a round ---------------------------------------------------------------------------------------------------

    def heard(self, samples: Sequence[Sampled], happened: Sequence[Happened]) -> None:
        """What a gatherer tells, on the loop, as it comes. A fault here costs no round."""
        try:
            fresh = self._memory.take(samples)
            self._report([*self._of_events(happened), *self._of_figures(fresh)])
        except Exception:
            log.exception("a round is passed over by detectors")

    def _of_events(self, happened: Sequence[Happened]) -> Iterator[o.Observation]:
        for each in happened:
            told = Told(
                at=each.at, node=each.node, kind=each.kind, uuid=each.uuid, code=each.code, pid=each.pid,
                task=each.task, text=each.text,
            )  # fmt: skip
            if told.kind == "xid" and self._thresholds().on(xids.DETECTOR):
                place = self._places.of_gpu(told.node, told.uuid)
                trouble = xids.judge(told, place, self._job_of(told, place))
                if trouble is not None:
                    yield o.TroubleSeen(trouble, told.at)
            elif told.kind == "kernel":
                self._lines[told.node] = kernel_lines.heard(self._lines.get(told.node, Heard()), told)
        for node in {each.node for each in happened if each.kind == "kernel"}:
            yield from self._of_lines(node, self._cluster.clock.now())

    def _job_of(self, told: Told, place: Place) -> Place | None:
        """By the process that it names; else who alone has the GPU."""
        if (task := task_of(told.task)) is not None:
            return Place(job_id=task.job_id, generation=task.generation, rank=task.rank)
        return self._places.holder(place)

    def _of_lines(self, node: str, now: float) -> list[o.Observation]:
        known = self._lines.get(node, Heard())
        return kernel_lines.judge(node, known, self._thresholds(), self._began_at, now)

    def _of_figures(self, fresh: Iterable[Subject]) -> Iterator[o.Observation]:
        standing: dict[str, set[str]] = {}
        for each in FINDINGS.of(self._cluster.state).values():
            standing.setdefault(each.trouble.place.key, set()).add(each.trouble.detector)
        thresholds = self._thresholds()
        for subject in fresh:
            figures = self._figures(subject)
            if figures is None:
                continue
            rows = gauges.GPU_ROWS if subject.about == "gpu" else gauges.NODE_ROWS
            peers = self._peers.get(figures.model, gauges.Peers())
            key = figures.place.key
            gap_s = max(self._gap_s, _LONG_GAP_S) if subject.about == "gpu" else self._gap_s
            before, over = self._streaks.get(key, {}), standing.get(key, ())
            after, seen = gauges.judge(rows, figures, peers, before, thresholds, gap_s, over)
            if after:
                self._streaks[key] = after
            else:
                self._streaks.pop(key, None)
            yield from seen

    def _figures(self, subject: Subject) -> gauges.Figures | None:
        """None of what is no GPU or node that findings can be about: a MIG instance, a machine of another name."""
        newest = self._memory.newest.get(subject)
        if newest is None:
            return None
        if subject.about == "node":
            return gauges.Figures(place=Place(node=subject.id), at=newest.at, values=newest.values)
        place, model = self._places.of_gpu(subject.node, subject.id), self._places.model(subject.node, subject.id)
        if not model and place.gpu is None:
            return None
        return gauges.Figures(place=place, at=newest.at, values=newest.values, model=model)

    # -- a look ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # a bug must not end it for all jobs
                log.exception("the look of detectors failed, and is made again")
            await asyncio.sleep(min(max(self._interval_s() / 2, 0.5), _LONGEST_PAUSE_S))

    async def look(self) -> None:
        """At everything that takes time or several machines, and what it comes to is reported."""
        state, now = self._cluster.state, self._cluster.clock.now()
        self._places.refresh()
        running = list(watched(state, self._places.by_node))
        self._memory.forget(now, [one.start for one in running])
        await self._know_the_usual(now)
        found: list[o.Observation] = []
        for node in self._lines:
            found += self._of_lines(node, now)
        for no, one in enumerate(running):
            found += self._of_job(one, now)
            if no % _BREATH == 0:
                await asyncio.sleep(0)
        self._forget({one.start for one in running})
        found += switches.judge(state.config.topology, FINDINGS.of(state).values(), self._thresholds(), now)
        found += await self._of_ends(now)
        self._report(found)
        self._report(await self._losses.look(self._thresholds(), now))

    async def _know_the_usual(self, now: float) -> None:
        """Now and then: what a model usually does does not change in seconds, and a pool has thousands of GPUs."""
        if 0.0 <= now - self._usual_at < _USUAL_S:
            return
        self._usual_at, known = now, []
        for no, subject in enumerate([each for each in self._memory.newest if each.about == "gpu"]):
            if self._memory.of(subject, now, self._gap_s) is not None:
                known.append(self._figures(subject))
            if no % _BREATH == 0:
                await asyncio.sleep(0)
        self._peers = gauges.peers_of([each for each in known if each is not None])

    def _of_job(self, one: Watched, now: float) -> Iterator[o.Observation]:
        look = look_at(one, self._memory, self._places, now, self._gap_s)
        pulse = self._pulses.get(one.start, Pulse())
        if look is None or (pulse.newest is not None and look.at <= pulse.newest.at):
            return
        self._pulses[one.start] = pulse = hang.looked(pulse, look, self._gap_s)
        if one.may_hang:
            yield from hang.judge(one.place, pulse, self._thresholds())
        if not pulse.is_quiet:
            self._standing.gets_on(one.start)
        gang = gang_of(one, self._memory, self._places, now, self._gap_s)
        key = one.place.key
        after, seen = straggler.judge(one.job.label, gang, self._streaks.get(key, {}), self._thresholds(), self._gap_s)
        self._streaks[key] = after
        yield from seen

    def _forget(self, starts: set[tuple[int, int]]) -> None:
        self._pulses = {start: pulse for start, pulse in self._pulses.items() if start in starts}
        self._streaks = {key: kept for key, kept in self._streaks.items() if kept}

    async def _of_ends(self, now: float) -> list[o.Observation]:
        thresholds = self._thresholds()
        if not thresholds.on(lemon.DETECTOR) or now - self._lemons_at < _LEMONS_S:
            return []
        self._lemons_at = now
        begin = now - thresholds.lemon_days * _DAY_S
        if not self._ends_known:
            self._ends = [*await asyncio.to_thread(self._past, begin), *self._ends]
            self._ends_known = True
        if not self._new_ends:
            return []
        self._new_ends = False
        self._ends = lemon.joined(end for end in self._ends if end.at >= begin)[-_MOST_ENDS:]
        standing = [
            each.trouble.place.node
            for each in FINDINGS.of(self._cluster.state).values()
            if each.trouble.detector == lemon.DETECTOR
        ]
        return await asyncio.to_thread(lemon.judge, tuple(self._ends), standing, thresholds, now)

    def _committed(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            event = recorded.event
            if isinstance(event, e.JobEnding) and event.outcome.state in lemon.COUNTED:
                job = self._cluster.state.jobs.get(event.job_id)
                if job is not None and job.allocation is not None:
                    nodes = job.allocation.node_names
                    failed = event.outcome.state in lemon.FAILED
                    if len(nodes) <= lemon.WIDEST:
                        self._ends.append(End(recorded.at, job.spec.owner.user, job.spec.name, nodes, failed))
                        self._new_ends = True

    # -- what it comes to --------------------------------------------------------------------------------------------

    def _report(self, seen: Iterable[o.Observation]) -> None:
        """Only what would change a finding: to say all of it at every look would wake the loop for nothing."""
        told = []
        for each in (each for each in seen if is_news(self._cluster.state, each)):
            if isinstance(each, o.TroubleSeen) and each.trouble.detector == hang.DETECTOR:
                self._standing.tell(each)
            else:
                told.append(each)
        if told:
            self._cluster.report(told)


def is_news(state: State, seen: o.Observation) -> bool:
    """Whether it would change a finding."""
    findings = FINDINGS.of(state)
    if isinstance(seen, o.TroubleGone):
        known = findings.get(f"{seen.detector} {seen.place.key}")
        return known is not None and (seen.mended or not known.trouble.lasts)
    assert isinstance(seen, o.TroubleSeen), "detectors say nothing else"
    known = findings.get(seen.trouble.key)
    was = None if known is None else (known.trouble.gravity, known.trouble.cause)
    return was != (seen.trouble.gravity, seen.trouble.cause)

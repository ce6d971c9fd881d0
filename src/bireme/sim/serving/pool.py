"""A service and training in one pool: the real kernel and planner on a simulated cluster, with a day of requests.

The service is deployed as by `bireme serve`, before the first request and on the empty cluster; its replicas are jobs
of the core, which places them, preempts training for them by the cluster's rules and lets it come back. The model of
requests (`model`) says how many are wanted, and sends requests to those that are ready. When the traffic is over the
service is stopped, and training is played to its end. The same training alone is what its delay is measured against.

Who calls it: `bireme sim serve --cluster ...`. Not here: what training loses (`training`), waiting (`model`).
Invariant: same service, traffic, training, cluster and policy, same outcome, on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from bireme.core.jobs.submission import submit
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import Job
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.model.resources import Allocation
from bireme.core.model.serving.probes import Health
from bireme.core.model.serving.services import ServiceSpec
from bireme.core.services import requests
from bireme.core.state.state import State
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.engine import Script, SimulatedEngine
from bireme.ports import Journal
from bireme.runtime.kernel import Decide
from bireme.sim.metrics import capacity
from bireme.sim.policies import SimPolicy
from bireme.sim.recorder import gpus_of
from bireme.sim.replay import ROOT, kept_journal, never_runs, rare_collections
from bireme.sim.serving.fleet import Front
from bireme.sim.serving.model import Conditions, Outcome, Unsimulated, simulate
from bireme.sim.serving.traffic import DAY_S, Traffic
from bireme.sim.serving.training import Habits, Toll, Training, toll_of
from bireme.sim.specs import LimitOf, SpecMaker, account_book, limit_of
from bireme.sim.workloads.trace import Problem, TraceJob, Workload
from bireme.sim.world import World, no_rows
from bireme.slurm.conf.altered import with_keys

SETTLING_S = 60.0
"""A service is deployed so much earlier than its replicas need to load: those that are not wanted yet go again."""


AS_A_DAEMON = 0.0
"""The queue is planned anew whenever somebody comes before others that have slots: a replica does, and must not wait
for training that was promised what it could take from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A cluster, how it is scheduled, and the training on it."""

    config: ClusterConfig
    policy: SimPolicy
    workload: Workload | None
    rule: LimitOf
    habits: Habits = field(default_factory=Habits)
    skip_bad: bool = False


@dataclass(frozen=True, slots=True)
class PoolOutcome:
    requests: Outcome
    without_room_s: float
    """Replica-seconds that were wanted and waited in the queue."""
    replica_gpus: float
    """What each replica held."""
    toll: Toll | None
    """None: there is no training."""
    problems: tuple[Problem, ...]
    """Jobs of training that this cluster can never run."""


def simulate_in_pool(spec: ServiceSpec, traffic: Traffic, conditions: Conditions, setup: Setup) -> PoolOutcome:
    """Raises Unsimulated, and BadTraceError when a job can never run and is not to be skipped."""
    setup = replace(setup, config=with_keys(setup.config, setup.policy.keys, setup.policy.name))
    with kept_journal("") as journal, rare_collections():
        cluster = _Cluster(setup, journal, conditions)
        pool = Pool(cluster, spec, conditions)
        outcome = simulate(spec, traffic, conditions, pool)
    toll = None
    if setup.workload is not None:
        with kept_journal("") as journal, rare_collections():
            alone = _Cluster(setup, journal, conditions)
            alone.run_out()
        toll = toll_of(cluster.training, alone.training)
    return PoolOutcome(outcome, pool.without_room_s, pool.replica_gpus, toll, cluster.problems)


class _Cluster:
    """Training on a cluster, from its first job to its last end. Its clock begins before the traffic does."""

    def __init__(self, setup: Setup, journal: Journal, conditions: Conditions) -> None:
        self.begins_at = conditions.begins_at
        self.clock = VirtualClock(self.begins_at - conditions.load_s - SETTLING_S)
        self.training = Training(setup.habits, counts_gpus=capacity(setup.config)[0] == "GPU")
        engine = SimulatedEngine(self.clock, self._script_of)
        self.world = World(journal, engine, self.clock, no_rows, changes_per_job=AS_A_DAEMON)
        self.world.watchers += [self.training.watch, self._learn]
        self.problems: tuple[Problem, ...] = ()
        self._ranking, self._rule = setup.policy.ranking(), setup.rule
        self._specs = SpecMaker(setup.config, setup.rule)
        self._to_come = 0
        self.world.start(setup.config)
        self.world.run(self.clock.now())
        if setup.workload is not None:
            self._expect(setup.workload, skip_bad=setup.skip_bad)

    def _script_of(self, job: Job, allocation: Allocation) -> Script:
        return Script() if job.spec.replica is not None else self.training.script_of(job, allocation)

    def _expect(self, workload: Workload, *, skip_bad: bool) -> None:
        """All jobs will come: the day of the first of them is the traffic's first."""
        book = account_book(workload.jobs, self.world.state.accounts)
        self.ask("simulation", lambda state, now: [book])
        refused = never_runs(workload, self._specs, self.world.state, self.clock.now(), skip_bad=skip_bad)
        self.problems = tuple(refused.values())
        later_s = self.begins_at - workload.jobs[0].submit // DAY_S * DAY_S
        for place, job in enumerate(workload.jobs):
            if place not in refused:
                self._to_come += 1
                moved = replace(job, submit=job.submit + later_s)
                self.clock.call_at(moved.submit, partial(self._submit, moved))

    def _submit(self, trace: TraceJob) -> None:
        spec = self._specs.make(trace, self._ranking.priority(trace, limit_of(trace, self._rule)))
        caller = Caller(uid=spec.owner.uid, gid=spec.owner.gid, user=spec.owner.user, admin=True)

        def answer(events: Sequence[e.Recorded], error: Exception | None) -> None:
            if error is not None:
                raise error
            submitted = events[0].event
            assert isinstance(submitted, e.JobSubmitted)
            self._specs.admitted(spec, submitted.spec)
            self._to_come -= 1
            self.training.submitted(submitted.job_id, trace)

        self.world.ask("simulation", lambda state, now: submit(state, caller, [spec], now), answer)

    def _learn(self, state: State, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            if isinstance(recorded.event, e.JobEnded):
                run = self.training.runs.get(recorded.event.job_id)
                if run is not None and run.complete and run.ended_at is not None:
                    self._ranking.learn(run.trace, run.trace.run_s)

    def ask(self, cause: str, decide: Decide) -> None:
        """Decided now. Raises Refusal."""
        errors: list[Exception] = []
        self.world.ask(cause, decide, lambda events, error: errors.append(error) if error is not None else None)
        self.world.run(self.clock.now())
        if errors:
            raise errors[0]

    def run_out(self) -> None:
        """Until all training has ended, or nothing happens any more."""
        while self._to_come or self.training.over < len(self.training.runs):
            at = self.world.next_at()
            if at is None:
                return
            self.clock.advance(at)
            self.world.turn()


class Pool:
    """The replicas of a service on such a cluster: a `Fleet`."""

    def __init__(self, cluster: _Cluster, spec: ServiceSpec, conditions: Conditions) -> None:
        self._cluster, self._spec, self._load_s = cluster, spec, conditions.load_s
        self._world, self._clock, self._begins_at = cluster.world, cluster.clock, cluster.begins_at
        self._numbers: dict[int, int] = {}
        """Job id -> the replica's number."""
        self._waits_since: dict[int, float] = {}
        self._holds_since: dict[int, float] = {}
        self._coming: set[int] = set()
        self._served: set[int] = set()
        """Those that got ready, as long as requests may be there."""
        self._front: Front
        self._next_at = inf
        self.replica_seconds = self.without_room_s = self.replica_gpus = 0.0
        self._world.watchers.append(self._watch)

    # -- Fleet -------------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self._holds_since)

    @property
    def coming(self) -> bool:
        return bool(self._coming)

    def begin(self, front: Front, wanted: int) -> None:
        self._front = front
        name, owner = self._spec.name, self._spec.job.owner
        caller = Caller(uid=owner.uid, gid=owner.gid, user=owner.user)
        spec = replace(self._spec, job=self._spec.job.revised(script="simulated"))
        try:
            self._cluster.ask("serve", lambda state, now: requests.deploy(state, caller, spec, now))
        except Refusal as refusal:
            raise Unsimulated(f"this cluster does not take the service: {refusal}") from refusal
        self._world.run(self._clock.now() + self._load_s)
        if self._world.state.services[name].wanted != wanted:
            self.scale_to(wanted, "the traffic has not begun", self._clock.now() - self._begins_at)
        self._world.run(self._begins_at)
        if len(self._served) < wanted:
            raise Unsimulated(self._too_small(wanted))
        self._look()

    def scale_to(self, wanted: int, why: str, now: float) -> None:
        self._reach(now)
        self._cluster.ask("autoscaler", lambda state, at: requests.advised(state, self._spec.name, wanted, why))
        self._look()

    def drained(self, number: int, now: float) -> None:
        self._reach(now)
        self._served.discard(number)
        self._world.report([o.ReplicaDrained(self._spec.name, number, self._clock.now())])
        self._look()

    def next_at(self) -> float:
        return self._next_at

    def step(self) -> None:
        at = self._world.next_at()
        assert at is not None, "something is to happen"
        self._clock.advance(at)
        self._world.turn()
        self._look()

    def _look(self) -> None:
        """After everything that may change when the cluster's next turn is: it is asked for at every request."""
        at = self._world.next_at()
        self._next_at = inf if at is None else at - self._begins_at

    def end(self, now: float) -> None:
        self._reach(now)
        for number in list(self._holds_since):
            self._let_go(number, self._clock.now())
        for number in list(self._waits_since):
            self._found_room(number, self._clock.now())
        self._cluster.ask("stop", lambda state, at: requests.stop(state, ROOT, self._spec.name))
        self._cluster.run_out()

    def _reach(self, now: float) -> None:
        self._clock.advance(max(self._begins_at + now, self._clock.now()))

    def _too_small(self, wanted: int) -> str:
        there = f"{len(self._served)} of the {wanted} replicas that the service has at least find room on this cluster"
        return f"{there}: give it fewer (--replicas) or more room (--cluster)"

    # -- what the journal says -----------------------------------------------------------------------------------------

    def _watch(self, state: State, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            match recorded.event:
                case e.ReplicaAdded(_, number, _, job_id, _):
                    self._numbers[job_id] = number
                    self._waits_since[number] = recorded.at
                    self._coming.add(number)
                case e.JobAllocated(job_id, allocation) if job_id in self._numbers:
                    self.replica_gpus = gpus_of(allocation)
                    self._found_room(self._numbers[job_id], recorded.at)
                    self._holds_since[self._numbers[job_id]] = recorded.at
                case e.JobStarted(job_id, generation, at) if job_id in self._numbers:
                    self._clock.call_at(at + self._load_s, partial(self._loaded, job_id, generation))
                case e.ReplicaHealthChanged(_, number, Health.READY) if number in self._coming:
                    self._coming.discard(number)
                    self._served.add(number)
                    self._front.is_ready(number, recorded.at - self._begins_at)
                case e.ReplicaDraining(_, number, _):
                    self._coming.discard(number)
                    if number in self._served:
                        self._world.report([o.ReplicaWithdrawn(self._spec.name, number, recorded.at)])
                        self._front.drains(number, recorded.at - self._begins_at)
                case e.JobEnding(job_id) | e.JobCancelled(job_id) if job_id in self._numbers:
                    self._leaves(self._numbers[job_id], recorded.at)
                case e.JobEnded(job_id) if job_id in self._numbers:
                    self._let_go(self._numbers.pop(job_id), recorded.at)

    def _loaded(self, job_id: int, generation: int) -> None:
        seen = o.ReplicaProbed(job_id, generation, Health.READY, "", self._clock.now(), "127.0.0.1")
        self._world.report([seen])

    def _leaves(self, number: int, at: float) -> None:
        """Whatever requests it had end with it."""
        self._coming.discard(number)
        self._found_room(number, at)
        if number in self._served:
            self._served.discard(number)
            self._front.is_gone(number, at - self._begins_at)

    def _found_room(self, number: int, at: float) -> None:
        since = self._waits_since.pop(number, None)
        if since is not None:
            self.without_room_s += at - max(since, self._begins_at) if at > self._begins_at else 0.0

    def _let_go(self, number: int, at: float) -> None:
        since = self._holds_since.pop(number, None)
        if since is not None:
            self.replica_seconds += max(0.0, at - max(since, self._begins_at))

"""Training on hardware that fails, on the real kernel: who dies of what, who starts it again, what is kept out.

The nodes, the failures and the training are simulated; what is decided about them is the product's own: placing,
requeueing, and in a policy that heals also findings, fences, inquests and restarts (`core/faults`).
What a daemon would see is told to the kernel after the time that its detectors need. Where nobody heals, people do:
after `person_s` they start a job again, and the second time that one dies of a node they drain it.
Invariant: the failures are the same for every policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from bireme.core.jobs.submission import submit
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.finding.findings import Gravity, Place, Trouble
from bireme.core.model.healing.checkpoints import Checkpoint
from bireme.core.model.healing.policy import HealingMode, HealingPolicy
from bireme.core.model.healing.restarts import RestartRule
from bireme.core.model.jobs import Finished, Job, JobSpec, Owner, ResourceRequest, Running
from bireme.core.model.refusals import Caller
from bireme.core.model.resources import Allocation, ExitStatus, GresRequest
from bireme.core.nodes.operators import update_nodes
from bireme.core.state.state import State
from bireme.engines.simulated.clock import Action, VirtualClock
from bireme.engines.simulated.engine import Script, SimulatedEngine
from bireme.runtime.kernel import Decide
from bireme.sim.hardware.failures import Failure
from bireme.sim.hardware.policies import Policy
from bireme.sim.hardware.progress import Habits, Progress
from bireme.sim.hardware.rates import Effect
from bireme.sim.replay import kept_journal, rare_collections
from bireme.sim.world import World, no_rows
from bireme.slurm.conf.altered import with_keys

_OWNER = Owner(uid=10_001, gid=10_001, user="training")
_ROOT = Caller(uid=0, gid=0, user="root", admin=True)
_KEYS = {"MinJobAge": "99999999"}
"""Who starts a job again finds it, however late."""
_DIED = ExitStatus(code=1)
_TWICE = 2
_DETECTOR = "xid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """So many gangs of so many nodes, which never come to an end."""

    jobs: int
    nodes_each: int
    gpus_each: int
    habits: Habits = field(default_factory=Habits)


@dataclass(slots=True)
class Outcome:
    """What became of one policy."""

    policy: Policy
    training: Training
    span_s: float
    progress: tuple[Progress, ...] = ()
    hits: int = 0
    """Failures that ended or stopped a job: a broken part counts each time that a job meets it."""
    fenced: int = 0
    by_people: int = 0
    """Restarts for which somebody was needed."""


def play(
    config: ClusterConfig, failures: Sequence[Failure], training: Training, policy: Policy, span_s: float
) -> Outcome:
    """Raises Refusal where the cluster can never hold the training."""
    with kept_journal("") as store, rare_collections():
        return _Play(config, failures, training, policy, span_s, World(store, *_engine(), no_rows)).run()


def _engine() -> tuple[SimulatedEngine, VirtualClock]:
    clock = VirtualClock(0.0)
    return SimulatedEngine(clock, _endless), clock


def _endless(job: Job, allocation: Allocation) -> Script:
    return Script()


@dataclass(slots=True)
class _Broken:
    """A node with a broken part, or one that is away."""

    failure: Failure
    deaths: int = 0
    """Of jobs, by it."""
    in_repair: bool = False


class _Play:
    def __init__(
        self,
        config: ClusterConfig,
        failures: Sequence[Failure],
        training: Training,
        policy: Policy,
        span_s: float,
        world: World,
    ) -> None:
        self.config, self.failures, self.training, self.policy = config, failures, training, policy
        self.world, self.engine, self.clock = world, world.engine, world.clock
        self.outcome = Outcome(policy, training, span_s)
        self.broken: dict[str, _Broken] = {}
        self.jobs: dict[int, Progress] = {}
        self.blamed: dict[tuple[int, int], Failure] = {}
        """Why a start died, for whoever looks into it."""

    def run(self) -> Outcome:
        self.world.watchers.append(self._watch)
        self.world.start(with_keys(self.config, _KEYS))
        self._ask(lambda state, now: self._policy_set())
        for _ in range(self.training.jobs):
            self._ask(lambda state, now: submit(state, _ROOT, [self._spec()], now))
        for failure in self.failures:
            self.clock.call_at(failure.at, partial(self._fails, failure))
        self.world.run(self.outcome.span_s)
        for progress in self.jobs.values():
            progress.end(self.outcome.span_s)
        self.outcome.progress = tuple(self.jobs.values())
        return self.outcome

    def _policy_set(self) -> list[e.Event]:
        if not self.policy.heals:
            return []
        rule = RestartRule(most=self.policy.most_restarts)
        return [e.HealingPolicySet(HealingPolicy(mode=HealingMode.ACT, restarts=(rule,)))]

    def _spec(self) -> JobSpec:
        nodes, gpus = self.training.nodes_each, self.training.gpus_each
        gres = (GresRequest("gpu", None, gpus),) if gpus else ()
        return JobSpec(
            name="training",
            owner=_OWNER,
            resources=ResourceRequest(
                nodes_min=nodes, nodes_max=nodes, nodes_given=True, ntasks=nodes, gres_per_node=gres
            ),
            script="simulated",
            requeue=self.policy.requeues,
            requeue_asked=self.policy.heals,
        )

    def _ask(self, decide: Decide) -> None:
        def answer(events: Sequence[e.Recorded], error: Exception | None) -> None:
            if error is not None:
                raise error

        self.world.ask("hardware", decide, answer)

    # -- what breaks -------------------------------------------------------------------------------------------------

    def _fails(self, failure: Failure) -> None:
        node, effect = failure.node, failure.cause.effect
        if node in self.broken:
            return
        job = self._job_on(node)
        if effect in (Effect.PASSES, Effect.HANGS):
            self._struck(job, failure)
            return
        self.broken[node] = _Broken(failure)
        if effect is Effect.STOPS:
            if job is not None:
                self._halt(job)
            self.engine.lose(node)
            self._repair(node)
            return
        self._struck(job, failure)
        if effect is Effect.BREAKS and self.policy.detects_s is not None:
            self._later(self.policy.detects_s, lambda: self._noticed(node, failure))

    def _job_on(self, node: str) -> Job | None:
        running = (job for job in self.world.state.holding.values() if isinstance(job.phase, Running))
        return next((job for job in running if node in job.phase.allocation.node_names), None)  # type: ignore[union-attr]

    def _struck(self, job: Job | None, failure: Failure) -> None:
        """The job does nothing more; its script ends now, or when somebody notices that it hangs."""
        if job is None:
            return
        self._halt(job)
        broken = self.broken.get(failure.node)
        if broken is not None:
            broken.deaths += 1
        key = (job.id, job.generation)
        self.blamed[key] = failure
        hangs = failure.cause.effect is Effect.HANGS
        self._later(self.policy.hang_s if hangs else 0.0, lambda: self.engine.fail(*key, _DIED))

    def _halt(self, job: Job) -> None:
        now, progress = self.clock.now(), self.jobs[job.id]
        self.outcome.hits += 1
        saved_at = progress.saved_at(now)
        if saved_at is not None:
            saved = Checkpoint(path="/checkpoints/newest", saved_at=saved_at)
            self.world.report([o.CheckpointSeen(job.id, job.generation, saved, now)])
        progress.halt(now)

    # -- who notices -------------------------------------------------------------------------------------------------

    def _noticed(self, node: str, failure: Failure) -> None:
        """By detectors, or by the site's health check."""
        if not self._is_broken(node, failure):
            return
        if self.policy.heals:
            self.world.report([o.TroubleSeen(_trouble(failure, self.clock.now()), self.clock.now())])
        else:
            self._drain(node, failure.cause.name)
        self.outcome.fenced += 1
        self._repair(node)

    def _repair(self, node: str) -> None:
        broken = self.broken[node]
        if not broken.in_repair:
            broken.in_repair = True
            self._later(broken.failure.repair_s, lambda: self._repaired(node, broken.failure))

    def _repaired(self, node: str, failure: Failure) -> None:
        del self.broken[node]
        if failure.cause.effect is Effect.STOPS:
            self.engine.answer(node)
        elif self.policy.heals and failure.cause.effect is Effect.BREAKS:
            gone = o.TroubleGone(
                detector=_DETECTOR, place=Place(node=node), at=self.clock.now(), why="repaired", mended=True
            )
            self.world.report([gone])
        self._ask(lambda state, now: update_nodes(state, _ROOT, [node], "RESUME", None))

    def _drain(self, node: str, why: str) -> None:
        self._ask(lambda state, now: update_nodes(state, _ROOT, [node], "DRAIN", why))

    def _is_broken(self, node: str, failure: Failure) -> bool:
        return node in self.broken and self.broken[node].failure is failure

    # -- what becomes of jobs ----------------------------------------------------------------------------------------

    def _watch(self, state: State, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            event = recorded.event
            if isinstance(event, e.JobSubmitted):
                self.jobs[event.job_id] = Progress(self.training.habits)
            elif isinstance(event, e.JobStarted):
                self._started(state.jobs[event.job_id])
            elif isinstance(event, e.JobEnding) and event.inquest:
                self._later(self.policy.judges_s, partial(self._judged, event))
            elif isinstance(event, e.JobEnded):
                self._ended(state.jobs[event.job_id])

    def _started(self, job: Job) -> None:
        self.jobs[job.id].begin(self.clock.now())
        nodes = () if job.allocation is None else job.allocation.node_names
        bad = next((self.broken[node] for node in nodes if node in self.broken), None)
        if bad is not None:
            generation = job.generation
            self._later(self.training.habits.load_s + 1.0, lambda: self._met(job.id, generation, bad.failure))

    def _met(self, job_id: int, generation: int, failure: Failure) -> None:
        """It has loaded, and comes to the broken part, if that is still there."""
        job = self.world.state.jobs.get(job_id)
        if job is None or job.generation != generation or not self._is_broken(failure.node, failure):
            return
        if isinstance(job.phase, Running):
            self._struck(job, failure)

    def _judged(self, event: e.JobEnding) -> None:
        failure = self.blamed.get((event.job_id, event.generation))
        self.world.report([_inquest(event, failure, self.clock.now())])

    def _ended(self, job: Job) -> None:
        if not isinstance(job.phase, Finished):
            return
        wait_s = (
            self.policy.again_s if self.policy.requeues and self.policy.again_s is not None else self.policy.person_s
        )
        by_person = wait_s == self.policy.person_s
        self._later(wait_s, lambda: self._again(job.id, by_person=by_person))

    def _again(self, job_id: int, *, by_person: bool) -> None:
        """Somebody, or the script itself, starts it again; a person also drains what it has died of twice."""
        job = self.world.state.jobs[job_id]
        if not isinstance(job.phase, Finished):
            return
        self.outcome.by_people += by_person
        for node, broken in self.broken.items():
            if broken.deaths >= _TWICE and not broken.in_repair:
                self._drain(node, "jobs die there")
                self._repair(node)
        self._ask(lambda state, now: [e.JobRequeued(job_id)])

    def _later(self, delay_s: float, action: Action) -> None:
        self.clock.call_at(self.clock.now() + delay_s, action)


def _trouble(failure: Failure, now: float) -> Trouble:
    return Trouble(
        detector=_DETECTOR,
        place=Place(node=failure.node),
        gravity=Gravity.BROKEN,
        cause="gpu_fault",
        title=failure.cause.name,
        since=now,
        lasts=True,
    )


def _inquest(event: e.JobEnding, failure: Failure | None, now: float) -> o.InquestHeld:
    """What a diagnosis makes of it: hardware that tells of itself is named, a hang too, the rest nothing explains."""
    effect = failure.cause.effect if failure is not None else None
    causes = {Effect.BREAKS: "gpu_fault", Effect.HANGS: "hang"}
    if failure is None or effect not in causes:
        return o.InquestHeld(job_id=event.job_id, generation=event.generation, at=now)
    return o.InquestHeld(
        job_id=event.job_id,
        generation=event.generation,
        at=now,
        cause=causes[effect],
        title=failure.cause.name,
        confidence="high",
        is_hardware=effect is Effect.BREAKS,
        node=failure.node if effect is Effect.BREAKS else "",
    )

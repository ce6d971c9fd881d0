"""The scenario language: a cluster in a word, jobs in a line, and what must happen to each, every change listed.

    world = Scenario("2x8:h100")
    world.submit("gang", nodes=2, gpus_per_node=8)
    world.submit("late", gpus=1)
    world.expect(gang="runs n[1-2]", late="waits Resources")
    world.finish("gang")
    world.expect(gang="COMPLETED", late="runs n1")

It drives the pure core as the runtime does (request -> events -> apply -> plan -> accept -> apply) on a virtual clock,
with an engine that answers at once. Not a simulator of failures or load. Invariant: `State.validate` holds after
every single event, and `journal` replays to an equal state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bireme.core.calendar.booking import Booking
from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.faults.healings.shelves import HEALINGS
from bireme.core.idle.rules import rule_for as idle_rule_for
from bireme.core.idle.shelves import NOTICES
from bireme.core.idle.shelves import policy_of as idle_policy_of
from bireme.core.idle.wording import notice_text
from bireme.core.jobs import requests
from bireme.core.jobs.keys import KEYS
from bireme.core.jobs.requests import Target, ranges_of
from bireme.core.jobs.states import job_reasons
from bireme.core.jobs.submission import submit
from bireme.core.lifecycle.apply import apply
from bireme.core.lifecycle.due import due, next_due, settled
from bireme.core.lifecycle.intake import interpret
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place, Trouble
from bireme.core.model.healing.policy import HealingMode, HealingPolicy
from bireme.core.model.idling.policy import IdleMode, IdlePolicy, IdleRule
from bireme.core.model.jobs import ArrayWaiting, Ending, Finished, Job, Owner, Pending, Running, Starting
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.resources import NO_USAGE, ExitStatus
from bireme.core.model.serving.services import Health, RevisionLife, Service
from bireme.core.model.steps import Step, StepSpec
from bireme.core.nodes import operators
from bireme.core.plan.decisions import accept
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.work import look_anew
from bireme.core.priority.following import follow_priorities
from bireme.core.priority.order import reprioritise
from bireme.core.services import requests as services
from bireme.core.services.standing import Seen, Stand, standing
from bireme.core.state.state import State
from bireme.core.state.timetable import Timetable
from bireme.core.steps.creation import create_step
from bireme.engines.simulated.clock import VirtualClock
from bireme.slurm.arrays import format_task_ids, parse_array
from bireme.slurm.hostlist import compress
from bireme.testing.instant import InstantEngine
from bireme.testing.worlds import build_cluster, build_service, build_spec

USERS = {"root": 0, "alice": 1001, "bob": 1002}
PASSES_MAX = 100
"""A queue that has not settled after so many passes never will: a bug."""

Request = Callable[..., Sequence[e.Event]]


class Scenario:
    def __init__(self, cluster: str = "1x8", *, now: float = 1_000_000.0, **options: Any) -> None:
        """`options`: those of `build_cluster`. All nodes answer from the start."""
        self.state = State()
        self.clock = VirtualClock(now)
        self.engine = InstantEngine(self.clock)
        self.outbox: deque[o.Observation] = deque()
        """What the engine has said and nobody has heard yet."""
        self.journal: list[e.Recorded] = []
        self.outlook: Outlook | None = None
        self.promises: Mapping[int, Sequence[Booking]] = {}
        self.rank_at = 0.0
        self.labels: dict[int, str] = {}
        self.shown: dict[str, str] = {}
        self.routes = True
        """There is a router, and it goes by every table at once."""
        config = build_cluster(cluster, **options)
        self.record([e.ClusterConfigured(config)])
        self.engine.connect(self.outbox.extend)
        self.engine.reconfigure(config)
        self.deliver()

    @property
    def now(self) -> float:
        return self.clock.now()

    @now.setter
    def now(self, at: float) -> None:
        self.clock.advance(at)

    # -- what happens --------------------------------------------------------------------------------------------

    def submit(self, label: str, *, user: str = "alice", key: str = "", **options: Any) -> int:
        """One job. Words of `build_spec`; `after` may name other jobs by their labels."""
        return self.submit_het(label, options, user=user, key=key)

    def submit_het(self, label: str, *components: Mapping[str, Any], user: str = "alice", key: str = "") -> int:
        """A heterogeneous job when there is more than one component: `label`, `label+1` ..."""
        caller = caller_named(user)
        owner = Owner(uid=caller.uid, gid=caller.gid, user=user)
        specs = [build_spec(label, options, owner, self.id_of) for options in components]
        events = submit(self.state, caller, specs, self.now, key)
        if not events:
            return KEYS.of(self.state)[key]
        first = self.state.next_job_id
        for offset in range(len(specs)):
            self.labels[first + offset] = f"{label}+{offset}" if offset else label
        self.record(events)
        return first

    def finish(self, label: str, code: int = 0, *, signal: int = 0, out_of_memory: bool = False) -> None:
        """The batch script ends by itself, and nothing of the job is left."""
        job = self.job(label)
        self.engine.holds.pop((job.id, job.generation), None)
        status = ExitStatus(code, signal, out_of_memory)
        self.report(o.BatchFinished(job.id, job.generation, status, self.now, cleared=True))

    def finish_when_running(self, label: str, code: int = 0) -> None:
        """Lets the queue move once, then ends this job."""
        self.settle()
        self.finish(label, code)

    def ask(self, request: Request, label: str, *arguments: Any, user: str = "alice", **options: Any) -> None:
        """Any function of `core/jobs/requests`: `ask(requests.hold, "a", user="root")`."""
        self.record(request(self.state, caller_named(user), self.target(label), *arguments, **options))

    def cancel(self, label: str, *, user: str = "alice") -> None:
        self.ask(requests.cancel, label, user=user)

    def hold(self, label: str, *, user: str = "alice") -> None:
        self.ask(requests.hold, label, user=user)

    def release(self, label: str, *, user: str = "alice") -> None:
        self.ask(requests.release, label, user=user)

    def requeue(self, label: str, *, user: str = "alice", held: bool = False) -> None:
        self.ask(requests.requeue, label, held, user=user)

    def checkpoint(self, label: str, *, user: str = "alice") -> None:
        self.ask(requests.checkpointed, label, user=user)

    def suspend(self, label: str) -> None:
        self.ask(requests.suspend, label, user="root")

    def resume(self, label: str) -> None:
        self.ask(requests.resume, label, user="root")

    def update(self, label: str, *, user: str = "alice", **changes: Any) -> None:
        self.ask(requests.update, label, changes, self.now, user=user)

    def step(self, label: str, *, user: str = "alice", **options: Any) -> Step:
        job = self.job(label)
        known = set(job.steps)
        self.ask(create_step, label, StepSpec(**options), user=user)
        return next(step for number, step in job.steps.items() if number not in known)

    def finish_step(self, label: str, number: int, code: int = 0) -> None:
        job = self.job(label)
        for node in job.steps[number].nodes:
            status = ExitStatus(code)
            self.report(o.StepNodeFinished(job.id, job.generation, number, node.node, status, NO_USAGE, self.now))

    # -- services ------------------------------------------------------------------------------------------------

    def serve(self, name: str, replicas: str = "1", *, user: str = "alice", **options: Any) -> None:
        """A service, or its next revision: words of `build_service`, and those of `build_spec` for its replicas."""
        caller = caller_named(user)
        owner = Owner(uid=caller.uid, gid=caller.gid, user=user)
        elsewhere = options.pop("elsewhere", False)
        spec = build_service(name, replicas, options, owner)
        self.record(services.deploy(self.state, caller, spec, self.now, elsewhere=elsewhere))

    def serving(self, request: Request, name: str, *arguments: Any, user: str = "alice", **options: Any) -> None:
        """Any function of `core/services/requests`: `serving(services.scale, "chat", 3)`."""
        self.record(request(self.state, caller_named(user), name, *arguments, **options))

    def probes(self, *labels: str, health: str = "ready", why: str = "", address: str = "") -> None:
        """What the probes of replicas (`chat/2`) say, or of all of a service (`chat`) that run."""
        self.settle()
        for label in labels:
            jobs = [self.job(label)] if "/" in label else self._running_replicas(label)
            for job in jobs:
                self.report(o.ReplicaProbed(job.id, job.generation, Health(health), why, self.now, address))

    def withdrawn(self, label: str) -> None:
        """The router has taken a replica out of its table. Without a word of it, where `routes` is true."""
        name, _, number = label.partition("/")
        self.report(o.ReplicaWithdrawn(name, int(number), self.now))

    def drained(self, label: str) -> None:
        """The router says that a replica has no request left."""
        name, _, number = label.partition("/")
        self.report(o.ReplicaDrained(name, int(number), self.now))

    # -- idle GPUs -----------------------------------------------------------------------------------------------

    def idle_policy(self, mode: str = "act", **rule: Any) -> None:
        """From now on one rule, named `train`, is for all jobs."""
        rules = (IdleRule(name="train", **rule),)
        self.record([e.IdlePolicySet(IdlePolicy(IdleMode(mode), rules))])

    def idles(self, label: str, for_s: float, *, at: float | None = None, **facts: Any) -> None:
        """What was measured says that a job's GPUs have been idle for so long. `at`: its newest figure, else of now."""
        job, at = self.job(label), self.now if at is None else at
        rule = idle_rule_for(idle_policy_of(self.state), job) or IdleRule(name="none")
        seen: dict[str, Any] = {
            "generation": job.generation,
            "below_percent": rule.below_percent,
            "of": rule.gpus,
            "fresh_s": 30.0,
        }
        seen |= {"gpus": 1, "gpus_idle": 1, "measure": "gpu_util", "since": at - for_s}
        self.report(o.IdlenessSeen(job_id=job.id, at=at, **{**seen, **facts}))

    def works(self, label: str, why: str = "gpu_util was 90%") -> None:
        """What was measured says that they are used, or nothing (`why`)."""
        self.idles(label, 0.0, since=None, why=why)

    def idle_notices(self) -> dict[str, str]:
        """What owners of idle jobs have been told, and still holds."""
        return {self.labels[job_id]: notice_text(notice) for job_id, notice in NOTICES.of(self.state).items()}

    # -- findings ------------------------------------------------------------------------------------------------

    def trouble(self, detector: str, place: Place, gravity: Gravity = Gravity.BROKEN, **more: Any) -> None:
        """A detector sees that something is wrong there."""
        said: dict[str, Any] = {"cause": "gpu_lost", "title": f"{detector} at {place.key}", "since": self.now}
        said |= {"detector": detector, "place": place, "gravity": gravity}
        self.report(o.TroubleSeen(Trouble(**{**said, **more}), self.now))

    def trouble_gone(self, detector: str, place: Place, *, mended: bool = False) -> None:
        """A detector has looked, and sees nothing there."""
        self.report(o.TroubleGone(detector=detector, place=place, at=self.now, why="looked again", mended=mended))

    def findings(self) -> dict[str, str]:
        """Those that stand, each with what is known of it: `broken`, `degraded dismissed`."""
        return {
            key: " ".join((each.trouble.gravity.value, *(("dismissed",) if each.dismissed_by else ())))
            for key, each in FINDINGS.of(self.state).items()
        }

    # -- healings and fences -----------------------------------------------------------------------------------------

    def healing_policy(self, mode: str = "act", **more: Any) -> None:
        """How far Bireme goes by itself from now on."""
        self.record([e.HealingPolicySet(HealingPolicy(mode=HealingMode(mode), **more))])
        self.settle()

    def people(
        self, request: Callable[..., list[e.Event]], *arguments: Any, user: str = "root", **options: Any
    ) -> None:
        """Somebody asks about healings or fences: `world.people(healings.undo, 1)`."""
        self.record(request(self.state, caller_named(user), *arguments, **options))
        self.settle()

    def fences(self) -> dict[str, str]:
        """What is out of service, and why."""
        return {key: fence.why for key, fence in FENCES.of(self.state).items()}

    def healings(self) -> list[str]:
        """What was decided, and what has become of it: `fence-gpu n1:gpu2: done`."""
        return [f"{each.proposal.key}: {each.phase}" for each in HEALINGS.of(self.state).values()]

    def _running_replicas(self, name: str) -> list[Job]:
        replicas = self.state.services[name].replicas.values()
        jobs = [self.state.jobs[each.job_id] for each in replicas if each.draining_since is None and each.job_id]
        return [job for job in jobs if isinstance(job.phase, Running)]

    # -- nodes and time ------------------------------------------------------------------------------------------

    def node(self, names: str, state: str, reason: str | None = "maintenance") -> None:
        """An operator sets nodes DOWN, DRAIN, RESUME ..."""
        self.record(operators.update_nodes(self.state, caller_named("root"), names.split(","), state, reason))

    def partition(self, name: str, **changes: Any) -> None:
        self.record(operators.update_partition(self.state, caller_named("root"), name, changes))

    def lose(self, node: str) -> None:
        """A node stops answering; what runs there may run on."""
        self.report(o.NodeSilent(node, "no answer", self.now))

    def comes_back(self, node: str, *, knows: bool = True) -> None:
        """A node answers again; `knows` False: its agent was replaced and remembers nothing."""
        if not knows:
            self.engine.forget(node)
        self.engine.answer(node)
        self.deliver()

    def wait(self, seconds: float) -> None:
        """Time passes; whatever becomes due on the way happens at its own time."""
        end = self.now + seconds
        self.settle()
        while (at := next_due(self.state, self.now)) is not None and self.now < at < end:
            self.now = at
            self.settle()
        self.now = end
        self.settle()

    # -- what must be true ---------------------------------------------------------------------------------------

    def expect(self, changes: Mapping[str, str] | None = None, **more: str) -> None:
        """Settles, then compares everything that changed since the last time with what is listed: all of it."""
        self.settle()
        wanted = {**(changes or {}), **more}
        seen = self.described()
        changed = {label: text for label, text in seen.items() if self.shown.get(label) != text}
        gone = {label for label in self.shown if label not in seen and self._is_forgotten(label)}
        changed.update(dict.fromkeys(gone, "gone"))
        self.shown = seen
        assert changed == wanted, f"\n  happened: {changed}\n  expected: {wanted}"

    @contextmanager
    def refused(self, why: Why) -> Iterator[None]:
        """What is asked inside is refused for this reason and leaves no trace."""
        before, answer = len(self.journal), None
        try:
            yield
        except Refusal as refusal:
            answer = refusal.why
        assert answer is why, f"the answer was {answer}, not {why}"
        assert len(self.journal) == before, "refused, but something was recorded"

    def replayed(self) -> State:
        """The state that the journal alone gives."""
        state = State()
        for recorded in self.journal:
            apply(state, recorded)
        return state

    # -- names ---------------------------------------------------------------------------------------------------

    def id_of(self, label: str) -> int:
        return next(job_id for job_id, known in self.labels.items() if known == label)

    def target(self, label: str) -> Target:
        """`a`, `a_3`, or several tasks: `a_[1-2,7]`."""
        name, _, task = label.partition("_")
        if task.startswith("["):
            return Target(self.id_of(name), tasks=ranges_of(parse_array(task.strip("[]")).task_ids))
        return Target(self.id_of(name), int(task) if task else None)

    def job(self, label: str) -> Job:
        return requests.find(self.state, self.target(label))[0]

    def described(self) -> dict[str, str]:
        jobs = {self._label(job): describe(self.state, job) for job in self.state.jobs.values()}
        return jobs | {name: describe_service(self.state, each) for name, each in self.state.services.items()}

    def _label(self, job: Job) -> str:
        if isinstance(job.array, ArrayWaiting):
            return f"{self.labels[job.array_job_id or job.id]}_[{format_task_ids(tuple(job.array.waiting), 0)}]"
        if job.array is not None:
            return f"{self.labels[job.array.array_job_id]}_{job.array.task_id}"
        return self.labels[job.id]

    def _is_forgotten(self, label: str) -> bool:
        """Not an array's record that merely has fewer waiting tasks now."""
        return "[" not in label

    # -- the loop ------------------------------------------------------------------------------------------------

    def record(self, events: Iterable[e.Event]) -> None:
        for event in events:
            recorded = e.Recorded(len(self.journal) + 1, self.now, "scenario", event)
            self.journal.append(recorded)
            commands = apply(self.state, recorded)
            if self.outlook is not None and not self.outlook.note(self.state, event, self.now):
                self.outlook = None
            if follow_priorities(self.state, event, self.now):
                self.rank_at = 0.0
            self.state.validate()
            if isinstance(event, e.ReplicaAdded | e.ReplicaQueued) and event.job_id:
                self.labels[event.job_id] = f"{event.name}/{event.replica}"
            if isinstance(event, e.ReplicaDraining) and self.routes:
                self.outbox.append(o.ReplicaWithdrawn(event.name, event.replica, self.now))
            self.engine.send(commands)
        self.deliver()

    def report(self, seen: o.Observation) -> None:
        self.outbox.append(seen)
        self.deliver()

    def deliver(self) -> None:
        while self.outbox:
            self.record(interpret(self.state, self.outbox.popleft(), self.now))

    def settle(self) -> None:
        """What is due, and passes of the planner, until nothing moves any more.

        As the kernel does it: small passes from the outlook of the last one; at the end a full one has the last word.
        """
        for _ in range(PASSES_MAX):
            before = len(self.journal)
            self.record(settled(self.state, self.now))
            self.record(self._due())
            full = self.outlook is None
            self._pass()
            if len(self.journal) == before:
                if full:
                    return
                self.outlook = None
        raise AssertionError(f"still moving after {PASSES_MAX} passes: {self.journal[-3:]}")

    def _due(self) -> list[e.Event]:
        """What is due, and the proof that the timetable forgot nothing: looking at every job gives the same."""
        found, at = due(self.state, self.now), next_due(self.state, self.now)
        kept, self.state.timetable = self.state.timetable, Timetable()
        assert (found, at) == (due(self.state, self.now), next_due(self.state, self.now)), "the timetable"
        self.state.timetable = kept
        return found

    def _pass(self) -> None:
        policy = self.state.config.settings.policy
        if self.now >= self.rank_at:
            reprioritise(self.state, self.now)
            self.rank_at = self.now + self.state.config.settings.priority.calc_period_s
            self.outlook = None
        snapshot = Snapshot(self.state, policy, self.now)
        decided = plan(snapshot, self.outlook or look_anew(snapshot, self.promises))
        self.state.verdicts.update(decided.verdicts)
        self.outlook, self.promises = decided.outlook, decided.outlook.bookings
        for decision in decided.starts:
            self.record(accept(self.state, decision))


def caller_named(user: str) -> Caller:
    uid = USERS[user]
    return Caller(uid=uid, gid=uid, user=user, admin=uid == 0)


def describe_service(state: State, service: Service) -> str:
    """`2/3 r1`: so many ready of those wanted, of the revision that serves; `2/3 r1 rolling r2`; then each replica
    that is not ready, or drains: `[3 loading]`."""
    seen = standing(state, service)
    ready = sum(each.ready for each in seen)
    words = [service.phase.value] if service.phase.value != "up" else []
    words.append(f"{ready}/{service.wanted} r{service.current}")
    for phase in (RevisionLife.ROLLING, RevisionLife.CANARY):
        under_way = service.in_phase(phase)
        words += [f"{phase.value} r{under_way.number}"] if under_way is not None else []
    words += [_describe_replica(each) for each in seen if not each.ready]
    return " ".join(words)


def _describe_replica(each: Seen) -> str:
    if each.replica.draining_since is not None:
        return f"[{each.number} draining]"
    return f"[{each.number} {each.replica.health.value if each.stand is Stand.RUNNING else each.stand.value}]"


def describe(state: State, job: Job) -> str:
    """`waits Priority`, `runs n[1-2]`, `ends TIMEOUT`, `FAILED 1:0`."""
    phase = job.phase
    if isinstance(phase, Pending):
        return "waits " + ",".join(each.kind.value for each in job_reasons(state, job))
    if isinstance(phase, Finished):
        status = phase.outcome.status
        return phase.outcome.state if status.ok else f"{phase.outcome.state} {status}"
    if isinstance(phase, Ending):
        return f"ends {phase.outcome.state}"
    word = "starts" if isinstance(phase, Starting) else "runs" if isinstance(phase, Running) else "suspended"
    return f"{word} {compress(phase.allocation.node_names)}"

"""Whether what was done is what people asked for: when each job may start, where, beside whom, and when it must end.

Fed with the journal's events, as `witness` is with what happens on the nodes, and with what people asked for and were
answered. It reads both in its own simple way (`standing.py`) and calls nothing that decides. Each rule is a function
with one sentence; a broken one raises `Violation` with the words of the rule.

Invariant: it only listens, and where timing makes two answers right it takes either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bireme.core.model import events as e
from bireme.core.model.accounts import Association, Limits, Qos
from bireme.core.model.cluster import ClusterConfig, PartitionConfig
from bireme.core.model.jobs import JobKind, JobSpec
from bireme.core.model.observations import BatchFinished, JobCleared, Observation
from bireme.core.model.reservations import Reservation, ReservationFlag
from bireme.sim.faults.standing import Standing, Standings
from bireme.sim.faults.witness import Violation

NOT_PEOPLE = ("engine", "time", "planner", "configuration")
"""Causes of events that nobody asked for."""
PATIENCE_S = 120.0
"""So long after its limit a job is surely being ended: KillWait and the slowest network together."""
HEARD_S = 60.0
"""So long after a daemon heard something, it is in the journal: a full disk is tried again every second."""
ACCOUNTS_ABOVE = ("root",)


@dataclass(slots=True)
class NodeStanding:
    up: bool = False
    down: bool = False
    """An operator says so."""
    drained: bool = False
    left: set[tuple[int, int]] = field(default_factory=set)

    @property
    def open(self) -> bool:
        return self.up and not self.down and not self.drained and not self.left


class Judge:
    def __init__(self, accounts: Mapping[str, str], licences: Mapping[str, int]) -> None:
        """`accounts`: of users. `licences`: how many there are."""
        self.standings = Standings()
        self.asked: dict[str, Sequence[JobSpec]] = {}
        """What was submitted, by key: all components of a heterogeneous job."""
        self._accounts = accounts
        self._licences = licences
        self._config = ClusterConfig()
        self._nodes: dict[str, NodeStanding] = {}
        self._reservations: dict[str, Reservation] = {}
        self._associations: dict[str, Limits] = {}
        """Of accounts."""
        self._qos: dict[str, Qos] = {}
        self._heard: dict[tuple[int, int, bool], float] = {}
        """Last words about a start that the daemon was told, and when: the journal must have them soon."""
        self._rules: tuple[Callable[[Standing, e.Recorded, e.JobAllocated], None], ...] = (
            self._wanted, self._not_held, self._begun, self._conditions_met, self._throttled, self._licensed,
            self._given_in_all, self._on_open_nodes, self._in_its_partition, self._in_its_reservation,
            self._clear_of_reservations, self._within_limits,
        )  # fmt: skip

    # -- what the journal says -----------------------------------------------------------------------------------------

    def committed(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            event = recorded.event
            before = getattr(self, f"_before_{type(event).__name__}", None)
            if before is not None:
                before(recorded, event)
            self.standings.follow(recorded)
            after = getattr(self, f"_{type(event).__name__}", None)
            if after is not None:
                after(event)

    def _before_JobAllocated(self, recorded: e.Recorded, event: e.JobAllocated) -> None:  # noqa: N802
        """Judged before it counts among those that hold something."""
        job = self.standings.jobs[event.job_id]
        for rule in self._rules:
            rule(job, recorded, event)

    def _before_JobSubmitted(self, recorded: e.Recorded, event: e.JobSubmitted) -> None:  # noqa: N802
        if event.spec.replica is not None:
            return  # what was asked for is a service (`serving.py`)
        leader = event.het_job_id or event.job_id
        key = event.idempotency_key
        if key in self.asked:
            self.asked[str(leader)] = self.asked[key]
        asked = self.asked[str(leader)][event.job_id - leader]
        for name in ("name", "begin_at", "deadline_at", "dependencies", "hold", "reservation", "array", "time_limit_s"):
            if getattr(asked, name) != getattr(event.spec, name):
                raise Violation(f"job {event.job_id} was submitted with another {name} than was asked for")
        if asked.resources.licenses != event.spec.resources.licenses:
            raise Violation(f"job {event.job_id} was submitted with other licences than were asked for")

    def _before_JobReleased(self, recorded: e.Recorded, event: e.JobReleased) -> None:  # noqa: N802
        if recorded.cause in NOT_PEOPLE:
            raise Violation(f"job {event.job_id} was released, and nobody asked for it")

    def _before_JobForgotten(self, recorded: e.Recorded, event: e.JobForgotten) -> None:  # noqa: N802
        waiting = self.standings.waited_for(self.standings.jobs[event.job_id])
        if waiting:
            raise Violation(f"job {event.job_id} was forgotten while {waiting} still waited for it")

    def _before_JobEnding(self, recorded: e.Recorded, event: e.JobEnding) -> None:  # noqa: N802
        job = self.standings.jobs[event.job_id]
        if event.outcome.state == "PREEMPTED":
            by = event.outcome.reason.fact("by") if event.outcome.reason is not None else None
            self._may_make_way(job, recorded.at, by, suspended=False)
        if event.outcome.state == "TIMEOUT" and job.ending is None:
            self._not_before_its_limit(job, recorded.at)

    def _before_JobSuspended(self, recorded: e.Recorded, event: e.JobSuspended) -> None:  # noqa: N802
        if event.for_job is not None:
            self._may_make_way(self.standings.jobs[event.job_id], recorded.at, event.for_job, suspended=True)

    def _ClusterConfigured(self, event: e.ClusterConfigured) -> None:  # noqa: N802
        self._config = event.config
        names = [node.name for node in event.config.nodes]
        self._nodes = {name: self._nodes.get(name, NodeStanding()) for name in names}

    def _NodeRegistered(self, event: e.NodeRegistered) -> None:  # noqa: N802
        if event.node in self._nodes:
            self._nodes[event.node].up = True

    def _NodeLost(self, event: e.NodeLost) -> None:  # noqa: N802
        if event.node in self._nodes:
            self._nodes[event.node].up = False

    def _NodeUpdated(self, event: e.NodeUpdated) -> None:  # noqa: N802
        node = self._nodes.get(event.node)
        if node is not None and event.drained is not None:
            node.drained = event.drained
        if node is not None and event.health is not None:
            node.down, node.up = event.health == "DOWN", event.health == "UP"

    def _LeftoverFound(self, event: e.LeftoverFound) -> None:  # noqa: N802
        if event.node in self._nodes:
            self._nodes[event.node].left.add((event.job_id, event.generation))

    def _LeftoverCleared(self, event: e.LeftoverCleared) -> None:  # noqa: N802
        for name, node in self._nodes.items():
            if name not in event.still_on:
                node.left.discard((event.job_id, event.generation))

    def _ReservationSet(self, event: e.ReservationSet) -> None:  # noqa: N802
        self._reservations[event.reservation.name] = event.reservation

    def _ReservationRemoved(self, event: e.ReservationRemoved) -> None:  # noqa: N802
        self._reservations.pop(event.name, None)

    def _AccountsChanged(self, event: e.AccountsChanged) -> None:  # noqa: N802
        self._associations.update({_account(each): each.limits for each in event.associations if not each.user})
        self._qos.update({each.name: each for each in event.qos})

    # -- what people were answered -------------------------------------------------------------------------------------

    def answered(self, word: str, job_id: int, events: Sequence[e.Recorded], *, held: bool = False) -> None:
        """An order about a job was answered, and is in force from now on."""
        last = max((recorded.seq for recorded in events), default=0)
        for job in self.standings.records(job_id):
            mine = [recorded.event for recorded in events if _is_about(recorded.event, job.id)]
            if word == "cancel":
                job.unwanted = not job.over and job.requeued_seq < last
            elif (
                word == "hold" and job.waits and not job.held and not any(isinstance(each, e.JobHeld) for each in mine)
            ):
                raise Violation(f"a hold of job {job.id} was answered, and the journal has none")
            elif word == "requeue" and held and job.ending is not None and job.ending.requeue:
                job.hold_to_come = bool(mine)

    # -- when it may start ---------------------------------------------------------------------------------------------

    def _wanted(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """What was cancelled does not start, and what is over does not start again by itself."""
        if job.over:
            raise Violation(f"job {job.id} was started after it had ended as {job.over}")
        if job.unwanted:
            raise Violation(f"job {job.id} was started after its cancel had been answered")

    def _not_held(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """What is held waits until somebody releases it."""
        if job.held:
            raise Violation(f"job {job.id} was started, and is held")

    def _begun(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """--begin is the earliest time, --deadline the latest."""
        if job.spec.begin_at is not None and recorded.at < job.spec.begin_at:
            raise Violation(f"job {job.id} was started before its begin time: {job.spec.begin_at - recorded.at:.3f} s")
        if job.spec.deadline_at is not None and recorded.at >= job.spec.deadline_at:
            raise Violation(f"job {job.id} was started after its deadline")

    def _conditions_met(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """--dependency: what it waits for has come about, at some time since it was submitted."""
        unmet = self.standings.unmet(job, recorded.at)
        if unmet:
            raise Violation(f"job {job.id} was started before its dependencies were met: {', '.join(unmet)}")

    def _throttled(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """--array=...%N: so many tasks hold something at once."""
        throttle = job.spec.array.throttle if job.spec.array is not None else None
        running = sum(other.array == job.array for other in self.standings.holding())
        if throttle is not None and running >= throttle:
            raise Violation(f"job {job.id} is one more task of its array than may run at once: {throttle}")

    def _licensed(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """Licences are held by as many jobs as there are licences, suspended ones among them."""
        wanted = _licences(job.spec)
        in_use: Counter[str] = Counter()
        for other in self.standings.holding():
            in_use.update(_licences(other.spec))
        for name, count in wanted.items():
            if in_use[name] + count > self._licences.get(name, 0):
                raise Violation(f"job {job.id} took {count} licences {name}, and {in_use[name]} were in use")

    def _given_in_all(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """--gpus: so many on all of its nodes together, neither more nor less."""
        for asked in job.spec.resources.gres_per_job:
            given = sum(share.gres_count(asked.name) for share in event.allocation.shares)
            if given != asked.count:
                raise Violation(f"job {job.id} asked for {asked.count} {asked.name} in all, and was given {given}")

    # -- where it may start --------------------------------------------------------------------------------------------

    def _on_open_nodes(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """Nodes that answer, that no operator took out, and on which nothing of a start that is over is left."""
        for name in event.allocation.node_names:
            node = self._nodes.get(name)
            if node is None or not node.open:
                raise Violation(f"job {job.id} was put on a node that takes no jobs: {name} is {node}")

    def _in_its_partition(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        partition = self._partition(event.allocation.partition)
        asked = job.spec.partitions
        if partition is None or (asked and partition.name not in asked):
            raise Violation(f"job {job.id} was started in a partition that it did not ask for")
        if not set(event.allocation.node_names) <= set(partition.nodes):
            raise Violation(f"job {job.id} was put on nodes that are not in its partition")

    def _in_its_reservation(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """--reservation: only in its time, only for whom it is, and (but for FLEX) only on its nodes."""
        if not job.spec.reservation:
            return
        named = [self._reservations[name] for name in _named(job.spec) if name in self._reservations]
        lasting = [each for each in named if _is_open(each, recorded.at)]
        if not lasting:
            raise Violation(f"job {job.id} was started outside the time of its reservation")
        welcome = [each for each in lasting if self._is_member(job, each)]
        if not welcome:
            raise Violation(f"job {job.id} was started in a reservation that is not for its owner")
        inside = {node for each in welcome for node in each.nodes}
        flexible = any(each.has(ReservationFlag.FLEX) for each in welcome)
        if not flexible and not set(event.allocation.node_names) <= inside:
            raise Violation(f"job {job.id} was put on nodes outside its reservation")

    def _clear_of_reservations(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """Nobody else is on a reservation's nodes while it lasts, nor runs into it by its time limit."""
        limit = self._limit_s(job.spec, event.allocation.partition)
        for each in self._reservations.values():
            if each.name in _named(job.spec) or set(each.nodes).isdisjoint(event.allocation.node_names):
                continue
            if job.spec.reservation and not each.has(ReservationFlag.MAINT):
                continue  # two that overlap: who is in one may use its nodes
            if any(self._maintains(name) for name in _named(job.spec)):
                continue
            if each.begin < recorded.at + limit and recorded.at < each.end:
                raise Violation(f"job {job.id} was put on nodes of a reservation that is not its own: {each.name}")

    def _maintains(self, name: str) -> bool:
        found = self._reservations.get(name)
        return found is not None and found.has(ReservationFlag.MAINT)

    def _is_member(self, job: Standing, reservation: Reservation) -> bool:
        user = job.spec.owner.user
        accounts = {self._accounts.get(user, ""), *ACCOUNTS_ABOVE}
        listed = not reservation.users or user in reservation.users
        return listed and (not reservation.accounts or not accounts.isdisjoint(reservation.accounts))

    # -- how much one may have -----------------------------------------------------------------------------------------

    def _within_limits(self, job: Standing, recorded: e.Recorded, event: e.JobAllocated) -> None:
        """GrpJobs of its account and QOS, and the CPUs that its QOS gives one user; a QOS's own word goes first."""
        if "limits" not in self._config.settings.accounting_enforce:
            return
        account = self._accounts.get(job.spec.owner.user, "")
        qos = self._qos.get(job.spec.qos)
        running = self.standings.holding()
        most = qos.limits.grp_jobs if qos is not None else None
        if most is not None and sum(other.spec.qos == job.spec.qos for other in running) >= most:
            raise Violation(f"job {job.id} is one more than its QOS allows: {most}")
        limits = self._associations.get(account)
        if most is None and limits is not None and limits.grp_jobs is not None:
            count = sum(self._accounts.get(other.spec.owner.user) == account for other in running)
            if count >= limits.grp_jobs:
                raise Violation(f"job {job.id} is one more than its account allows: {limits.grp_jobs}")
        cpus_max = dict(qos.limits.max_tres_per_user).get("cpu") if qos is not None else None
        mine = [other for other in running if _same_purse(other, job)]
        cpus = sum(other.allocation.cpus for other in mine if other.allocation is not None) + event.allocation.cpus
        if cpus_max is not None and cpus > cpus_max:
            raise Violation(f"job {job.id} has more CPUs than its QOS gives one user: {cpus} of {cpus_max}")

    # -- who makes way -------------------------------------------------------------------------------------------------

    def _may_make_way(self, job: Standing, at: float, by: object, *, suspended: bool) -> None:
        """For a waiting job of a higher tier, as PreemptMode says, and not before PreemptExemptTime is over."""
        rules = self._config.settings.policy.preemption
        if rules.by == "services":
            self._makes_way_for_a_service(job, by)
            return
        if rules.by == "none" or rules.mode == "OFF":
            raise Violation(f"job {job.id} was to make way, and nobody may preempt here")
        if suspended != (rules.mode == "SUSPEND"):
            raise Violation(f"job {job.id} was to make way otherwise than by {rules.mode}")
        if not suspended and job.spec.kind is JobKind.INTERACTIVE:
            raise Violation(f"job {job.id} is interactive, and was ended for another")
        if not suspended and at - job.allocated_at < rules.exempt_s - 1:
            raise Violation(f"job {job.id} was to make way before PreemptExemptTime was over")
        other = self.standings.jobs.get(by) if isinstance(by, int) else None
        if other is None or not other.waits or other.held:
            raise Violation(f"job {job.id} was to make way for {by}, which is not waiting to start")
        assert job.allocation is not None
        mine = self._partition(job.allocation.partition)
        theirs = [self._partition(name) for name in other.spec.partitions]
        higher = [each for each in theirs if each and mine and each.priority_tier > mine.priority_tier]
        if job.het is not None:
            return  # it goes with another component, which has to
        if not higher:
            raise Violation(f"job {job.id} was to make way for job {by}, which has no right to it")
        if not any(set(each.nodes).intersection(job.allocation.node_names) for each in higher):
            raise Violation(f"job {job.id} was to make way for job {by}, which cannot use its nodes")

    def _makes_way_for_a_service(self, job: Standing, by: object) -> None:
        """Where nobody configured anything: for a service's replica that waits, if it can be requeued."""
        other = self.standings.jobs.get(by) if isinstance(by, int) else None
        if other is None or not other.waits or other.spec.replica is None:
            raise Violation(f"job {job.id} was to make way for {by}, which is no replica that waits")
        if job.het is None and (job.spec.requeue is False or job.spec.kind is JobKind.INTERACTIVE):
            raise Violation(f"job {job.id} was to make way, and cannot come back")

    # -- when it must end ----------------------------------------------------------------------------------------------

    def _not_before_its_limit(self, job: Standing, at: float) -> None:
        """A job that ends as TIMEOUT had its time, unless its reservation was over."""
        assert job.allocation is not None
        ran_s = at - job.allocated_at - self._suspended_s(job, at)
        limits = [self._limit_s(each.spec, job.allocation.partition) for each in self.standings.companions(job)]
        ends = [self._reservations[name].end for name in _named(job.spec) if name in self._reservations]
        if ran_s < min(limits) - 1 and not any(at >= end for end in ends):
            raise Violation(f"job {job.id} timed out after {ran_s:.0f} s, before its limit")

    def check_overdue(self, now: float) -> None:
        """For calm times: nothing runs on after its time limit."""
        for job in self.standings.holding():
            if not job.started or job.ending is not None or job.suspended_since is not None:
                continue
            assert job.allocation is not None
            ran_s = now - job.allocated_at - job.suspended_s
            if ran_s > self._limit_s(job.spec, job.allocation.partition) + PATIENCE_S:
                raise Violation(f"job {job.id} runs on long after its time limit: {ran_s:.0f} s")

    def _suspended_s(self, job: Standing, at: float) -> float:
        return job.suspended_s + (at - job.suspended_since if job.suspended_since is not None else 0.0)

    def _limit_s(self, spec: JobSpec, partition: str) -> float:
        if spec.time_limit_s is not None:
            return float(spec.time_limit_s)
        found = self._partition(partition)
        return float((found.default_time_s if found is not None else None) or 0.0)

    def _partition(self, name: str) -> PartitionConfig | None:
        return next((each for each in self._config.partitions if each.name == name), None)

    # -- what the daemon was told --------------------------------------------------------------------------------------

    def heard(self, seen: Observation, now: float) -> None:
        """A daemon was told that a start's script ended, or that nothing is left of it."""
        if not isinstance(seen, BatchFinished | JobCleared):
            return
        job = self.standings.jobs.get(seen.job_id)
        if job is not None and job.generation == seen.generation and job.allocation is not None:
            cleared = isinstance(seen, JobCleared) or seen.cleared
            if job.ending is not None or not isinstance(seen, JobCleared):  # what was not asked to end is not heard
                self._heard.setdefault((seen.job_id, seen.generation, cleared), now)

    def daemon_died(self) -> None:
        self._heard.clear()  # whatever it had heard and not written is said again to the next one

    def check_heard(self, now: float) -> None:
        """What it was told comes into the journal, even if the disk was full for a while."""
        for (job_id, generation, cleared), since in list(self._heard.items()):
            job = self.standings.jobs[job_id]
            over = job.generation != generation or job.allocation is None
            if over or (job.ending is not None and not cleared):
                del self._heard[job_id, generation, cleared]
            elif now - since > HEARD_S:
                raise Violation(f"the daemon was told that job {job_id} ended, and the journal does not have it")

    def check_place(self, job_id: int, submitted_at: float) -> None:
        """A job that was queued again stands where it stood."""
        job = self.standings.jobs.get(job_id)
        if job is not None and job.submitted_at != submitted_at:
            raise Violation(f"job {job_id} lost its place: it was submitted earlier than the state says")

    def check_never(self, job_id: int) -> None:
        """A job that is said to wait for ever has a condition that is lost."""
        jobs = self.standings.companions(self.standings.jobs[job_id])
        if not any(self.standings.can_never_start(job) for job in jobs):
            raise Violation(f"job {job_id} is said to wait for ever, and what it waits for has come or can still come")


class NoJudge(Judge):
    """After a loss: what people were answered and what the journal says are two stories, and nobody can judge one by
    the other. What happens on the nodes is judged on (`witness`)."""

    def committed(self, events: Sequence[e.Recorded]) -> None: ...

    def answered(self, word: str, job_id: int, events: Sequence[e.Recorded], *, held: bool = False) -> None: ...

    def heard(self, seen: Observation, now: float) -> None: ...

    def check_overdue(self, now: float) -> None: ...

    def check_heard(self, now: float) -> None: ...

    def check_place(self, job_id: int, submitted_at: float) -> None: ...

    def check_never(self, job_id: int) -> None: ...


def _account(association: Association) -> str:
    return association.account


def _licences(spec: JobSpec) -> Counter[str]:
    """`seat:2,other`."""
    found: Counter[str] = Counter()
    for word in filter(None, spec.resources.licenses.split(",")):
        name, _, count = word.partition(":")
        found[name] += int(count or 1)
    return found


def _named(spec: JobSpec) -> list[str]:
    return [name for name in spec.reservation.split(",") if name]


def _is_open(reservation: Reservation, at: float) -> bool:
    return at < reservation.end and (reservation.begin <= at or reservation.has(ReservationFlag.FLEX))


def _same_purse(one: Standing, other: Standing) -> bool:
    return one.spec.qos == other.spec.qos and one.spec.owner.uid == other.spec.owner.uid


def _is_about(event: e.Event, job_id: int) -> bool:
    return getattr(event, "job_id", None) == job_id

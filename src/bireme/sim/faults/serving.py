"""Services in fault worlds: what people ask of them, a router that says when a replica is drained, and the rules.

The rules read the journal's events in their own simple way, as `judge` does, and call nothing that decides. Safety is
judged at every event; that a service comes back when faults have ended, by the player (`settled_or_why`).
Invariant: it only listens, but for the acts of people and the router's word.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bireme.core.model import events as e
from bireme.core.model.jobs import Owner
from bireme.core.model.observations import Observation, ReplicaDrained, ReplicaWithdrawn
from bireme.core.model.serving.events import is_of_service
from bireme.core.model.serving.scaling import Scaling
from bireme.core.model.serving.services import Amount, RevisionLife, ServiceSpec
from bireme.core.services import requests
from bireme.core.state.state import State
from bireme.engines.simulated.agents import read_behaviour
from bireme.sim.faults.draw import Act
from bireme.sim.faults.judge import NOT_PEOPLE
from bireme.sim.faults.people import Order, People, caller_named
from bireme.sim.faults.witness import Violation
from bireme.testing.worlds import build_service

ADDED_WITHIN_S = 60.0
MOST_ADDED = 40
"""Of one service, in that time: more are added only where nothing slows a crash loop."""
TOLERANCE_S = 0.5
LATE = "got ready in"
"""In the words for a revision whose time was over."""


class ServingPeople(People):
    """People who also have services."""

    def _deploy(self, act: Act) -> None:
        facts, caller = act.facts, caller_named(act.facts["user"])
        owner = Owner(uid=caller.uid, gid=caller.gid, user=caller.user)
        spec = build_service(facts["name"], facts["replicas"], facts["options"], owner)
        self._of_service(act, lambda state, now: requests.deploy(state, caller, spec, now))

    def _scale_service(self, act: Act) -> None:
        self._asked(act, requests.scale, act.facts["wanted"])

    def _advise_service(self, act: Act) -> None:
        facts = act.facts
        self._of_service(act, lambda state, now: requests.advised(state, facts["name"], facts["wanted"], "load"))

    def _stop_service(self, act: Act) -> None:
        self._asked(act, requests.stop)

    def _restart_service(self, act: Act) -> None:
        self._asked(act, requests.restart)

    def _rollback_service(self, act: Act) -> None:
        self._asked(act, requests.rollback)

    def _promote_service(self, act: Act) -> None:
        self._asked(act, requests.promote)

    def stop_service(self, name: str) -> None:
        root = caller_named("root")
        self.ask(Order("root service stop", lambda state, now: requests.stop(state, root, name), _nothing))

    def _asked(self, act: Act, request: Callable[..., list[e.Event]], *arguments: Any) -> None:
        root, name = caller_named("root"), act.facts["name"]
        self._of_service(act, lambda state, now: request(state, root, name, *arguments))

    def _of_service(self, act: Act, decide: Callable[[State, float], list[e.Event]]) -> None:
        self.ask(Order(f"somebody {act.kind}", decide, _nothing))


def _nothing(state: State, events: Sequence[e.Recorded]) -> None:
    """The answer is not looked at."""


# -- what the journal says -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Replica:
    number: int
    revision: int
    port: int
    job_id: int
    health: str = "loading"
    ever_ready: bool = False
    draining_since: float | None = None
    withdrawn_at: float | None = None
    runs: bool = False
    ends: bool = False
    over: bool = False
    """Its job is."""

    @property
    def lives(self) -> bool:
        return self.draining_since is None and not self.ends

    @property
    def ready(self) -> bool:
        return self.lives and self.runs and self.health == "ready"


@dataclass(slots=True)
class _Service:
    specs: dict[int, ServiceSpec] = field(default_factory=dict)
    phases: dict[int, RevisionLife] = field(default_factory=dict)
    wanted: int = 0
    most_wanted: int = 0
    """Since the number of replicas was last that low."""
    fixed: bool = False
    stopping: bool = False
    replicas: dict[int, _Replica] = field(default_factory=dict)
    added: list[float] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    """Revisions that have served."""
    held_until: dict[int, float] = field(default_factory=dict)
    """Revisions of which none are made for a while, after crashes."""
    one_by_one: set[int] = field(default_factory=set)
    """Revisions for which one made room where there was none."""
    from_nothing: set[int] = field(default_factory=set)
    """Revisions that were asked for when there was none of the one that serves."""

    @property
    def target(self) -> int:
        """The revision that it is to have."""
        for phase in (RevisionLife.ROLLING, RevisionLife.CANARY, RevisionLife.SERVING):
            found = [number for number, each in self.phases.items() if each is phase]
            if found:
                return found[0]
        return max(self.specs)

    def leeway(self) -> tuple[int, int]:
        updating = self.specs[self.target].updating
        surge, unavailable = _up(updating.surge, self.wanted), _down(updating.unavailable, self.wanted)
        return surge, unavailable if surge or unavailable else 1

    def ask(self, scaling: Scaling) -> None:
        """A revision is to be rolled out: as many as there were, within its bounds, and one at least."""
        least, most = scaling.replicas_min, scaling.replicas_max
        self.fixed = False
        self.wanted = most if least == most else max(1, min(max(self.wanted, least), most))
        self.most_wanted = max(self.most_wanted, self.wanted)

    def in_phase(self, phase: RevisionLife) -> int | None:
        return next((number for number, each in self.phases.items() if each is phase), None)

    def asked_for(self, number: int) -> None:
        """A revision is to be rolled out: was there anything to lose?"""
        serving = self.in_phase(RevisionLife.SERVING)
        there = any(each.revision == serving and each.draining_since is None for each in self.replicas.values())
        (self.from_nothing.discard if there else self.from_nothing.add)(number)
        self.one_by_one.discard(number)

    def gives_up(self, number: int, phase: RevisionLife) -> None:
        """The one that serves goes on, with as many as it may have."""
        was, self.phases[number] = self.phases[number], phase
        serving = self.in_phase(RevisionLife.SERVING)
        if was is RevisionLife.ROLLING and serving is not None and not self.fixed:
            scaling = self.specs[serving].scaling
            self.wanted = max(scaling.replicas_min, min(self.wanted, scaling.replicas_max))

    def lacks_proven(self) -> int:
        """How many more replicas there must be that are known to work, while an update is under way."""
        serving = self.in_phase(RevisionLife.SERVING)
        newer = self.in_phase(RevisionLife.ROLLING) or self.in_phase(RevisionLife.CANARY)
        if serving is None or newer is None or newer in self.settled or newer in self.from_nothing:
            return 0
        living = [each for each in self.replicas.values() if each.lives]
        proven = sum(each.revision == serving or (each.ever_ready and each.runs) for each in living)
        kept = self.wanted - max(self.leeway()[1], 1 if newer in self.one_by_one else 0)
        return min(kept - proven, self.wanted + self.leeway()[0] - len(self.replicas))


def _up(amount: Amount, wanted: int) -> int:
    return -(-wanted * amount.number // 100) if amount.percent else amount.number


def _down(amount: Amount, wanted: int) -> int:
    return wanted * amount.number // 100 if amount.percent else amount.number


class ServiceRules:
    def __init__(self, seed: int, later: Callable[[float, Callable[[], None]], None]) -> None:
        self._services: dict[str, _Service] = {}
        self._jobs: dict[int, tuple[str, int]] = {}
        self._drained: set[tuple[str, int]] = set()
        """What the router has said."""
        self._withdrawn: set[tuple[str, int]] = set()
        """Replicas that its table has no more."""
        self._requeued: set[int] = set()
        self._homeless: set[int] = set()
        """Jobs of replicas that no service has yet."""
        self._random = random.Random(f"router {seed}")
        self._slowness = random.Random(f"slow router {seed}")
        self._later = later
        self._daemon_since = 0.0
        """When the daemon that is there was started."""
        self.say: Callable[[Observation], None] = lambda seen: None
        """To the daemon that is there, if one is."""

    def daemon_started(self, now: float) -> None:
        """The router tells the next daemon what it has told the one before."""
        self._daemon_since = now
        for name, replica in sorted(self._withdrawn):
            self.say(ReplicaWithdrawn(name, replica, 0.0))

    def committed(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            handler = getattr(self, f"_{type(recorded.event).__name__}", None)
            if handler is not None:
                handler(recorded.event, recorded)
        if self._homeless:
            raise Violation(f"jobs {sorted(self._homeless)} are replicas of no service")
        if self._jobs and any(
            getattr(recorded.event, "job_id", None) is not None or is_of_service(recorded.event) for recorded in events
        ):
            self._nobody_is_left_behind()
            self._what_is_proven_comes_back(events[-1].at)

    def _nobody_is_left_behind(self) -> None:
        """What ended or died is noticed in the turn in which it is known."""
        for name, replica in self._all():
            if replica.over:
                raise Violation(f"replica {name} is still there, and its job is over")
            if replica.health == "dead" and replica.lives:
                raise Violation(f"replica {name} is dead, and nobody ends it")

    def _what_is_proven_comes_back(self, now: float) -> None:
        """What an update loses of the replicas that work is replaced by such, at once, unless they crash."""
        for name, service in self._services.items():
            serving = service.in_phase(RevisionLife.SERVING) or 0
            if service.stopping or now < service.held_until.get(serving, 0.0):
                continue
            if service.lacks_proven() > 0:
                raise Violation(f"service {name} lost a good replica to an update, and none comes back")

    # -- services ------------------------------------------------------------------------------------------------------

    def _ServiceDeployed(self, event: e.ServiceDeployed, recorded: e.Recorded) -> None:  # noqa: N802
        service = self._services.setdefault(event.name, _Service())
        canary = RevisionLife.SERVING in service.phases.values() and event.spec.updating.canary_percent is not None
        service.specs[event.number] = event.spec
        service.phases[event.number] = RevisionLife.CANARY if canary else RevisionLife.ROLLING
        service.asked_for(event.number)
        if not canary:
            service.ask(event.spec.scaling)

    def _ServiceScaled(self, event: e.ServiceScaled, recorded: e.Recorded) -> None:  # noqa: N802
        service = self._services[event.name]
        service.wanted, service.fixed = event.wanted, event.fixed
        service.most_wanted = max(service.most_wanted, event.wanted)

    def _ServiceStopping(self, event: e.ServiceStopping, recorded: e.Recorded) -> None:  # noqa: N802
        self._services[event.name].stopping = True

    def _ServiceRemoved(self, event: e.ServiceRemoved, recorded: e.Recorded) -> None:  # noqa: N802
        """Nothing of a service that is gone is left."""
        service = self._services.pop(event.name)
        if service.replicas:
            raise Violation(f"service {event.name} is gone, and its replicas {sorted(service.replicas)} are not")

    # -- revisions -----------------------------------------------------------------------------------------------------

    def _RevisionChosen(self, event: e.RevisionChosen, recorded: e.Recorded) -> None:  # noqa: N802
        service = self._services[event.name]
        service.phases[event.number] = RevisionLife.ROLLING
        service.asked_for(event.number)
        service.held_until.pop(event.number, None)
        service.ask(service.specs[event.number].scaling)

    def _RevisionRetired(self, event: e.RevisionRetired, recorded: e.Recorded) -> None:  # noqa: N802
        self._services[event.name].gives_up(event.number, RevisionLife.RETIRED)

    def _RevisionFailed(self, event: e.RevisionFailed, recorded: e.Recorded) -> None:  # noqa: N802
        """Nobody's time to get ready is over before a daemon was there for so long: it would not know."""
        service = self._services[event.name]
        service.gives_up(event.number, RevisionLife.FAILED)
        heard_s = recorded.at - self._daemon_since
        if LATE in event.why and heard_s < service.specs[event.number].updating.ready_within_s - TOLERANCE_S:
            raise Violation(f"revision {event.number} of {event.name} was given up, and nobody could hear of it")

    def _RevisionBackedOff(self, event: e.RevisionBackedOff, recorded: e.Recorded) -> None:  # noqa: N802
        self._services[event.name].held_until[event.number] = event.back_off.until

    def _RevisionSettled(self, event: e.RevisionSettled, recorded: e.Recorded) -> None:  # noqa: N802
        """Never two revisions that serve: whoever settles has the service to itself."""
        service = self._services[event.name]
        service.phases[event.number] = RevisionLife.SERVING
        service.settled.add(event.number)
        serving = [number for number, phase in service.phases.items() if phase is RevisionLife.SERVING]
        others = [each.number for each in service.replicas.values() if each.lives and each.revision != event.number]
        if len(serving) > 1 or others:
            raise Violation(f"service {event.name} settled at revision {event.number} beside {serving} and {others}")

    # -- replicas ------------------------------------------------------------------------------------------------------

    def _JobSubmitted(self, event: e.JobSubmitted, recorded: e.Recorded) -> None:  # noqa: N802
        if event.spec.replica is not None:
            self._homeless.add(event.job_id)

    def _ReplicaAdded(self, event: e.ReplicaAdded, recorded: e.Recorded) -> None:  # noqa: N802
        service = self._services[event.name]
        self._homeless.discard(event.job_id)
        for name, other in self._all():
            if other.port == event.port:
                raise Violation(f"replica {event.name}/{event.replica} shares port {event.port} with {name}")
        service.replicas[event.replica] = _Replica(event.replica, event.revision, event.port, event.job_id)
        self._jobs[event.job_id] = (event.name, event.replica)
        living = sum(each.lives for each in service.replicas.values())
        if living <= service.wanted:
            service.most_wanted = service.wanted
        most = service.most_wanted + max(service.leeway()[0], 1 if self._succeeds(service, event.revision) else 0)
        if living > most:
            raise Violation(f"service {event.name} has {living} replicas, more than {most} that it may have")
        service.added = [at for at in service.added if recorded.at - at < ADDED_WITHIN_S] + [recorded.at]
        if len(service.added) > MOST_ADDED:
            raise Violation(f"replicas of service {event.name} are made again and again, and nothing slows that")

    def _succeeds(self, service: _Service, revision: int) -> bool:
        """One whose time limit nears may have a successor beside it."""
        return service.phases[revision] is RevisionLife.SERVING

    def _ReplicaHealthChanged(self, event: e.ReplicaHealthChanged, recorded: e.Recorded) -> None:  # noqa: N802
        replica = self._services[event.name].replicas[event.replica]
        replica.health = event.health.value
        replica.ever_ready = replica.ever_ready or replica.health == "ready"

    def _ReplicaDraining(self, event: e.ReplicaDraining, recorded: e.Recorded) -> None:  # noqa: N802
        """By our own doing there are never fewer ready ones than wanted and `unavailable` allow, but one by one where
        a new one waits for room."""
        service = self._services[event.name]
        replica = service.replicas[event.replica]
        was_ready, replica.draining_since = replica.ready, recorded.at
        if event.room_for:
            service.one_by_one.add(event.room_for)
        self._later(self._slowness.choice((0.0, 0.1, 1.0, 15.0)), partial(self._withdraws, event.name, event.replica))
        if self._random.random() < 0.7:
            said = partial(self._says_drained, event.name, event.replica)
            self._later(self._random.choice((0.1, 5.0, 20.0)), said)
        if service.stopping or not was_ready:
            return
        ready = sum(each.ready for each in service.replicas.values())
        waits = any(each.lives and not each.runs and each.revision == service.target for each in self._own(service))
        least = service.wanted - max(service.leeway()[1], 1 if waits else 0)
        if ready < least:
            raise Violation(f"service {event.name} was left with {ready} ready replicas, fewer than {least}")

    def _own(self, service: _Service) -> Iterator[_Replica]:
        return iter(service.replicas.values())

    def _withdraws(self, name: str, replica: int) -> None:
        if replica in self._services[name].replicas if name in self._services else ():
            self._withdrawn.add((name, replica))
            self.say(ReplicaWithdrawn(name, replica, 0.0))

    def _ReplicaWithdrawn(self, event: e.ReplicaWithdrawn, recorded: e.Recorded) -> None:  # noqa: N802
        self._services[event.name].replicas[event.replica].withdrawn_at = recorded.at

    def _says_drained(self, name: str, replica: int) -> None:
        """It has none left, and so gets none any more."""
        self._withdraws(name, replica)
        self._drained.add((name, replica))
        self.say(ReplicaDrained(name, replica, 0.0))

    def _ReplicaGone(self, event: e.ReplicaGone, recorded: e.Recorded) -> None:  # noqa: N802
        replica = self._services[event.name].replicas.pop(event.replica)
        self._jobs.pop(replica.job_id, None)
        self._drained.discard((event.name, event.replica))
        self._withdrawn.discard((event.name, event.replica))

    def _all(self) -> Iterator[tuple[str, _Replica]]:
        for name, service in self._services.items():
            for replica in service.replicas.values():
                yield f"{name}/{replica.number}", replica

    # -- their jobs ----------------------------------------------------------------------------------------------------

    def _of(self, job_id: int) -> _Replica | None:
        found = self._jobs.get(job_id)
        return self._services[found[0]].replicas[found[1]] if found is not None else None

    def _JobStarted(self, event: e.JobStarted, recorded: e.Recorded) -> None:  # noqa: N802
        replica = self._of(event.job_id)
        if replica is not None:
            replica.runs = True

    def _JobLaunchFailed(self, event: e.JobLaunchFailed, recorded: e.Recorded) -> None:  # noqa: N802
        replica = self._of(event.job_id)
        if replica is not None:
            replica.runs, replica.health = False, "loading"

    def _JobEnding(self, event: e.JobEnding, recorded: e.Recorded) -> None:  # noqa: N802
        """A replica that had requests is ended when the router says it has none left, or sends it no more and its time
        is over."""
        found, replica = self._jobs.get(event.job_id), self._of(event.job_id)
        if found is None or replica is None:
            return
        ours = recorded.cause in NOT_PEOPLE and event.outcome.state == "CANCELLED" and event.outcome.by_uid is not None
        if ours and replica.ever_ready and replica.runs and replica.health != "dead" and not replica.ends:
            drain_s = self._services[found[0]].specs[replica.revision].drain_s
            if found not in self._withdrawn:
                raise Violation(f"replica {found[0]}/{found[1]} was ended, and the router still sends it requests")
            since = replica.withdrawn_at
            over = since is not None and recorded.at >= since + drain_s - TOLERANCE_S
            if not over and found not in self._drained:
                raise Violation(f"replica {found[0]}/{found[1]} was ended before its requests were answered")
        replica.ends = True
        (self._requeued.add if event.requeue else self._requeued.discard)(event.job_id)

    def _JobEnded(self, event: e.JobEnded, recorded: e.Recorded) -> None:  # noqa: N802
        replica = self._of(event.job_id)
        if replica is not None and event.job_id in self._requeued:
            replica.ends = replica.runs = False
            replica.health = "loading"
        elif replica is not None:
            replica.over = True

    def _JobSuspended(self, event: e.JobSuspended, recorded: e.Recorded) -> None:  # noqa: N802
        replica = self._of(event.job_id)
        if replica is not None:
            replica.runs = False

    def _JobResumed(self, event: e.JobResumed, recorded: e.Recorded) -> None:  # noqa: N802
        replica = self._of(event.job_id)
        if replica is not None:
            replica.runs = True

    def _JobCancelled(self, event: e.JobCancelled, recorded: e.Recorded) -> None:  # noqa: N802
        replica = self._of(event.job_id)
        if replica is not None:
            replica.ends = replica.over = True

    # -- liveness ------------------------------------------------------------------------------------------------------

    def settled_or_why(self, name: str) -> str:
        """Empty: it has what is wanted, of one revision (or two, with a canary), or cannot have it. Else what lacks."""
        service = self._services[name]
        rolling = [number for number, phase in service.phases.items() if phase is RevisionLife.ROLLING]
        serving = [number for number, phase in service.phases.items() if phase is RevisionLife.SERVING]
        last = [*serving, *rolling][:1] if len(rolling) + len(serving) < 2 else []
        if any(not _can_serve(service.specs[number]) for number in last):
            return ""  # it crashes for ever, and there is no other to go back to
        ready = sum(each.ready for each in service.replicas.values())
        living = sum(each.lives for each in service.replicas.values())
        said = f"{ready} of {service.wanted} replicas are ready, {living} are there, revision {rolling} is rolled out"
        if service.wanted and (ready < service.wanted or rolling):
            return said
        return "" if service.wanted or not living else said


def _can_serve(spec: ServiceSpec) -> bool:
    """Whether its replicas, from some number on, get ready and stay."""
    last = read_behaviour(spec.job.comment.split("|")[-1])
    return last.ready < last.run

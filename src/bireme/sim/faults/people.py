"""What people do in a world: they submit, ask, wait for an answer, and ask again when none comes.

An order that the daemon never answered (it died, its disk was full) is said again after a while, a submission with its
key, as the commands do. Invariant: a submission that was answered with an id is accepted once, whatever happened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bireme.core.jobs import requests
from bireme.core.jobs.keys import KEYS
from bireme.core.jobs.requests import Target
from bireme.core.jobs.submission import submit
from bireme.core.model import events as e
from bireme.core.model.jobs import JobKind, JobSpec, Owner
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.model.resources import ExitStatus
from bireme.core.model.steps import StepSpec
from bireme.core.nodes import operators
from bireme.core.reservations.orders import ReservationOrder, create_reservation
from bireme.core.state.state import State
from bireme.core.steps.creation import create_step
from bireme.ports import JournalError
from bireme.runtime.kernel import Decide, Kernel, Request
from bireme.sim.faults.draw import USERS, Act
from bireme.sim.faults.judge import Judge
from bireme.sim.faults.witness import GroundTruth, Violation
from bireme.testing.books import book_change
from bireme.testing.worlds import build_spec

_LABEL = re.compile(r"\bj[0-9]+")
"""Names of the story's jobs, in the text of a dependency."""
ASK_AGAIN_S = 2.0
USR1 = 10

Later = Callable[[float, Callable[[], None]], None]
"""Has something done after so many seconds."""
Answered = Callable[[State, Sequence[e.Recorded]], None]


@dataclass(slots=True, eq=False)
class Order:
    """Somebody waits for its answer."""

    cause: str
    decide: Decide
    then: Answered


class People:
    def __init__(self, truth: GroundTruth, judge: Judge, later: Later) -> None:
        self._truth = truth
        self._judge = judge
        self._later = later
        self._kernel: Kernel | None = None
        """Where requests are handed in; None: no daemon is there."""
        self._waiting: dict[Order, None] = {}
        self.ids: dict[str, int] = {}
        """Jobs by the names of the story."""
        self.refused = 0

    # -- the daemon goes and comes -----------------------------------------------------------------------------------

    def daemon_is_there(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def daemon_died(self) -> None:
        """Every connection breaks: who waits will ask the next one."""
        self._kernel = None
        waiting, self._waiting = self._waiting, {}
        for order in waiting:
            self._later(ASK_AGAIN_S, partial(self.ask, order))

    def journal_lost(self, judge: Judge, ids: dict[str, int]) -> None:
        """After a loss people know their jobs by the ids that are left."""
        self._judge, self.ids = judge, dict(ids)

    @property
    def still_waiting(self) -> bool:
        return bool(self._waiting)

    def ask(self, order: Order) -> None:
        kernel = self._kernel
        if kernel is None:
            self._later(ASK_AGAIN_S, lambda: self.ask(order))
            return
        self._waiting[order] = None

        def answer(events: Sequence[e.Recorded], error: Exception | None) -> None:
            self._waiting.pop(order, None)
            if error is None:
                order.then(kernel.state, events)
            elif isinstance(error, Refusal):
                self.refused += 1
            elif isinstance(error, JournalError):
                self._later(ASK_AGAIN_S, lambda: self.ask(order))
            else:
                raise error  # deciding failed: what a world is there to find

        kernel.requests.append(Request(order.cause, order.decide, answer))

    # -- acts ----------------------------------------------------------------------------------------------------------

    def does(self, act: Act) -> bool:
        """Whether the act is theirs."""
        handler = getattr(self, f"_{act.kind}", None)
        if handler is not None:
            handler(act)
        return handler is not None

    def _submit(self, act: Act) -> None:
        facts = act.facts
        key, name, caller = f"key {act.number}", facts["name"], caller_named(facts["user"])
        specs = [self._spec(name, caller, options) for options in facts["jobs"]]
        self._judge.asked[key] = specs

        def accepted(state: State, events: Sequence[e.Recorded]) -> None:
            job_id = KEYS.of(state)[key]
            if self._truth.accepted.setdefault(key, job_id) != job_id:
                raise Violation(f"{name} was accepted twice, as job {self._truth.accepted[key]} and as {job_id}")
            if sum(other == job_id for other in self._truth.accepted.values()) > 1:
                raise Violation(f"{name} was accepted as job {job_id}, and so was another: one of them is lost")
            self.ids[name] = job_id

        self.ask(Order(f"{caller.user} sbatch", lambda state, now: submit(state, caller, specs, now, key), accepted))

    def _spec(self, name: str, caller: Caller, options: dict[str, Any]) -> JobSpec:
        given = dict(options)
        if not set(_LABEL.findall(given.get("after", ""))) <= self.ids.keys():
            given.pop("after", None)
        if "kind" in given:
            given["kind"] = JobKind(given["kind"])
        owner = Owner(uid=caller.uid, gid=caller.gid, user=caller.user)
        return build_spec(name, given, owner, lambda label: self.ids[label])

    def _about(self, act: Act, request: Callable[..., list[e.Event]], *arguments: Any, user: str = "root") -> None:
        job_id = self.ids.get(f"j{act.facts['job']}")
        if job_id is None:
            return
        caller, target = caller_named(user), Target(job_id)

        def answered(state: State, events: Sequence[e.Recorded]) -> None:
            self._judge.answered(act.kind, job_id, events, held=bool(act.facts.get("held")))

        self.ask(Order(f"{user} {act.kind}", lambda state, now: request(state, caller, target, *arguments), answered))

    def _cancel(self, act: Act) -> None:
        self._about(act, requests.cancel, user=act.facts["user"])

    def _hold(self, act: Act) -> None:
        self._about(act, requests.hold, user=act.facts["user"])

    def _release(self, act: Act) -> None:
        self._about(act, requests.release, user=act.facts["user"])

    def _requeue(self, act: Act) -> None:
        self._about(act, requests.requeue, act.facts.get("held", act.number % 4 == 0), user=act.facts["user"])

    def _suspend(self, act: Act) -> None:
        self._about(act, requests.suspend)

    def _resume(self, act: Act) -> None:
        self._about(act, requests.resume)

    def _signal(self, act: Act) -> None:
        self._about(act, requests.signal, USR1, "all")

    def _update(self, act: Act) -> None:
        changes = dict(act.facts["changes"])
        if "nodes" in changes:
            changes = {"nodes_min": changes["nodes"], "nodes_max": changes["nodes"]}
        self._about(act, requests.update, changes, act.at)

    def _step(self, act: Act) -> None:
        spec = StepSpec(name=act.facts["behaviour"], overlap=True, time_limit_s=act.facts["time_limit_s"])
        self._about(act, create_step, spec)

    def _end_step(self, act: Act) -> None:
        """The newest step of the job, whichever that is when it is decided."""
        job_id = self.ids.get(f"j{act.facts['job']}")
        if job_id is None:
            return

        def newest(state: State, now: float) -> list[e.Event]:
            job = state.jobs.get(job_id)
            target = Target(job_id, step_id=max(job.steps, default=0) if job else 0)
            return requests.end_step(state, caller_named("root"), target, None)

        self.ask(Order("root scancel", newest, _nothing))

    def complete(self, job_id: int) -> None:
        """The program that `salloc` started ended: the allocation is no longer needed."""

        def done(state: State, now: float) -> list[e.Event]:
            return requests.complete(state, caller_named("root"), Target(job_id), ExitStatus())

        self.ask(Order("salloc", done, _nothing))

    # -- operators -----------------------------------------------------------------------------------------------------

    def _node(self, act: Act) -> None:
        self.set_node(act.facts["node"], act.facts["state"])

    def set_node(self, node: str, word: str) -> None:
        root = caller_named("root")
        self.ask(Order("root scontrol", lambda s, now: operators.update_nodes(s, root, [node], word, "why"), _nothing))

    def _reserve(self, act: Act) -> None:
        facts = act.facts

        def reserve(state: State, now: float) -> list[e.Event]:
            order = ReservationOrder(
                begin=now + facts["begin_s"],
                duration_s=facts["lasts_s"],
                nodes=facts["nodes"],
                users=(facts["user"],) if "user" in facts else None,
                accounts=(facts["account"],) if "account" in facts else None,
                flags=facts["flags"],
            )
            return create_reservation(state, caller_named("root"), facts["name"], order, now)

        self.ask(Order("root scontrol", reserve, _nothing))

    def _limit(self, act: Act) -> None:
        self.set_limits({act.facts["account"]: act.facts["limits"]})

    def set_limits(
        self,
        accounts: dict[str, dict[str, Any]],
        users: dict[str, dict[str, Any]] | None = None,
        qos: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        def change(state: State, now: float) -> list[e.Event]:
            return [book_change(state.accounts, accounts=accounts, users=users, qos=qos)]

        self.ask(Order("root sacctmgr", change, _nothing))


def caller_named(user: str) -> Caller:
    uid = USERS[user]
    return Caller(uid=uid, gid=uid, user=user, admin=uid == 0)


def _nothing(state: State, events: Sequence[e.Recorded]) -> None:
    """The answer is not looked at."""

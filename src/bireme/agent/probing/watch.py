"""A replica on this node while its script runs: its probes are asked in their time, and what they come to is told.

Held by `jobs`, one for each job that is a service's replica, on the first of its nodes. What follows from answers is
worked out by `core/probing`; how the questions are asked, by `ports` and `commands`.

Invariant: nothing is asked or told while the replica is stopped, or after `end`.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Set

from bireme.agent.keeping.keepers import Keeper
from bireme.agent.probing.commands import CommandQuestion, command_beside
from bireme.agent.probing.ports import PortQuestion, listening_as
from bireme.agent.starting.spawn import Birth
from bireme.agent.system.loop import Loop, Timer
from bireme.core.model.serving.probes import Health, Probe, ReplicaOf
from bireme.core.probing.asking import Question, answered, asked, begin, resumed, unanswered

_LOOPBACK = ("127.0.0.1", "::1")
_TOLD_AGAIN_S = 30.0
"""Of a replica that is not ready, another reason is told no sooner after what was told before."""
_NOTHING_YET = (Health.LOADING, "", "")
_LEAST_TIMEOUT_S, _MOST_TIMEOUT_S = 0.05, 3600.0

Tell = Callable[[Health, str, str], None]
"""Its health, why that is not the best, and the address where it answers."""
Asking = PortQuestion | CommandQuestion


class ReplicaWatch:
    """`owners`: as whom it may listen. `keeper`: of its script, which was started as `script` says; a command beside it
    is, too."""

    def __init__(
        self,
        loop: Loop,
        replica: ReplicaOf,
        address: str,
        owners: Set[int],
        keeper: Keeper,
        script: Birth,
        tell: Tell,
    ) -> None:
        self._loop = loop
        self._replica = replica
        self._addresses = _where_to_ask(address)
        self._address = ""
        """The one that answered last."""
        self._owners = owners
        self._keeper = keeper
        self._script = script
        self._tell = tell
        self._probing = begin(replica.probes, time.monotonic())
        self._under_way: dict[Question, Asking] = {}
        self._timer: Timer | None = None
        self._stopped = False
        self._ended = False
        self._told = _NOTHING_YET
        self._told_at = time.monotonic()
        self._schedule()

    @property
    def told(self) -> tuple[Health, str, str] | None:
        """What was said last, to be said again to a daemon that comes; None: nothing that it would not think."""
        return None if self._told == _NOTHING_YET else self._told

    def suspend(self) -> None:
        self._stopped = True
        self._drop_all()

    def resume(self) -> None:
        if self._stopped and not self._ended:
            self._stopped = False
            self._probing = resumed(self._probing, time.monotonic())
            self._schedule()

    def end(self) -> None:
        """The replica's script is over, or about to be."""
        self._ended = True
        self._drop_all()

    def _drop_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        under_way, self._under_way = self._under_way, {}
        for question in under_way.values():
            question.cancel()

    # --- asking --------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._probing.next_at
        if at is not None and not self._stopped and not self._ended:
            self._timer = self._loop.call_later(max(0.0, at - time.monotonic()), self._ask)

    def _ask(self) -> None:
        self._timer = None
        now = time.monotonic()
        for question in self._probing.due(now):
            self._probing = asked(self._probing, question, now)
            try:
                self._begin(question, self._probing.probe(question))
            except OSError:  # no descriptors, say: nothing of the replica's making
                self._probing = unanswered(self._probing, question)
        self._schedule()

    def _begin(self, question: Question, probe: Probe) -> None:
        timeout_s = min(_MOST_TIMEOUT_S, max(_LEAST_TIMEOUT_S, probe.timeout_s))
        asking: Asking
        if probe.command:
            asking = CommandQuestion(
                self._loop,
                self._keeper,
                command_beside(self._script, probe.command),
                timeout_s,
                lambda problem: self._heard(question, asking, *self._with_port(question, problem)),
            )
        else:
            asking = PortQuestion(
                self._loop,
                self._addresses,
                self._replica.port,
                probe.path,
                timeout_s,
                lambda problem, address: self._heard(question, asking, problem, address),
                self._owners,
            )
        self._under_way[question] = asking
        asking.begin()

    def _with_port(self, question: Question, problem: str | None) -> tuple[str | None, str]:
        """A command says that the replica is well. Requests go to its port: that its own user listens there is asked
        too, or whoever took the port would get them."""
        if problem != "" or question is Question.LIVENESS:
            return problem, ""
        return listening_as(self._owners, self._addresses, self._replica.port)

    def _heard(self, question: Question, asking: Asking, problem: str | None, address: str) -> None:
        if self._under_way.get(question) is not asking:
            return  # it was given up meanwhile
        del self._under_way[question]
        now = time.monotonic()
        if problem is None:
            self._probing = unanswered(self._probing, question)
        else:
            self._probing = answered(self._probing, question, problem, now)
        if problem == "" and address:
            self._address = address
            self._addresses.sort(key=lambda each: each != address)
        self._tell_news(now)
        self._schedule()

    def _tell_news(self, now: float) -> None:
        """A hostile replica may change its reasons as often as it likes: those are told now and then."""
        probing = self._probing
        news = (probing.health, probing.why, self._address)
        if news == self._told or (news[0] is self._told[0] and now < self._told_at + _TOLD_AGAIN_S):
            return
        self._told, self._told_at = news, now
        self._tell(*news)


def _where_to_ask(address: str) -> list[str]:
    """Of a node of this machine also at its loopback addresses, where the router finds it too; of a pod at its own
    address alone: what listens inside it only is out of reach."""
    if address and not ipaddress.ip_address(address).is_loopback:
        return [address]
    return list(dict.fromkeys(filter(None, (address, *_LOOPBACK))))

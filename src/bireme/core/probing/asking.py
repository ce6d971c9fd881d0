"""A replica's probes as a state machine: answers in, its health out, and when what is asked next.

Kubernetes' words and meaning: nothing else is asked before the startup probe has succeeded; a threshold counts answers
in a row; startup or liveness that fails for good makes the replica dead, which it stays; readiness comes and goes. One
thing is added: who never succeeded yet is also asked *early*, between its periods, so that nobody waits for a replica
that has been there for most of a period. Early answers count when they are good, and only then.

Not here: how a question is asked, and the clock. Who asks drives it: `Probing.due` says what to ask now, `asked` and
`answered` are told what was done, `next_at` says when to look again. Used by the agent (`agent/probing`), and by
whoever stands in for one.

Invariant: a question is never under way twice, and of a dead replica nothing is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf

from bireme.core.model.serving.probes import Health, Probe, Probes

LEAST_PERIOD_S = 0.1
"""A probe is asked no more often by its period, whatever it says: many replicas share one agent."""
_LEAST_EARLY_S = 0.02
_EARLY_PART = 20.0
"""It is asked early after this part of the time that it has been asked for: often at first, and
no more than by its period when that is short of it."""


class Question(StrEnum):
    """The three probes."""

    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one question stands."""

    first_due: float
    due: float
    """When it is asked next, by its period ..."""
    early: float = inf
    """... or before that, by impatience."""
    successes: int = 0
    """In a row, as the failures."""
    failures: int = 0
    under_way: bool = False
    is_early: bool = False
    """The question that is under way."""

    @property
    def next_at(self) -> float:
        return inf if self.under_way else min(self.due, self.early)


@dataclass(frozen=True, slots=True)
class Probing:
    """The probes of one replica, from the start of its script on."""

    probes: Probes
    began: float
    health: Health = Health.LOADING
    why: str = ""
    """What the probe that failed last said; empty of one that is ready."""
    standings: Mapping[Question, Standing] = field(default_factory=dict)
    """The questions that are asked at present."""

    def due(self, now: float) -> tuple[Question, ...]:
        """What is to be asked now."""
        return tuple(question for question, standing in self.standings.items() if standing.next_at <= now)

    @property
    def next_at(self) -> float | None:
        """When something is due; None: nothing is before an answer, or for ever."""
        first = min((standing.next_at for standing in self.standings.values()), default=inf)
        return None if first == inf else first

    def probe(self, question: Question) -> Probe:
        """How it is asked."""
        probes = self.probes
        found = {
            Question.STARTUP: probes.startup,
            Question.READINESS: probes.readiness,
            Question.LIVENESS: probes.liveness,
        }[question]
        assert found is not None
        return found


def begin(probes: Probes, now: float) -> Probing:
    """The replica's script was started just now."""
    first = now + max(0.0, probes.startup.initial_delay_s)
    return Probing(probes, now, standings={Question.STARTUP: Standing(first, first)})


def going_on(probes: Probes, health: Health, now: float) -> Probing:
    """A replica that has started long ago, as whoever asked it before said last: it is asked at once."""
    return _started(Probing(probes, -inf, health), now)


def asked(probing: Probing, question: Question, now: float) -> Probing:
    """The question is under way from now on."""
    standing = probing.standings[question]
    assert not standing.under_way
    is_early = now < standing.due
    due = standing.due if is_early else now + _period_s(probing.probe(question))
    return _with(probing, question, replace(standing, due=due, early=inf, under_way=True, is_early=is_early))


def answered(probing: Probing, question: Question, problem: str, now: float) -> Probing:
    """What was heard: nothing wrong (empty), or the problem. Of what is no longer asked it changes nothing."""
    standing = probing.standings.get(question)
    if standing is None or not standing.under_way:
        return probing
    if not problem:
        return _succeeded(probing, question, standing, now)
    return _failed(probing, question, standing, problem, now)


def unanswered(probing: Probing, question: Question) -> Probing:
    """Notes that a replica could not be asked, for a reason not its own: nothing counts, and its next time comes."""
    standing = probing.standings.get(question)
    return probing if standing is None else _with(probing, question, replace(standing, under_way=False))


def resumed(probing: Probing, now: float) -> Probing:
    """The replica was stopped for a while, in which nothing counted: all is asked anew, after what was counted."""
    anew = {
        question: replace(standing, due=max(now, standing.first_due), early=inf, under_way=False)
        for question, standing in probing.standings.items()
    }
    return replace(probing, standings=anew)


def _succeeded(probing: Probing, question: Question, standing: Standing, now: float) -> Probing:
    counted = replace(standing, successes=standing.successes + 1, failures=0, under_way=False)
    enough = counted.successes >= max(1, probing.probe(question).success_threshold)
    if question is Question.STARTUP and enough:
        return _started(probing, now)
    if question is Question.READINESS and enough:
        probing = replace(probing, health=Health.READY, why="")
    return _with(probing, question, _impatient(probing, question, counted, now))


def _started(probing: Probing, now: float) -> Probing:
    """Notes that a replica has started: it is ready when its readiness probe says so, asked at once if it may be."""
    standings = {}
    for question in (Question.READINESS, Question.LIVENESS):
        if question is Question.READINESS or probing.probes.liveness is not None:
            first = max(now, probing.began + probing.probe(question).initial_delay_s)
            standings[question] = Standing(first, first)
    return replace(probing, why="", standings=standings)


def _failed(probing: Probing, question: Question, standing: Standing, problem: str, now: float) -> Probing:
    failures = standing.failures + (not standing.is_early)
    counted = replace(standing, successes=0, failures=failures, under_way=False)
    for_good = failures >= max(1, probing.probe(question).failure_threshold)
    why = f"{question} probe: {problem}"
    if for_good and question is not Question.READINESS:
        times = f" ({failures} times in a row)" if failures > 1 else ""
        return replace(probing, health=Health.DEAD, why=why + times, standings={})
    if for_good:
        probing = replace(probing, health=Health.UNREADY, why=why)
    elif question is not Question.LIVENESS and probing.health is not Health.READY:
        probing = replace(probing, why=why)
    return _with(probing, question, _impatient(probing, question, counted, now))


def _impatient(probing: Probing, question: Question, standing: Standing, now: float) -> Standing:
    """With the time of an early question, where it is awaited: a command is too dear for that."""
    awaited = question is Question.STARTUP or (question is Question.READINESS and probing.health is Health.LOADING)
    if not awaited or probing.probe(question).command:
        return standing
    return replace(standing, early=now + max(_LEAST_EARLY_S, (now - standing.first_due) / _EARLY_PART))


def _with(probing: Probing, question: Question, standing: Standing) -> Probing:
    return replace(probing, standings={**probing.standings, question: standing})


def _period_s(probe: Probe) -> float:
    return max(LEAST_PERIOD_S, probe.period_s)

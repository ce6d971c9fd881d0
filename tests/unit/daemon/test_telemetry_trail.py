"""What keeps jobs waiting, followed over time: spans that begin, change, end, join and go on after a restart."""

from __future__ import annotations

from itertools import pairwise

from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.state.state import Verdict
from bireme.core.telemetry.waiting import Waited
from bireme.daemon.telemetry.trail import TOLD_AFTER_S, Trail
from bireme.testing.scenario import Scenario

PRIORITY, RESOURCES = reason(ReasonKind.PRIORITY), reason(ReasonKind.RESOURCES, nodes_needed=1, nodes_able=0)
T0 = 1_000_000.0


class Followed:
    """A full cluster with one job that waits; what a planner says of it is said by the test."""

    def __init__(self, trail: Trail | None = None) -> None:
        self.world = Scenario("1x2:h100")
        self.world.submit("runs", gpus=2)
        self.world.settle()
        self.trail = trail or Trail()
        self.look(T0)
        self.job_id = self.world.submit("waits", gpus=2)
        self.world.settle()
        self._told = 0

    def say(self, at: float, *reasons: Reason) -> None:
        self.world.state.verdicts[self.job_id] = Verdict(reasons)
        self.look(at)

    def look(self, at: float) -> None:
        self.world.now = at
        self.world.state.planned_at = at
        for _ in self.trail.look(lambda: self.world.state, at):
            pass

    def start(self, at: float) -> None:
        self.world.now = at
        self.world.finish("runs")
        since = len(self.world.journal)
        self.world.settle()
        self.trail.after(self.world.state, self.world.journal[since:])

    def told(self, at: float, *, everything: bool = False) -> list[tuple[float, float | None, str]]:
        return [
            (one.start - T0, None if one.end is None else one.end - T0, " ".join(word for word, _ in one.reasons))
            for one in self.trail.take(at, everything=everything)
        ]


def test_a_change_of_reasons_ends_one_span_and_begins_another() -> None:
    followed = Followed()
    followed.say(T0 + 10, PRIORITY)
    followed.say(T0 + 20, PRIORITY)
    followed.say(T0 + 30, RESOURCES, PRIORITY)
    followed.start(T0 + 50)
    assert followed.told(T0 + 60) == [(0, 30, "Priority"), (30, 50, "Resources Priority")]
    assert followed.told(T0 + 99, everything=True) == [], "each is told once"


def test_facts_alone_change_nothing_and_are_told_as_they_were_first() -> None:
    followed = Followed()
    followed.say(T0 + 10, RESOURCES)
    followed.say(T0 + 20, reason(ReasonKind.RESOURCES, nodes_needed=1, nodes_able=7))
    followed.start(T0 + 30)
    (one,) = followed.trail.take(T0 + 30)
    assert "0 are free" in one.reasons[0][1], "not the last word before it started: that enough was free"


def test_what_is_short_beside_the_wait_joins_the_span_before_it() -> None:
    followed = Followed()
    followed.say(T0 + 1, PRIORITY)
    for second in range(2, 4000):
        followed.say(T0 + second, RESOURCES if second % 2 else PRIORITY)
    told = followed.told(T0 + 4000, everything=True)
    assert len(told) < 150, "thousands of changes"
    assert told[0][0] == 0
    assert told[-1] == (told[-1][0], None, told[-1][2])
    assert all(one[1] == other[0] for one, other in pairwise(told)), "no gaps"


def test_a_span_that_lasts_is_told_while_it_is_open() -> None:
    followed = Followed()
    followed.say(T0 + 10, PRIORITY)
    assert followed.told(T0 + 20) == []
    assert followed.told(T0 + TOLD_AFTER_S) == [(0, None, "Priority")]
    followed.start(T0 + 700)
    assert followed.told(T0 + 700) == [(0, 700, "Priority")]


def test_a_daemon_that_comes_back_goes_on_where_it_was() -> None:
    followed = Followed()
    followed.say(T0 + 10, PRIORITY)
    written = followed.trail.take(T0 + 20, everything=True)
    followed.trail = Trail()
    gone = Waited(4711, T0, None, (("Priority", ""),))
    followed.trail.take_up([*written, gone])
    followed.say(T0 + 100, PRIORITY)
    assert followed.told(T0 + 100) == [(0, 100, "Priority")], "of the job that waits no more"
    followed.say(T0 + 200, RESOURCES)
    assert followed.told(T0 + 200) == [(0, 200, "Priority")]


def test_an_open_file_that_is_late_is_taken_up_all_the_same() -> None:
    followed = Followed()
    followed.say(T0 + 10, PRIORITY)
    followed.trail.take_up([Waited(followed.job_id, T0 - 500, None, (("Priority", ""),))])
    followed.start(T0 + 60)
    assert followed.told(T0 + 60) == [(-500, 60, "Priority")]


def test_a_wait_of_a_moment_is_not_told() -> None:
    followed = Followed()
    followed.say(T0 + 0.1, PRIORITY)
    followed.start(T0 + 0.5)
    assert followed.told(T0 + 9, everything=True) == []

"""What it costs to follow what keeps 100,000 jobs waiting: `python -m tests.support.waiting_costs` prints CPU times."""

from __future__ import annotations

import copy
import time

from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.plan.decisions import BEHIND
from bireme.core.state.state import State, Verdict
from bireme.daemon.telemetry.trail import Trail
from bireme.testing.scenario import Scenario

JOBS = 100_000
T0 = 1_000_000.0


def waiting() -> State:
    """A cluster that one job fills, and as many that wait for it."""
    world = Scenario("1x2:h100")
    world.submit("runs", gpus=2)
    world.submit("waits", gpus=2)
    world.settle()
    one = world.job("waits")
    for job_id in range(10, 10 + JOBS):
        job = copy.copy(one)
        job.id = job_id
        world.state.pending[job_id] = job
        world.state.verdicts[job_id] = BEHIND
    return world.state


def look(trail: Trail, state: State, at: float, what: str) -> None:
    slices, longest, began = 0, 0.0, time.process_time()
    before = began
    for _ in trail.look(lambda: state, at):
        now = time.process_time()
        slices, longest, before = slices + 1, max(longest, now - before), now
    took = time.process_time() - began
    print(f"{what}: {1000 * took:.0f} ms in {slices} slices, the longest {1000 * longest:.1f} ms")


def judge(state: State, kind: ReasonKind) -> None:
    for job_id in range(10, 10 + JOBS):
        state.verdicts[job_id] = Verdict((reason(kind, nodes_needed=1),))


def main() -> None:
    state, trail = waiting(), Trail()
    look(trail, state, T0 + 1, "the first look")
    look(trail, state, T0 + 2, "nothing new")
    judge(state, ReasonKind.PRIORITY)
    look(trail, state, T0 + 3, "all judged anew, for the same reasons")
    judge(state, ReasonKind.RESOURCES)
    look(trail, state, T0 + 2000, "all for other reasons")


if __name__ == "__main__":
    main()

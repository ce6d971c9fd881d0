"""How long a fence takes: from a detector's report to the fence on disk, and for hundreds of nodes at once.

The kernel as the daemon runs it, with its journal on disk, on a cluster of thousands of nodes whose GPUs are in use.
What detectors need to see something, and what agents do about it, is not in these figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from bench.folders import new_folder
from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.core.faults.fences.shelves import FENCES
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Gravity, Place, Trouble
from bireme.core.model.healing.policy import HealingMode, HealingPolicy
from bireme.core.model.jobs import JobSpec, Owner, ResourceRequest
from bireme.core.model.observations import TroubleSeen
from bireme.core.model.resources import Allocation, GresShare, NodeShare
from bireme.runtime.kernel import Kernel, Request
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore
from bireme.testing.worlds import build_cluster

MANY = 750
"""As many as NVSentinel needed 304 s for."""
DECIDED_MS, ALL_S = 100.0, 5.0
_TIMES = 9


def measure(sizes: Sizes) -> Iterator[Row]:
    nodes = sizes.plan_nodes
    many = min(MANY, nodes // 10)
    cluster = FullCluster(Path(new_folder("fences")), nodes)
    took = [cluster.fenced_ms(Place(node=f"n{number}", gpu=number % 8)) for number in range(1, _TIMES + 1)]
    yield Row("fences", f"a report to its fence on disk, {nodes} nodes", statistics.median(took), "ms",
              target=Target("<", DECIDED_MS), details={"each": took})  # fmt: skip
    first = _TIMES + 1
    places = [Place(node=f"n{number}", gpu=3) for number in range(first, first + many)]
    yield Row("fences", f"{many} GPUs fenced, each of another node", cluster.all_fenced_s(places), "s",
              target=Target("<", ALL_S))  # fmt: skip
    places = [Place(node=f"n{number}") for number in range(first + many, first + 2 * many)]
    yield Row("fences", f"{many} nodes drained", cluster.all_fenced_s(places), "s", target=Target("<", ALL_S))
    cluster.close()


class FullCluster:
    """A kernel with its journal on disk, and so many nodes with eight GPUs, all of them in use."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.store = SqliteStore(str(folder / "journal.db"))
        self.kernel = Kernel(self.store, rows_of)
        self.kernel.commit(self.kernel.configure(build_cluster(f"{nodes}x8:h100"), 0.0))
        policy = HealingPolicy(mode=HealingMode.ACT, breaker_percent=30.0)
        self._happen([e.HealingPolicySet(policy), *(e.NodeRegistered(f"n{each}", 0.0) for each in range(1, nodes + 1))])
        self._happen([event for each in range(1, nodes + 1) for event in _job_on(each)])

    def _happen(self, events: list[e.Event]) -> None:
        self.kernel.requests.append(Request("bench", lambda state, now: events, lambda done, error: None))
        self._turn(may_plan=False)

    def _turn(self, *, may_plan: bool = True) -> None:
        group = self.kernel.turn(1.0, time_passed=False, may_plan=may_plan)
        self.kernel.commit(group)
        self.kernel.settle(group)

    def fenced_ms(self, place: Place) -> float:
        self.kernel.observations.append(_seen(place))
        begun = time.perf_counter()
        self._turn(may_plan=False)
        took = (time.perf_counter() - begun) * 1_000
        assert place.key in FENCES.of(self.kernel.state)
        return took

    def all_fenced_s(self, places: list[Place]) -> float:
        """With the planning pass that follows."""
        self.kernel.observations.extend(_seen(place) for place in places)
        begun = time.perf_counter()
        self._turn()
        took = time.perf_counter() - begun
        assert all(place.key in FENCES.of(self.kernel.state) for place in places)
        return took

    def close(self) -> None:
        self.store.close()


def _seen(place: Place) -> TroubleSeen:
    trouble = Trouble(detector="xid", place=place, gravity=Gravity.BROKEN, cause="gpu_lost",
                      title="a GPU fell off the bus (Xid 79)", since=1.0)  # fmt: skip
    return TroubleSeen(trouble, 1.0)


def _job_on(number: int) -> list[e.Event]:
    """One that has six of the node's GPUs."""
    spec = JobSpec(owner=Owner(uid=1, gid=1, user="alice"), partitions=("main",), resources=ResourceRequest())
    gpus = GresShare("gpu", "h100", 6, tuple(range(6)))
    share = NodeShare(f"n{number}", cpus=6, memory_mib=0, cpu_ids=tuple(range(6)), gres=(gpus,))
    allocation = Allocation(number, 1, "main", (share,))
    return [e.JobSubmitted(number, spec, 1, 0.0, ()), e.JobAllocated(number, allocation), e.JobStarted(number, 1, 0.0)]

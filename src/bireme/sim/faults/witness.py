"""The truth, and the rules of safety: what may never happen, whatever goes wrong.

Simulated agents tell it what really happens on the nodes (`agents.Witness`), the player what was committed to the
journal. A broken rule raises `Violation` at once, with the words of the rule. It never looks at the kernel's memory:
what is compared there (`rules_of_state`) is given to it.

Invariant: it only listens; nothing that it does changes what happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bireme.core.model import events as e
from bireme.core.model.cluster import NodeConfig
from bireme.core.model.resources import Allocation, ExitStatus
from bireme.engines.simulated.agents import Key, Run, SimulatedAgent

STARTS_AT_MOST = 40
"""No world has so many faults: a job that is started more often is sent round in circles."""


class Violation(AssertionError):  # noqa: N818  (named for what happened)
    """A rule of safety or liveness is broken."""


@dataclass(slots=True)
class Truth:
    """What really became of one start of a job."""

    allocation: Allocation
    prepared: set[str] = field(default_factory=set)
    scripts: int = 0
    """How often its script began: once at most."""
    status: ExitStatus | None = None
    label: str = ""
    """Whose it is, as people write it, once it began."""
    by_itself: bool = False
    """It ended, and nobody had told it to."""
    over: bool = False
    """The journal says that nothing of it is left, but where it says so."""


class GroundTruth:
    def __init__(self) -> None:
        self.agents: Mapping[str, SimulatedAgent] = {}
        self.nodes: dict[str, NodeConfig] = {}
        self.starts: dict[Key, Truth] = {}
        """By (job, generation), of all that the journal allocated."""
        self.accepted: dict[str, int] = {}
        """Submissions that were answered with an id, by their key."""
        self.left: set[tuple[str, Key]] = set()
        """Where the journal says that something of a start that is over may be left."""
        self.known: set[int] = set()
        self.forgotten: set[int] = set()
        self.lost: set[Key] = set()
        """Starts that nodes know and that the journal has lost."""
        self.numbers_skipped = 0
        """Of starts, after a loss: none of them may mean two."""

    # -- what happens on nodes: agents.Witness -----------------------------------------------------------------------

    def held(self, agent: SimulatedAgent, run: Run) -> None:
        if run.key not in self.starts:
            raise Violation(f"{_name(run.key)} arrived on {agent.node}, and the journal knows no such start")
        others = [other for other in agent.runs.values() if other is not run]
        taken = Counter(_holdings(run))
        for other in others:
            both = taken & Counter(_holdings(other))
            if both:
                what = ", ".join(sorted(f"{kind} {number}" for kind, number in both))
                raise Violation(f"{agent.node}: {what} held twice, by {_name(run.key)} and {_name(other.key)}")
        self._fits(agent, [*others, run])

    def _fits(self, agent: SimulatedAgent, runs: Sequence[Run]) -> None:
        """Memory, and parts of GPUs, by their amounts."""
        node = self.nodes[agent.node]
        memory_mib = sum(run.share["memory_mib"] for run in runs)
        if node.memory_mib > 1 and memory_mib > node.memory_mib:
            raise Violation(f"{agent.node}: {memory_mib} MiB are held, it has {node.memory_mib}")
        parts: Counter[int] = Counter()
        whole = {
            index for run in runs for name, _, _, indices, _ in run.share["gres"] if name == "gpu" for index in indices
        }
        for run in runs:
            for _, _, _, _, held in run.share["gres"]:
                parts.update(dict(held))
        capacity = {gpu: count for pool in node.gres for gpu, count in pool.parts}
        for gpu, count in parts.items():
            if count > capacity.get(gpu, 0) or gpu in whole:
                raise Violation(f"{agent.node}: {count} parts of GPU {gpu} are held, and it whole: {gpu in whole}")

    def prepared(self, agent: SimulatedAgent, run: Run) -> None:
        self.starts[run.key].prepared.add(agent.node)

    def began(self, agent: SimulatedAgent, run: Run, step: int | None) -> None:
        truth = self.starts[run.key]
        if truth.over:
            raise Violation(f"{_name(run.key)} began something on {agent.node} after the journal had ended it")
        if step is not None:
            return
        truth.scripts += 1
        if truth.scripts > 1:
            raise Violation(f"{_name(run.key)} ran twice: its script began again on {agent.node}")
        truth.label = run.label
        for lost in (self.starts[key] for key in self.lost if key != run.key):
            if lost.label == run.label and lost.by_itself:
                raise Violation(f"{_name(run.key)} runs again after a loss, and a node saw {run.label} to its end")
        missing = set(run.gang) - truth.prepared
        if missing:
            raise Violation(f"{_name(run.key)}: its script began before {', '.join(sorted(missing))} was prepared")
        for other in self.agents.values():
            twin = other.runs.get(run.key[0])
            if twin is None or twin.key == run.key or (other.node, twin.key) in self.left:
                continue  # where nobody answers it is ended before anybody else gets its place
            if twin.living():
                raise Violation(f"{_name(run.key)} began while {_name(twin.key)} still ran on {other.node}")

    def ended(self, agent: SimulatedAgent, run: Run, step: int | None, status: ExitStatus) -> None:
        if step is None:
            self.starts[run.key].status = status
            self.starts[run.key].by_itself = not run.ending

    # -- what the journal says -----------------------------------------------------------------------------------------

    def committed(self, events: Sequence[e.Recorded]) -> None:
        over: list[Key] = []
        for recorded in events:
            event = recorded.event
            if isinstance(event, e.JobSubmitted | e.ArrayTaskSplit | e.ArrayPartSplit):
                self.known.add(event.job_id)
            elif isinstance(event, e.JobAllocated):
                self._allocated(event)
            elif isinstance(event, e.BatchExited):
                self._exited(event)
            elif isinstance(event, e.JobEnded | e.JobLaunchFailed):
                over.append((event.job_id, event.generation))
                self.starts[over[-1]].over = True
            elif isinstance(event, e.LeftoverFound):
                self.left.add((event.node, (event.job_id, event.generation)))
            elif isinstance(event, e.LeftoverCleared):
                over.append((event.job_id, event.generation))
                self.left -= {each for each in self.left if each[1] == over[-1] and each[0] not in event.still_on}
            elif isinstance(event, e.JobForgotten):
                self.forgotten.add(event.job_id)
        for key in over:
            if key not in self.lost:  # where else it was, the journal does not know: its nodes say so one by one
                self._is_over(key)

    def _allocated(self, event: e.JobAllocated) -> None:
        key = (event.job_id, event.allocation.generation)
        if key in self.starts:
            raise Violation(f"{_name(key)} was allocated twice")
        before = self.starts.get((event.job_id, event.allocation.generation - 1))
        if before is not None and not before.over:
            raise Violation(f"{_name(key)} was allocated before its last start was over")
        if key[1] > STARTS_AT_MOST + self.numbers_skipped:
            raise Violation(f"{_name(key)}: it is started again and again, and never gets to its end")
        self.starts[key] = Truth(event.allocation)

    def _exited(self, event: e.BatchExited) -> None:
        key = (event.job_id, event.generation)
        status = self.starts[key].status
        if status != event.status:
            raise Violation(f"{_name(key)}: the journal says it exited with {event.status}, the truth is {status}")

    def _is_over(self, key: Key) -> None:
        for agent in self.agents.values():
            run = agent.runs.get(key[0])
            if run is not None and run.key == key and (agent.node, key) not in self.left:
                raise Violation(f"{_name(key)} is over, says the journal, and is still on {agent.node}")


def _name(key: Key) -> str:
    return f"job {key[0]} (start {key[1]})"


def _holdings(run: Run) -> list[tuple[str, int]]:
    """What nobody else may have at the same time: whole devices, and CPUs while it is not stopped."""
    found = [("CPU", number) for number in run.share["cpu_ids"] if not run.stopped]
    for name, kind, _, indices, _ in run.share["gres"]:
        found.extend((f"{name}:{kind}", index) for index in indices)
    return found

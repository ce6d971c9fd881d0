"""An engine that does what it is told at once: every command is answered before the next event.

Holds what a real one would hold (which job runs where), so that a node which comes back can say what it still knows.
A scenario may make it silent, or make it refuse a job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.jobs import JobKind
from bireme.core.model.resources import NO_USAGE, ExitStatus

TERM, KILL = 15, 9


class InstantEngine:
    def __init__(self) -> None:
        self.outbox: deque[o.Observation] = deque()
        self.commands: list[c.Command] = []
        """Everything it was ever told, oldest first."""
        self.holds: dict[tuple[int, int], tuple[str, ...]] = {}
        """(job, generation) -> its nodes."""
        self.scripts: set[int] = set()
        """Jobs whose batch script runs."""
        self.refuses: dict[int, str] = {}
        """Jobs that it will not start -> why."""
        self.obeys = True
        """False: commands are noted and nothing happens, as when agents do not answer."""

    def send(self, commands: Sequence[c.Command], now: float) -> None:
        self.commands.extend(commands)
        for command in commands if self.obeys else ():
            self._obey(command, now)

    def _obey(self, command: c.Command, now: float) -> None:
        match command:
            case c.LaunchJob(job, allocation):
                if job.id in self.refuses:
                    self.outbox.append(o.JobRefused(job.id, allocation.generation, self.refuses[job.id], now))
                    return
                self.holds[job.id, allocation.generation] = allocation.node_names
                if job.spec.kind is JobKind.BATCH:
                    self.scripts.add(job.id)
                self.outbox.append(o.JobLaunched(job.id, allocation.generation, now))
            case c.TerminateJob(job_id, generation, _, grace_s, _):
                self._terminate(job_id, generation, TERM if grace_s else KILL, now)
            case c.LaunchStep(job, allocation, step):
                self.outbox.append(o.StepBegan(job.id, allocation.generation, step.id, now))
            case c.TerminateStep(job_id, generation, step_id, nodes, _, _):
                for node in nodes:
                    status = ExitStatus(signal=TERM)
                    self.outbox.append(o.StepNodeFinished(job_id, generation, step_id, node, status, NO_USAGE, now))

    def _terminate(self, job_id: int, generation: int, signal: int, now: float) -> None:
        self.holds.pop((job_id, generation), None)
        if job_id in self.scripts:
            self.scripts.discard(job_id)
            self.outbox.append(o.BatchFinished(job_id, generation, ExitStatus(signal=signal), now))
        self.outbox.append(o.JobCleared(job_id, generation, now))

    def finish(self, job_id: int, generation: int, status: ExitStatus, now: float, cleared: bool) -> None:
        """The batch script ends by itself."""
        self.scripts.discard(job_id)
        if cleared:
            self.holds.pop((job_id, generation), None)
        self.outbox.append(o.BatchFinished(job_id, generation, status, now, cleared=cleared))

    def answer(self, node: str, now: float) -> None:
        held = tuple(key for key, nodes in self.holds.items() if node in nodes)
        self.outbox.append(o.NodeAnswered(node, "instant", held, now))

    def forget(self, node: str) -> None:
        """The node's agent died and took what it knew with it."""
        self.holds = {key: nodes for key, nodes in self.holds.items() if node not in nodes}

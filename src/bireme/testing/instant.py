"""The engine of scenarios: the simulated one, whose scripts run until a scenario ends them.

A scenario may make it deaf, or make it refuse a job, and may read everything it was ever told.
"""

from __future__ import annotations

from collections.abc import Iterable

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.jobs import Job
from bireme.core.model.resources import Allocation
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.engine import PerfectWire, Script, SimulatedEngine


class InstantEngine(SimulatedEngine, PerfectWire):
    """An engine that is its own wire: it sees every command before it is obeyed."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, self._script, wire=self)
        self.commands: list[c.Command] = []
        """Everything it was ever told, oldest first."""
        self.refuses: dict[int, str] = {}
        """Jobs that it will not start -> why."""
        self.obeys = True
        """False: commands are noted and nothing happens, as when agents do not answer."""

    def _script(self, job: Job, allocation: Allocation) -> Script:
        return Script(refused=self.refuses.get(job.id, ""))

    def down(self, command: c.Command) -> Iterable[tuple[float, c.Command]]:
        self.commands.append(command)
        return super().down(command) if self.obeys else ()

    def up(self, seen: o.Observation) -> Iterable[tuple[float, o.Observation]]:
        return super().up(seen)

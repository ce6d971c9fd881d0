"""What the inside asks of the outside: Engine, Journal, Blobs, Clock. The whole boundary of the runtime in one page.

The runtime knows these and never an engine or a database. Engines obey and report; they never decide.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.commands import Command
from bireme.core.model.events import Event, Recorded
from bireme.core.model.jobs import Owner
from bireme.core.model.observations import Observation
from bireme.slurm.records.steps import Row

Report = Callable[[Sequence[Observation]], None]
"""Called by an engine, from the event loop's thread, whenever it has something to say."""


HistoryRow = Row
"""A finished job or step, as `slurm/records` describes it."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class StepEndpoint:
    """Where the streams of a step on one node can be reached: `unix:PATH` or `tcp:HOST:PORT`."""

    node: str
    address: str
    inside: str = ""
    """The same, for a caller inside the job, where the job's nodes do not share this machine."""


class EngineUnavailable(Exception):  # noqa: N818  (says what it is)
    """The engine's cluster cannot be reached, or is not one it can work with. The text says what to do."""


class Engine(Protocol):
    """Takes commands, returns observations. Every method returns at once; failures come back as observations."""

    name: str
    places_by_itself: bool

    async def start(self, report: Report) -> None:
        """Connects, finds what still runs, and begins to report. Raises EngineUnavailable."""

    async def stop(self) -> None:
        """Lets go without ending any job."""

    async def end_jobs(self, grace_s: float) -> None:
        """`bireme down --end-jobs`: ends every job that is this engine's own, and what it keeps up to run them."""

    def reconfigure(self, config: ClusterConfig) -> None:
        """The cluster is described anew: nodes may have come or gone."""

    def send(self, commands: Sequence[Command]) -> None:
        """Obeys. A command that was already obeyed (same generation) changes nothing and is confirmed again."""

    def step_endpoints(self, job_id: int, step_id: int) -> tuple[StepEndpoint, ...]:
        """Where `srun` and `sattach` reach the step's streams."""

    async def live_usage(self, job_id: int) -> dict[str, Any]:
        """What the running steps use right now (sstat): step label -> Usage as a mapping."""

    def acknowledge(self, job_id: int, generation: int) -> None:
        """The end of this generation is on disk: the engine may forget it."""


Admit = Callable[[socket.socket, Owner, int], None]
"""Takes a connected socket and serves the API on it, as this owner and only for this job."""


@runtime_checkable
class AdmitsCommands(Protocol):
    """An engine whose jobs run on other machines: the commands inside them come to the API through it."""

    admit: Admit


class JournalError(OSError):
    """The journal could not be written (disk full, read-only, IO error). Nothing of the group was stored."""


class Journal(Protocol):
    """Events appended in groups, one fsync a group; history rows in the same transaction."""

    def append(self, events: Sequence[tuple[float, str, Event]], history: Sequence[HistoryRow]) -> int:
        """Stores (time, cause, event) in order, and history rows; returns the last seq. Durable when it returns."""

    def replay(self, after: int) -> Iterator[Recorded]:
        """Events after `after`, oldest first."""

    def latest_snapshot(self) -> tuple[int, Any] | None:
        """(seq, State) of the newest readable snapshot."""

    def write_snapshot(self, seq: int, state: Any) -> None:
        """Stores a snapshot; older ones and the events they cover may be dropped per retention."""

    def story(self, job_id: int) -> list[Recorded]:
        """Every event about one job, oldest first."""


class Blobs(Protocol):
    """Scripts and environments, by the hash of their content."""

    def put(self, data: bytes) -> str: ...

    def get(self, blob_id: str) -> bytes: ...

"""What the inside asks of the outside, and the boundary of the runtime: Engine, ForeignQueue, Store, Clock.

The runtime knows these and never an engine or a database. Engines obey and report; they never decide.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from bireme.core.accounting.ranks import Rank
from bireme.core.kinds.kind import Entry
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.commands import Command
from bireme.core.model.events import Event, Recorded
from bireme.core.model.jobs import Job, JobSpec, Owner
from bireme.core.model.observations import Observation
from bireme.core.model.refusals import Caller
from bireme.core.model.resources import Allocation
from bireme.core.model.steps import StepSpec
from bireme.core.services.routing_table import Routed
from bireme.core.state.state import State
from bireme.core.telemetry.curves import Asked, Column, Curve
from bireme.core.telemetry.digest import Digest
from bireme.core.telemetry.exported import Measured
from bireme.core.telemetry.metrics import About
from bireme.core.telemetry.subjects import Subject
from bireme.core.telemetry.waiting import Waited
from bireme.slurm.records.steps import Row

Report = Callable[[Sequence[Observation]], None]
"""Called by an engine, from the event loop's thread, whenever it has something to say."""


HistoryRow = Row
"""A finished job or step, as `slurm/records` describes it."""


Records = Callable[[State, Entry, float], Sequence[HistoryRow]]
"""How what a kind puts into the history is written down there."""


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

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beyond this, and who does it."""

    @property
    def problem(self) -> str:
        """What keeps it from its work right now, in one sentence for people; empty when nothing does."""

    @property
    def about(self) -> str:
        """What it is attached to, and what that costs, in a few words for people; empty: nothing to say."""

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


Further = Callable[[Job, Allocation], Mapping[str, str]]
"""Variables that a job is given where its own environment does not have them."""


class WritesEnvironments(Protocol):
    """An engine that writes the environments of jobs itself."""

    def tell_further(self, further: Further) -> None:
        """From now on jobs and steps that start are given these."""


Admit = Callable[[socket.socket, Owner, int], None]
"""Takes a connected socket and serves the API on it, as this owner and only for this job."""


class AdmitsCommands(Protocol):
    """An engine whose jobs run on other machines: the commands inside them come to the API through it."""

    admit: Admit


class ConfinesJobs(Protocol):
    """An engine that holds jobs to their memory, CPUs and devices itself, as far as its nodes let it."""

    def unconfined(self) -> dict[str, str]:
        """Of memory, cpus and devices what it was to hold jobs to and cannot, at least on one node, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What somebody asks of jobs (or nodes) that are in a queue which is not ours, in Slurm's words."""

    verb: str
    """cancel, signal, hold, release, requeue, suspend, resume, update, update_nodes."""
    target: str
    """As people write it: `42`, `42_7`, `42+1`, `42.0`; for update_nodes a hostlist."""
    signal: int | None = None
    scope: str = ""
    """Of a signal: batch, steps or all."""
    held: bool = False
    """Of requeue: it is not to start again by itself."""
    as_user: bool = False
    """Of hold: its owner may release it."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of update: by the names of JobSpec and ResourceRequest; of update_nodes: state, reason, weight, features."""


Followed = Literal["queue", "nodes", "history"]
"""What is known of another scheduler from looking at it now and then."""


class ForeignQueue(Protocol):
    """The queue of an engine that places by itself. It decides: a refusal is its own, in its words."""

    def takes(self, specs: Sequence[JobSpec]) -> bool:
        """Whether a job with these components is this queue's to decide about; (): whether everything is."""

    def takes_nodes(self, names: Sequence[str]) -> bool:
        """Whether all of these nodes are looked after by this queue's scheduler."""

    async def submit(self, specs: Sequence[JobSpec], key: str) -> int:
        """Submits with the owner's identity; the id it got. A key that was seen before: the id of then.

        Returns when the job is in the queue and was reported. Raises Refusal.
        """

    async def obey(self, caller: Caller, order: Order) -> None:
        """Has an order carried out with the caller's identity; returns when it is, and was reported. Raises Refusal."""

    async def catch_up(self, job_ids: Sequence[int]) -> None:
        """Has reported, when it returns, what is to be known of jobs (or arrays) that ended a moment ago; () is all."""

    def out_of_date(self, what: Followed) -> str:
        """How old what is known of it is, and why, in one sentence; empty while it is as young as it is meant to be."""


class QueueRefusal(Exception):  # noqa: N818  (caught as what it is: a refusal)
    """Why the queue does not take a job. `passing`: it may, later."""

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


class JobQueue(Protocol):
    """The queue, for an engine on which others run things that Bireme is to place."""

    async def submit(self, specs: Sequence[JobSpec], key: str) -> tuple[int, int]:
        """The first job id and how many follow on each other: one for each component. Raises QueueRefusal."""

    async def withdraw(self, job_id: int) -> bool:
        """Takes it, with all its components, out of the queue; whether it is out: not if it has been started."""

    def workloads(self) -> Sequence[Job]:
        """Jobs of others' pods that have not ended."""

    def why_waiting(self, job_id: int) -> str:
        """What the latest plan said of it; empty if it does not wait or was not planned yet."""

    def qos_named(self, name: str) -> str:
        """The QOS of that name; empty if there is none."""

    async def keep_ranks(self, ranks: Sequence[Rank]) -> None:
        """A QOS for each, that may preempt every lower one."""


class KeepsAgents(Protocol):
    """An engine whose jobs are held by agents on this machine."""

    async def living_agents(self) -> dict[str, bool]:
        """Nodes that have an agent now; whether it is heard here, and will be ended by `end_jobs`."""

    async def silent_agents(self, within_s: float) -> list[str]:
        """Nodes whose agents are connected and do not answer a question in this time."""


class RemembersPast(Protocol):
    """An engine whose agents know for some time how jobs ended that they were told to forget."""

    recalls: Callable[[], bool]
    """Whether they are to tell it again: events were lost, and not all nodes have been heard since."""

    def hear_again(self) -> None:
        """Has every node answer once more, and say what it knows."""


class TakesGuests(Protocol):
    """An engine that brings jobs of its own into the queue."""

    queue: JobQueue | None


@dataclass(frozen=True, slots=True)
class PublishedService:
    """A service as an engine with load balancers of its own is told of it."""

    routed: Routed
    job: JobSpec
    """What its replicas are."""


class PublishesServices(Protocol):
    """An engine whose cluster has a way of its own to reach services."""

    def publish(self, services: Sequence[PublishedService]) -> None:
        """All services as they are from now on."""


class AsksBeside(Protocol):
    """An engine without agents that can run a short command in a job of its queue."""

    async def ask_beside(self, job: Job, command: Sequence[str], timeout_s: float) -> str:
        """What is wrong, by a command run in a running job, on its first node; empty: it exited with 0 in time."""


class KnowsPods(Protocol):
    """An engine that can say why a pod is not in the queue, and whose pod it is."""

    def why_outside(self, namespace: str, pod: str) -> str:
        """Why this pod waits outside; empty: it does not know such a pod, or the pod is in the queue."""

    def start_of_pod(self, uid: str) -> tuple[int, int, str] | None:
        """(job, generation, node) of a pod in which a job of Bireme's runs or ran; None: it is no such pod. `uid`: the
        pod's, the id of its container, or `NAMESPACE/NAME`."""


class MarksNodes(Protocol):
    """The cluster is others' too: what Bireme keeps its jobs off, others are to be kept off as well."""

    async def keep_out(self, nodes: Mapping[str, str]) -> None:
        """These nodes, each with the reason, and no others are marked by Bireme; marks of others stay. Raises OSError
        where the cluster cannot be reached: it is said again."""


class AwaitsImages(Protocol):
    """An engine whose nodes fetch images themselves."""

    async def awaited_images(self, job_id: int) -> Mapping[str, tuple[str, ...]]:
        """By node: the images that the script and steps of a job wait for, and how far they are."""


class RefusesContainers(Protocol):
    """An engine that cannot give a job every container that can be asked for."""

    def why_no_container(self, spec: JobSpec | StepSpec) -> str:
        """Why it cannot run like this; empty: it can, or asks for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do beyond `Engine`: for each port that not every engine has, who answers it, or None.

    One value, so that an engine that is made of others says it in their words (`engines/routing`), and so that nobody
    asks an engine for its class. The same for as long as the engine lives.
    """

    queue: ForeignQueue | None = None
    """It has a scheduler of its own, which places what is in this queue."""
    past: RemembersPast | None = None
    confinement: ConfinesJobs | None = None
    agents: KeepsAgents | None = None
    commands: AdmitsCommands | None = None
    environments: WritesEnvironments | None = None
    guests: TakesGuests | None = None
    pods: KnowsPods | None = None
    containers: RefusesContainers | None = None
    images: AwaitsImages | None = None
    publisher: PublishesServices | None = None
    fencing: MarksNodes | None = None
    beside: AsksBeside | None = None
    """Of its queue's jobs."""


class JournalError(OSError):
    """The journal could not be written (disk full, read-only, IO error). Nothing of the group was stored."""


class BlobShareError(JournalError):
    """A blob of a user of whom so much waits to be stored that others have no room: it is to be sent again later."""


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

    def snapshot_writer(self, seq: int, state: Any) -> Callable[[], None]:
        """In two halves: the state is taken now, and may change while another thread calls what is returned."""

    def story(self, job_id: int) -> list[Recorded]:
        """Every event about one job, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """Which finished jobs. Empty or None: no such condition."""

    start: float | None = None
    """Jobs that ended at or after this time."""
    ended_before: float | None = None
    end: float | None = None
    """Jobs that were submitted before this time."""
    users: tuple[str, ...] = ()
    uids: tuple[int, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    jobs: tuple[tuple[int, int | range | None], ...] = ()
    """(job id, array task id or several, None for all of it)."""
    with_steps: bool = False
    duplicates: bool = False
    """Also the earlier runs of requeued jobs."""
    limit: int | None = None
    newest: int | None = None
    """At most so many, those that ended last, the latest first."""


class Archive(Protocol):
    """What was: finished jobs, and the events that tell of them."""

    def finished(self, query: HistoryQuery) -> list[dict[str, Any]]:
        """Records of jobs, as `slurm/records` describes them. Raises StoreError if one of them is damaged."""

    def sound_and_damaged(self, query: HistoryQuery) -> tuple[list[dict[str, Any]], list[str]]:
        """Jobs that have ended, as `finished`, and beside them which could not be read, in words."""

    def pages(self, query: HistoryQuery, size: int) -> Iterator[tuple[list[dict[str, Any]], list[str]]]:
        """As `sound_and_damaged`, by their end, so many at a time: what a year had is never in memory together. Other
        readers have their turn between two pages. `limit` and `newest` of the query are not for it."""

    def story_of_service(self, name: str, limit: int) -> list[Recorded]:
        """The newest `limit` events about a service, its revisions and replicas, oldest first."""

    def story(self, job_id: int) -> list[Recorded]:
        """Every event about one job, oldest first."""

    def story_of_node(self, node: str, limit: int) -> list[Recorded]:
        """Of the newest events about a node so many, newest first; not further back than is read quickly."""

    def asked_for(self, before: int, limit: int) -> list[Recorded]:
        """What people asked for that is about no job, newest first, before this event of the journal; not further back
        than is read quickly."""

    def events_after(self, after: int, limit: int) -> list[Recorded]:
        """Events after `after`, so many at most, oldest first."""


class LostBlobError(Exception):
    """A script or an environment is gone, or is not what was stored: who needs it cannot run. The text names it."""


class Blobs(Protocol):
    """Scripts and environments, by the hash of their content."""

    def put(self, data: bytes, uid: int | None = None) -> str:
        """`uid`: whose share of what is not stored yet it counts for. Raises BlobShareError, JournalError."""

    def get(self, blob_id: str) -> bytes:
        """What was put. Raises LostBlobError."""


class StoreError(Exception):
    """The store cannot be used. The text names the file and says what to do."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Figures of several subjects at one time, a row for each metric: as a gatherer's round has them, counters as what
    they grew by in a second. NaN: not measured."""

    at: float
    interval_s: float
    subjects: tuple[Subject, ...]
    values: Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class Holding:
    """A job that had a GPU for a time, whole or in part: whose the figures of that GPU were."""

    job_id: int
    generation: int
    node: str
    uuid: str
    shared: bool
    """Others may have had other parts of it at the same time."""
    start: float
    end: float | None
    """None: it still has it."""


@dataclass(frozen=True, slots=True)
class Happened:
    """Something that a gatherer told once: an Xid, a GPU that came or went, a process that is nobody's."""

    at: float
    node: str
    kind: str
    uuid: str = ""
    code: int = 0
    pid: int = 0
    task: str = ""
    """`JOB.GENERATION.STEP.TASK`; empty: nobody's, or not known."""
    text: str = ""


class SeriesError(OSError):
    """Samples could not be written or read (disk full, damaged). Jobs do not mind; the text says what to do."""


class Series(Protocol):
    """What was measured, over time: appended in groups, thinned out with age. Nothing of it is needed to run jobs.

    Called from one thread at a time for writing; reading, `append` and `hold` may go on beside it and return at once.
    """

    @property
    def problem(self) -> str:
        """What is not well with it (damage that was passed over, a full disk), in one sentence; empty: nothing."""

    def append(self, gatherer: str, no: int, samples: Sequence[Sampled]) -> None:
        """Takes in a round of a gatherer's; one that it has, by its number, changes nothing. Kept after `flush`.

        Raises SeriesError where too much waits for a disk that takes nothing: the round was not taken, and is to be
        told again later.
        """

    def flush(self) -> Mapping[str, int]:
        """All that was appended is on disk when it returns: the latest round of each gatherer. Raises SeriesError."""

    def read(self, asked: Asked) -> list[Curve]:
        """A curve for each subject and metric of which anything was measured, all with the same start and steps: of
        `asked.step_s` or a little longer, and no shorter than what is left of that time. Raises SeriesError."""

    def read_held(self, held: Sequence[Holding], asked: Asked) -> list[Curve]:
        """Curves of a job's whole GPUs, without anything of a time in which another job had them. The subjects of
        `asked` do not count. Raises SeriesError."""

    def latest(self, about: About) -> list[tuple[Subject, float, Mapping[str, float]]]:
        """The newest figures of each subject, with their time, of those heard within a few intervals."""

    def subjects(self, about: About, prefix: str, start: float, end: float) -> list[Subject]:
        """Those whose id begins so and of which anything was measured in that time."""

    def hold(self, holdings: Sequence[Holding]) -> None:
        """Writes down whose GPUs these were; one that is known (job, generation, GPU) gets its end, or has none any
        more. Kept after `flush`: after a crash they are to be said again, also those that ended."""

    def holdings(
        self, *, job_id: int | None = None, uuid: str | None = None, start: float = 0.0, end: float | None = None
    ) -> list[Holding]:
        """Those of a job, or of a GPU, that overlap the time."""

    def open_holdings(self) -> list[Holding]:
        """Those that have no end yet."""

    def note_waits(self, waits: Sequence[Waited]) -> None:
        """Writes down what kept jobs waiting; a span that is known (job, start) gets its end. Kept after `flush`."""

    def waits(self, job_id: int) -> list[Waited]:
        """Those of a job, oldest first."""

    def open_waits(self) -> list[Waited]:
        """Those that have no end yet."""

    def note_happenings(self, happenings: Sequence[Happened]) -> None:
        """Writes down what happened. Kept after `flush`."""

    def happenings(self, *, task_prefix: str, uuids: Collection[str], start: float, end: float) -> list[Happened]:
        """Those of tasks whose id begins so, and those of these GPUs, in that time; oldest first."""

    def digest(self, job_id: int, generation: int, start: float, end: float) -> Digest:
        """Reckoned now, from the curves of that start of a job. Raises SeriesError."""

    def keep_digests(self, made: Sequence[Digest]) -> None:
        """Of starts that are over, in place of those that are known of them. Kept after `flush`."""

    def digests(self, job_ids: Collection[int], *, steps: bool = True) -> list[Digest]:
        """Those that are kept, of all starts of these jobs."""

    def digested_until(self) -> float | None:
        """The latest end of a start whose digest is on disk; None: there is none."""

    def thin_out(self, now: float) -> None:
        """Makes old samples coarser and drops the oldest, by what is to be kept. Called now and then, as every ten
        minutes; takes seconds once an hour with a thousand GPUs. Raises SeriesError."""

    def close(self) -> None:
        """Nothing is asked of it any more."""


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """A GPU, or a MIG instance of one, that a gatherer knows."""

    node: str
    uuid: str
    index: int
    """On its machine; of an instance that of its GPU."""
    model: str
    memory_mib: int
    parent: str
    """Of an instance: the UUID of its GPU."""
    profile: str
    job_ids: tuple[int, ...]
    """Who has it, or parts of it, now."""


@dataclass(frozen=True, slots=True)
class NewestRound:
    """How far a machine has told what it measures."""

    node: str
    at: float | None
    """The time of its newest round, by the daemon's clock; None: none came since the daemon started."""
    is_late: bool
    """Nothing new came for so long that its gatherer hangs, was stopped or is gone."""
    release: str = ""
    """Bireme's, of that gatherer; empty: it did not say yet."""


class Telemetry(Protocol):
    """What is measured, for whoever shows it."""

    @property
    def problem(self) -> str:
        """What is not measured or not kept, in a sentence for people that names no node; empty when all is well."""

    def newest_rounds(self) -> Sequence[NewestRound]:
        """Of every machine that tells or should, the oldest first."""

    @property
    def series(self) -> Series | None:
        """What was measured; None while it cannot be read."""

    async def gpus(self) -> Sequence[SeenGpu]:
        """All that are known, by node and index, an instance after its GPU."""

    async def measured(self) -> Measured:
        """The newest figures of all machines, counters as they count."""

    def waits_now(self, job_id: int) -> Waited | None:
        """What keeps a job waiting now, and since when; None: it does not wait, or was not looked at yet."""


class Experiments(Protocol):
    """Jobs' runs in experiment trackers, for whoever shows them: what could not be asked is told, not raised."""

    async def of_job(self, job: Job, metrics: Sequence[str]) -> dict[str, Any]:
        """Of a job of the state, with curves of these metrics."""

    async def of_past(self, job_id: int, submitted_at: float, metrics: Sequence[str]) -> dict[str, Any]:
        """Of a job that is only in the history."""


class Store(Journal, Blobs, Archive, Protocol):
    """All that a cluster keeps. Which database has it, the composition roots choose (`daemon/`, `sim/`)."""

    def prune(self, older_than: float) -> int:
        """Drops events that a snapshot covers and that are older; how many."""

    def prune_history(self, older_than: float, kept: Collection[int] = ()) -> int:
        """Drops the records of jobs that ended earlier, but for these jobs and arrays; how many jobs."""

    def prune_blobs(self, older_than: float, needed: Collection[str]) -> int:
        """Drops blobs that are not needed and that no event names since then; how many."""

    def close(self) -> None:
        """Nothing is asked of it any more."""

"""What a daemon orders of its agents, one class for each kind of line.

`engines/crew` writes such lines, `server` reads them, `jobs` and `steps` carry them out. As with what agents tell
(`told`) the two may be of different releases: a field is never taken away nor given another meaning, a new one has a
default, and what a reader does not know it passes over. What has its default is not written; agents of before these
classes look for all that has none.

Invariant: an order that was read has everything that is needed to carry it out.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from bireme.agent.boxes.blueprint import Mount
from bireme.agent.messages.lines import LineReader, decode_line
from bireme.agent.messages.protocol import ProtocolError
from bireme.agent.system.output import OpenFileError
from bireme.core.model.serving.probes import ReplicaOf
from bireme.images.messages import Policy

Key = tuple[int, int]
"""(job id, generation)."""


class Unopened(msgspec.Struct, array_like=True):
    """A file that the daemon was to open and could not."""

    stream: str
    path: str
    errno: int
    why: str = ""

    def failure(self) -> OpenFileError:
        return OpenFileError(self.stream, self.path, self.errno, self.why)


class Share(msgspec.Struct):
    """What the job may use of the node."""

    cpus: int = 0
    memory_mib: int = 0
    cpu_ids: tuple[int, ...] = ()


class Box(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The image that a script or a step runs in, and how: what the options of containers say, complete."""

    image: str = ""
    """As the user wrote it; of an OCI bundle its folder."""
    name: str = ""
    """Under which the steps of the job share it."""
    name_flag: str = "auto"
    mounts: tuple[Mount, ...] = ()
    workdir: str = ""
    save: str = ""
    """Where it is saved when the script or step is over."""
    mount_home: bool = False
    remap_root: bool = True
    entrypoint: bool = False
    writable: bool = True
    kept: tuple[str, ...] = ()
    """Variables that win over the image's."""
    images: Policy = Policy()
    """Where images are kept and how they are had: of the daemon that is there now, since agents outlive daemons."""


class Batch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A batch script, and what it is started with."""

    script: str
    env: dict[str, str]
    cwd: str
    stdout: str
    stderr: str = ""
    stdin: str = ""
    argv: tuple[str, ...] = ()
    append: bool = False
    umask: int | None = None
    unopened: Unopened | None = None
    box: Box | None = None


class Order(msgspec.Struct, tag_field="op", kw_only=True, omit_defaults=True):
    """`no`: its number, counted by the daemon; what was carried out is answered with it."""

    no: int | None = None


class JobOrder(Order, kw_only=True):
    """About one start of one job."""

    job: int
    gen: int

    @property
    def key(self) -> Key:
        return self.job, self.gen


class Prepare(JobOrder, tag="prepare", kw_only=True):
    """Take the job in: its prolog, and no script yet. -> prepared | refused"""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    label: str = ""
    begun_at: float = 0.0
    """When it was allocated, the same on all its nodes."""
    share: Share = msgspec.field(default_factory=Share)
    prolog: tuple[str, ...] = ()
    epilog: tuple[str, ...] = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the two."""
    script_timeout_s: float | None = None
    denied_devices: tuple[str, ...] = ()
    unkillable_s: float = 60.0
    unkillable_program: str = ""
    hosts: dict[str, str] = msgspec.field(default_factory=dict)
    """In a pod: the addresses of the job's nodes."""
    scripts: dict[str, str] = msgspec.field(default_factory=dict)
    """In a pod: the texts of prolog and epilog, by their paths."""


class Start(Prepare, tag="start", kw_only=True):
    """Run the batch script, after a prolog if nobody asked for that before. -> launched | refused, later batch_ended"""

    batch: Batch | None = None
    task_prolog: tuple[str, ...] = ()
    """Run by the job's user before the script, which gets what they export, as the tasks of steps do."""
    task_epilog: tuple[str, ...] = ()
    alone: bool = False
    """No other node has part in the job: when its script has left nothing, nothing is left."""
    replica: ReplicaOf | None = None
    """Of a service: its port must be free, and it is asked whether it is well. -> probed"""


class Terminate(JobOrder, tag="terminate", kw_only=True):
    """End all of it. -> cleared, also of a job that nobody knows"""

    grace_s: float
    cause: str = ""


class Signal(JobOrder, tag="signal", kw_only=True):
    """Signal its script (`batch`), its steps, or everything (`all`)."""

    signal: int
    scope: str = "all"


class Tell(JobOrder, tag="tell", kw_only=True):
    """Write a line into its output: of its script, or where it has none of its steps. One of the same time and words is
    written once: orders come again after every reconnect."""

    text: str
    at: float = 0.0
    """0: by a daemon of an earlier release."""


class Suspend(JobOrder, tag="suspend"):
    """Stop its processes."""


class Resume(JobOrder, tag="resume"):
    """Let them go on."""


class StepTask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One task of a step. A stream without a path is srun's."""

    id: int
    env: dict[str, str]
    argv: tuple[str, ...] = ()
    stdin: str = ""
    stdout: str = ""
    stderr: str = ""
    terminal: bool = False
    unopened: Unopened | None = None


class World(msgspec.Struct, kw_only=True):
    """What the tasks of an MPI program are told of each other."""

    name: str
    node_of_rank: list[int]
    first_rank: int


class Window(msgspec.Struct):
    """The size of a terminal."""

    rows: int = 24
    columns: int = 80


class StartStep(JobOrder, tag="step", kw_only=True):
    """Start these tasks. -> step_began, later step_ended"""

    step: int
    tasks: list[StepTask]
    env: dict[str, str]
    cwd: str
    argv: tuple[str, ...] = ()
    io_key: str = msgspec.field(default="", name="key")
    """Whoever knows it may attach to the step's streams."""
    umask: int | None = None
    append: bool = False
    cpu_bind: str = ""
    cpu_ids: tuple[int, ...] = ()
    task_prolog: tuple[str, ...] = ()
    task_epilog: tuple[str, ...] = ()
    mpi: str = ""
    world: World | None = None
    window: Window | None = None
    box: Box | None = None
    hosts: dict[str, str] = msgspec.field(default_factory=dict)
    scripts: dict[str, str] = msgspec.field(default_factory=dict)


class SignalStep(JobOrder, tag="signal_step", kw_only=True):
    """Signal everything of a step."""

    step: int
    signal: int


class TerminateStep(JobOrder, tag="terminate_step", kw_only=True):
    """End all of a step. -> step_ended"""

    step: int
    grace_s: float
    cause: str = ""


class Acknowledge(Order, tag="ack", kw_only=True):
    """What was told of this start, or everything up to `seq`, is on disk."""

    job: int | None = None
    gen: int | None = None
    seq: int | None = None


class TellUsage(Order, tag="usage", kw_only=True):
    """What does it use now, and what does it wait for? -> answer"""

    job: int
    id: int


class Ping(Order, tag="ping", kw_only=True):
    """Are you there? -> answer"""

    id: int


class Exit(Order, tag="exit", kw_only=True):
    """End the jobs, then yourself. `if_idle`: let them end first, and end when you have nothing to do."""

    grace_s: float = 0.0
    if_idle: bool = False


AnyOrder = (
    Prepare | Start | Terminate | Signal | Tell | Suspend | Resume | StartStep | SignalStep | TerminateStep
    | Acknowledge | TellUsage | Ping | Exit
)  # fmt: skip

Launch = Start | StartStep
"""An order that starts programs of a job's."""
Streams = TypeVar("Streams", Batch, StepTask)
"""What of such an order says where a program reads and writes."""

_read: LineReader[AnyOrder] = LineReader(AnyOrder)


class Gist(msgspec.Struct):
    """What can be said of an order that cannot be read, or that failed: enough to answer it."""

    op: str = ""
    no: int | None = None
    job: int | None = None
    gen: int | None = None
    step: int | None = None

    @classmethod
    def of(cls, order: Order) -> Gist:
        about = {name: getattr(order, name, None) for name in ("no", "job", "gen", "step")}
        return cls(str(order.__struct_config__.tag), **about)


class UnreadableOrderError(ProtocolError):
    """An order of no kind known here, or without something that it needs."""

    def __init__(self, why: str, gist: Gist, *, is_known: bool) -> None:
        """`is_known`: of a kind that is; another order of it may be read."""
        super().__init__(why)
        self.gist = gist
        self.is_known = is_known


def read_order(line: bytes) -> AnyOrder:
    """Raises UnreadableOrderError; ProtocolError for what is no message at all."""
    try:
        return _read(line)
    except ProtocolError as error:
        message = decode_line(line)
        numbers = {name: value for name in ("no", "job", "gen", "step") if type(value := message.get(name)) is int}
        gist = Gist(str(message.get("op", "")), **numbers)
        known = gist.op in _TAGS
        why = str(error) if known else f"unknown operation {message.get('op')!r}"
        raise UnreadableOrderError(why, gist, is_known=known) from error


_TAGS = frozenset(kind.__struct_config__.tag for kind in AnyOrder.__args__)

"""What the supervisor and its workers say to each other, over a pair of sockets: lines of JSON, as `messages` has them.

They are of one release, but where a supervisor died and one of a newer release finds its workers (`succession`): so a
new field has a default here too. Not here: what is counted for each request, which is in shared memory (`board`).
"""

from __future__ import annotations

import msgspec

from bireme.router.messages import Table
from bireme.router.rules.tally import Tally
from bireme.router.settings import Settings


class Start(msgspec.Struct, kw_only=True, frozen=True):
    """What a worker is told on its command line. All numbers but `row` and `workers` are descriptors."""

    settings: Settings
    row: int
    """Of the board: which cells are its own."""
    workers: int
    """How many share the port, and the limits of connections."""
    listeners: tuple[int, ...]
    channel: int
    meeting: int
    """Where the next supervisor finds it."""
    memory: int
    kicks: tuple[int, ...]
    """One for each row of the board: written to when its worker's queue is to be looked at."""
    certificate: tuple[int, ...] = ()
    """The certificate and its key; empty: no TLS."""
    digest: str = ""
    """Of these two."""
    release: str = ""


class Handed(msgspec.Struct, frozen=True):
    """What a worker says to a supervisor that finds it."""

    start: Start
    pid: int
    table: Table
    cells: dict[str, int]
    is_draining: bool = False


class Apply(msgspec.Struct, tag_field="op", tag="apply", frozen=True):
    """Go by this table from now on. -> Applied"""

    table: Table
    cells: dict[str, int]
    """By name (`replica_name` and its neighbours): the first cell of its block."""
    rows: tuple[int, ...] = ()
    """Of all workers that there are, its own among them."""


class Drain(msgspec.Struct, tag_field="op", tag="drain", frozen=True):
    """Take no more connections, and end when the last request has."""

    limit_s: float = 0.0
    """At the latest then, and unused connections end now. 0: these are kept until their next request, or their time."""


class Ask(msgspec.Struct, tag_field="op", tag="ask", frozen=True):
    """Say that you are alive. -> Lives"""


ToWorker = Apply | Drain | Ask


class Applied(msgspec.Struct, tag_field="ev", tag="applied", frozen=True):
    """No request begins by an older table."""

    serial: int


class Lives(msgspec.Struct, tag_field="ev", tag="lives", frozen=True):
    """The answer of a worker that hears and has its turn."""


class Waits(msgspec.Struct, tag_field="ev", tag="waits", frozen=True):
    """A request waits, and there is no ready replica."""

    service: str


class Broke(msgspec.Struct, tag_field="ev", tag="broke", frozen=True):
    """A replica does not answer."""

    service: str
    replica: str
    why: str


class Quiet(msgspec.Struct, tag_field="ev", tag="quiet", frozen=True):
    """This worker has ended its last request on a replica that drains or is gone."""

    service: str
    replica: str


class Part(msgspec.Struct, array_like=True):
    """What one worker did for a service (`replica` is empty), or had of one replica, since it told before."""

    service: str
    replica: str
    tally: Tally
    area: float
    """Requests in flight (of a service: that wait), times seconds."""
    arrived: int = 0
    refused: int = 0


class Did(msgspec.Struct, tag_field="ev", tag="did", frozen=True):
    """Once a second while there is anything to tell, and once without parts when there is no more."""

    parts: list[Part]
    seconds: float
    """The time that the parts are of, by the clock of who counted: an area divided by another's would be no average."""
    connections: int
    """Of clients, now."""
    unread: int
    """Requests since then that could not be read."""


FromWorker = Applied | Lives | Waits | Broke | Quiet | Did

to_worker: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)
from_worker: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
_encoder = msgspec.json.Encoder()


def line(message: ToWorker | FromWorker | Handed) -> bytes:
    return _encoder.encode(message) + b"\n"


def replica_name(replica: str) -> str:
    return "r/" + replica


def service_name(service: str) -> str:
    return "s/" + service


def key_name(service: str, key: str) -> str:
    return f"k/{service}/{key}"


def names_in(table: Table) -> list[str]:
    """Everything that must have cells."""
    names = []
    for service in table.services:
        names.append(service_name(service.name))
        names += [replica_name(replica.id) for replica in service.replicas]
    return names


def keys_in(table: Table) -> list[str]:
    """Keys with limits: they have cells as long as there is room, and are counted by each worker for itself else."""
    return [
        key_name(service.name, key.id)
        for service in table.services
        for key in service.keys
        if key.requests_per_minute or key.concurrency
    ]

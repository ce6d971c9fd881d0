"""What the daemon and the router say to each other over FOLDER/router.sock: lines of JSON, one class for each kind.

The daemon connects, says `Hello`, and pushes the whole `Table` whenever it changes. The router answers `Hello` with
`Welcome`, `Configure` with `Welcome` or `Kept`, and every table with `Took` when all its workers go by it (or
`Refused`); `Load`, `Wake`, `Trouble`, `Drained` and `Ails` come by themselves. One daemon at a time: a newer connection
takes the place of the one before.

As with agents the two may be of different releases, for the router outlives daemons: a field is never taken away nor
given another meaning, a new one has a default, which is what its absence means, and what a reader does not know it
passes over (`read_order`, `read_told` return None for a line of an unknown kind).

How a replica is ended without a failed request: push a table in which it is `draining`; after the `Took` of that serial
no request begins on it; `Drained` says that none is left (at once, when there was none; again after every `Hello`).
Then push a table without it.

Invariant: all of the router's knowledge is the latest table; keys are in it only as SHA-256.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Literal

import msgspec

VERSION = 2
"""2: it can be told to listen elsewhere (`Configure`)."""
SOCKET = "router.sock"
"""In the router's folder; private to its user."""
MAX_LINE_BYTES = 64 * 1024 * 1024
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histograms' buckets; one more has all that took longer."""
ANYBODY = -1
"""In the place of a uid."""
STATUS_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")

ReplicaState = Literal["ready", "draining"]


class ProtocolError(ValueError):
    """A line that is no message of this protocol."""


# --- what the daemon says ---------------------------------------------------------------------------------------------


class Order(msgspec.Struct, tag_field="op", kw_only=True, omit_defaults=True, frozen=True):
    """Anything that a daemon says."""


class Hello(Order, tag="hello", frozen=True):
    """The first line. -> Welcome"""

    version: int = VERSION
    speaker: str = ""
    """Of the router's log: who it is."""


class Timeouts(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """How long a request of one service may take at each step, in seconds; 0 is no limit."""

    connect_s: float = 5.0
    """Until some replica has taken the connection; all ready ones are tried meanwhile."""
    first_byte_s: float = 600.0
    """From the whole request to the first byte of the answer."""
    idle_s: float = 300.0
    """Between two pieces of an answer, of a body, or of a tunnel in either direction."""
    total_s: float = 0.0
    queue_s: float = 60.0
    """How long a request waits while all ready replicas have `max_concurrency` requests."""
    wake_s: float = 1800.0
    """How long a request waits while no replica is ready."""


class Replica(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """A process that answers requests. One that is not ready is not in the table."""

    id: str
    """Unique among all replicas that ever were: a job id with its start's number, say."""
    host: str
    port: int
    revision: int = 1
    state: ReplicaState = "ready"
    weight: float = 1.0
    """Relative capacity among the replicas of its revision: one of weight 2 has twice the requests in flight."""
    uid: int = ANYBODY
    """As whom it listens, where that is on the router's machine: a port that another user has taken is not it."""


class Key(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """What a client must show to be let in."""

    id: str
    """What it is called in logs and numbers; unique within the service."""
    sha256: str
    """Of the key's text as the client sends it, in hexadecimal."""
    requests_per_minute: int = 0
    """0: no limit. The same for the next."""
    concurrency: int = 0


class Service(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """A name that requests are sent to, and what answers them."""

    name: str
    replicas: tuple[Replica, ...] = ()
    revision_weights: dict[int, float] = msgspec.field(default_factory=dict)
    """Parts of the requests by revision, in any unit ({3: 90, 4: 10}). Empty: all replicas are alike. Else a revision
    that is not named, or has 0, gets nothing; the part of one without ready replicas goes to the others."""
    max_concurrency: int = 0
    """Requests that one replica has at a time; 0: no limit."""
    queue: int = 1000
    """Requests that may wait, in all workers together."""
    timeouts: Timeouts = msgspec.field(default_factory=Timeouts)
    affinity_header: str = ""
    """Requests with the same value of this header go to the same replica while its load is near the others'."""
    affinity_cookie: str = ""
    """The same of a cookie's value, where the header is not there."""
    models: tuple[str, ...] = ()
    """What `model` in the body of `/v1/...` may say for this service, besides its name."""
    hosts: tuple[str, ...] = ()
    """Host names whose requests are all for this service, with their paths as they are."""
    keys: tuple[Key, ...] = ()
    """Empty: whoever comes from this machine may use it, and nobody else."""
    body_limit: int = 0
    """Bytes of one request's body; 0: no limit."""
    wakes: bool = True
    """Whether requests wait for it when no replica is ready; else they are answered with 503 at once ..."""
    closed: str = ""
    """... which says why: the end of a sentence that begins with the service's name."""
    uid: int = ANYBODY
    """Whose it is."""


class Table(Order, tag="table", frozen=True):
    """Everything that is routed, whole. -> Took | Refused. `serial` grows with every change."""

    serial: int
    services: tuple[Service, ...] = ()


class Configure(Order, tag="configure", frozen=True):
    """Listen here, so, with as many workers. -> Welcome, when new workers answer there; or Kept.

    Requests in flight end where they are; where the address stays the same not one connection is refused.
    """

    host: str
    port: int
    """0: any; the one that it has, if it has the host."""
    workers: int = 0
    """0: one for two cores."""
    tls_certificate: str = ""
    """Files are read anew."""
    tls_key: str = ""


class AskNumbers(Order, tag="numbers", frozen=True):
    """-> Numbers"""

    id: int = 0


class Ping(Order, tag="ping", frozen=True):
    """-> Pong"""

    id: int = 0


AnyOrder = Hello | Table | Configure | AskNumbers | Ping


# --- what the router says ---------------------------------------------------------------------------------------------


class Told(msgspec.Struct, tag_field="ev", kw_only=True, omit_defaults=True, frozen=True):
    """Anything that a router says."""


class Welcome(Told, tag="welcome", frozen=True):
    """Who this router is, and the serial of the table that it routes by. `serial` is 0 before the first table."""

    version: int
    pid: int
    epoch: str
    """Of this router process; when it is another, all counters of `Load` began anew."""
    serial: int
    host: str
    """Where it listens for requests ..."""
    port: int
    tls: bool = False
    workers: int = 0
    """0: it does not say."""
    digest: str = ""
    """`certificate_digest` of the files that it read; empty without TLS."""
    speaker: str = ""
    """Its release; empty: it does not say."""


class Kept(Told, tag="kept", frozen=True):
    """The router keeps its settings: what `Configure` asked for cannot be, and why."""

    why: str


class Took(Told, tag="took", frozen=True):
    """All workers go by this table now."""

    serial: int


class Refused(Told, tag="refused", frozen=True):
    """This table (or line) is not gone by, and why."""

    why: str
    serial: int = 0


class Wake(Told, tag="wake", frozen=True):
    """A request waits for a service without a ready replica. Once, until it has had one; again after a `Hello`."""

    service: str


class Trouble(Told, tag="trouble", frozen=True):
    """A replica of the table could not be connected to, or broke off. At most one a second of a replica and worker."""

    service: str
    replica: str
    why: str


class Drained(Told, tag="drained", frozen=True):
    """A draining replica has no request in flight, and no new one can begin."""

    service: str
    replica: str


class Ails(Told, tag="ails", frozen=True):
    """It routes by the latest table, and something of it is not well. Told when that changes, and after a `Hello`."""

    why: str = ""
    """Empty: all is well again."""


class Counts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counted since the router's epoch: they only grow."""

    requests: tuple[int, ...] = (0, 0, 0, 0, 0)
    """Ended ones, by class of their status (STATUS_CLASSES)."""
    latency: tuple[int, ...] = ()
    """Requests that took at most BUCKETS_S[i], from their head to the last byte of the answer; the last one: all.
    Empty: none yet."""
    latency_sum_s: float = 0.0
    ttfb: tuple[int, ...] = ()
    """The same to the first byte of the answer."""
    ttfb_sum_s: float = 0.0
    bytes_in: int = 0
    """Of requests' bodies."""
    bytes_out: int = 0
    """Of answers."""


class ReplicaLoad(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a replica has to do. One that is no longer in the table is told of until it has nothing in flight."""

    id: str
    in_flight: int = 0
    concurrency: float = 0.0
    """Requests in flight, averaged over the latest `seconds` of the Load."""
    counts: Counts = msgspec.field(default_factory=Counts)
    state: str = "ready"
    """ready | draining | gone (not in the table)"""


class ServiceLoad(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a service has to do."""

    name: str
    in_flight: int = 0
    queued: int = 0
    concurrency: float = 0.0
    """Requests in flight, averaged over the latest `seconds` of the Load ..."""
    waiting: float = 0.0
    """... those that waited in the queue ..."""
    rate: float = 0.0
    """... and those that came in a second."""
    arrived: int = 0
    """Requests that came for it since the epoch, whatever became of them."""
    refused: int = 0
    """Of these: answered by the router itself (queue full, no key, time limit, no replica)."""
    counts: Counts = msgspec.field(default_factory=Counts)
    """Of all its requests, the refused ones too."""
    replicas: tuple[ReplicaLoad, ...] = ()


class Load(Told, tag="load", frozen=True):
    """Once a second while there is traffic or change, and once more when it has stopped: all services of the table."""

    serial: int
    at: float
    """Unix time."""
    seconds: float
    """The time that the averages are of."""
    services: tuple[ServiceLoad, ...] = ()


class Numbers(Told, tag="numbers", frozen=True):
    """What Prometheus reads, as text."""

    text: str
    id: int = 0


class Pong(Told, tag="pong", frozen=True):
    """The router's answer to a ping."""

    id: int = 0


AnyTold = Welcome | Kept | Took | Refused | Wake | Trouble | Drained | Ails | Load | Numbers | Pong

_encoder = msgspec.json.Encoder()
_orders: msgspec.json.Decoder[AnyOrder] = msgspec.json.Decoder(AnyOrder)
_told: msgspec.json.Decoder[AnyTold] = msgspec.json.Decoder(AnyTold)


def certificate_digest(certificate: bytes, key: bytes) -> str:
    """Tells whether these two files have changed."""
    return sha256(sha256(certificate).digest() + sha256(key).digest()).hexdigest()


def encode(message: Order | Told) -> bytes:
    """The line of a message, with its newline."""
    return _encoder.encode(message) + b"\n"


def read_order(line: bytes) -> AnyOrder | None:
    """What a daemon said; None for a kind that is not known here. Raises ProtocolError."""
    found: AnyOrder | None = _read(_orders, line, "op", _ORDERS)
    return found


def read_told(line: bytes) -> AnyTold | None:
    """What a router said; None for a kind that is not known here. Raises ProtocolError."""
    found: AnyTold | None = _read(_told, line, "ev", _TOLD)
    return found


def _read(decoder: msgspec.json.Decoder[Any], line: bytes, field: str, known: frozenset[str]) -> Any:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not isinstance(error, msgspec.ValidationError):
            raise ProtocolError(f"not JSON: {error}") from error
        message = json.loads(line)
        if isinstance(message, dict) and isinstance(message.get(field), str) and message[field] not in known:
            return None
        raise ProtocolError(str(error)) from error


_ORDERS = frozenset(str(kind.__struct_config__.tag) for kind in AnyOrder.__args__)
_TOLD = frozenset(str(kind.__struct_config__.tag) for kind in AnyTold.__args__)

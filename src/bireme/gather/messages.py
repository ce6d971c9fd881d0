"""What a gatherer and the daemon say to each other: frames of MessagePack, each behind four bytes of length.

The gatherer connects (to a socket file of the daemon's home, or over TLS from another machine), says `Hello`, and gets
`Welcome` with the number of the latest round of its that is kept. It sends each `Round` when it is made, keeps it until
a `Kept` with its number or a later one comes, and sends it again after a new `Welcome`. So a round may come twice, and
late; it is known by the gatherer's id and its number, which never goes back while the id lasts.

The two may be of different releases: a field is never taken away nor given another meaning, a new one has a default,
and what a reader does not know it passes over. A metric that the reader does not know is passed over too.

Invariant: a value that was not measured is None, or its column is not there. Counters are said as they were read.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bireme.core.telemetry.metrics import About

VERSION = 1
MAX_FRAME_BYTES = 16 * 1024 * 1024
"""A longer one ends the connection: the machine of a thousand jobs needs a tenth of it."""

Value = float | int | None


class Device(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """A GPU, or a MIG instance of one, as its driver names it."""

    uuid: str
    node: str
    index: int
    """Among the GPUs of its machine, in PCI order; of an instance that of its GPU."""
    vendor: Literal["nvidia", "amd", "intel"] = "nvidia"
    model: str = ""
    memory_mib: int = 0
    pci_bus_id: str = ""
    minor: int | None = None
    """Of its device file."""
    driver: str = ""
    parent: str = ""
    """Of an instance: the UUID of its GPU."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    profile: str = ""


class HeldDevice(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """A GPU or an instance that a kubelet gave to a pod."""

    uuid: str
    holder: str
    """`NAMESPACE/POD`; for what is behind the daemon's door `JOB.GENERATION`."""
    shared: bool = False
    """Others may have it too: the device plugin gives it out in parts."""


class Frame(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """Figures of several subjects of one sort on one node: a column for each metric, a value in it for each subject."""

    about: About
    node: str
    ids: list[str]
    columns: dict[str, list[Value]]
    ages: list[float | None] = []
    """Of tasks that were not seen before: the seconds since each began, and so since its counters were nothing. Empty:
    of no subject."""
    ended: bool = False
    """Of tasks that were in the round before and are over: what their counters said last."""


class Happening(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """Something that was told once, with its time: an Xid, a line of the kernel's, a GPU that came or went."""

    at: float
    node: str
    kind: Literal["xid", "sxid", "gpu lost", "gpu back", "stray", "kernel"]
    uuid: str = ""
    code: int = 0
    """Of an Xid its number."""
    pid: int = 0
    task: str = ""
    """`JOB.GENERATION.STEP.TASK` of that process; empty: nobody's, or not known."""
    text: str = ""


class Told(msgspec.Struct, tag_field="op", kw_only=True, omit_defaults=True, frozen=True):
    """Anything that a gatherer says."""


class Hello(Told, tag="hello", frozen=True):
    """The first frame. -> Welcome"""

    id: str
    """Made once and kept beside the spool: rounds are numbered for as long as it lasts."""
    version: int = VERSION
    machine: str = ""
    speaker: str = ""
    nodes: list[str] = []
    now: float = 0.0
    """Its clock."""
    token: str = ""
    """Of a node that calls from another machine: proves for which nodes it may speak."""


class Devices(Told, tag="devices", frozen=True):
    """All devices that it knows, after every `Hello` and whenever one comes or goes."""

    devices: list[Device]
    slurm_files: list[str] = []
    """Of a node of a Slurm cluster: the device files of its GPUs, in the order in which Slurm numbers them."""
    held: list[HeldDevice] = []
    """On a node of a Kubernetes cluster: those that pods have, as its kubelet says; told again when that changes."""


class Round(Told, tag="round", frozen=True):
    """One look at everything. -> Kept, sooner or later"""

    no: int
    at: float
    """By the gatherer's clock, when it was made."""
    interval_s: float
    frames: list[Frame]
    happenings: list[Happening] = []
    sent: float = 0.0
    """By the same clock, when it was sent: how much that clock is off is seen when it comes."""


class Said(msgspec.Struct, tag_field="op", kw_only=True, omit_defaults=True, frozen=True):
    """Anything that the daemon says."""


class Welcome(Said, tag="welcome", frozen=True):
    """Answer to `Hello`."""

    version: int = VERSION
    kept: int = 0
    """The latest round of this gatherer that is on disk; 0: none."""
    interval_s: float = 10.0
    """How often it is to look, by the settings in force."""
    now: float = 0.0
    """The daemon's clock."""
    metrics: str = ""
    """Where it is to serve its own page for Prometheus, `PORT` or `HOST:PORT`; empty: nowhere."""
    most_bytes: int = MAX_FRAME_BYTES
    """No longer message is taken here."""


class Kept(Said, tag="kept", frozen=True):
    """This round and all before it are on disk."""

    no: int


class Pace(Said, tag="pace", frozen=True):
    """Look so often from now on: somebody watches (`bireme top`), or nobody does any more."""

    interval_s: float
    metrics: str | None = None
    """As in `Welcome`; None: as it is."""


class Refused(Said, tag="refused", frozen=True):
    """Instead of `Welcome`: this one is not let in. It may come again, later."""

    why: str


class Leave(Said, tag="leave", frozen=True):
    """End yourself: jobs are ended with the daemon, or another release of you takes your place."""


class _Numbered(msgspec.Struct, tag_field="op", tag="round"):
    """A round of which only the number is read, whatever else is in it."""

    no: int


AnyTold = Hello | Devices | Round
AnySaid = Welcome | Refused | Kept | Pace | Leave


class ProtocolError(ValueError):
    """Bytes that are no message of this protocol."""


_encoder = msgspec.msgpack.Encoder()
_told: msgspec.msgpack.Decoder[AnyTold] = msgspec.msgpack.Decoder(AnyTold)
_said: msgspec.msgpack.Decoder[AnySaid] = msgspec.msgpack.Decoder(AnySaid)
_numbered: msgspec.msgpack.Decoder[_Numbered] = msgspec.msgpack.Decoder(_Numbered)


def encode(message: Told | Said) -> bytes:
    """With its length before it."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


def read_told(body: bytes) -> AnyTold:
    """Raises ProtocolError."""
    try:
        return _told.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(str(error)) from error


def number_of(body: bytes) -> int | None:
    """The number of a round, also of one that `read_told` refuses; None: it is no round."""
    try:
        return _numbered.decode(body).no
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_said(body: bytes) -> AnySaid:
    """Raises ProtocolError."""
    try:
        return _said.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(str(error)) from error


class FrameSplitter:
    """Cuts a stream of bytes into the bodies of messages."""

    __slots__ = ("_buffer", "most")

    def __init__(self, most: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self.most = most
        """The longest that is taken, in bytes."""

    def feed(self, data: bytes) -> list[bytes]:
        """The complete ones so far. Raises ProtocolError for one that is too long."""
        self._buffer += data
        bodies = []
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > self.most:
                raise ProtocolError(f"a message of {length} bytes is longer than {self.most}")
            if len(self._buffer) < 4 + length:
                break
            bodies.append(bytes(self._buffer[4 : 4 + length]))
            del self._buffer[: 4 + length]
        return bodies

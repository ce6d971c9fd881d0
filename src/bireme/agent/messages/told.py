"""What an agent tells its daemon, one class for each kind of line.

`server`, `jobs` and `steps` make them, `engines/crew` understands them; no other place reads a line of an agent.

The two may be of different releases, for agents outlive daemons, and those in pods are of the image that the pod was
started with. So a field is never taken away nor given another meaning; a new one has a default, which is what its
absence means; what a reader does not know it passes over. `tests/unit/agent/test_agent_conversation.py` holds lines of
every release that must be understood.

Invariant: an event that is not acknowledged yet means the same whichever of the two was replaced meanwhile.
"""

from __future__ import annotations

from typing import cast

import msgspec

from bireme.agent.messages.lines import LineReader, decode_line
from bireme.agent.messages.protocol import ProtocolError
from bireme.core.model.resources import ExitStatus, TaskEnd, Usage
from bireme.core.model.serving.probes import Health

Key = tuple[int, int]
"""(job id, generation)."""


class NotUnderstoodError(ProtocolError):
    """A line of an agent that is of no kind known here, or lacks something. The next ones may be understood."""


class About(msgspec.Struct, tag_field="ev", omit_defaults=True):
    """Which start of which job an event is about."""

    job: int
    gen: int

    @property
    def key(self) -> Key:
        return self.job, self.gen


class Event(About, kw_only=True):
    """Something that happened to a job: recorded, numbered, and said until it is acknowledged."""

    at: float = 0.0
    seq: int = 0


class Prepared(Event, tag="prepared"):
    """The prolog went well: its script or steps may start here."""


class Launched(Event, tag="launched"):
    """A job was launched: its batch script has a process, or will fail in its own name."""


class Refused(Event, tag="refused"):
    """A start is refused on this node. `short`: the node lacks something for a while."""

    reason: str
    prolog_failed: bool = False
    short: bool = False


class BatchEnded(Event, tag="batch_ended"):
    """A job's batch script ended. `cleared`: and left nothing; `ordered`: after it was told to end."""

    status: ExitStatus
    usage: Usage
    cleared: bool
    note: str = ""
    ordered: bool = False
    label: str = ""
    """Of an array's task, as people write it."""


class Cleared(Event, tag="cleared"):
    """Nothing of the job is left on the node. `epilog_failed`: why."""

    epilog_failed: str = ""


class Vanished(Event, tag="vanished"):
    """The agent that held it died."""

    reason: str


class Unkillable(Event, tag="unkillable"):
    """SIGKILL did not end something of it."""

    reason: str


class StepBegan(Event, tag="step_began"):
    """All tasks of a step were started here, or failed to."""

    step: int


class StepEnded(Event, tag="step_ended"):
    """No task of a step is left here."""

    step: int
    status: ExitStatus
    usage: Usage
    note: str = ""
    failed: tuple[TaskEnd, ...] = ()
    """Tasks that did not end well, in the order of time."""


class Probed(Event, tag="probed"):
    """What the probes of a replica come to from now on. Neither recorded nor numbered: every daemon that comes is told
    it anew, and an agent that died has no replica."""

    health: Health
    why: str = ""
    address: str = ""
    """Where it answers."""


JobEvent = Prepared | Launched | Refused | BatchEnded | Cleared | Vanished | Unkillable | StepBegan | StepEnded | Probed


class Welcome(msgspec.Struct, tag="welcome", tag_field="ev", kw_only=True):
    """The first line: who speaks, and what it holds."""

    node: str
    version: str
    protocol: int = 1
    pid: int = 0
    epoch: int = 0
    damaged: tuple[int, ...] = ()
    isolation: dict[str, str] = msgspec.field(default_factory=dict)
    tracking: tuple[str, str] = ("", "")
    """How processes are tracked, and what that lacks."""
    holds: tuple[Key, ...] = ()
    past: tuple[Key, ...] = ()
    """The newest starts that it has forgotten."""
    seq: int = 0


class Did(msgspec.Struct, tag="did", tag_field="ev"):
    """Orders that were carried out, by their numbers."""

    did: list[int]


class Trouble(msgspec.Struct, tag="error", tag_field="ev", omit_defaults=True):
    """What went wrong with an order, or with a line. `no`: the order, which is to be said again."""

    text: str
    no: int | None = None


class Answer(msgspec.Struct, tag="answer", tag_field="ev", omit_defaults=True):
    """The answer to a question, by its `id`."""

    re: int
    usage: dict[str, Usage] = msgspec.field(default_factory=dict)
    awaited: tuple[str, ...] = ()
    """What its script and steps wait for before they start: images that are fetched, and how far they are."""
    jobs: int = 0


Told = JobEvent | Welcome | Did | Trouble | Answer

_read: LineReader[Told] = LineReader(Told)


def read_told(line: bytes) -> Told:
    """Raises NotUnderstoodError; ProtocolError for what is no message at all."""
    try:
        return _read(line)
    except ProtocolError:
        return _of_an_earlier_release(line)


def _of_an_earlier_release(line: bytes) -> Told:
    """Which gave some lines no name: {"did": ...}, {"re": ...}."""
    message = decode_line(line)
    named = "did" if "did" in message else "answer" if "re" in message else None
    try:
        return cast(Told, msgspec.convert({"ev": named, **message} if named else message, Told))
    except msgspec.ValidationError as error:
        raise NotUnderstoodError(str(error)) from error

"""What an agent and its keepers say to each other: lines of JSON, descriptors beside them.

`keepers` is the agent's side, `keeper` the other. Both are of one version, always: a keeper is a fork of its agent, or
started from the same files.

    Spawn -> Begun, with the descriptor of a report where it is not sure yet that the program runs, or NotBegun;
             later Ended
    Kill  -> Ended of every task, or Emptied
    Emptied comes by itself, when nothing is left and no Ended said so

Invariant: in an order descriptors are numbers of the list that travels beside it.
"""

from __future__ import annotations

import msgspec

from bireme.agent.messages.lines import LineReader
from bireme.agent.starting.spawn import Birth, Stream
from bireme.agent.system.usage import TaskUsage

MAX_FDS = 16
"""Descriptors that travel with one order."""


class Spawn(msgspec.Struct, tag="spawn", frozen=True):
    """Start this. `fds`: how many descriptors are its own."""

    birth: Birth
    fds: int
    by_shell: bool


class Kill(msgspec.Struct, tag="kill", frozen=True):
    """End everything below you."""


class Begun(msgspec.Struct, tag="begun", frozen=True):
    """A task that was ordered has a process. `has_report`: a descriptor comes with this."""

    pid: int
    by_shell: bool
    has_report: bool


class NotBegun(msgspec.Struct, tag="not_begun", frozen=True):
    """There is no process: what `SpawnError` holds."""

    stage: str
    errno: int
    text: str


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """A task ended, with this status word of wait(2). `empty`: nothing else is left."""

    pid: int
    status: int
    usage: TaskUsage
    empty: bool


class Emptied(msgspec.Struct, tag="emptied", frozen=True):
    """Nothing is left."""


Order = Spawn | Kill
Told = Begun | NotBegun | Ended | Emptied

read_order: LineReader[Order] = LineReader(Order)
read_told: LineReader[Told] = LineReader(Told)


def spawn_order(birth: Birth, *, by_shell: bool) -> tuple[Spawn, list[int]]:
    """The order, and the descriptors beside it."""
    fds: list[int] = []

    def number(stream: Stream) -> Stream:
        if not isinstance(stream, int):
            return stream
        fds.append(stream)
        return len(fds) - 1

    streams = [number(stream) for stream in birth.streams]
    others = {theirs: number(ours) for theirs, ours in birth.extra_fds.items()}
    assert len(fds) <= MAX_FDS
    return Spawn(_with_descriptors(birth, streams, others) if fds else birth, len(fds), by_shell), fds


def ordered_birth(order: Spawn, fds: list[int]) -> Birth:
    """What is to be started, with descriptors of the process that received it."""
    birth = order.birth
    if not fds:
        return birth
    streams = [fds[stream] if isinstance(stream, int) else stream for stream in birth.streams]
    return _with_descriptors(birth, streams, {theirs: fds[number] for theirs, number in birth.extra_fds.items()})


def _with_descriptors(birth: Birth, streams: list[Stream], others: dict[int, Stream]) -> Birth:
    stdin, stdout, stderr = streams
    return msgspec.structs.replace(birth, stdin=stdin, stdout=stdout, stderr=stderr, extra_fds=others)

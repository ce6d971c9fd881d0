"""A job's start over several nodes: all of them, or none. Pure bookkeeping of who has answered what.

The engine keeps one `Gang` per start that is under way and one `Farewell` per end; they say what to do next, the
engine does it. What an answer means for the job is the core's business.

Invariant: the batch script is started once every node is prepared, and a gang that failed on one node is reported
as refused only when every node it could reach is clear again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto


class Next(Enum):
    WAIT = auto()
    START_BATCH = auto()
    LAUNCHED = auto()
    TAKE_BACK = auto()
    REFUSED = auto()


@dataclass(slots=True)
class Gang:
    """The launch of one (job, generation). `has_batch`: a script follows on the first node."""

    nodes: tuple[str, ...]
    has_batch: bool
    unprepared: set[str] = field(init=False)
    batch_ordered: bool = False
    problem: str = ""
    passing: bool = False
    """The problem is nothing of the job's or the nodes': it may be gone at the next try."""
    prolog_failed_on: tuple[str, ...] = ()
    short_on: tuple[str, ...] = ()
    to_clear: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    """Nodes that were not waited for: something may be left there."""

    def __post_init__(self) -> None:
        self.unprepared = set(self.nodes)

    def prepared(self, node: str) -> Next:
        self.unprepared.discard(node)
        if self.unprepared or self.problem or self.batch_ordered:
            return Next.WAIT
        if not self.has_batch:
            return Next.LAUNCHED
        self.batch_ordered = True
        return Next.START_BATCH

    def refused(self, node: str, problem: str, prolog_failed: bool, short: bool = False) -> Next:
        """The first refusal takes the others back; the refusing node itself is clear. `short`: it lacks something."""
        first = not self.problem
        if first:
            self.problem = problem
            self.to_clear = set(self.nodes)
        if prolog_failed:
            self.prolog_failed_on += (node,)
        if short:
            self.short_on += (node,)
        self.to_clear.discard(node)
        if not self.to_clear:
            return Next.REFUSED
        return Next.TAKE_BACK if first else Next.WAIT

    def timed_out(self, deaf: set[str]) -> Next:
        """`deaf` nodes have no connection: they are not waited for, only told when they come back."""
        missing = ", ".join(sorted(self.unprepared)) or self.nodes[0]
        first = not self.problem
        if first:
            self.problem = f"no answer from {missing}"
            self.to_clear = set(self.nodes)
        self.given_up |= self.to_clear & deaf
        self.to_clear -= deaf
        if not self.to_clear:
            return Next.REFUSED
        return Next.TAKE_BACK if first else Next.WAIT

    def cleared(self, node: str) -> Next:
        if not self.problem:
            return Next.WAIT
        self.to_clear.discard(node)
        return Next.WAIT if self.to_clear else Next.REFUSED


@dataclass(slots=True)
class Farewell:
    """The end of one (job, generation): over when all its nodes are clear, but for those that were given up."""

    waiting: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    epilog_failed_on: tuple[str, ...] = ()

    def cleared(self, node: str, *, epilog_failed: bool = False) -> None:
        self.waiting.discard(node)
        if epilog_failed:
            self.epilog_failed_on += (node,)

    def over(self, deaf: Callable[[str], bool]) -> bool:
        """A node that was given up and answers again is waited for."""
        return all(node in self.given_up and deaf(node) for node in self.waiting)


@dataclass(slots=True)
class StepStart:
    """The start of one step: begun when all its nodes say so. `nodes` is empty while only events told of it."""

    nodes: tuple[str, ...] = ()
    began: set[str] = field(default_factory=set)

    def node_began(self, node: str) -> bool:
        self.began.add(node)
        return bool(self.nodes) and self.began >= set(self.nodes)

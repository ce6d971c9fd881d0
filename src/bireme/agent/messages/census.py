"""What an agent says of itself to who is no daemon: to a gatherer whose first processes they are, to `bireme down` what
it still holds. Apart from the other messages: a gatherer, one on every machine, needs nothing else of them."""

from __future__ import annotations

import msgspec


class OwnedProcess(msgspec.Struct, array_like=True, frozen=True):
    """The first process of a task (a batch script is the task 0 of its step) and what it runs below."""

    job: int
    gen: int
    step: int
    task: int
    pid: int
    keeper: int = 0
    folder: str = ""
    """The keeper's cgroup; empty: it has none."""


class Census(msgspec.Struct, frozen=True):
    """Answer to each line of a gatherer: all tasks that run on the node now. To who asks it to leave: what it holds."""

    node: str
    tasks: tuple[OwnedProcess, ...] = ()
    jobs: tuple[int, ...] = ()
    version: str = ""
    """Its release; empty: one that did not say so yet."""

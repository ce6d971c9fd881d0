"""What stands around a task while it starts: a chain of wrappers, each of which is given a `Birth` and gives one back.

A task's own words (argv, variables, streams, user) make its `Birth`; what the job or the node puts around it is added
here, from the inside out, so that the code which knows of cgroups, of bound CPUs, later of an image, is not the code
that knows of tasks. `jobs` and `steps` say which chain a task has. A virtual node's namespaces are no wrapper: its
agent entered them once, and every task is born in them.
Invariant: a wrapper takes nothing away of what another has put on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from bireme.agent.starting.spawn import Birth

Wrapper = Callable[[Birth], Birth]


def wrapped(birth: Birth, chain: Iterable[Wrapper]) -> Birth:
    """The task as it is started, with everything around it; the first of the chain stands closest to it."""
    for wrap in chain:
        birth = wrap(birth)
    return birth


@dataclass(frozen=True, slots=True)
class InCgroups:
    """Puts a task into cgroups before it runs anything."""

    join_files: Sequence[str]
    """Their `cgroup.procs`."""

    def __call__(self, birth: Birth) -> Birth:
        return replace(birth, join_files=(*self.join_files, *birth.join_files))


@dataclass(frozen=True, slots=True)
class OnCpus:
    """Binds a task to some of its node's CPUs. A task that is bound already stays so."""

    cpu_ids: frozenset[int]

    def __call__(self, birth: Birth) -> Birth:
        return birth if birth.cpu_ids is not None else replace(birth, cpu_ids=self.cpu_ids)

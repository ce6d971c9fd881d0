"""Whose GPU processes are: lists of pids by GPU, and who owns a pid, become figures of tasks. Pure.

Called by the gatherer in every round, with the lists of `watching` and the owners that the agents (or cgroups) told.
It tells what was used by whom, never who was allowed to: that is the daemon's, by allocations.

Invariant: every process of a GPU counts once, for the task that owns it or as nobody's. What the driver does not tell
of any process of a task is None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bireme.gather.gpus.source import GpuProcess
from bireme.gather.messages import Frame, Happening, Value

STRAY_AFTER = 2
"""Rounds: in the first the agent may not have told of a process that just began."""

Pair = tuple[str, int]
"""A GPU and a pid."""


_MPS_SERVER = "nvidia-cuda-mps"
"""How the names of MPS's own processes begin; the kernel keeps fifteen letters."""


@dataclass(frozen=True, slots=True)
class Unowned:
    """Processes that nobody owns, by the rounds in which they were seen: what one round hands to the next."""

    rounds: Mapping[Pair, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attributed:
    """What a round's processes come to."""

    uses: Mapping[tuple[str, str], tuple[float | None, float | None]]
    """(task, GPU) -> MiB and percent, of all processes of the task there."""
    unowned_mib: Mapping[str, float]
    """Of every GPU whose processes are known: memory of those that no task owns."""
    strays: tuple[Pair, ...]
    """Those that are nobody's in the second round now: told once each."""
    unowned: Unowned


def attribute(
    processes: Mapping[str, Sequence[GpuProcess]],
    owner_of: Callable[[int], str | None],
    before: Unowned,
    servers: Collection[int] = (),
) -> Attributed:
    """`processes` by GPU or MIG instance; `owner_of` a pid is the id of its task. `servers` are pids that work for
    others (MPS): nobody's memory, but no strays."""
    uses: dict[tuple[str, str], list[GpuProcess]] = {}
    nobodys: dict[str, float] = {}
    rounds: dict[Pair, int] = {}
    for uuid, listed in processes.items():
        nobodys[uuid] = 0.0
        for process in listed:
            task = owner_of(process.pid)
            if task is not None:
                uses.setdefault((task, uuid), []).append(process)
                continue
            nobodys[uuid] += process.memory_mib or 0.0
            if process.pid not in servers:
                rounds[uuid, process.pid] = before.rounds.get((uuid, process.pid), 0) + 1
    return Attributed(
        uses={pair: (_sum(p.memory_mib for p in own), _sum(p.util for p in own)) for pair, own in uses.items()},
        unowned_mib=nobodys,
        strays=tuple(pair for pair, count in rounds.items() if count == STRAY_AFTER),
        unowned=Unowned(rounds),
    )


def servers_among(processes: Mapping[str, Sequence[GpuProcess]], name_of: Callable[[int], str]) -> frozenset[int]:
    """Pids that work for others, by the names of their programs."""
    pids = {process.pid for listed in processes.values() for process in listed}
    return frozenset(pid for pid in pids if name_of(pid).startswith(_MPS_SERVER))


def use_frames(attributed: Attributed, node_of: Callable[[str], str]) -> list[Frame]:
    """One for each node that has any; `node_of` a task."""
    by_node: dict[str, list[tuple[str, str]]] = {}
    for task, uuid in sorted(attributed.uses):
        by_node.setdefault(node_of(task), []).append((task, uuid))
    frames = []
    for node, pairs in by_node.items():
        memory: list[Value] = [attributed.uses[pair][0] for pair in pairs]
        util: list[Value] = [attributed.uses[pair][1] for pair in pairs]
        columns = {"use_gpu_memory": memory, "use_gpu_util": util}
        known = {name: column for name, column in columns.items() if any(value is not None for value in column)}
        frames.append(Frame(about="use", node=node, ids=[f"{task}@{uuid}" for task, uuid in pairs], columns=known))
    return frames


def stray_happenings(
    attributed: Attributed,
    processes: Mapping[str, Sequence[GpuProcess]],
    node_of: Callable[[str], str],
    name_of: Callable[[int], str],
    at: float,
) -> list[Happening]:
    """`name_of` a pid is its program, empty where that is not known."""
    memory = {(uuid, each.pid): each.memory_mib for uuid, listed in processes.items() for each in listed}
    told = []
    for uuid, pid in attributed.strays:
        mib = memory.get((uuid, pid))
        size = "" if mib is None else f" has {mib:.0f} MiB"
        text = f"{name_of(pid) or 'a process'}{size} and belongs to no job"
        told.append(Happening(at=at, node=node_of(uuid), kind="stray", uuid=uuid, pid=pid, text=text))
    return told


def _sum(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None: none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None

"""What tasks use: their processes found, looked at and added up, a row for each task.

The processes of a task are those that are named as its, or else those below its first one. What was left behind by a
parent that ended is below the step's keeper then, and counts for the step's first task on the node: so the tasks of a
job are all of it, and nothing twice.

Sums of counters are carried on here, over processes that come and go: what a process had used when it was last seen is
not lost when it ends, nor counted again in the parent that collects it.
Invariant: a task's counters never fall.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bireme.gather import processes
from bireme.gather.messages import Frame, Value
from bireme.gather.owners import OwnedTask
from bireme.gather.processes import Process

_COUNTERS = (
    "cpu_user", "cpu_system", "page_faults", "io_read", "io_written", "disk_read", "disk_written", "switches",
)  # fmt: skip
_MIB = 1 << 20

Count = tuple[float, float] | None
"""A counter of one process: its own, and what it holds or may hold of children that it waited for; None: not known."""
Counted = tuple[Count, ...]
"""One for each of `_COUNTERS`."""


@dataclass(slots=True)
class _Tally:
    """Sums of one task's counters, and what its processes had counted when they were last seen."""

    totals: list[float | None] = field(default_factory=lambda: [None] * len(_COUNTERS))
    seen: dict[tuple[int, int], Counted] = field(default_factory=dict)
    peak_bytes: int = 0
    is_new: bool = True
    """This is its first round."""

    def add(self, now: Mapping[tuple[int, int], Counted]) -> None:
        """A round's values of all its processes."""
        if now == self.seen:  # they slept: every counter is known already, and none grew
            return
        for index in range(len(_COUNTERS)):
            grown = _growth(index, self.seen, now)
            if grown is not None:
                self.totals[index] = (self.totals[index] or 0.0) + grown
        self.seen = dict(now)


def _growth(
    index: int, before: Mapping[tuple[int, int], Counted], now: Mapping[tuple[int, int], Counted]
) -> float | None:
    """How much a counter of all processes together grew.

    A parent that waits for a child adds the child's figures to what it holds of children: those that were counted
    before, while the child lived, are taken off that again.
    """
    values = {key: count for key, row in now.items() if (count := row[index]) is not None}
    if not values:
        return None
    known = {key: count for key, row in before.items() if (count := row[index]) is not None}
    own = collected = 0.0
    for key, (its_own, of_children) in values.items():
        own_before, of_children_before = known.get(key, (0.0, 0.0))
        own += max(0.0, its_own - own_before)
        collected += max(0.0, of_children - of_children_before)
    gone = sum(sum(count) for key, count in known.items() if key not in values)
    return own + max(0.0, collected - gone)


class TaskSampler:
    """Remembers tasks from round to round."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def frames(self, tasks: Sequence[OwnedTask]) -> tuple[list[Frame], dict[int, OwnedTask]]:
        """A frame for each node that has tasks and for each on which some ended, and whose process each pid is."""
        below = self._share_out(tasks)
        rows: dict[str, list[tuple[OwnedTask, dict[str, Value]]]] = defaultdict(list)
        ages: dict[OwnedTask, float] = {}
        for task in tasks:
            rows[task.node].append((task, self._row(task, below[task])))
            if age := self._age(task, below[task]):
                ages[task] = age
        owner_of = {process.pid: task for task, found in below.items() for process in found}
        ended = self._forget_all_but({(task.node, task.id) for task in tasks})
        return [_frame(node, found, ages) for node, found in sorted(rows.items())] + ended, owner_of

    def _forget_all_but(self, here: Collection[tuple[str, str]]) -> list[Frame]:
        """What those that are over used in all, by node: nobody else will know when this was told."""
        over: dict[str, list[tuple[str, _Tally]]] = defaultdict(list)
        for node, task in sorted(self._tallies.keys() - here):
            over[node].append((task, self._tallies.pop((node, task))))
        return [_last_frame(node, found) for node, found in over.items()]

    def _share_out(self, tasks: Sequence[OwnedTask]) -> dict[OwnedTask, list[Process]]:
        listed = {task: self._looked_at(task.pids) for task in tasks if task.pids}
        return listed | self._found_below([task for task in tasks if not task.pids])

    def _looked_at(self, pids: Iterable[int]) -> list[Process]:
        looked = (processes.look(pid, self._proc) for pid in pids)
        return [process for process in looked if process is not None]

    def _found_below(self, tasks: Sequence[OwnedTask]) -> dict[OwnedTask, list[Process]]:
        table = self._table(tasks)
        roots = {task.pid: task for task in tasks}
        orphans: dict[int, OwnedTask] = {}
        for task in sorted(tasks, key=lambda task: int(task.id.rpartition(".")[2]), reverse=True):
            orphans[task.keeper] = task
        orphans.pop(0, None)
        found: dict[OwnedTask, list[Process]] = {task: [] for task in tasks}
        for pid, owner in _owners(table, roots, orphans).items():
            found[owner].append(table[pid])
        return found

    def _table(self, tasks: Iterable[OwnedTask]) -> dict[int, Process]:
        """Only what can be theirs, where cgroups say it; else all processes of the machine."""
        folders = {task.folder for task in tasks}
        if "" in folders:
            return processes.everybody(self._proc)
        pids = {pid for folder in folders for pid in members_of(folder)}
        return {process.pid: process for process in self._looked_at(pids)}

    def _row(self, task: OwnedTask, found: Sequence[Process]) -> dict[str, Value]:
        tally = self._tallies.setdefault((task.node, task.id), _Tally())
        tally.add({process.identity: self._counted(process) for process in found})
        resident = sum(process.resident_bytes for process in found)
        tally.peak_bytes = max(tally.peak_bytes, resident)
        gauges: dict[str, Value] = {
            "memory": resident / _MIB,
            "memory_peak": tally.peak_bytes / _MIB,
            "processes": len(found),
            "threads": sum(process.threads for process in found),
            "uninterruptible": sum(process.state == "D" for process in found),
        }
        gauges |= zip(
            ("output_position", "error_position"), processes.output_positions(task.pid, self._proc), strict=True
        )
        return gauges | dict(zip(_COUNTERS, tally.totals, strict=True))

    def _age(self, task: OwnedTask, found: Sequence[Process]) -> float:
        """Seconds since its eldest process began; 0: that was told already, or cannot be known."""
        tally = self._tallies[task.node, task.id]
        if not tally.is_new or not found:
            return 0.0
        tally.is_new = False
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - min(process.started_s for process in found))

    def _counted(self, process: Process) -> Counted:
        io = processes.io_of(process.pid, self._proc)
        switches = processes.switches_of(process.pid, self._proc)
        read = (io.read, io.written, io.disk_read, io.disk_written) if io is not None else ()
        return (
            (process.user_s, process.children_user_s),
            (process.system_s, process.children_system_s),
            (process.major_faults, process.children_major_faults),
            *((0.0, count) for count in read),  # the kernel tells both in one
            *(None for _ in range(4 - len(read))),
            (switches, 0.0) if switches is not None else None,
        )


def _owners(
    table: Mapping[int, Process], roots: Mapping[int, OwnedTask], orphans: Mapping[int, OwnedTask]
) -> dict[int, OwnedTask]:
    """By pid: whose it is, by the nearest above it that is a task's first process, or a keeper.

    Each process is looked at once, however deep the tree is that a user makes.
    """
    known: dict[int, OwnedTask | None] = {**orphans, **roots}
    """Whose it is that is below, or is, this one; None: nobody's."""
    for pid in table:
        way = []
        while pid not in known:
            known[pid] = None  # who comes by here again goes in a circle: parents that changed while it was looked at
            way.append(pid)
            process = table.get(pid)
            if process is None or process.parent <= 1:
                break
            pid = process.parent
        known.update(dict.fromkeys(way, known[pid]))
    keepers = orphans.keys() - roots.keys()  # are nobody's themselves
    return {pid: owner for pid in table if pid not in keepers and (owner := known[pid]) is not None}


def _frame(node: str, rows: Sequence[tuple[OwnedTask, Mapping[str, Value]]], ages: Mapping[OwnedTask, float]) -> Frame:
    names = rows[0][1].keys()
    columns = {name: [row[name] for _, row in rows] for name in names}
    told = [ages.get(task) for task, _ in rows]
    ids = [task.id for task, _ in rows]
    return Frame(about="task", node=node, ids=ids, columns=_measured(columns), ages=told if any(told) else [])


def _last_frame(node: str, over: Sequence[tuple[str, _Tally]]) -> Frame:
    columns: dict[str, list[Value]] = {
        name: [tally.totals[index] for _, tally in over] for index, name in enumerate(_COUNTERS)
    }
    return Frame(about="task", node=node, ids=[task for task, _ in over], columns=_measured(columns), ended=True)


def _measured(columns: Mapping[str, list[Value]]) -> dict[str, list[Value]]:
    """Those in which there is anything."""
    return {name: column for name, column in columns.items() if any(value is not None for value in column)}


def members_of(folder: str) -> list[int]:
    """Pids in a cgroup and in those that a job made below it."""
    pids: list[int] = []
    for place, _, _ in os.walk(folder):
        try:
            with open(f"{place}/cgroup.procs", encoding="ascii") as file:
                pids += map(int, file.read().split())
        except OSError:  # it ended meanwhile
            continue
    return pids

"""The state of every task of a step: who runs, who ended how, and what srun says and returns for it.

Pure bookkeeping: frames in, lines and an exit code out; `session` decides when to print. Ends that come together
on one node are told in one line, as `srun: error: n1: tasks 0-3: Terminated`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple


class TaskEnd(NamedTuple):
    code: int
    signal: int
    out_of_memory: bool = False

    @property
    def ok(self) -> bool:
        return not self.code and not self.signal and not self.out_of_memory

    @property
    def exit_code(self) -> int:
        """The exit code of a task, as a shell counts it."""
        return 128 + self.signal if self.signal else self.code

    def words(self) -> str:
        if self.out_of_memory:
            return "Out Of Memory"
        if self.signal:
            return signal.strsignal(self.signal) or f"Signal {self.signal}"
        return f"Exited with exit code {self.code}"


@dataclass(slots=True)
class Tally:
    """Tasks by their number in the whole srun (components of a heterogeneous step are numbered on)."""

    node_of: dict[int, str]
    started: set[int] = field(default_factory=set)
    ends: dict[int, TaskEnd] = field(default_factory=dict)
    lost_nodes: list[str] = field(default_factory=list)
    _untold: dict[int, TaskEnd] = field(default_factory=dict)
    _least: int = 0

    @property
    def ntasks(self) -> int:
        return len(self.node_of)

    @property
    def any_killed(self) -> bool:
        """Whether a task was ended by SIGKILL or SIGTERM: the two with which people end tasks."""
        return any(end.signal in (signal.SIGKILL, signal.SIGTERM) for end in self.ends.values())

    @property
    def all_ended(self) -> bool:
        return len(self.ends) == len(self.node_of)

    def start(self, tasks: Iterable[int]) -> None:
        self.started.update(tasks)

    def end(self, task: int, how: TaskEnd) -> bool:
        """Notes the end; False when it was known already."""
        if task in self.ends or task not in self.node_of:
            return False
        self.ends[task] = how
        self._untold[task] = how
        return True

    def lose_node(self, node: str, how: TaskEnd) -> list[int]:
        """The node is gone: its tasks that still ran ended so. They are not told one by one."""
        lost = [task for task, where in self.node_of.items() if where == node and task not in self.ends]
        for task in lost:
            self.ends[task] = how
        self.lost_nodes.append(node)
        return lost

    def take_untold(self) -> list[tuple[str, list[int], TaskEnd]]:
        """(node, tasks, how) for the ends not told yet, grouped and in the order of tasks."""
        groups: dict[tuple[str, TaskEnd], list[int]] = {}
        for task in sorted(self._untold):
            groups.setdefault((self.node_of[task], self._untold[task]), []).append(task)
        self._untold.clear()
        return [(node, tasks, how) for (node, how), tasks in groups.items()]

    def state_lines(self, step: str) -> list[str]:
        """What the first Ctrl-C shows: `StepId=42.0 tasks 0-3: running`."""
        states = {task: self._state(task) for task in self.node_of}
        lines = []
        for word in ("running", "starting", "exited", "exited abnormally"):
            tasks = [task for task, state in states.items() if state == word]
            if tasks:
                lines.append(f"StepId={step} {tasks_text(tasks)}: {word}")
        return lines

    def _state(self, task: int) -> str:
        end = self.ends.get(task)
        if end is not None:
            return "exited" if end.ok else "exited abnormally"
        return "running" if task in self.started else "starting"

    def fail(self, code: int) -> None:
        """Something of the step failed after its tasks had ended."""
        self._least = max(self._least, code)

    def exit_code(self) -> int:
        """The largest of all tasks' exit codes, and of what failed after them."""
        return max((end.exit_code for end in self.ends.values()), default=0) or self._least


def tasks_text(tasks: Sequence[int]) -> str:
    """`task 3`, or `tasks 0-3,7`."""
    return f"task {tasks[0]}" if len(tasks) == 1 else f"tasks {ranges_text(tasks)}"


def ranges_text(numbers: Sequence[int]) -> str:
    parts = []
    for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)


def read_end(value: Mapping[str, object]) -> TaskEnd:
    """Reads the end of a task from a TASK_EXITED frame."""
    return TaskEnd(int(str(value.get("code", 0))), int(str(value.get("signal", 0))), bool(value.get("oom")))

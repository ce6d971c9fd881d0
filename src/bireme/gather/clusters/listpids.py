"""What `scontrol listpids` says: the processes of each step on this node, as slurmd knows them. Pure.

Asked where Slurm makes no cgroups (`proctrack/linuxproc`, `proctrack/pgid`).
Invariant: a line that is not understood is passed over; no process is given to two steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bireme.gather.clusters.cgroups import step_number


class Listed(NamedTuple):
    """A process, by Slurm's word. `task`: on this node, of a task's first process; None: of any other."""

    pid: int
    job: int
    step: int
    task: int | None


def read_listpids(text: str) -> list[Listed]:
    """In the order of Slurm's answer; of a pid that is there twice the first line counts."""
    found: dict[int, Listed] = {}
    for listed in _lines(text):
        found.setdefault(listed.pid, listed)
    return list(found.values())


def _lines(text: str) -> Iterator[Listed]:
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or not (words[0].isdigit() and words[1].isdigit()):
            continue
        try:
            step = step_number(words[2].partition("+")[0])
        except ValueError:
            continue
        yield Listed(int(words[0]), int(words[1]), step, int(words[3]) if words[3].isdigit() else None)

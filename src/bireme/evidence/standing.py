"""Where the programs of a running job stand now: Python's stacks by py-spy, and what the kernel says of the others.

`bireme diagnose --stacks` looks as the user who asks. Before the daemon tells that a job hangs, a process of the job's
owner looks for it (`python -I -m bireme.evidence.standing`): JSON in and out,

    {"owner_uid": 1000, "job_id": 42}
    {"lines": [{"text": "thread MainThread stands in ...", "rank": 3, ...}], "problems": [...]}

A process is the job's by its environment (`SLURM_JOB_ID`), as its owner may read it; its rank is there too. Without
py-spy, and of programs in other languages, a line says in which function of the kernel a process waits.
Invariant: it looks as nobody but who started it, and what cannot be looked at is a sentence, with what to do about it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from bireme.bound_process import bind
from bireme.core.diagnosis.model import Line
from bireme.evidence.masking import mask
from bireme.evidence.stacks import Stack, compared, dump, py_spy, stacks_in
from bireme.evidence.whereabouts import ranks_text
from bireme.evidence.wire import line_data

_MOST = 64
"""Processes of one job that are looked at."""
_AT_ONCE = 4
_MOST_REQUEST = 1 << 16
_MEMORY, _CPU_S, _DESCRIPTORS = 2 << 30, 60, 128
_MISSING = (
    "py-spy is not installed here: `pip install py-spy`, then once more; or set PYTHONFAULTHANDLER=1 in the job and "
    "send it `scancel --signal=ABRT`: the stacks are then in its output"
)
_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a disk or a file system", "T": "is stopped", "Z": "is dead"}


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    name: str
    variables: Mapping[str, str]
    parent: int

    @property
    def is_python(self) -> bool:
        return self.name.startswith("python")

    @property
    def rank(self) -> int | None:
        of_step = "SLURM_STEP_ID" in self.variables  # a batch script has a number too, and so has the srun in it
        for name in ("RANK", *(("SLURM_PROCID",) if of_step else ()), "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
            text = self.variables.get(name, "")
            if text.isascii() and text.isdecimal() and len(text) < 7:
                return int(text)
        return None


def lines_of(job_id: int) -> tuple[list[Line], list[str]]:
    """Lines for rules, those that compare ranks first; and what could not be looked at."""
    processes = processes_of(job_id)
    if not processes:
        return [], [f"no process of job {job_id} runs on this machine that you may look at"]
    ranked = any(each.rank is not None for each in processes)  # then what starts ranks, and waits for them, is no news
    processes = [each for each in processes if each.rank is not None or not ranked]
    stacks, problems = _stacks_of([each for each in processes if each.is_python][:_MOST])
    main: dict[int, Stack] = {}
    lines: list[Line] = []
    for process, found in stacks:
        if process.rank is not None and found:  # the first process of a rank: its workers come after it
            main.setdefault(process.rank, next((each for each in found if each.thread == "MainThread"), found[0]))
        lines += [_line(process, str(stack), order) for order, stack in enumerate(found)]
    seen = {process.pid for process, _ in stacks}
    others = [each for each in _leaves(processes) if each.pid not in seen][:_MOST]
    lines += [_line(each, text) for each in others if (text := kernel_words(each))]
    ahead = [*compared(main), *_apart({each.rank: kernel_words(each) for each in others if each.rank is not None})]
    return [*(Line(text=text, source="trace", rank=rank) for text, rank in ahead), *lines], problems


def _line(process: Process, text: str, order: int = 0) -> Line:
    node = process.variables.get("SLURMD_NODENAME", "")
    return Line(text=mask(text), source="trace", order=order, rank=process.rank, node=node, pid=process.pid)


def _stacks_of(processes: Sequence[Process]) -> tuple[list[tuple[Process, list[Stack]]], list[str]]:
    """Of those that could be looked at."""
    if not processes:
        return [], []
    program = py_spy()
    if program is None:
        return [], [_MISSING]
    problems: list[str] = []

    def look(process: Process) -> list[Stack]:
        try:
            return stacks_in(dump(process.pid, program))
        except OSError as error:
            problems.append(f"the stacks of process {process.pid} cannot be had: {error}")
            return []

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = list(zip(processes, threads.map(look, processes), strict=True))
    return [(process, stacks) for process, stacks in found if stacks], problems


# -- what the kernel says --------------------------------------------------------------------------------------------


def kernel_words(process: Process) -> str:
    """`program train sleeps in pipe_read`; empty: it is gone."""
    stat = _read(process.pid, "stat")
    state = stat.rpartition(")")[2].split()[:1]
    if not state:
        return ""
    called = _read(process.pid, "wchan").strip()
    inside = f" in {called}" if called not in ("", "0") and state[0] in "SD" else ""
    return f"program {process.name} {_STATES.get(state[0].upper(), 'is in state ' + state[0])}{inside}"


def _apart(words: Mapping[int, str]) -> Iterator[tuple[str, int]]:
    """(words, rank) of each rank that does something else than more than half of them do alike."""
    by_words: dict[str, list[int]] = {}
    for rank, text in words.items():
        by_words.setdefault(_verb(text), []).append(rank)
    usual = max(by_words, key=lambda text: len(by_words[text]), default="")
    alike = by_words.get(usual, [])
    if 2 * len(alike) > len(words) > len(alike):
        for rank in sorted(words.keys() - set(alike)):
            yield f"rank {rank} {_verb(words[rank])}, unlike {ranks_text(sorted(alike))} ({usual})", rank


def _verb(words: str) -> str:
    """Without the name of the program, which may differ from rank to rank."""
    return words.split(" ", 2)[-1]


def _leaves(processes: Sequence[Process]) -> list[Process]:
    """Those that have started none of the others: what a rank really does, and not the shells above it."""
    parents = {each.parent for each in processes}
    return [each for each in processes if each.pid not in parents]


# -- whose processes they are ----------------------------------------------------------------------------------------


def processes_of(job_id: int) -> list[Process]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with suppress(OSError):
            program = os.path.basename(os.readlink(f"/proc/{name}/exe"))
            with open(f"/proc/{name}/environ", "rb") as file:
                pairs = [each.partition(b"=") for each in file.read(1 << 20).split(b"\0")]
            variables = {key.decode("ascii", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}
            if variables.get("SLURM_JOB_ID") == str(job_id):
                fields = _read(int(name), "stat").rpartition(")")[2].split()
                found.append(Process(int(name), program, variables, int(fields[1]) if len(fields) > 1 else 0))
    return sorted(found, key=lambda each: each.pid)


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", errors="replace") as file:
            return file.read(1 << 12)
    except OSError:
        return ""


# -- as the owner's process ------------------------------------------------------------------------------------------


def main(look: Callable[[int], tuple[list[Line], list[str]]] = lines_of) -> int:
    try:
        request = json.loads(sys.stdin.buffer.read(_MOST_REQUEST))
        if request["owner_uid"] != os.geteuid():
            raise ValueError(f"it runs as user {os.geteuid()}, and looks at nobody's processes but that user's")
        job_id = int(request["job_id"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        print(json.dumps({"error": f"the request cannot be read: {error}"}))
        return 2
    bind(memory_bytes=_MEMORY, cpu_s=_CPU_S, descriptors=_DESCRIPTORS)
    lines, problems = look(job_id)
    print(json.dumps({"lines": [line_data(line) for line in lines], "problems": problems}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

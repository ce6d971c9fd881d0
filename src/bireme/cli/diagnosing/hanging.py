"""Where the Python programs of a running job stand now: py-spy's dumps of its processes on this machine.

A process is the job's by its environment (`SLURM_JOB_ID`), as the user who asks may read it; its rank is there too.
Invariant: what cannot be looked at is a sentence, with what to do about it.
"""

from __future__ import annotations

import os
from contextlib import suppress

from bireme.core.diagnosis.model import Line
from bireme.evidence.stacks import Stack, compared, dump, py_spy, stacks_in

_MOST = 64
_MISSING = (
    "py-spy is not installed here: `pip install py-spy`, then once more; or set PYTHONFAULTHANDLER=1 in the job and "
    "send it `scancel --signal=ABRT`: the stacks are then in its output"
)


def stack_lines_of(job_id: int) -> tuple[list[Line], list[str]]:
    """Lines for rules, and what could not be looked at."""
    processes = _processes_of(job_id)
    if not processes:
        return [], [f"no Python process of job {job_id} runs on this machine that you may look at"]
    program = py_spy()
    if program is None:
        return [], [_MISSING]
    lines: list[Line] = []
    problems: list[str] = []
    main: dict[int, Stack] = {}
    for pid, variables in processes[:_MOST]:
        try:
            stacks = stacks_in(dump(pid, program))
        except OSError as error:
            problems.append(f"the stacks of process {pid} cannot be had: {error}")
            continue
        rank = _rank(variables)
        if rank is not None and stacks:
            main[rank] = next((stack for stack in stacks if stack.thread == "MainThread"), stacks[0])
        node = variables.get("SLURMD_NODENAME", "")
        lines += [
            Line(text=str(each), source="trace", order=n, rank=rank, node=node, pid=pid)
            for n, each in enumerate(stacks)
        ]
    return [*(Line(text=text, source="trace", rank=rank) for text, rank in compared(main)), *lines], problems


def _processes_of(job_id: int) -> list[tuple[int, dict[str, str]]]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with suppress(OSError):
            if not os.path.basename(os.readlink(f"/proc/{name}/exe")).startswith("python"):
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                pairs = [each.partition(b"=") for each in file.read(1 << 20).split(b"\0")]
            variables = {key.decode("ascii", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}
            if variables.get("SLURM_JOB_ID") == str(job_id):
                found.append((int(name), variables))
    return sorted(found, key=lambda each: each[0])


def _rank(variables: dict[str, str]) -> int | None:
    for name in ("RANK", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        text = variables.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) < 7:
            return int(text)
    return None

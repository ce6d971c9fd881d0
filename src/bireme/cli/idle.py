"""bireme idle: who holds GPUs without using them, who would be hit when, and what the pool would win.

The daemon answers with data (`GET /v1/idle`); here it becomes text, or JSON as it came. Decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.client.transport import ApiError, BiremeUnavailable
from bireme.commands.reports import make_stamp
from bireme.commands.voice import refused_by_daemon, run_command
from bireme.core.explain.wording import counted
from bireme.slurm.formats.visible import visible_values
from bireme.slurm.sizes import format_memory
from bireme.slurm.times import format_elapsed

Record = dict[str, Any]
_MODES = {
    "off": "off: nobody is looked at (idle.mode in bireme.toml; docs/idle.md)",
    "dry-run": "dry-run: nobody is told and nothing is done",
    "notify": "notify: owners are told, and nothing is done",
    "act": "act",
}
_HEAD = ("JOB", "USER", "PARTITION", "RULE", "GPUS", "IDLE FOR", "MOST", "HOLDS", "THEN")
_SHOWN = ("told", "due", "idle")
_REST = (("exempt", "Exempt"), ("unknown", "Not known, so nothing is done"), ("unruled", "No rule"))


def main(argv: list[str]) -> int:
    return run_command("bireme idle", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme idle",
        description="Who holds GPUs without using them, who would be hit when, and what the pool would win.",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON, with the jobs that use their GPUs")
    parser.add_argument("--quick", action="store_true", help="leave out which waiting jobs would start")
    given = parser.parse_args(argv)
    with make_transport() as transport:
        try:
            told = transport.get("/v1/idle", {"trial": "0"} if given.quick else None)
        except (ApiError, BiremeUnavailable) as error:
            raise refused_by_daemon("", error) from error
    if given.json:
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(text_of(visible_values(told), make_stamp("", told["now"]))))
    return 0


def text_of(told: Record, stamp: Callable[[float], str]) -> Iterator[str]:
    """The whole answer, as lines."""
    source = f" by {told['policy']}" if told["policy"] else ""
    yield f"Idle GPUs{source}, {_MODES.get(told['mode'], told['mode'])}"
    if told["problem"]:
        yield f"Nothing is known: {told['problem']}"
    yield from (f"The policy is for nobody here: {warning}" for warning in told["warnings"])
    if told["mode"] == "off":
        return
    idle = sorted((job for job in told["jobs"] if job["stage"] in _SHOWN), key=lambda job: -job["idle_s"])
    yield ""
    if idle:
        yield from _table([_HEAD, *(_row(job, told, stamp) for job in idle)])
        yield ""
        yield from _pool(told["pool"])
    else:
        unknown = any(job["stage"] == "unknown" for job in told["jobs"])
        yield "No job is known to be idle." if unknown or told["problem"] else "No job is idle."
    for stage, title in _REST:
        jobs = [job for job in told["jobs"] if job["stage"] == stage]
        if jobs:
            yield f"\n{title}"
            yield from _table([(f"  {job['label']}", job["user"], job["why"]) for job in jobs])
    busy = [job for job in told["jobs"] if job["stage"] == "busy"]
    if busy:
        yield f"\nIn use: {counted(sum(job['gpus'] for job in busy), 'GPU')} of {counted(len(busy), 'job')}."


def _row(job: Record, told: Record, stamp: Callable[[float], str]) -> tuple[str, ...]:
    return (
        job["label"],
        job["user"],
        job["partition"],
        job["rule"],
        f"{job['gpus_idle']}/{job['gpus']}",
        format_elapsed(int(job["idle_s"])),
        f"{job['percent']:.0f}% {_MEASURES.get(job['measure'], job['measure'])}",
        format_memory(job["memory_mib"]) if job["memory_mib"] else "-",
        _then(job, told, stamp),
    )


_MEASURES = {"gpu_sm_active": "SM", "gpu_util": "util", "use_gpu_util": "of its own"}


def _then(job: Record, told: Record, stamp: Callable[[float], str]) -> str:
    instead = f" ({job['instead']})" if job["instead"] else ""
    if job["hit_at"] is None:
        said = "its owner was told" if job["told_at"] is not None else "its owner would be told"
        return f"{said}{instead}" if job["stage"] != "idle" else f"nothing yet{instead}"
    comes = job["comes"] if told["mode"] == "act" else job["comes"].replace("will be", "would be")
    away = max(0, round(job["hit_at"] - told["now"]))
    return f"{comes} {stamp(job['hit_at'])} (in {format_elapsed(away)}){instead}"


def _pool(pool: Record) -> Iterator[str]:
    are = "is" if pool["gpus_idle"] == 1 else "are"
    idle = f"{pool['gpus_idle']} of {counted(pool['gpus'], 'GPU')} in jobs {are} idle"
    yield f"{idle}: {pool['wasted_gpu_hours']:g} GPU-hours so far."
    if not pool["gpus_freed"]:
        return
    until = f"{pool['wins_gpu_hours']:g} GPU-hours until their time limits"
    endless = f"; {counted(len(pool['endless']), 'job')} of them without a limit" if pool["endless"] else ""
    yield f"Those whose time has come would free {counted(pool['gpus_freed'], 'GPU')}, {until}{endless}."
    starts = pool["would_start"]
    if starts is not None:
        named = ", ".join(map(str, starts[:20])) + (f" and {len(starts) - 20} more" if len(starts) > 20 else "")
        jobs = "job" if len(starts) == 1 else "jobs"
        yield f"Then would start: {jobs} {named}." if starts else "No waiting job would start for it."


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()

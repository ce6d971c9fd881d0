"""bireme top: nodes, GPUs and the queue on one screen, live; `--once` prints one frame.

Three requests a frame, drawn with rich. `q` or Ctrl-C leaves. Decides nothing: what it shows are the records that
sinfo and squeue show.
"""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bireme.cli.lifecycle import gpus_of, machine_words
from bireme.cli.parsing import Arguments
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.commands.scancel import label
from bireme.commands.voice import refused_by_daemon, run_command
from bireme.slurm.formats.visible import visible_values

_JOB_FIELDS = (
    "job_id,array_job_id,array_task_id,array_tasks,het_job_id,het_offset,name,user_name,partition,state,reason,priority,"
    "start_time,expected_start,elapsed_s,time_limit_s,node_list,node_count,num_cpus,tres_requested,tres_allocated"
)
_LIVE = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "PENDING"})
_ORDER = {"RUNNING": 0, "SUSPENDED": 1, "COMPLETING": 2, "CONFIGURING": 3, "PENDING": 4}
_COLOURS = {
    "RUNNING": "green",
    "PENDING": "yellow",
    "COMPLETING": "cyan",
    "CONFIGURING": "cyan",
    "SUSPENDED": "magenta",
    "IDLE": "green",
    "MIXED": "cyan",
    "ALLOCATED": "blue",
    "DOWN": "red",
    "UNKNOWN": "red",
}
_BAR = 10
_WIDTH_ELSEWHERE = 140  # into a file or a pipe
_USED_GPU, _FREE_GPU = "■", "□"


@dataclass(frozen=True, slots=True)
class Picture:
    """What one frame shows."""

    about: dict[str, Any]
    nodes: list[dict[str, Any]]
    jobs: list[dict[str, Any]]


def main(argv: list[str]) -> int:
    return run_command("bireme top", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(prog="bireme top", description="Nodes, GPUs and the queue, live. q leaves.")
    parser.add_argument("--once", action="store_true", help="print one frame and leave")
    parser.add_argument(
        "-d", "--delay", type=float, default=1.0, metavar="S", help="seconds between frames (default 1)"
    )
    parser.add_argument("--home", default=None, metavar="DIR", help="the cluster's state (default: $BIREME_HOME)")
    given = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_ELSEWHERE)
    with Transport(given.home) as transport:
        first = look(transport)
        if given.once or not sys.stdout.isatty():
            console.print(draw(first, None))
            return 0
        transport.patience_s = 2.0
        return _watch(transport, console, first, max(0.1, given.delay))


def look(transport: Transport) -> Picture:
    try:
        about = visible_values(transport.get("/v1/ping"))
        nodes = visible_values(transport.get("/v1/nodes")["nodes"])
        jobs = visible_values(transport.get("/v1/jobs", {"fields": _JOB_FIELDS})["jobs"])
    except (ApiError, BiremeUnavailable) as error:
        raise refused_by_daemon("", error) from error
    live = [job for job in jobs if job["state"] in _LIVE]
    live.sort(key=lambda job: (_ORDER[job["state"]], -(job.get("priority") or 0), job["job_id"]))
    return Picture(about, nodes, live)


def _watch(transport: Transport, console: Console, first: Picture, delay_s: float) -> int:
    with (
        _keys() as pressed,
        Live(draw(first, console.height), console=console, screen=True, auto_refresh=False) as live,
    ):
        while not pressed(delay_s):
            live.update(draw(look(transport), console.height), refresh=True)
    return 0


def _slept(seconds: float) -> bool:
    """Where there are no keys, only time passes."""
    time.sleep(seconds)
    return False


@contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits so many seconds and says whether q was pressed."""
    if not sys.stdin.isatty():
        yield _slept
        return
    before = termios.tcgetattr(0)
    tty.setcbreak(0)

    def pressed(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([0], [], [], left)
            if ready and os.read(0, 16)[:1] in (b"q", b"Q", b"\x1b", b""):
                return True
        return False

    try:
        yield pressed
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


# --- drawing -----------------------------------------------------------------------------------------------


def draw(picture: Picture, height: int | None) -> RenderableType:
    """One frame; with `height`, cut to so many lines: nodes get at most half."""
    room = None if height is None else max(4, height - 6)
    node_rows = len(picture.nodes) if room is None else min(len(picture.nodes), room // 2)
    job_rows = len(picture.jobs) if room is None else room - node_rows
    return Group(_headline(picture), Text(), _nodes(picture.nodes, node_rows), Text(), _queue(picture, job_rows))


def _headline(picture: Picture) -> Text:
    about = picture.about
    running = sum(job["state"] == "RUNNING" for job in picture.jobs)
    waiting = sum(job["state"] == "PENDING" for job in picture.jobs)
    used, total = 0, 0
    for node in picture.nodes:
        in_use, all_of_it = gpu_use(node)
        used, total = used + in_use, total + all_of_it
    head = Text(about["cluster"], style="bold")
    head.append(f"  {machine_words(picture.nodes)}  ", style="default")
    if total:
        head.append(f"GPUs {used}/{total}  ", style="bold cyan")
    head.append(f"{running} running", style="green")
    head.append(f"  {waiting} waiting", style="yellow")
    head.append(time.strftime("   %H:%M:%S", time.localtime(about["now"])), style="dim")
    return head


def gpu_use(node: dict[str, Any]) -> tuple[int, int]:
    """(in use, all) GPUs of a node."""
    return sum(gpus_of(node.get("gres_used") or "").values()), sum(gpus_of(node.get("gres") or "").values())


def gpu_squares(node: dict[str, Any]) -> Text:
    """One square for each GPU, filled where a job holds it."""
    used, total = gpu_use(node)
    held: set[int] = set()
    for ranges in re.findall(r"gpu[^,(]*\(IDX:([0-9,-]+)\)", node.get("gres_used") or ""):
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            held |= set(range(int(first), int(last or first) + 1))
    if len(held) != used:
        held = set(range(used))
    squares = Text()
    for index in range(total):
        squares.append(_USED_GPU if index in held else _FREE_GPU, style="cyan" if index in held else "dim")
    return squares


def _nodes(nodes: list[dict[str, Any]], rows: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold dim")
    for column in ("NODE", "STATE", "CPUS", "MEMORY", "GPUS", "JOBS"):
        table.add_column(column, no_wrap=True)
    for node in nodes[:rows]:
        state = "+".join([node["state"], *(node.get("flags") or ())])
        jobs = node.get("jobs") or ()
        table.add_row(
            node["name"],
            Text(state.lower(), style=_COLOURS.get(node["state"], "default")),
            _bar(node.get("cpus_allocated") or 0, node.get("cpus") or 0, ""),
            _bar(node.get("memory_allocated_mib") or 0, node.get("memory_mib") or 0, "G"),
            gpu_squares(node),
            " ".join(str(job) for job in jobs[:6]) + (" ..." if len(jobs) > 6 else ""),
        )
    if len(nodes) > rows:
        table.add_row(f"... {len(nodes) - rows} more")
    return table


def _bar(used: int, total: int, unit: str) -> Text:
    filled = round(_BAR * used / total) if total else 0
    if used and not filled:
        filled = 1
    shown = f" {used}/{total}" if not unit else f" {used / 1024:.0f}/{total / 1024:.0f}{unit}"
    bar = Text("▮" * filled, style="blue")
    bar.append("▯" * (_BAR - filled), style="dim")
    return bar.append(shown, style="default")


def _queue(picture: Picture, rows: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold dim")
    for column in (
        "JOB",
        "USER",
        "NAME",
        "PARTITION",
        "STATE",
        "TIME",
        "LEFT",
        "NODES",
        "CPUS",
        "GPUS",
        "WHERE OR WHY",
    ):
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for job in picture.jobs[:rows]:
        waits = job["state"] == "PENDING"
        table.add_row(
            label(job),
            job.get("user_name") or "",
            Text(job.get("name") or "", overflow="ellipsis"),
            job.get("partition") or "",
            Text(job["state"].lower(), style=_COLOURS[job["state"]]),
            "" if waits else duration(job.get("elapsed_s")),
            "" if waits else _left(job),
            str(job.get("node_count") or ""),
            str(job.get("num_cpus") or ""),
            str((job.get("tres_allocated") or job.get("tres_requested") or {}).get("gres/gpu", "")),
            f"({job.get('reason')})" if waits else job.get("node_list") or "",
        )
    if not picture.jobs:
        table.add_row(Text("nothing in the queue", style="dim"))
    elif len(picture.jobs) > rows:
        table.add_row(f"... {len(picture.jobs) - rows} more")
    return table


def _left(job: dict[str, Any]) -> str:
    limit = job.get("time_limit_s")
    return "unlimited" if limit is None else duration(max(0, limit - (job.get("elapsed_s") or 0)))


def duration(seconds: float | None) -> str:
    """`1-02:03:04`, `2:03:04`, `3:04`."""
    whole = int(seconds or 0)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"

"""Draws a frame of `bireme top`: GPUs (or nodes) above, jobs below, for a screen of any size.

Takes a picture and a view, returns what rich prints. GPUs that do not fit are shown node by node, nodes that do not fit
page by page. The figure of a GPU's use is what its hardware counted where that is known (`SM`, with the tensor cores
beside it), else `util`, and it says which.
Invariant: with a height, a frame has no more lines than that.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bireme.cli.lifecycle import gpus_of, machine_words
from bireme.cli.top.figures import sparkline
from bireme.cli.top.looking import POINTS, Picture
from bireme.cli.top.view import Upper, View, gpus_of_job, shown_jobs
from bireme.commands.scancel import label

Record = dict[str, Any]
COLOURS = {
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
_NARROW = 110
_USED_GPU, _FREE_GPU = "■", "□"
_IDLE_PART = 10.0
"""A GPU that a job has and of which less is used is shown in red."""
HELP = (
    ("up down, j k", "choose a job"),
    ("enter, o", "open it: curves, tasks, the end of its log"),
    ("l", "follow its log"),
    ("escape", "back; out of the list: leave"),
    ("s", "sort by state, use (least first), GPUs, time, user"),
    ("/", "filter: job, name, user, partition, node, reason; enter keeps it, escape drops it"),
    ("g", "above: GPUs, their nodes, all nodes"),
    ("[ ], page up, page down", "pages of what is above"),
    ("?", "this"),
    ("q", "leave"),
)


def draw(picture: Picture, height: int | None, width: int = 140, view: View | None = None) -> RenderableType:
    """One frame; with `height`, cut to so many lines: what is above gets at most half. `view` None: a plain shot."""
    shown = view or View()
    room = None if height is None else max(2, height - 7)
    upper, rows_above = _upper(picture, shown, None if room is None else max(1, room // 2), width)
    jobs = shown_jobs(picture, shown)
    rows = len(jobs) if room is None else max(1, room - rows_above)
    parts: list[RenderableType] = [_headline(picture), Text(), upper, Text()]
    parts.append(_queue(picture, shown, jobs, rows, width, is_live=view is not None))
    if view is not None:
        parts.append(_footer(shown, width))
    return Group(*parts)


def draw_help() -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for keys, text in HELP:
        table.add_row(Text(keys, "bold"), text)
    return Group(Text("bireme top: keys", "bold"), Text(), table)


def _footer(view: View, width: int) -> Text:
    if view.is_typing:
        return Text(f"/{view.filter}_", "bold", no_wrap=True, overflow="ellipsis")
    parts = [f"sort: {view.sort}", *([f"filter: {view.filter}"] if view.filter else [])]
    keys = "? help  / filter  s sort  enter open  l log  g GPUs  q quit"
    return Text(f"{'  '.join(parts)}   {keys}"[:width], "dim", no_wrap=True, overflow="ellipsis")


def _headline(picture: Picture) -> Text:
    about = picture.about
    running = sum(job["state"] == "RUNNING" for job in picture.jobs)
    waiting = sum(job["state"] == "PENDING" for job in picture.jobs)
    used, total = 0, 0
    for node in picture.nodes:
        in_use, all_of_it = gpu_use(node)
        used, total = used + in_use, total + all_of_it
    head = Text(about["cluster"], style="bold", no_wrap=True, overflow="ellipsis")
    head.append(f"  {machine_words(picture.nodes)}  ", style="default")
    if total:
        head.append(f"GPUs {used}/{total}  ", style="bold cyan")
    head.append(f"{running} running", style="green")
    head.append(f"  {waiting} waiting", style="yellow")
    head.append(time.strftime("   %H:%M:%S", time.localtime(about["now"])), style="dim")
    if picture.problem:
        head.append(f"   {picture.problem}", style="red")
    return head


# --- above: GPUs or nodes ---------------------------------------------------------------------------------------


def _upper(picture: Picture, view: View, rows: int | None, width: int) -> tuple[Table, int]:
    """The table, and how many lines of it count."""
    kind = _kind(picture, view.upper, rows)
    if kind == "nodes":
        return _page_of(picture.nodes, view.page, rows, _nodes)
    if kind == "gpus":
        return _page_of(picture.gpus, view.page, rows, lambda some: _gpus(some, picture, width))
    by_node: dict[str, list[Record]] = {}
    for gpu in picture.gpus:
        by_node.setdefault(gpu["node"], []).append(gpu)
    return _page_of(list(by_node.items()), view.page, rows, lambda some: _gpu_nodes(some, width))


def _kind(picture: Picture, asked: Upper, rows: int | None) -> Upper:
    if not picture.gpus:
        return "nodes"
    if asked != "auto":
        return asked
    fits = len(picture.gpus) <= (rows if rows is not None else 64)
    return "gpus" if fits else "gpu nodes"


def _page_of(items: Sequence[Any], page: int, rows: int | None, made: Any) -> tuple[Table, int]:
    """Only one page where they do not fit, with a last line that says which."""
    if rows is None or len(items) <= rows:
        return made(items), len(items)
    size = max(1, rows - 1)
    pages = -(-len(items) // size)
    page = min(page, pages - 1)
    table = made(items[page * size : (page + 1) * size])
    hidden = len(items) - len(items[page * size : (page + 1) * size])
    table.add_row(Text(f"... {hidden} more", "dim"), Text(f"[{page + 1}/{pages}]", "dim"))
    return table, size + 1


def gpu_use(node: Record) -> tuple[int, int]:
    """(in use, all) GPUs of a node."""
    return sum(gpus_of(node.get("gres_used") or "").values()), sum(gpus_of(node.get("gres") or "").values())


def gpu_squares(node: Record) -> Text:
    """One square for each GPU, filled where a job holds it."""
    used, total = gpu_use(node)
    held: set[int] = set()
    for ranges in re.findall(r"gpu[^,(]*\(IDX:([0-9,-]+)\)", (node.get("gres_used") or "").replace("(null)", "")):
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            held |= set(range(int(first), int(last or first) + 1))
    if len(held) != used:
        held = set(range(used))
    squares = Text()
    for index in range(total):
        squares.append(_USED_GPU if index in held else _FREE_GPU, style="cyan" if index in held else "dim")
    return squares


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold dim")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    return table


def _held_to(table: Table, *flexible: str) -> Table:
    """Where the screen is narrow only these columns, and the last, become narrower."""
    for column in table.columns[:-1]:
        if column.header not in flexible:
            texts = (cell if isinstance(cell, Text) else Text(str(cell)) for cell in column.cells)
            column.min_width = max(len(str(column.header)), *(text.cell_len for text in texts), 0)
    return table


def _nodes(nodes: Sequence[Record]) -> Table:
    table = _table("NODE", "STATE", "CPUS", "MEMORY", "GPUS", "JOBS")
    for node in nodes:
        state = "+".join([node["state"], *(node.get("flags") or ())])
        jobs = node.get("jobs") or ()
        table.add_row(
            node["name"],
            Text(state.lower(), style=COLOURS.get(node["state"], "default")),
            _bar(node.get("cpus_allocated") or 0, node.get("cpus") or 0, ""),
            _bar(node.get("memory_allocated_mib") or 0, node.get("memory_mib") or 0, "G"),
            gpu_squares(node),
            " ".join(str(job) for job in jobs[:6]) + (" ..." if len(jobs) > 6 else ""),
        )
    return _held_to(table, "STATE")


def real_use(values: Record) -> tuple[float, str] | None:
    """How much of a GPU works, and what that figure is; None: it is not measured."""
    for metric, word in (("gpu_sm_active", "SM"), ("gpu_util", "util")):
        if metric in values:
            return float(values[metric]), word
    return None


def _gpus(gpus: Sequence[Record], picture: Picture, width: int) -> Table:
    table = _table("NODE", "GPU", "USE", "MEMORY", "POWER", *(("MODEL",) if width >= _NARROW else ()), "JOB")
    names = {job["job_id"]: f"{label(job)} {job.get('name') or ''} ({job.get('user_name') or ''})"
             for job in picture.jobs}  # fmt: skip
    for gpu in gpus:
        values = gpu["values"]
        owners = [names.get(job_id, str(job_id)) for job_id in gpu["job_ids"]]
        row: list[str | Text] = [
            gpu["node"],
            f"{gpu['index']}{' ' + gpu['profile'] if gpu['profile'] else ''}",
            _use_bar(values, is_held=not gpu["unowned"]),
            _memory_bar(values.get("gpu_memory_used"), gpu["memory_mib"]),
            f"{values['gpu_power']:.0f} W" if "gpu_power" in values else "",
            *((gpu["model"],) if width >= _NARROW else ()),
            _whose(gpu, owners),
        ]
        table.add_row(*row)
    return _held_to(table, "MODEL")


def _whose(gpu: Record, owners: Sequence[str]) -> Text:
    """The jobs that have it; and that somebody is on it whom no job has there."""
    text = Text(", ".join(owners), overflow="ellipsis") if owners else Text("free" if gpu["unowned"] else "", "dim")
    strangers_mib = gpu["values"].get("gpu_unowned_memory", 0.0)
    if strangers_mib > 0:
        stray = Text(f"no job's: {strangers_mib / 1024:.1f}G", "bold yellow")
        return Text(", ").join([stray, text]) if owners else stray
    return text


def _use_bar(values: Record, *, is_held: bool) -> Text:
    if values.get("gpu_answers") == 0:
        return Text("does not answer", "bold red")
    use = real_use(values)
    if use is None:
        return Text("not measured", "dim")
    part, word = use
    style = "red" if is_held and part < _IDLE_PART else "green"
    tensor = f" tensor {values['gpu_tensor_active']:.0f}%" if "gpu_tensor_active" in values else ""
    return _filled(part / 100.0, style).append(f" {part:3.0f}% {word}{tensor}", "default")


def _memory_bar(used_mib: float | None, total_mib: int) -> Text:
    if used_mib is None or not total_mib:
        return Text("" if used_mib is None else f"{used_mib / 1024:.0f}G")
    return _filled(used_mib / total_mib, "blue").append(f" {used_mib / 1024:.0f}/{total_mib / 1024:.0f}G", "default")


def _gpu_nodes(nodes: Sequence[tuple[str, list[Record]]], width: int) -> Table:
    """A row for each node: the mean of its GPUs' use, the least and the most, and how many jobs have."""
    table = _table("NODE", "GPUS", "USE (MEAN)", "LEAST", "MOST", "MEMORY", *(("POWER",) if width >= _NARROW else ()))
    for node, gpus in nodes:
        uses = [(gpu, use) for gpu in gpus if (use := real_use(gpu["values"])) is not None]
        held = sum(not gpu["unowned"] for gpu in gpus)
        mute = sum(gpu["values"].get("gpu_answers") == 0 for gpu in gpus)
        shown: Text = Text("not measured", "dim")
        if uses:
            words = {word for _, (_, word) in uses}
            mean = sum(part for _, (part, _) in uses) / len(uses)
            shown = _filled(mean / 100.0, "red" if held and mean < _IDLE_PART else "green")
            shown.append(f" {mean:3.0f}% {'+'.join(sorted(words))}", "default")
        if mute:
            shown.append(f"  {mute} {'does' if mute == 1 else 'do'} not answer", "bold red")
        parts = [part for _, (part, _) in uses]
        memory = [gpu["values"]["gpu_memory_used"] for gpu in gpus if "gpu_memory_used" in gpu["values"]]
        row: list[str | Text] = [
            node,
            f"{held}/{len(gpus)}",
            shown,
            f"{min(parts):.0f}%" if parts else "",
            f"{max(parts):.0f}%" if parts else "",
            _memory_bar(sum(memory) if memory else None, sum(gpu["memory_mib"] for gpu in gpus if not gpu["parent"])),
        ]
        if width >= _NARROW:
            watts = [gpu["values"]["gpu_power"] for gpu in gpus if "gpu_power" in gpu["values"]]
            row.append(f"{sum(watts):,.0f} W" if watts else "")
        table.add_row(*row)
    return _held_to(table)


def _filled(part: float, style: str) -> Text:
    filled = max(0, min(_BAR, round(_BAR * part)))
    if part > 0.005 and not filled:
        filled = 1
    bar = Text("▮" * filled, style=style)
    return bar.append("▯" * (_BAR - filled), style="dim")


def _bar(used: int, total: int, unit: str) -> Text:
    shown = f" {used}/{total}" if not unit else f" {used / 1024:.0f}/{total / 1024:.0f}{unit}"
    return _filled(used / total if total else 0.0, "blue").append(shown, style="default")


# --- below: jobs ------------------------------------------------------------------------------------------------


def _queue(picture: Picture, view: View, jobs: Sequence[Record], rows: int, width: int, *, is_live: bool) -> Table:
    is_narrow = width < _NARROW
    columns = ["JOB", "USER", "NAME", "STATE", "TIME", "GPUS", "USE", "WHERE OR WHY"]
    if not is_narrow:
        columns = [
            "JOB", "USER", "NAME", "PARTITION", "STATE", "TIME", "LEFT", "NODES", "CPUS", "GPUS", "USE", "WHERE OR WHY",
        ]  # fmt: skip
    if not picture.sparks:
        columns.remove("USE")
    table = _table(*columns)
    first = _first_row(jobs, view, rows)
    for job in jobs[first : first + rows]:
        cells = _cells(job, picture, POINTS if not is_narrow else POINTS // 2)
        marked = is_live and job["job_id"] == view.selected
        table.add_row(*(cells[column] for column in columns), style="reverse" if marked else None)
    if not jobs:
        table.add_row(Text("nothing in the queue" if not view.filter else "none like that", style="dim"))
    elif len(jobs) > rows:
        table.add_row(Text(f"... {len(jobs) - rows} more", "dim"))
    return _held_to(table, "NAME", "USER", "PARTITION")


def _first_row(jobs: Sequence[Record], view: View, rows: int) -> int:
    """The first row to be drawn, so that the chosen one is on the screen."""
    place = next((place for place, job in enumerate(jobs) if job["job_id"] == view.selected), 0)
    return max(0, min(place - rows + 1, len(jobs) - rows)) if place >= rows else 0


def on_screen(picture: Picture, view: View, height: int) -> list[int]:
    """Jobs that run and may be in sight: whose small curves are worth asking for."""
    jobs = shown_jobs(picture, view)
    first = _first_row(jobs, view, height)
    return [job["job_id"] for job in jobs[first : first + height] if job["state"] == "RUNNING"]


def _cells(job: Record, picture: Picture, points: int) -> dict[str, str | Text]:
    waits = job["state"] == "PENDING"
    return {
        "JOB": label(job),
        "USER": job.get("user_name") or "",
        "NAME": Text(job.get("name") or "", overflow="ellipsis"),
        "PARTITION": job.get("partition") or "",
        "STATE": Text(job["state"].lower(), style=COLOURS[job["state"]]),
        "TIME": "" if waits else duration(job.get("elapsed_s")),
        "LEFT": "" if waits else _left(job),
        "NODES": str(job.get("node_count") or ""),
        "CPUS": str(job.get("num_cpus") or ""),
        "GPUS": str(gpus_of_job(job) or ""),
        "USE": _spark(job, picture, points),
        "WHERE OR WHY": f"({job.get('reason')})" if waits else job.get("node_list") or "",
    }


def _spark(job: Record, picture: Picture, points: int) -> Text:
    spark = picture.sparks.get(job["job_id"])
    if spark is None:
        return Text()
    text = Text(sparkline(spark.values[-points:], spark.top), "green")
    if spark.newest is None:
        return text
    unit = f"{spark.newest:.1f} CPUs" if spark.word == "CPUs" else f"{spark.newest:.0f}% {spark.word}"
    return text.append(f" {unit}", "default")


def _left(job: Record) -> str:
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

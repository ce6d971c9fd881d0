"""Draws the page of one job in `bireme top`: its curves of the last minutes, its tasks, the end of its log; or the log
alone. Invariant: no more lines than the screen has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bireme.cli.top.figures import figure, sparkline
from bireme.cli.top.looking import JobPicture
from bireme.cli.top.screen import COLOURS, duration
from bireme.commands.scancel import label

Record = dict[str, Any]
_TOPS = {"%": 100.0}
_PER_TASK = ("cpu_user", "memory", "processes")


def draw_job(job: Record, page: JobPicture, width: int, height: int, *, only_log: bool) -> RenderableType:
    head = _head(job)
    foot = Text("escape back" + ("" if only_log else "   l follow the log") + "   q quit", "dim")
    if only_log:
        return Group(head, *_log(page, width, height - 2), foot)
    curves = list(_curves(page.curves, width))[: max(3, (height - 6) // 2)]
    tasks, task_rows = _tasks(page.curves, max(2, (height - 6) // 4))
    parts: list[RenderableType] = [head, Text(), *curves]
    if not curves:
        parts.append(Text(_why_no_curves(job), "dim"))
    if task_rows:
        parts += [Text(), tasks]
    left = height - len(parts) - task_rows - 3
    if left > 1:
        parts += [Text(), *_log(page, width, left)]
    return Group(*parts, foot)


def _why_no_curves(job: Record) -> str:
    if job["state"] != "PENDING":
        return "nothing was measured of it in the last minutes"
    again = " again" if job.get("generation") else ""
    told = f"; bireme timeline {label(job)} tells of its earlier starts" if again else ""
    return f"it waits{again}: nothing is measured of it now{told}"


def _head(job: Record) -> Text:
    head = Text(f"job {label(job)}", "bold", no_wrap=True, overflow="ellipsis")
    head.append(f"  {job.get('name') or ''}  {job.get('user_name') or ''}  ", "default")
    head.append(job["state"].lower(), COLOURS.get(job["state"], "default"))
    where = f"({job.get('reason')})" if job["state"] == "PENDING" else job.get("node_list") or ""
    return head.append(f"  {duration(job.get('elapsed_s'))}  {where}", "default")


def _curves(curves: Sequence[Record], width: int) -> list[Text]:
    rows = []
    for curve in curves:
        if curve["metric"] in _PER_TASK:
            continue
        known = [value for value in curve["mean"] if value is not None]
        if not known:
            continue
        name = f"{curve['metric'].removeprefix('gpu_').removeprefix('use_')[:13]:<13} {_place(curve):<16.16} "
        room = max(5, width - len(name) - 12)
        top = _TOPS.get(curve["unit"]) or max(known) or 1.0
        row = Text(name, "default", no_wrap=True, overflow="crop")
        row.append(f"{sparkline(curve['mean'][-room:], top):<{room}}", "green")
        rows.append(row.append(f" {figure(known[-1], curve['unit'])}", "bold"))
    return rows


def _place(curve: Record) -> str:
    """A GPU by its number, where that is known."""
    if "place" in curve:
        return str(curve["place"])
    whose = curve["id"].rpartition("@")[2]
    return f"{curve['node']} {whose[-8:]}" if curve["about"] in ("gpu", "use") else curve["node"]


def _tasks(curves: Sequence[Record], rows: int) -> tuple[Table, int]:
    """The newest figures of each task."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for curve in curves:
        newest = next((value for value in reversed(curve["mean"]) if value is not None), None)
        if curve["metric"] in _PER_TASK and newest is not None:
            found.setdefault((curve["node"], curve["id"]), {})[curve["metric"]] = newest
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold dim")
    for column in ("STEP.TASK", "NODE", "CPUS", "MEMORY", "PROCESSES"):
        table.add_column(column, no_wrap=True)
    for (node, task), values in sorted(found.items())[:rows]:
        step = ".".join(task.split(".")[2:]).replace("-5.0", "script")
        table.add_row(
            step,
            node,
            f"{values['cpu_user']:.2f}" if "cpu_user" in values else "",
            figure(values["memory"], "MiB") if "memory" in values else "",
            f"{values['processes']:.0f}" if "processes" in values else "",
        )
    if len(found) > rows:
        table.add_row(Text(f"... {len(found) - rows} more", "dim"))
    return table, (min(len(found), rows) + 1 + (len(found) > rows)) if found else 0


def _log(page: JobPicture, width: int, rows: int) -> list[Text]:
    if page.problem:
        return [Text(page.problem, "red", no_wrap=True, overflow="ellipsis")]
    if not page.lines:
        return [Text("no output yet", "dim")]
    return [Text(line[:width], no_wrap=True, overflow="crop") for line in page.lines[-max(1, rows) :]]

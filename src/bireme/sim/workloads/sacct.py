"""`sacct -P` dumps, so that any Slurm site can replay its own history. Whatever columns there are are used.

    sacct -a -X -P -S 2025-01-01 -o JobID,User,Account,Partition,Submit,Start,End,Timelimit,AllocTRES,State

Needed: Submit; the run time (ElapsedRaw, Elapsed, or Start and End); the size (AllocTRES, ReqTRES, or NNodes and
NCPUS). Lines of steps are passed over. Times are wall clock times without a zone: they are read as UTC, so that a day
has twenty-four hours. Invariant: a column that is not there is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from bireme.sim.workloads.trace import Row, TraceJob
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.sizes import parse_memory
from bireme.slurm.times import Infinite, parse_time_limit

NOTHING = frozenset({"", "Unknown", "None", "N/A", "NONE", "INVALID"})
_MEMORY = re.compile(r"(?P<size>[0-9.]+[KMGTP]?)(?P<per>[nc]?)", re.IGNORECASE)
_GPU = re.compile(r"gres/gpu(?::(?P<type>[^=,]+))?=(?P<count>\d+)")
_OLD_GPU = re.compile(r"(?:gres:)?gpu(?::(?P<type>[a-zA-Z][^:,(]*))?:(?P<count>\d+)")
Cells = dict[str, str]


class MissingColumnError(ValueError):
    """The dump lacks what a simulation needs; the text names the columns to add."""


def missing_columns(names: Iterable[str]) -> list[str]:
    have = {name.lower() for name in names}
    missing = [] if "submit" in have else ["Submit"]
    if not have & {"elapsedraw", "elapsed"} and not have >= {"start", "end"}:
        missing.append("ElapsedRaw")
    if not have & {"alloctres", "reqtres", "ncpus", "alloccpus", "reqcpus", "nnodes", "allocnodes"}:
        missing.append("AllocTRES")
    return missing


def rows(lines: Iterable[str]) -> Iterator[Row]:
    """Raises MissingColumnError."""
    stream = enumerate(lines, start=1)
    _, first = next(stream, (0, ""))
    names = [name.lower() for name in first.rstrip("\n").rstrip("|").split("|")]
    missing = missing_columns(names)
    if missing:
        raise MissingColumnError(f"the columns {', '.join(missing)} are missing; add them to sacct's -o")
    for number, text in stream:
        text = text.rstrip("\n")
        if not text.strip():
            continue
        values = text.split("|")
        if values and not values[-1] and len(values) == len(names) + 1:  # -p ends every line with a bar
            values.pop()
        if len(values) != len(names):
            yield number, f"{len(values)} of {len(names)} columns: the line is cut short"
            continue
        cells = dict(zip(names, values))
        if "." in cells.get("jobid", ""):
            continue
        yield number, _job(number, cells)


def _job(line: int, cells: Cells) -> TraceJob | str:
    try:
        return _read(line, cells)
    except _UnreadableError as error:
        return str(error)


class _UnreadableError(ValueError):
    pass


def _read(line: int, cells: Cells) -> TraceJob:
    submit = _time(cells, "submit")
    if submit is None:
        raise _UnreadableError("its submit time is not known")
    start = _time(cells, "start")
    run_s = _run_s(cells, start)
    if run_s is None or (start is None and run_s == 0):
        raise _UnreadableError(f"it never ran ({cells.get('state') or 'no run time'})")
    tres = cells.get("alloctres", "") or cells.get("reqtres", "")
    nodes = _count(cells, tres, "node", "nnodes", "allocnodes", "reqnodes") or 1
    cpus = _count(cells, tres, "cpu", "ncpus", "alloccpus", "reqcpus")
    gpus, types = _gpus(tres, cells)
    return TraceJob(
        submit=submit,
        run_s=run_s if run_s < 0 else max(run_s, 1.0),
        nodes=nodes,
        cpus=cpus,
        gpus=gpus,
        gpu_types=types,
        memory_mib=_memory(cells, tres, nodes, cpus or nodes),
        limit_s=_limit(cells),
        user=cells.get("user") or "user",
        account=cells.get("account", ""),
        partition=cells.get("partition", "").split(",")[0],
        qos=cells.get("qos", ""),
        name=cells.get("jobname") or "job",
        exit_code=_exit_code(cells),
        waited_s=None if start is None else max(0.0, start - submit),
        line=line,
    )


def _time(cells: Cells, name: str) -> float | None:
    text = cells.get(name, "")
    if text in NOTHING:
        return None
    if text.isdigit():  # SLURM_TIME_FORMAT=%s
        return float(text)
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _UnreadableError(f"{name}={text}: not a time (2025-01-31T12:00:00, or seconds)") from None


def _run_s(cells: Cells, start: float | None) -> float | None:
    raw = cells.get("elapsedraw", "")
    if raw not in NOTHING:
        return _number("elapsedraw", raw)
    text = cells.get("elapsed", "")
    if text not in NOTHING:
        return float(_duration("elapsed", text))
    end = _time(cells, "end")
    return None if start is None or end is None else end - start


def _duration(name: str, text: str) -> int:
    """`[D-]HH:MM:SS`; a plain number would be minutes here and seconds there."""
    if ":" not in text:
        raise _UnreadableError(f"{name}={text}: not a time ([D-]HH:MM:SS)")
    try:
        found = parse_time_limit(text.partition(".")[0])
    except SlurmSyntaxError:
        found = None
    if found is None or isinstance(found, Infinite):
        raise _UnreadableError(f"{name}={text}: not a time ([D-]HH:MM:SS)")
    return found


def _limit(cells: Cells) -> int | None:
    minutes = cells.get("timelimitraw", "")
    if minutes not in NOTHING and minutes.isdigit():
        return int(minutes) * 60 or None
    text = cells.get("timelimit", "")
    if text in NOTHING or text in ("Partition_Limit", "UNLIMITED"):
        return None
    return _duration("timelimit", text) or None


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _UnreadableError(f"{name}={text}: not a number") from None


def _count(cells: Cells, tres: str, word: str, *columns: str) -> int | None:
    for part in tres.split(","):
        name, equals, value = part.partition("=")
        if equals and name == word:
            return int(_number(name, value))
    for column in columns:
        if cells.get(column, "") not in NOTHING:
            return int(_number(column, cells[column]))
    return None


def _gpus(tres: str, cells: Cells) -> tuple[int, tuple[str, ...]]:
    found = [(match["type"], int(match["count"])) for match in _GPU.finditer(tres)]
    if not found:
        old = cells.get("allocgres") or cells.get("reqgres") or ""
        found = [(match["type"], int(match["count"])) for match in _OLD_GPU.finditer(old)]
    total = sum(count for type_, count in found if type_ is None)
    typed = sum(count for type_, count in found if type_ is not None)
    return max(total, typed), tuple(type_ for type_, _ in found if type_ is not None)


def _memory(cells: Cells, tres: str, nodes: int, cpus: int) -> int | None:
    """On each node. TRES name the job's; ReqMem that of a node or CPU (`4Gn`, `4Gc`) or, since 21.08, the job's."""
    for part in tres.split(","):
        name, equals, value = part.partition("=")
        if equals and name == "mem":
            return -(-_mib(value) // nodes)
    text = cells.get("reqmem", "")
    if text in NOTHING or text.strip("0nc?") == "":
        return None
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise _UnreadableError(f"reqmem={text}: not a size (4G, 4000M, 4Gn or 4Gc)")
    size = _mib(match["size"])
    per: dict[str, Callable[[int], int]] = {
        "n": lambda mib: mib,
        "c": lambda mib: -(-mib * cpus // nodes),
        "": lambda mib: -(-mib // nodes),
    }
    return per[match["per"].lower()](size)


def _mib(text: str) -> int:
    fraction = text.partition(".")[2]
    unit = text[-1] if text and text[-1].isalpha() else "M"
    try:
        if fraction:  # Slurm prints 1.50G and reads only whole numbers
            scale = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}[unit.upper()]
            return int(float(text.rstrip("KMGTPkmgtp")) * scale) + 1
        return parse_memory(text)
    except (SlurmSyntaxError, ValueError, KeyError):
        raise _UnreadableError(f"mem={text}: not a size (4G, 4000M)") from None


def _exit_code(cells: Cells) -> int:
    code = cells.get("exitcode", "").partition(":")[0]
    if code.isdigit() and int(code):
        return min(int(code), 255)
    return 1 if cells.get("state", "").startswith(("FAILED", "OUT_OF_ME")) else 0

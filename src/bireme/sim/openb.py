"""Alibaba's openb tables as the placement study reads them: nodes and pods in thousandths, without times.

The replay of the same trace (`workloads/tables.py`) rounds to whole CPUs and needs times; lists made for the study have
none. Invariant: a pod that asks for a GPU asks for 1..1000 thousandths of it, and for parts of one GPU only.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

from bireme.core.placement.target import WHOLE_MILLI, Ask
from bireme.sim.workloads.reading import read_lines
from bireme.sim.workloads.trace import BadTraceError, Problem

NODE_COLUMNS = ("cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


@dataclass(frozen=True, slots=True)
class Node:
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class Pod:
    ask: Ask
    memory_mib: int


def read_nodes(path: str) -> list[Node]:
    """Raises BadTraceError, which names the line, or OSError."""
    return [_node(path, line, cells) for line, cells in _rows(path, NODE_COLUMNS, "a list of nodes")]


def read_pods(path: str) -> list[Pod]:
    """Raises BadTraceError, which names the line, or OSError."""
    return [_pod(path, line, cells) for line, cells in _rows(path, POD_COLUMNS, "a list of pods")]


def _rows(path: str, columns: tuple[str, ...], what: str) -> Iterator[tuple[int, dict[str, str]]]:
    lines, cut = read_lines(path)
    reader = csv.reader(lines)
    heading = next(reader, [])
    missing = [name for name in columns if name not in heading]
    if missing:
        raise _bad(path, 1, f"{what} has the columns {','.join(columns)}; {','.join(missing)} is not there")
    found = 0
    for cells in reader:
        if len(cells) != len(heading):
            raise _bad(path, reader.line_num, f"{len(cells)} of {len(heading)} columns: the line is cut short")
        found += 1
        yield reader.line_num, dict(zip(heading, cells))
    if cut or not found:
        raise _bad(path, max(1, reader.line_num), cut or f"{what} without any row")


def _node(path: str, line: int, cells: dict[str, str]) -> Node:
    cpus, memory, gpus = (_count(path, line, cells, name) for name in ("cpu_milli", "memory_mib", "gpu"))
    return Node(cpus, memory, gpus, cells["model"])


def _pod(path: str, line: int, cells: dict[str, str]) -> Pod:
    cpus, memory, gpus, milli = (_count(path, line, cells, name) for name in POD_COLUMNS)
    if not gpus:
        return Pod(Ask(cpus), memory)
    if not 0 < milli <= WHOLE_MILLI or (gpus > 1 and milli != WHOLE_MILLI):
        raise _bad(path, line, f"{gpus} GPUs of {milli} thousandths: it is whole GPUs (1000) or a part of one (1..999)")
    models = tuple(sorted({model for model in cells.get("gpu_spec", "").split("|") if model}))
    return Pod(Ask(cpus, milli, gpus, models), memory)


def _count(path: str, line: int, cells: dict[str, str], name: str) -> int:
    text = cells[name].strip()
    if not text.isdigit():
        raise _bad(path, line, f"{name}: {text!r} is not a whole number of zero or more")
    return int(text)


def _bad(path: str, line: int, reason: str) -> BadTraceError:
    return BadTraceError([Problem(path, line, reason)], hint="")

"""Which GPUs of a step each of its tasks on a node sees: --gpu-bind, --gpus-per-task, --ntasks-per-gpu.

Numbers in, numbers out; called when a step is created. A task whose wish names no GPU that the step holds on the node
is bound to the first one, as in Slurm. Invariant: a task is bound to GPUs of its step or, by an empty answer, to all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LISTS = {
    "map_gpu": re.compile(r"([0-9]{1,4})(?:\*([0-9]{1,4}))?"),
    "mask_gpu": re.compile(r"(?:0x)?([0-9a-f]{1,64})(?:\*([0-9]{1,4}))?"),
}
"""Entries of a list; `0*4,1*4` is 0 four times, then 1 four times."""
Bound = tuple[tuple[int, ...], ...]
"""GPUs of each local task; empty: every task sees all of the step's."""


def bind_gpus(wish: str, held: Sequence[int], tasks: int, per_task: int = 0, tasks_per_gpu: int = 0) -> Bound:
    """`wish` is --gpu-bind's text. Without one, what --gpus-per-task or --ntasks-per-gpu implies."""
    kind, _, value = wish.lower().removeprefix("verbose,").removeprefix("v,").partition(":")
    if not held or (kind and tasks == 1):
        return ()
    if kind in _LISTS and (listed := _LISTS[kind].findall(value)):
        read = _of_number if kind == "map_gpu" else _of_mask
        return _mapped([read(entry) for entry, times in listed for _ in range(int(times or 1))], held, tasks)
    if kind == "single":
        return _single(held, tasks, _number(value))
    if kind == "per_task":
        return _each(held, tasks, _number(value))
    if kind:  # closest, none
        return ()
    if per_task:
        return _each(held, tasks, per_task)
    return _single(held, tasks, tasks_per_gpu) if tasks_per_gpu else ()


def _each(held: Sequence[int], tasks: int, count: int) -> Bound:
    if len(held) < count * tasks:
        return ()
    return tuple(tuple(held[task * count : (task + 1) * count]) for task in range(tasks))


def _single(held: Sequence[int], tasks: int, tasks_per_gpu: int) -> Bound:
    return tuple((held[task // max(1, tasks_per_gpu) % len(held)],) for task in range(tasks))


def _mapped(wanted: list[tuple[int, ...]], held: Sequence[int], tasks: int) -> Bound:
    there = [tuple(gpu for gpu in gpus if gpu in held) or (held[0],) for gpus in wanted]
    return tuple(there[task % len(there)] for task in range(tasks))


def _number(text: str) -> int:
    return int(text) if text.isdigit() and int(text) else 1


def _of_number(text: str) -> tuple[int, ...]:
    return (int(text),)


def _of_mask(text: str) -> tuple[int, ...]:
    mask = int(text, 16)
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)

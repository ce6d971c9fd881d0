"""How large a request may be: lengths of texts and lists, sizes of numbers, how many tasks. Refused before it is used.

What is stored is looked at by every pass of the planner, and laid out when it starts: what one user may write there is
what all the others wait for. Slurm's own lengths where it has them. Called for every submission, change and step.
Invariant: nothing here takes longer than reading the request did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any

from bireme.core.model.jobs import JobSpec, ResourceRequest
from bireme.core.model.queue_numbers import LARGEST_NICE, LARGEST_PRIORITY
from bireme.core.model.refusals import Refusal, Why
from bireme.core.model.steps import StepSpec
from bireme.core.placement.features import FeatureError, parse_constraint
from bireme.core.state.state import State

TEXT = 1_024
PATH = 4_096
LONG_TEXT = 128 * 1_024
"""What Slurm takes of an ordinary word, of a path, and of bindings."""
TEXTS: Mapping[str, int] = {
    **dict.fromkeys(("work_dir", "submit_dir", "std_in", "std_out", "std_err", "command"), PATH),
    **dict.fromkeys(("container_image", "container_bundle"), PATH),
    **dict.fromkeys(("task_prolog", "task_epilog", "container_workdir", "container_save"), PATH),
    "container_mounts": 4 * PATH,
    "container_env": 4 * PATH,
    **dict.fromkeys(("cpu_bind", "mem_bind", "gpu_bind", "argv", "export", "submit_line"), LONG_TEXT),
    "multi_prog": 1024 * 1024,
    "text": 4 * 1_024,
}
"""The longest text of a field, where it is not `TEXT`; of a list, each of its texts."""

WHOLE = 2 * 1024 * 1024
"""Of all texts and elements of a specification together: as much as a kernel passes on to a program."""
ELEMENT = 8
"""What an element of a list counts for, beside its text."""
ENVIRONMENT = 4 * 1024 * 1024
"""Bytes of all variables, as JSON: a kernel passes on less."""
KEY = 256
"""The longest key under which a submission may be said again."""

LIST = 256
LISTS: Mapping[str, int] = {
    **dict.fromkeys(("nodelist", "exclude", "arbitrary_hosts"), 65_536),
    "task_ids": 4_000_001,
    "items": 10_000,
    "argv": 65_536,
    "groups": 65_536,
    "step_defaults": 1_024,
}
"""The most elements of a list, where it is not `LIST`. Hostlists name so many hosts; of dependencies so many fit
into the text that Slurm takes."""

RANGES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("nice", "site_factor"), (-LARGEST_NICE, LARGEST_NICE)),
    "priority": (0, LARGEST_PRIORITY),
    "process_nice": (-20, 20),
    "umask": (0, 0o777),
    "number": (0, 64),
    "het_component": (0, 127),
}
"""Of numbers that have limits of their own, the least and the most."""
MADE_HERE = frozenset({"replica"})
"""Fields that nobody asks for: the core itself fills them in, by rules of their own."""
SIGNED = frozenset({"uid", "gid", "begin_at", "deadline_at", "weight"})
"""Numbers that may be below zero, or mean something by it."""
LARGEST = 2**31 - 1
"""Of counts and sizes (in MiB): two of them multiplied still fit into 64 bits."""
LATEST = 10**12
"""Of times, in seconds, and of what is `SIGNED`."""

_REMEMBERED = 32
"""Specifications whose sizes are known to be good."""

_WHY = {"nodes_min": Why.INVALID_NODE_COUNT, "nodes_max": Why.INVALID_NODE_COUNT, "nice": Why.INVALID_NICE}


def check_job(state: State, spec: JobSpec) -> None:
    """A job that is submitted or changed. Raises Refusal."""
    _check_sizes_once(spec)
    most = spec.resources.nodes_max
    if most is not None and most < spec.resources.nodes_min:
        raise Refusal(Why.INVALID_NODE_COUNT, f"nodes_max is {most}, below nodes_min, {spec.resources.nodes_min}")
    check_tasks(state, spec.resources, len(state.nodes))
    for text in (spec.resources.constraint, spec.resources.prefer):
        try:
            parse_constraint(text)
        except FeatureError as error:
            raise Refusal(Why.INVALID_FEATURE, str(error)) from None


def check_step(state: State, spec: StepSpec, nodes: int) -> None:
    """A step in a job that has so many nodes. Raises Refusal."""
    check_sizes(spec)
    check_tasks(state, spec, nodes)


def check_tasks(state: State, asked: ResourceRequest | StepSpec, nodes: int) -> None:
    """At most MaxTasksPerNode tasks on each node, or as many as one has CPUs: each has a place in what is laid out."""
    per_node, nodes = state.config.settings.max_tasks_per_node, max(1, min(nodes, asked.nodes_max or nodes))
    if (asked.ntasks or 0) <= per_node * nodes and (asked.ntasks_per_node or 0) <= per_node:
        return
    per_node = max(per_node, max((node.config.cpus for node in state.nodes.values()), default=0))
    most = per_node * nodes
    if (asked.ntasks or 0) > most or (asked.ntasks_per_node or 0) > per_node:
        hint = f"{asked.ntasks or asked.ntasks_per_node} tasks asked, MaxTasksPerNode is {per_node}, so at most {most}"
        raise Refusal(Why.BAD_TASK_COUNT, hint)


@lru_cache(maxsize=_REMEMBERED)
def _check_sizes_once(spec: JobSpec) -> None:
    """People submit the same in loops: what was found good is not looked through again."""
    check_sizes(spec)


def check_sizes(value: Any) -> None:
    """Every field of a specification, and of what is in it, and all of them together."""
    whole = _size_of(value)
    if whole > WHOLE:
        raise Refusal(Why.PATHNAME_TOO_LONG, f"all texts and lists together have {whole} characters, at most {WHOLE}")


def _size_of(value: Any) -> int:
    kind: Any = type(value)
    size = 0
    names, defaults, values = _looked_at(kind)
    for name, default, found in zip(names, defaults, values(value)):
        if found is not default and found is not None and found is not True and found is not False:
            size += _check_field(name, found)
    return size


@cache
def _looked_at(kind: Any) -> tuple[tuple[str, ...], tuple[Any, ...], Callable[[Any], tuple[Any, ...]]]:
    """A class's fields, what each is where nothing was said (which counts for nothing), and what gives their values."""
    given = [each for each in fields(kind) if each.name not in MADE_HERE]
    names, defaults = tuple(each.name for each in given), tuple(_small(each.default) for each in given)
    return names, defaults, attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)


def _small(default: Any) -> Any:
    """A default that is passed over; None for one that has a size, as every field is looked at that is None."""
    return default if default in ("", 0, ()) else None


def _check_field(name: str, found: Any) -> int:
    """How much one field counts for among the sizes of a request. Raises Refusal."""
    if isinstance(found, str):
        most = TEXTS.get(name, TEXT)
        if len(found) > most:
            raise Refusal(Why.PATHNAME_TOO_LONG, f"{name} has {len(found)} characters, at most {most}")
        if "\0" in found:
            raise Refusal(Why.ERROR, f"{name} contains a NUL character: no file, variable or argument can")
        return len(found)
    if isinstance(found, int | float):
        least, most = RANGES.get(name) or _usual_range(name)
        if not least <= found <= most:  # nor is it "not a number"
            hint = f"{name} is {found if abs(found) < 10**40 else 'very large'}: it must be from {least} to {most}"
            raise Refusal(_WHY.get(name, Why.NODE_CONFIG_UNAVAILABLE), hint)
        return 0
    if isinstance(found, tuple):
        most = LISTS.get(name, LIST)
        if len(found) > most:
            raise Refusal(Why.PATHNAME_TOO_LONG, f"{name} has {len(found)} elements, at most {most}")
        size = 0
        for each in found:
            size += _check_field(name, each)
        # The tasks of an array have a limit of their own, MaxArraySize.
        return size if name == "task_ids" else size + ELEMENT * len(found)
    return _size_of(found) if is_dataclass(found) else 0


def _usual_range(name: str) -> tuple[int, int]:
    if name in SIGNED:
        return -LATEST, LATEST
    return 0, LATEST if name.endswith("_s") else LARGEST

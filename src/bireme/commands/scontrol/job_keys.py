"""The keys of `scontrol update JobId=...`: which fields of the job a key sets, and how its text is read.

Keys and fields are the rows of `slurm/job_fields` that have `update`; a value is read as the field's form says, and by
a function of its own where a key sets several fields, or where Slurm has words of its own for what is wrong.
Invariant: what is returned is within the ranges that the API asks for (`slurm/changes`), or an error was raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bireme.commands import reports
from bireme.commands.scontrol.pairs import listed, refused, whole, within, yes_no
from bireme.core.model.queue_numbers import LARGEST_NICE
from bireme.slurm.changes import RANGES, check_changes, check_mail_types
from bireme.slurm.constraints import parse_constraint
from bireme.slurm.dependencies import parse_dependencies
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import parse_gres
from bireme.slurm.hostlist import expand
from bireme.slurm.job_fields.row import Form, JobField, Place
from bireme.slurm.job_fields.table import FIELDS
from bireme.slurm.options.own_lines import HEALS
from bireme.slurm.sizes import parse_memory
from bireme.slurm.times import Infinite, parse_job_time_limit, parse_time_limit, parse_timestamp

Changes = dict[str, Any]

_WITHOUT_VALUE = frozenset({"arraytaskthrottle", "timelimit", "timemin"})
"""Keys whose wrong value Slurm does not repeat."""


class _OutOfRangeError(ValueError):
    """A number that Slurm keeps in fewer bits."""


def job_change(key: str, value: str) -> Changes:
    """What one pair changes, by the names of JobSpec and ResourceRequest. A key may be shortened to a beginning."""
    lower = key.lower()
    matches = [name for name in JOB_KEYS if name.startswith(lower)]
    name = lower if lower in JOB_KEYS else matches[0] if len(matches) == 1 and len(lower) > 3 else ""
    if not name:
        raise refused(key, value)
    spelling, fields = JOB_KEYS[name]
    try:
        return OWN[name](value) if name in OWN else _by_form(fields[0], value)
    except _OutOfRangeError:
        raise reports.CommandError(
            f"scontrol: error: {spelling} value out of range (+/- {LARGEST_NICE}). Value ignored"
        ) from None
    except (SlurmSyntaxError, ValueError) as error:
        said = f"Invalid {spelling} value" + ("" if name in _WITHOUT_VALUE else f": {value}")
        hint = f" ({error})" if isinstance(error, SlurmSyntaxError) and str(error) else ""
        raise reports.CommandError(f"scontrol: error: {said}{hint}") from None


def _by_form(field: JobField, value: str) -> Changes:
    if field.change in RANGES and field.form in (Form.NUMBER, Form.COUNT):
        return {field.change: within(value, *RANGES[field.change])}
    return {field.change: READERS[field.form](value)}


def _features(value: str) -> str:
    """The text itself, of which the core makes a tree: one that it cannot read must not be stored."""
    parse_constraint(value)
    return value


def _moment(value: str) -> float | None:
    return parse_timestamp(value, time.time(), lambda at: time.localtime(at).tm_gmtoff)


def _gres(value: str) -> list[dict[str, Any]]:
    return [asdict(one) for one in parse_gres(value)] if value else []


READERS: dict[Form, Callable[[str], Any]] = {
    Form.TEXT: str,
    Form.FEATURES: _features,
    Form.WORDS: listed,
    Form.HOSTS: expand,
    Form.NUMBER: whole,
    Form.COUNT: whole,
    Form.MEMORY: parse_memory,
    Form.FLAG: yes_no,
    Form.CHOICE: yes_no,
    Form.LIMIT: parse_job_time_limit,
    Form.MOMENT: _moment,
    Form.GRES: _gres,
    Form.GPUS: _gres,
}


# -- keys with functions of their own --------------------------------------------------------------------------------


def _node_range(value: str) -> Changes:
    low, _, high = value.partition("-")
    changes = {"nodes_min": whole(low), "nodes_max": whole(high or low), "nodes_given": True}
    check_changes(changes)
    return changes


def _memory(field: str, other: str) -> Callable[[str], Changes]:
    """Of a node or of a CPU: the one takes the place of the other."""
    return lambda value: {field: parse_memory(value), other: None}


def _least_cpus(value: str) -> Changes:
    """`MIN[-MAX]`, of which the least counts."""
    return {"cpus_min": within(value.partition("-")[0], *RANGES["cpus_min"])}


def _switches(value: str) -> Changes:
    count, at, wait = value.partition("@")
    limit = parse_time_limit(wait) if at else None
    return {
        "switches": within(count, *RANGES["switches"]),
        "switches_wait_s": None if isinstance(limit, Infinite) else limit,
    }


def _dependency(value: str) -> Changes:
    return {"dependencies": asdict(parse_dependencies(value)) if value else {}}


def _throttle(value: str) -> Changes:
    return {"array_throttle": within(value, *RANGES["array_throttle"])}


def _signed(field: str) -> Callable[[str], Changes]:
    """Nice and SiteFactor, whose range has words of its own."""

    def reader(value: str) -> Changes:
        number = int(value or 100) if value.lstrip("+-").isdigit() or not value else whole(value)
        if abs(number) > LARGEST_NICE:
            raise _OutOfRangeError(value)
        return {field: number}

    return reader


def _mail_types(value: str) -> Changes:
    types = [word.strip().upper() for word in value.split(",") if word.strip()]
    check_mail_types(types)
    return {"mail_type": types}


def _heal(value: str) -> Changes:
    if value and value not in HEALS:
        raise SlurmSyntaxError(f"it is one of {', '.join(HEALS)}, or nothing")
    return {"heal": value}


OWN: dict[str, Callable[[str], Changes]] = {
    "arraytaskthrottle": _throttle,
    "dependency": _dependency,
    "heal": _heal,
    "mailtype": _mail_types,
    "minmemorycpu": _memory("memory_per_cpu_mib", "memory_per_node_mib"),
    "minmemorynode": _memory("memory_per_node_mib", "memory_per_cpu_mib"),
    "nice": _signed("nice"),
    "numcpus": _least_cpus,
    "numnodes": _node_range,
    "reqnodes": _node_range,
    "sitefactor": _signed("site_factor"),
    "switches": _switches,
}


def _keys() -> dict[str, tuple[str, tuple[JobField, ...]]]:
    keys: dict[str, tuple[str, tuple[JobField, ...]]] = {}
    for field in FIELDS:
        for spelling in field.update:
            _, others = keys.get(spelling.lower(), ("", ()))
            keys[spelling.lower()] = (spelling, (*others, field))
    for key, (_, fields) in keys.items():
        assert key in OWN or (len(fields) == 1 and Place.UPDATE not in fields[0].own), f"{key} needs a function"
    return keys


JOB_KEYS = _keys()
"""Keys of `update job` in lower case: how each is spelled, and the fields that it sets."""

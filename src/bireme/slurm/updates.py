"""`scontrol update`: its words to typed changes of a job, a node or a partition.

Pairs as typed in (any case, abbreviated as Slurm allows), names and values out as `core/lifecycle/requests.update` and
`core/lifecycle/operators` take them. Whether the change is permitted, or possible now, is decided there.
Invariant: every key of a result is a field of JobSpec, ResourceRequest or PartitionConfig, `array_throttle`, or an
argument of `update_nodes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bireme.core.model.cluster import PartitionConfig, PartitionState
from bireme.core.model.jobs import JobSpec
from bireme.slurm.conf.values import limit, mebibytes_limit, minutes_as_s, names_or_all, whole, yes_no
from bireme.slurm.conf.values import names as name_list
from bireme.slurm.constraints import parse_constraint
from bireme.slurm.dependencies import parse_dependencies
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import parse_gres
from bireme.slurm.hostlist import expand
from bireme.slurm.options.words import MAIL_GROUPS, MAIL_TYPES
from bireme.slurm.sizes import parse_memory
from bireme.slurm.times import (
    MINUTE_S,
    Infinite,
    UtcOffset,
    parse_job_time_limit,
    parse_time_limit,
    parse_timestamp,
)

Changes = dict[str, Any]
NICE_DEFAULT = 100
LARGEST_NICE = 2147483645
LARGEST_PRIORITY = 2**32 - 2
SHORTEST_ABBREVIATION = 3


class UpdateError(SlurmSyntaxError):
    """An update that scontrol refuses before it asks anybody. `bare`: Slurm prints it without `scontrol: error:`."""

    def __init__(self, *lines: str, bare: bool = False) -> None:
        super().__init__("\n".join(lines))
        self.bare = bare


def unsupported(key: str, value: str) -> UpdateError:
    return UpdateError(f"Update of this parameter is not supported: {key}={value}", "Request aborted", bare=True)


@dataclass(frozen=True, slots=True)
class _Moment:
    """What a value may depend on besides its text."""

    spec: JobSpec
    now: float
    utc_offset: UtcOffset


# -- jobs ------------------------------------------------------------------------------------------------------------

SELECTORS = frozenset({"jobid", "userid"})
"""Words that say which jobs are meant, not what changes."""


def parse_job_changes(pairs: Mapping[str, str], job_spec: JobSpec, now: float, utc_offset: UtcOffset) -> dict[str, Any]:
    """`{"TimeLimit": "+30", "Nice": ""}` to `{"time_limit_s": ..., "nice": 100}`; raises UpdateError."""
    moment = _Moment(job_spec, now, utc_offset)
    changes: Changes = {}
    for key, value in pairs.items():
        bare, sign = _signed(key)
        if bare.lower() in SELECTORS:
            continue
        name = _full_name(bare, JOB_KEYS)
        if name is None:
            raise unsupported(key, value)
        if sign and name != "TimeLimit":
            raise UpdateError("Invalid syntax, variations of +=- are not accepted.")
        try:
            changes.update(JOB_KEYS[name](sign + value, moment))
        except UpdateError:
            raise
        except ValueError as error:
            raise UpdateError(_JOB_MESSAGES.get(name, f"Invalid {name} value: {value}")) from error
    if not changes:
        raise UpdateError("No changes specified", bare=True)
    return changes


_JOB_MESSAGES = {
    name: f"Invalid {name} value" for name in ("TimeLimit", "TimeMin", "ArrayTaskThrottle", "DelayBoot")
} | {
    "Dependency": "Job dependency problem",
    "Features": "Invalid feature specification",
    "Prefer": "Invalid feature specification",
    "Gres": "Invalid generic resource (gres) specification",
    "TresPerNode": "Invalid generic resource (gres) specification",
    "ExcNodeList": "Invalid node name specified",
    "ReqNodeList": "Invalid node name specified",
}


def _signed(key: str) -> tuple[str, str]:
    """`TimeLimit+` (of `TimeLimit+=30`) to its name and sign."""
    return (key[:-1], key[-1]) if key[-1:] in ("+", "-") else (key, "")


def _full_name(word: str, table: Mapping[str, Any]) -> str | None:
    """The key that a word in any case stands for, or that it alone begins."""
    lower = word.lower()
    exact = [name for name in table if name.lower() == lower]
    if exact:
        return exact[0]
    begun = [name for name in table if name.lower().startswith(lower)] if len(word) >= SHORTEST_ABBREVIATION else []
    return begun[0] if len(begun) == 1 else None


def _count(field: str, lowest: int = 1) -> _JobReader:
    def read(text: str, _: _Moment) -> Changes:
        number = whole(text.strip())
        if number < lowest:
            raise ValueError(text)
        return {field: number}

    return read


def _text(field: str) -> _JobReader:
    return lambda text, _: {field: text}


def _flag(field: str) -> _JobReader:
    return lambda text, _: {field: yes_no(text)}


def _hosts(field: str) -> _JobReader:
    return lambda text, _: {field: tuple(expand(text))}


def _constraint(field: str) -> _JobReader:
    return lambda text, _: {field: parse_constraint(text).text}


def _when(field: str) -> _JobReader:
    def read(text: str, moment: _Moment) -> Changes:
        try:
            return {field: parse_timestamp(text, moment.now, moment.utc_offset)}
        except SlurmSyntaxError as error:
            raise UpdateError(f"Invalid time specification (pos=0): {text}", bare=True) from error

    return read


def _time_limit(text: str, moment: _Moment) -> Changes:
    """A limit, or `+30` and `-30`: by so much more or less than now."""
    if text[:1] not in ("+", "-"):
        return {"time_limit_s": parse_job_time_limit(text)}
    step = parse_time_limit(text[1:])
    present = moment.spec.time_limit_s
    if isinstance(step, Infinite) or present is None:
        raise ValueError(text)
    changed = present + step if text[0] == "+" else present - step
    if changed < MINUTE_S:
        raise UpdateError("Invalid TimeLimit value", f"{present // MINUTE_S} minutes less {text[1:]} is no time at all")
    return {"time_limit_s": -(-changed // MINUTE_S) * MINUTE_S}


def _time_min(text: str, _: _Moment) -> Changes:
    return {"time_min_s": parse_job_time_limit(text)}


def _nice(text: str, _: _Moment) -> Changes:
    if not text:
        return {"nice": NICE_DEFAULT}
    if not re.fullmatch(r"[+-]?[0-9]{1,12}", text) or abs(int(text)) > LARGEST_NICE:
        raise UpdateError(f"Invalid nice value, must be between -{LARGEST_NICE} and {LARGEST_NICE}")
    return {"nice": int(text)}


def _site_factor(text: str, _: _Moment) -> Changes:
    if not re.fullmatch(r"[+-]?[0-9]{1,12}", text) or abs(int(text)) > LARGEST_NICE:
        raise UpdateError(f"SiteFactor value out of range (+/- {LARGEST_NICE}). Value ignored")
    return {"site_factor": int(text)}


def _priority(text: str, _: _Moment) -> Changes:
    number = whole(text)
    if number > LARGEST_PRIORITY:
        raise ValueError(text)
    return {"priority": number}


def _nodes(text: str, _: _Moment) -> Changes:
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text.strip())
    if match is None:
        raise UpdateError(f'Invalid numeric value "{text}" for requested node count.')
    low, high = int(match[1]), int(match[2] or match[1])
    if high < low:
        raise UpdateError(f"Maximum node count {high} is less than minimum node count {low}")
    return {"nodes_min": max(1, low), "nodes_max": max(1, high), "nodes_given": True}


def _cpus(text: str, moment: _Moment) -> Changes:
    """NumCPUs: as many tasks as need so many CPUs."""
    fewest = whole(text.partition("-")[0].strip())
    if fewest < 1:
        raise ValueError(text)
    return {"ntasks": -(-fewest // (moment.spec.resources.cpus_per_task or 1))}


def _memory_per_node(text: str, _: _Moment) -> Changes:
    return {"memory_per_node_mib": parse_memory(text), "memory_per_cpu_mib": None, "memory_per_gpu_mib": None}


def _memory_per_cpu(text: str, _: _Moment) -> Changes:
    return {"memory_per_cpu_mib": parse_memory(text), "memory_per_node_mib": None, "memory_per_gpu_mib": None}


def _gres(text: str, _: _Moment) -> Changes:
    return {"gres_per_node": parse_gres(text.replace("gres/", "gres:"))}


def _dependency(text: str, _: _Moment) -> Changes:
    return {"dependencies": parse_dependencies(text)}


def _partitions(text: str, _: _Moment) -> Changes:
    names = name_list(text)
    if not names:
        raise UpdateError("Invalid partition name specified")
    return {"partitions": names}


def _requeue(text: str, _: _Moment) -> Changes:
    if text not in ("0", "1"):
        raise ValueError(text)
    return {"requeue": text == "1"}


def _over_subscribe(text: str, _: _Moment) -> Changes:
    """YES, NO or OK; NO takes back a request to share and, as in Slurm, is no request for whole nodes."""
    word = text.lower()
    if word not in ("yes", "no", "ok", "0", "1"):
        raise ValueError(text)
    return {"oversubscribe": word in ("yes", "1")}


def _mail_type(text: str, _: _Moment) -> Changes:
    types: list[str] = []
    for word in text.upper().split(","):
        if word == "NONE":
            types.clear()
        elif word not in MAIL_GROUPS and word not in MAIL_TYPES:
            raise UpdateError(f"Invalid MailType: {text}")
        else:
            types.extend(MAIL_GROUPS.get(word, (word,)))
    return {"mail_type": tuple(dict.fromkeys(types))}


def _switches(text: str, _: _Moment) -> Changes:
    count, at, wait = text.partition("@")
    changes: Changes = {"switches": whole(count) or None}
    if at:
        wait_s = parse_time_limit(wait)
        changes["switches_wait_s"] = None if isinstance(wait_s, Infinite) else wait_s
    return changes


_JobReader = Callable[[str, _Moment], Changes]
JOB_KEYS: dict[str, _JobReader] = {
    "Account": _text("account"),
    "AdminComment": _text("admin_comment"),
    "ArrayTaskThrottle": _count("array_throttle", 0),
    "Comment": _text("comment"),
    "Contiguous": _flag("contiguous"),
    "CoreSpec": _count("core_spec", 0),
    "CPUsPerTask": _count("cpus_per_task"),
    "Deadline": _when("deadline_at"),
    "Dependency": _dependency,
    "EligibleTime": _when("begin_at"),
    "ExcNodeList": _hosts("exclude"),
    "Features": _constraint("constraint"),
    "Gres": _gres,
    "JobName": _text("name"),
    "Licenses": _text("licenses"),
    "MailType": _mail_type,
    "MailUser": _text("mail_user"),
    "MinCPUsNode": _count("min_cpus_per_node"),
    "MinMemoryCPU": _memory_per_cpu,
    "MinMemoryNode": _memory_per_node,
    "MinTmpDiskNode": lambda text, _: {"tmp_disk_mib": parse_memory(text)},
    "Name": _text("name"),
    "Nice": _nice,
    "NumCPUs": _cpus,
    "NumNodes": _nodes,
    "NumTasks": _count("ntasks"),
    "OverSubscribe": _over_subscribe,
    "Partition": _partitions,
    "Prefer": _constraint("prefer"),
    "Priority": _priority,
    "QOS": _text("qos"),
    "ReqCores": _count("cores_per_socket"),
    "ReqNodeList": _hosts("nodelist"),
    "ReqNodes": _nodes,
    "ReqProcs": _count("ntasks"),
    "ReqSockets": _count("sockets_per_node"),
    "ReqThreads": _count("threads_per_core"),
    "Requeue": _requeue,
    "Reservation": _text("reservation"),
    "ReservationName": _text("reservation"),
    "Shared": _over_subscribe,
    "SiteFactor": _site_factor,
    "StartTime": _when("begin_at"),
    "StdOut": _text("std_out"),
    "Switches": _switches,
    "TasksPerNode": _count("ntasks_per_node"),
    "ThreadSpec": _count("thread_spec", 0),
    "TimeLimit": _time_limit,
    "TimeMin": _time_min,
    "TresPerNode": _gres,
    "wait-for-switch": _count("switches_wait_s", 0),
    "WCKey": _text("wckey"),
    "WorkDir": _text("work_dir"),
}

# -- nodes -----------------------------------------------------------------------------------------------------------

NODE_STATES = ("DOWN", "DRAIN", "FAIL", "FUTURE", "IDLE", "NORESP", "POWER_DOWN", "POWER_UP", "RESUME", "UNDRAIN")
_NEED_A_REASON = frozenset({"DOWN", "DRAIN", "FAIL"})


def parse_node_changes(pairs: Mapping[str, str]) -> dict[str, Any]:
    """`new_state`, `note` and, where named, `weight` and `features`: arguments of `operators.update_nodes`."""
    changes: Changes = {}
    for key, value in pairs.items():
        if key.lower() == "nodename":
            continue
        name = _full_name(key, NODE_KEYS)
        if name is None:
            raise unsupported(key, value)
        changes.update(NODE_KEYS[name](key, value))
    if not changes:
        raise UpdateError("No changes specified", bare=True)
    if changes.get("new_state") in _NEED_A_REASON and not changes.get("note"):
        raise UpdateError("You must specify a reason when DOWNING or DRAINING a node. Request denied", bare=True)
    return {"new_state": None, "note": None} | changes


def _node_state(key: str, text: str) -> Changes:
    begun = [word for word in NODE_STATES if text and word.startswith(text.upper())]
    exact = [word for word in begun if word == text.upper()]
    if not begun:
        raise UpdateError(
            f"Invalid input: {key}={text}",
            "Request aborted",
            f"Valid states are: {' '.join(NODE_STATES)}",
            "Not all states are valid given a node's prior state",
            bare=True,
        )
    return {"new_state": (exact or begun)[0]}


def _node_weight(key: str, text: str) -> Changes:
    try:
        return {"weight": whole(text)}
    except SlurmSyntaxError as error:
        raise UpdateError(f"Invalid input: {key}={text}", "Request aborted", bare=True) from error


NODE_KEYS: dict[str, Callable[[str, str], Changes]] = {
    "ActiveFeatures": lambda _, text: {"features": name_list(text)},
    "AvailableFeatures": lambda _, text: {"features": name_list(text)},
    "Features": lambda _, text: {"features": name_list(text)},
    "Reason": lambda _, text: {"note": text.strip("'\"")},
    "State": _node_state,
    "Weight": _node_weight,
}

# -- partitions ------------------------------------------------------------------------------------------------------


def parse_partition_changes(
    pairs: Mapping[str, str], partition: PartitionConfig, all_nodes: Sequence[str] = ()
) -> dict[str, Any]:
    """Fields of PartitionConfig with their new values. `all_nodes`: what `Nodes=ALL` means."""
    changes: Changes = {}
    for key, value in pairs.items():
        bare, sign = _signed(key)
        if bare.lower() == "partitionname":
            continue
        name = _full_name(bare, PARTITION_KEYS)
        if name == "Nodes":
            changes["nodes"] = _partition_nodes(sign, value, partition, all_nodes)
            continue
        if name is None or sign:
            raise UpdateError(f"Update of this parameter is not supported: {key}={value}\n", "Request aborted")
        field, read = PARTITION_KEYS[name]
        try:
            changes.update(dict.fromkeys(field.split(), read(value)))
        except ValueError as error:
            raise UpdateError(f"Invalid input: {key}={value}", *_acceptable(name, read)) from error
    if not changes:
        raise UpdateError("No changes specified", bare=True)
    return changes


def _acceptable(name: str, read: Callable[[str], Any]) -> list[str]:
    if read is yes_no:
        return [f"Acceptable {name} values are YES and NO"]
    if read is _partition_state:
        return ["Acceptable State values are UP, DOWN, DRAIN and INACTIVE"]
    if read is _sharing:
        return [f"Acceptable {name} values are NO, EXCLUSIVE, YES:#, and FORCE:#"]
    return []


def _partition_nodes(sign: str, text: str, partition: PartitionConfig, all_nodes: Sequence[str]) -> tuple[str, ...]:
    """`Nodes=`, `Nodes+=` and `Nodes-=`."""
    named = list(all_nodes) if text.upper() == "ALL" else expand(text)
    if sign == "+":
        return tuple(dict.fromkeys((*partition.nodes, *named)))
    if sign == "-":
        return tuple(name for name in partition.nodes if name not in set(named))
    return tuple(dict.fromkeys(named))


def _partition_state(text: str) -> PartitionState:
    return PartitionState(text.upper())


def _sharing(text: str) -> str:
    if not re.fullmatch(r"(NO|EXCLUSIVE|(YES|FORCE)(:[0-9]{1,5})?)", text.upper()):
        raise ValueError(text)
    return text.upper()


def _hosts_or_all(text: str) -> tuple[str, ...] | None:
    return None if text.upper() == "ALL" else tuple(expand(text))


PARTITION_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "AllocNodes": ("alloc_nodes", _hosts_or_all),
    "AllowAccounts": ("allow_accounts", names_or_all),
    "AllowGroups": ("allow_groups", names_or_all),
    "AllowQOS": ("allow_qos", names_or_all),
    "Default": ("default", yes_no),
    "DefaultTime": ("default_time_s", minutes_as_s),
    "DefMemPerCPU": ("default_memory_per_cpu_mib", mebibytes_limit),
    "DefMemPerNode": ("default_memory_per_node_mib", mebibytes_limit),
    "DenyAccounts": ("deny_accounts", name_list),
    "DenyQOS": ("deny_qos", name_list),
    "DisableRootJobs": ("disable_root_jobs", yes_no),
    "ExclusiveUser": ("exclusive_user", yes_no),
    "GraceTime": ("grace_time_s", whole),
    "Hidden": ("hidden", yes_no),
    "LLN": ("lln", yes_no),
    "MaxCPUsPerNode": ("max_cpus_per_node", limit),
    "MaxCPUsPerUser": ("max_cpus_per_user", limit),
    "MaxMemPerCPU": ("max_memory_per_cpu_mib", mebibytes_limit),
    "MaxMemPerNode": ("max_memory_per_node_mib", mebibytes_limit),
    "MaxNodes": ("max_nodes", limit),
    "MaxTime": ("max_time_s", minutes_as_s),
    "MinNodes": ("min_nodes", whole),
    "Nodes": ("nodes", expand),
    "OverSubscribe": ("over_subscribe", _sharing),
    "OverTimeLimit": ("over_time_limit_s", minutes_as_s),
    "PreemptMode": ("preempt_mode", str.upper),
    "Priority": ("priority_tier priority_job_factor", whole),
    "PriorityJobFactor": ("priority_job_factor", whole),
    "PriorityTier": ("priority_tier", whole),
    "QOS": ("qos", str),
    "ReqResv": ("req_resv", yes_no),
    "RootOnly": ("root_only", yes_no),
    "Shared": ("over_subscribe", _sharing),
    "State": ("state", _partition_state),
}
"""By Slurm's word: the field or fields of PartitionConfig it sets, and how its value is read."""

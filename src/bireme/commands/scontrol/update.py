"""`scontrol update`: `Key=Value` pairs for a job, a node or a partition, checked and sent as typed changes.

The tables say, for every key of the manual, which field of the specification it sets and how its text is read. What a
change means for the job is decided by the daemon. Invariant: one wrong pair and nothing is sent, as in Slurm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bireme.commands import reports
from bireme.commands.refused import ApiError
from bireme.commands.scontrol import reservations
from bireme.commands.scontrol.actions import ask_all, job_ids
from bireme.commands.scontrol.session import Session
from bireme.core.model.queue_numbers import LARGEST_NICE
from bireme.slurm.changes import RANGES, check_changes, check_mail_types
from bireme.slurm.constraints import parse_constraint
from bireme.slurm.dependencies import parse_dependencies
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import parse_gres
from bireme.slurm.hostlist import expand
from bireme.slurm.sizes import parse_memory
from bireme.slurm.times import Infinite, parse_job_time_limit, parse_time_limit, parse_timestamp

Changes = dict[str, Any]
_Reader = Callable[[str], Changes]

_NODE_STATES = (
    "DOWN", "DRAIN", "FAIL", "FUTURE", "IDLE", "NORESP", "POWER_DOWN", "POWER_UP", "RESUME", "UNDRAIN",
    "CANCEL_REBOOT", "POWER_DOWN_ASAP", "POWER_DOWN_FORCE",
)  # fmt: skip


def update(session: Session, words: list[str]) -> int:
    if not words:
        raise reports.CommandError("too few arguments for update keyword")
    if words[0].lower() in ("job", "node", "partition", "step", "reservation") and len(words) > 1 and "=" in words[1]:
        words = words[1:]  # `update job JobId=42 ...`
    pairs = _pairs(words)
    keys = {key.lower() for key, _ in pairs}
    if keys & {"jobid", "job"} or ("jobname" in keys and not keys & {"nodename", "partitionname", "stepid"}):
        return _update_jobs(session, pairs)
    if "nodename" in keys:
        return _update_nodes(session, pairs)
    if any(map(reservations.means_reservation, keys)):
        return reservations.update(session, pairs)
    if "partitionname" in keys:
        return _update_partition(session, pairs)
    if keys & {"stepid", "slurmctlddebug", "frontendname"}:
        raise reports.CommandError(
            f"scontrol: error: update of {pairs[0][0]} is not supported: jobs, nodes and partitions can be updated"
        )
    raise reports.CommandError(
        "No valid entity in update command\n"
        'Input line must include "NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"'
    )


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    """`Key=Value`, or `Key Value` in two words: `update job 42 comment=better`."""
    pairs: list[tuple[str, str]] = []
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        if "=" not in word and rest and "=" not in rest[-1]:
            word = f"{word}={rest.pop()}"
        pairs.append(_pair(word))
    return pairs


def _pair(word: str) -> tuple[str, str]:
    """`Key=Value`, `Key+=Value`, `Key-=Value`; quotes around the value are taken off, as people paste them."""
    key, _, value = word.partition("=")
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return key, value


def _refuse(key: str, value: str, why: str = "Update of this parameter is not supported") -> reports.CommandError:
    return reports.CommandError(f"{why}: {key}={value}\nRequest aborted")


# -- jobs ------------------------------------------------------------------------------------------------------------


def _update_jobs(session: Session, pairs: list[tuple[str, str]]) -> int:
    named, changes, relative = _job_changes(pairs)
    if not changes and not relative:
        raise reports.CommandError("No changes specified")

    ids = job_ids(session, named)
    if not ids:
        raise reports.CommandError("Invalid job id specified")
    if not relative:
        return _tell_refused(_changed(session, ids, changes))
    code = 0
    for job in ids:  # each has a limit of its own to begin with
        try:
            own = {**changes, **_relative_limit(session, job, relative)}
        except ApiError as error:
            code = _tell_refused([(job, error.message)])
        else:
            code = max(code, _tell_refused(_changed(session, [job], own)))
    return code


def _changed(session: Session, jobs: list[str], changes: Changes) -> list[tuple[str, str]]:
    """Who was refused, and in which words. A priority of 0 is a hold."""
    refused: list[tuple[str, str]] = []
    if changes.get("priority") == 0:
        refused = ask_all(session, jobs, "hold", {})
        changes = {key: value for key, value in changes.items() if key != "priority"}
        jobs = [job for job in jobs if job not in {name for name, _ in refused}]
    return refused + (ask_all(session, jobs, "update", {"changes": changes}) if changes else [])


def _tell_refused(refused: list[tuple[str, str]]) -> int:
    for job, message in refused:
        reports.tell(f"{message} for job {job}")
    return int(bool(refused))


def _job_changes(pairs: list[tuple[str, str]]) -> tuple[list[str], Changes, str]:
    """Which jobs, what changes, and a time limit that is relative to each job's own (`+30`)."""
    ids = [value for key, value in pairs if key.lower() in ("jobid", "job")]
    named: list[str] = ids or [f"jobname={value}" for key, value in pairs if key.lower() == "jobname"][:1]
    changes: Changes = {}
    relative = ""
    for key, value in pairs:
        lower = key.lower()
        if lower in ("jobid", "job", "userid") or (lower == "jobname" and not ids and f"jobname={value}" in named):
            continue
        if lower == "timelimit" and value[:1] in ("+", "-") and value != "-1":
            relative = value
        elif lower in ("timelimit+", "timelimit-"):  # `TimeLimit+=30`
            relative = lower[-1] + value
        else:
            changes.update(job_change(key, value))
    return named, changes, relative


def job_change(key: str, value: str) -> Changes:
    lower = key.lower()
    matches = [name for name in _JOB_KEYS if name.startswith(lower)]
    name = lower if lower in _JOB_KEYS else matches[0] if len(matches) == 1 and len(lower) > 3 else ""
    if not name:
        raise _refuse(key, value)
    try:
        return _JOB_KEYS[name](value)
    except _OutOfRangeError:
        raise reports.CommandError(
            f"scontrol: error: {_SPELLING[name]} value out of range (+/- {LARGEST_NICE}). Value ignored"
        ) from None
    except (SlurmSyntaxError, ValueError) as error:
        said = f"Invalid {_SPELLING[name]} value" + ("" if name in _WITHOUT_VALUE else f": {value}")
        hint = f" ({error})" if isinstance(error, SlurmSyntaxError) and str(error) else ""
        raise reports.CommandError(f"scontrol: error: {said}{hint}") from None


def _relative_limit(session: Session, job: str, text: str) -> Changes:

    by = parse_time_limit(text[1:])
    answer = session.get(f"/v1/jobs/{job}", "slurm_load_jobs error", {"fields": "time_limit_s"})
    now = answer["jobs"][0].get("time_limit_s")
    if now is None or isinstance(by, Infinite):
        raise reports.CommandError(f"Invalid input: TimeLimit={text}: job {job} has no limit to change by")
    return {"time_limit_s": max(60, now + by if text[0] == "+" else now - by)}


def _text(field: str) -> _Reader:
    return lambda value: {field: value}


class _OutOfRangeError(ValueError):
    """A number that Slurm keeps in fewer bits."""


def _whole(value: str) -> int:
    """A decimal number; ValueError for what is none."""
    if not value.isascii() or not value.removeprefix("-").isdigit():
        raise ValueError(value)
    return int(value)


def _within(value: str, least: int, most: int) -> int:
    number = _whole(value)
    if not least <= number <= most:
        raise ValueError(value)
    return number


def _number(field: str) -> _Reader:
    """Of a job, within the range that its field has."""
    return lambda value: {field: _within(value, *RANGES[field])}


def _count(field: str) -> _Reader:
    """Of a partition."""
    return lambda value: {field: _within(value, 0, 2**31 - 2)}


def _signed(field: str) -> _Reader:
    """Nice and SiteFactor, whose range has words of its own."""

    def reader(value: str) -> Changes:
        number = int(value or 100) if value.lstrip("+-").isdigit() or not value else _whole(value)
        if abs(number) > LARGEST_NICE:
            raise _OutOfRangeError(value)
        return {field: number}

    return reader


def _words(field: str) -> _Reader:
    return lambda value: {field: [word for word in value.split(",") if word]}


def _yes_no(field: str) -> _Reader:
    def reader(value: str) -> Changes:
        word = value.lower()
        if word not in ("yes", "no", "1", "0", "true", "false"):
            raise ValueError(f"{value} is neither yes nor no")
        return {field: word in ("yes", "1", "true")}

    return reader


def _hosts(field: str) -> _Reader:
    def reader(value: str) -> Changes:

        return {field: expand(value)}

    return reader


def _limit(field: str) -> _Reader:
    def reader(value: str) -> Changes:

        return {field: parse_job_time_limit(value)}

    return reader


def _moment(field: str) -> _Reader:
    def reader(value: str) -> Changes:

        return {field: parse_timestamp(value, time.time(), lambda at: time.localtime(at).tm_gmtoff)}

    return reader


def _memory(field: str, *others: str) -> _Reader:
    def reader(value: str) -> Changes:

        return {field: parse_memory(value), **dict.fromkeys(others)}

    return reader


def _dependency(value: str) -> Changes:

    return {"dependencies": asdict(parse_dependencies(value)) if value else {}}


def _gres(value: str) -> Changes:

    return {"gres_per_node": [asdict(one) for one in parse_gres(value)] if value else []}


def _node_range(value: str) -> Changes:
    low, _, high = value.partition("-")
    changes = {"nodes_min": _whole(low), "nodes_max": _whole(high or low), "nodes_given": True}
    check_changes(changes)
    return changes


def _mail_types(value: str) -> Changes:
    words = [word.strip().upper() for word in value.split(",") if word.strip()]
    check_mail_types(words)
    return {"mail_type": words}


def _constraint(field: str) -> _Reader:
    """The text itself, of which the core makes a tree: one that it cannot read must not be stored."""

    def reader(value: str) -> Changes:

        parse_constraint(value)
        return {field: value}

    return reader


def _switches(value: str) -> Changes:

    count, at, wait = value.partition("@")
    limit = parse_time_limit(wait) if at else None
    return {
        "switches": _within(count, *RANGES["switches"]),
        "switches_wait_s": None if isinstance(limit, Infinite) else limit,
    }


def _first_count(field: str) -> _Reader:
    """`MIN[-MAX]`, of which the least counts."""
    return lambda value: {field: _within(value.partition("-")[0], *RANGES[field])}


_JOB_KEYS: dict[str, _Reader] = {
    "account": _text("account"),
    "admincomment": _text("admin_comment"),
    "arraytaskthrottle": _number("array_throttle"),
    "comment": _text("comment"),
    "constraints": _constraint("constraint"),
    "contiguous": _yes_no("contiguous"),
    "corespec": _number("core_spec"),
    "cpuspertask": _number("cpus_per_task"),
    "deadline": _moment("deadline_at"),
    "dependency": _dependency,
    "eligibletime": _moment("begin_at"),
    "excnodelist": _hosts("exclude"),
    "features": _constraint("constraint"),
    "gres": _gres,
    "jobname": _text("name"),
    "licenses": _text("licenses"),
    "mailtype": _mail_types,
    "mailuser": _text("mail_user"),
    "mincpusnode": _number("min_cpus_per_node"),
    "minmemorycpu": _memory("memory_per_cpu_mib", "memory_per_node_mib"),
    "minmemorynode": _memory("memory_per_node_mib", "memory_per_cpu_mib"),
    "mintmpdisknode": _memory("tmp_disk_mib"),
    "name": _text("name"),
    "nice": _signed("nice"),
    "numcpus": _first_count("cpus_min"),
    "numnodes": _node_range,
    "numtasks": _number("ntasks"),
    "oversubscribe": _yes_no("oversubscribe"),
    "partition": _words("partitions"),
    "prefer": _constraint("prefer"),
    "priority": _number("priority"),
    "qos": _text("qos"),
    "reqcores": _number("cores_per_socket"),
    "reqnodelist": _hosts("nodelist"),
    "reqnodes": _node_range,
    "reqprocs": _number("ntasks"),
    "reqsockets": _number("sockets_per_node"),
    "reqthreads": _number("threads_per_core"),
    "requeue": _yes_no("requeue"),
    "reservation": _text("reservation"),
    "reservationname": _text("reservation"),
    "shared": _yes_no("oversubscribe"),
    "sitefactor": _signed("site_factor"),
    "starttime": _moment("begin_at"),
    "stderr": _text("std_err"),
    "stdin": _text("std_in"),
    "stdout": _text("std_out"),
    "switches": _switches,
    "timelimit": _limit("time_limit_s"),
    "timemin": _limit("time_min_s"),
    "trespernode": _gres,
    "wckey": _text("wckey"),
    "workdir": _text("work_dir"),
}
"""Keys of `update job` in lower case, and how they are read into fields of JobSpec and ResourceRequest."""
_NAMES = """
Account AdminComment ArrayTaskThrottle Comment Constraints Contiguous CoreSpec CPUsPerTask Deadline Dependency
EligibleTime ExcNodeList Features Gres JobName Licenses MailType MailUser MinCPUsNode MinMemoryCPU MinMemoryNode
MinTmpDiskNode Name Nice NumCPUs NumNodes NumTasks OverSubscribe Partition Prefer Priority QOS ReqCores ReqNodeList
ReqNodes ReqProcs ReqSockets ReqThreads Requeue Reservation ReservationName Shared SiteFactor StartTime StdErr StdIn
StdOut Switches TimeLimit TimeMin TresPerNode WCKey WorkDir
"""
_SPELLING = {word.lower(): word for word in _NAMES.split()}
assert _SPELLING.keys() == _JOB_KEYS.keys()
_WITHOUT_VALUE = frozenset({"arraytaskthrottle", "timelimit", "timemin"})
"""Keys whose wrong value Slurm does not repeat."""


# -- nodes -----------------------------------------------------------------------------------------------------------


def _update_nodes(session: Session, pairs: list[tuple[str, str]]) -> int:

    body: Changes = {}
    for key, value in pairs:
        body.update(_node_change(key, value))
    if str(body["nodes"]).upper() == "ALL":
        answer = session.get("/v1/nodes", "slurm_load_node error", {"fields": "name"})
        body["nodes"] = ",".join(node["name"] for node in answer["nodes"])
    if body.get("state") in ("DOWN", "DRAIN", "FAIL") and not body.get("reason"):
        raise reports.CommandError("You must specify a reason when DOWNING or DRAINING a node. Request denied")
    try:
        session.post("/v1/nodes/update", body)
    except ApiError as error:
        raise reports.failure("scontrol", "slurm_update error", error) from None
    return 0


def _node_change(key: str, value: str) -> Changes:
    lower = key.lower()
    if lower == "nodename":
        return {"nodes": value}
    if lower == "state":
        word = value.upper()
        found = [state for state in _NODE_STATES if state.startswith(word)]
        if not found or not word:
            raise reports.CommandError(
                f"Invalid input: {key}={value}\nRequest aborted\nValid states are: NoResp DRAIN FAIL FUTURE RESUME "
                "POWER_DOWN POWER_UP UNDRAIN\nNot all states are valid given a node's prior state"
            )
        return {"state": found[0]}
    if lower == "reason":
        return {"reason": value}
    if lower == "weight":
        if not value.isdecimal():
            raise _refuse(key, value, "Invalid input")
        return {"weight": int(value)}
    if lower in ("features", "availablefeatures", "activefeatures", "feature"):
        return {"features": [word for word in value.split(",") if word]}
    raise _refuse(key, value)


# -- partitions ------------------------------------------------------------------------------------------------------


def _update_partition(session: Session, pairs: list[tuple[str, str]]) -> int:

    name, changes = "", {}
    for key, value in pairs:
        lower = key.lower()
        if lower == "partitionname":
            name = value
            continue
        reader = _PARTITION_KEYS.get(lower)
        if reader is None:
            raise _refuse(key, value)
        try:
            changes.update(reader(value))
        except (SlurmSyntaxError, ValueError) as error:
            reports.tell(f"scontrol: error: {error}")
            raise _refuse(key, value, "Invalid input") from None
    try:
        session.post(f"/v1/partitions/{name}/update", {"changes": changes})
    except ApiError as error:
        raise reports.failure("scontrol", "slurm_update error", error) from None
    return 0


def _state(value: str) -> Changes:
    if value.upper() not in ("UP", "DOWN", "DRAIN", "INACTIVE"):
        lines = (f"Invalid input: State={value}", "Acceptable State values are UP, DOWN, DRAIN and INACTIVE")
        told = "\n".join(f"scontrol: error: {line}" for line in lines)
        raise reports.CommandError(f"{told}\nslurm_update error: No error")
    return {"state": value.upper()}


def _count_or_none(field: str) -> _Reader:
    return lambda value: {field: None if value.upper() in ("UNLIMITED", "INFINITE", "-1") else int(value)}


def _names_or_all(field: str) -> _Reader:
    return lambda value: {field: None if value.upper() == "ALL" else [word for word in value.split(",") if word]}


def _seconds(field: str) -> _Reader:
    def reader(value: str) -> Changes:

        limit = None if value.upper() == "NONE" else parse_time_limit(value)
        return {field: None if isinstance(limit, Infinite) else limit}

    return reader


_PARTITION_KEYS: dict[str, _Reader] = {
    "allocnodes": _names_or_all("alloc_nodes"),
    "allowaccounts": _names_or_all("allow_accounts"),
    "allowgroups": _names_or_all("allow_groups"),
    "allowqos": _names_or_all("allow_qos"),
    "default": _yes_no("default"),
    "defaulttime": _seconds("default_time_s"),
    "defmempercpu": _count_or_none("default_memory_per_cpu_mib"),
    "defmempernode": _count_or_none("default_memory_per_node_mib"),
    "denyaccounts": _words("deny_accounts"),
    "denyqos": _words("deny_qos"),
    "disablerootjobs": _yes_no("disable_root_jobs"),
    "exclusiveuser": _yes_no("exclusive_user"),
    "gracetime": _count("grace_time_s"),
    "hidden": _yes_no("hidden"),
    "lln": _yes_no("lln"),
    "maxcpuspernode": _count_or_none("max_cpus_per_node"),
    "maxcpusperuser": _count_or_none("max_cpus_per_user"),
    "maxmempercpu": _count_or_none("max_memory_per_cpu_mib"),
    "maxmempernode": _count_or_none("max_memory_per_node_mib"),
    "maxnodes": _count_or_none("max_nodes"),
    "maxtime": _seconds("max_time_s"),
    "minnodes": _count("min_nodes"),
    "nodes": _hosts("nodes"),
    "oversubscribe": lambda value: {"over_subscribe": value.upper()},
    "overtimelimit": _seconds("over_time_limit_s"),
    "preemptmode": lambda value: {"preempt_mode": value.upper()},
    "priorityjobfactor": _count("priority_job_factor"),
    "prioritytier": _count("priority_tier"),
    "qos": _text("qos"),
    "reqresv": _yes_no("req_resv"),
    "rootonly": _yes_no("root_only"),
    "state": _state,
}
"""Keys of `update partition` in lower case, and how they are read into fields of PartitionConfig."""

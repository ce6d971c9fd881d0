"""`scontrol update`: `Key=Value` pairs for a job, a node or a partition, checked and sent as typed changes.

Which fields of a job a key sets is the table of job fields' (`job_keys`); the keys of partitions are here. What a
change means is decided by the daemon. Invariant: one wrong pair and nothing is sent, as in Slurm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from bireme.commands import reports
from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError
from bireme.commands.scontrol import reservations
from bireme.commands.scontrol.actions import ask_all, job_ids
from bireme.commands.scontrol.job_keys import Changes, job_change
from bireme.commands.scontrol.pairs import listed, refused, within, yes_no
from bireme.commands.scontrol.session import Session
from bireme.commands.voice import Voice
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats.visible import visible
from bireme.slurm.hostlist import expand
from bireme.slurm.times import Infinite, parse_time_limit

_Reader = Callable[[str], Changes]

_NODE_STATES = (
    "DOWN", "DRAIN", "FAIL", "FUTURE", "IDLE", "NORESP", "POWER_DOWN", "POWER_UP", "RESUME", "UNDRAIN",
    "CANCEL_REBOOT", "POWER_DOWN_ASAP", "POWER_DOWN_FORCE",
)  # fmt: skip


_NODE_KEYS = ("nodename", "state", "reason", "weight", "features", "availablefeatures", "activefeatures")
_FEWEST_LETTERS = 2


def update(session: Session, words: list[str]) -> int:
    if not words:
        raise reports.CommandError("too few arguments for update keyword")
    if words[0].lower() in ("job", "node", "partition", "step", "reservation") and len(words) > 1 and "=" in words[1]:
        words = words[1:]  # `update job JobId=42 ...`
    pairs = _pairs(words)
    keys = {key.lower() for key, _ in pairs}
    named = {name for name in _ENTITIES if any(_is_short_for(name, key) for key in keys)}
    if "jobid" in named or ("jobname" in keys and not named & {"nodename", "partitionname", "stepid"}):
        return _update_jobs(session, _spelled_out("jobid", pairs))
    if "nodename" in named:
        return _update_nodes(session, _spelled_out("nodename", pairs))
    if any(map(reservations.means_reservation, keys)):
        return reservations.update(session, pairs)
    if "partitionname" in named:
        return _update_partition(session, _spelled_out("partitionname", pairs))
    if "stepid" in named or keys & {"slurmctlddebug", "frontendname"}:
        raise reports.CommandError(
            f"scontrol: error: update of {pairs[0][0]} is not supported: jobs, nodes and partitions can be updated"
        )
    raise reports.CommandError(
        "No valid entity in update command\n"
        'Input line must include "NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"'
    )


_ENTITIES = {"jobid": 3, "nodename": 3, "partitionname": 3, "stepid": 4}
"""What is updated, and how many letters of its name are enough, as with Slurm."""


def _is_short_for(name: str, key: str) -> bool:
    return len(key) >= _ENTITIES[name] and name.startswith(key.lower())


def _spelled_out(name: str, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name if _is_short_for(name, key) else key, value) for key, value in pairs]


def _whole_key(key: str, known: Collection[str]) -> str:
    """The one of these that is meant: by its name, or by its first letters, if no other begins with them.

    (`prio` is Priority, though PriorityTier begins with it too.)
    """
    lower = key.lower()
    found = sorted((name for name in known if name.startswith(lower)), key=len)
    clear = found and len(lower) >= _FEWEST_LETTERS and all(name.startswith(found[0]) for name in found)
    return found[0] if clear else lower


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


def _relative_limit(session: Session, job: str, text: str) -> Changes:
    by = parse_time_limit(text[1:])
    answer = session.get(path_of("jobs", job), "slurm_load_jobs error", {"fields": "time_limit_s"})
    now = answer["jobs"][0].get("time_limit_s")
    if now is None or isinstance(by, Infinite):
        raise reports.CommandError(f"Invalid input: TimeLimit={text}: job {job} has no limit to change by")
    return {"time_limit_s": max(60, now + by if text[0] == "+" else now - by)}


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
        answered = session.post("/v1/nodes/update", body)
    except ApiError as error:
        raise reports.failure("scontrol", "slurm_update error", error) from None
    for line in answered.get("standing", ()):
        Voice("scontrol").raw(f"scontrol: {visible(line)}")
    return 0


def _node_change(key: str, value: str) -> Changes:
    lower = _whole_key(key, _NODE_KEYS)
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
            raise refused(key, value, "Invalid input")
        return {"weight": int(value)}
    if lower in ("features", "availablefeatures", "activefeatures"):
        return {"features": [word for word in value.split(",") if word]}
    raise refused(key, value)


# -- partitions ------------------------------------------------------------------------------------------------------


def _update_partition(session: Session, pairs: list[tuple[str, str]]) -> int:
    name, changes = "", {}
    for key, value in pairs:
        if key == "partitionname":
            name = value
            continue
        reader = _PARTITION_KEYS.get(_whole_key(key, _PARTITION_KEYS))
        if reader is None:
            raise refused(key, value)
        try:
            changes.update(reader(value))
        except (SlurmSyntaxError, ValueError) as error:
            reports.tell(f"scontrol: error: {error}")
            raise refused(key, value, "Invalid input") from None
    try:
        session.post(path_of("partitions", name, "update"), {"changes": changes})
    except ApiError as error:
        raise reports.failure("scontrol", "slurm_update error", error) from None
    return 0


def _count(field: str) -> _Reader:
    return lambda value: {field: within(value, 0, 2**31 - 2)}


def _words(field: str) -> _Reader:
    return lambda value: {field: listed(value)}


def _yes_no(field: str) -> _Reader:
    return lambda value: {field: yes_no(value)}


def _hosts(field: str) -> _Reader:
    return lambda value: {field: expand(value)}


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
    "priority": lambda value: {**_count("priority_job_factor")(value), **_count("priority_tier")(value)},
    "priorityjobfactor": _count("priority_job_factor"),
    "prioritytier": _count("priority_tier"),
    "qos": lambda value: {"qos": value},
    "reqresv": _yes_no("req_resv"),
    "rootonly": _yes_no("root_only"),
    "shared": lambda value: {"over_subscribe": value.upper()},
    "state": _state,
}
"""Keys of `update partition` in lower case, and how they are read into fields of PartitionConfig."""

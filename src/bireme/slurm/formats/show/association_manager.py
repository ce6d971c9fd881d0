"""`scontrol show assoc_mgr`: users, associations and QOS, each limit with what counts against it, `limit(used)`.

Pure: a record (`slurm/records/association_manager.py`) in, lines out. `N` is Slurm's sign for no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

Record = Mapping[str, Any]
_INDENT = "    "


def manager_lines(
    record: Record, kinds: Collection[str], named: Mapping[str, Collection[str]], uid_of: Callable[[str], int]
) -> Iterator[str]:
    """`kinds`: users, assoc, qos; empty: all. `named`: only these users, accounts, QOS."""
    yield "Current Association Manager state"
    if not kinds or "users" in kinds:
        yield from ("", "User Records", "")
        for user in record["users"]:
            if _chosen(named, "users", user["name"]):
                yield _user(user, uid_of)
    if not kinds or "assoc" in kinds:
        yield from ("", "Association Records", "")
        for row in record["associations"]:
            if _chosen(named, "accounts", row["account"]) and _chosen(named, "users", row["user"]):
                yield from _association(row, record, uid_of)
    if not kinds or "qos" in kinds:
        yield from ("", "QOS Records", "")
        for row in record["qos"]:
            if _chosen(named, "qos", row["name"]):
                yield from _qos(row, record["tres"])


def _chosen(named: Mapping[str, Collection[str]], kind: str, name: str) -> bool:
    return not named.get(kind) or name in named[kind]


def _user(user: Record, uid_of: Callable[[str], int]) -> str:
    level = {"None": "Not Set"}.get(user["admin_level"], user["admin_level"])
    wckey = user["default_wckey"] or "(null)"
    account = user["default_account"] or "(null)"
    name = f"{user['name']}({uid_of(user['name'])})"
    return f"UserName={name} DefAccount={account} DefWckey={wckey} AdminLevel={level}"


def _association(row: Record, record: Record, uid_of: Callable[[str], int]) -> Iterator[str]:
    share, own = row["share"], row["limits"]
    user = f"{row['user']}({uid_of(row['user'])})" if row["user"] else ""
    parent = f"{share['parent']}({row['parent_id']})" if row["parent_id"] and not row["user"] else ""
    yield (
        f"ClusterName={record['cluster']} Account={row['account']} UserName={user} "
        f"Partition={row['partition']} Priority={row['priority'] or 0} ID={row['id']}"
    )
    shares = "1" if share["raw_shares"] is None else share["raw_shares"]
    yield (
        f"{_INDENT}SharesRaw/Norm/Level/Factor={shares}/{share['norm_shares'] or 0:.2f}/"
        f"{share['depth'] + 1}/{share['fair_share'] or 0:.2f}"
    )
    yield (
        f"{_INDENT}UsageRaw/Norm/Efctv={share['raw_usage']:.2f}/{_ratio(share['norm_usage'])}/"
        f"{_ratio(share['effective_usage'])}"
    )
    yield f"{_INDENT}ParentAccount={parent} Lft={row['lft']} DefAssoc={'Yes' if row['is_default'] else 'No'}"
    counts = row["counts"]
    yield f"{_INDENT}GrpJobs={_of(own, 'grp_jobs', counts['jobs'])} GrpJobsAccrue={_of(own, 'grp_jobs_accrue', 0)}"
    wall = f"{_minutes(own, 'grp_wall_s', 'N')}({row['usage']['wall']:.2f})"
    yield f"{_INDENT}GrpSubmitJobs={_of(own, 'grp_submit', counts['submitted'])} GrpWall={wall}"
    yield from _group_tres(own, row, record["tres"])
    limits = row["effective"]
    yield (
        f"{_INDENT}MaxJobs={_max(limits, own, 'max_jobs_per_user', counts['jobs'])} "
        f"MaxJobsAccrue={_max(limits, own, 'max_jobs_accrue_per_user', 0)} "
        f"MaxSubmitJobs={_max(limits, own, 'max_submit_per_user', counts['submitted'])} "
        f"MaxWallPJ={_minutes(limits, 'max_wall_s', '')}"
    )
    yield from _job_tres(limits)
    yield f"{_INDENT}MinPrioThresh={limits.get('min_priority', '')}"


def _qos(row: Record, names: list[str]) -> Iterator[str]:
    own, counts = row["limits"], row["counts"]
    yield f"QOS={row['name']}({row['id']})"
    yield f"{_INDENT}UsageRaw={row['usage']['raw']:.6f}"
    yield (
        f"{_INDENT}GrpJobs={_of(own, 'grp_jobs', counts['jobs'])} GrpJobsAccrue={_of(own, 'grp_jobs_accrue', 0)} "
        f"GrpSubmitJobs={_of(own, 'grp_submit', counts['submitted'])} "
        f"GrpWall={_minutes(own, 'grp_wall_s', 'N')}({row['usage']['wall']:.2f})"
    )
    yield from _group_tres(own, row, names)
    yield f"{_INDENT}MaxWallPJ={_minutes(own, 'max_wall_s', '')}"
    yield from _job_tres(own)
    yield f"{_INDENT}MinPrioThresh={own.get('min_priority', '')} "
    yield f"{_INDENT}MinTRESPJ={_plain(own.get('min_tres_per_job', {}))}"
    yield f"{_INDENT}PreemptMode={row['preempt_mode'] or 'OFF'}"
    yield f"{_INDENT}Priority={row['priority']}"
    yield from _holders("Account Limits", "account", "PA", row["accounts"], own, names)
    yield from _holders("User Limits", "user", "PU", row["users"], own, names)


def _holders(
    title: str, kind: str, ending: str, holders: Mapping[str, Record], own: Record, names: list[str]
) -> Iterator[str]:
    yield f"{_INDENT}{title}"
    if not holders:
        yield f"{_INDENT}  No {title.partition(' ')[0]}s"
    for name, counts in holders.items():
        yield f"{_INDENT}  {name}"
        yield (
            f"{_INDENT}{_INDENT}MaxJobs{ending}={_of(own, f'max_jobs_per_{kind}', counts['jobs'])} "
            f"MaxJobsAccrue{ending}={_of(own, f'max_jobs_accrue_per_{kind}', 0)} "
            f"MaxSubmitJobs{ending}={_of(own, f'max_submit_per_{kind}', counts['submitted'])}"
        )
        yield f"{_INDENT}{_INDENT}MaxTRES{ending}={_used(own.get(f'max_tres_per_{kind}', {}), counts['tres'], names)}"


def _group_tres(own: Record, row: Record, names: list[str]) -> Iterator[str]:
    counts = row["counts"]
    yield f"{_INDENT}GrpTRES={_used(own.get('grp_tres', {}), counts['tres'], names)}"
    yield f"{_INDENT}GrpTRESMins={_used(own.get('grp_tres_mins', {}), row['usage'], names)}"
    yield f"{_INDENT}GrpTRESRunMins={_used(own.get('grp_tres_run_mins', {}), counts['tres_run_mins'], names)}"


def _job_tres(limits: Record) -> Iterator[str]:
    for title, name in (("PJ", "max_tres_per_job"), ("PN", "max_tres_per_node")):
        yield f"{_INDENT}MaxTRES{title}={_plain(limits.get(name, {}))}"
    yield f"{_INDENT}MaxTRESMinsPJ={_plain(limits.get('max_tres_mins_per_job', {}))}"


def _of(limits: Record, name: str, used: int) -> str:
    return f"{limits.get(name, 'N')}({used})"


def _max(limits: Record, own: Record, name: str, used: int) -> str:
    return f"{limits[name]}({used})" if name in limits or name in own else ""


def _minutes(limits: Record, name: str, without: str) -> str:
    return str(limits[name] // 60) if name in limits else without


def _used(limits: Mapping[str, int], used: Mapping[str, float], names: list[str]) -> str:
    return ",".join(f"{name}={limits.get(name, 'N')}({int(used.get(name, 0))})" for name in names)


def _plain(limits: Mapping[str, int]) -> str:
    return ",".join(f"{name}={amount}" for name, amount in limits.items())


def _ratio(value: float | None) -> str:
    return f"{1.0 if value is None else value:.2f}"

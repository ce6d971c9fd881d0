"""`sacctmgr --json`: the book in the shape that Slurm's own data parser gives its database records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bireme.slurm.json_shapes.envelope import Shape, triple
from bireme.slurm.json_shapes.tres import tres_ids, tres_list


def account_shapes(entity: str, book: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Shape:
    if entity == "association":
        return {"associations": [association_shape(row) for row in _with_tres_lists(book, rows, "shown_limits")]}
    if entity == "qos":
        return {"qos": [qos_shape(row) for row in _with_tres_lists(book, rows, "limits")]}
    if entity == "account":
        names = list(dict.fromkeys(row["account"] for row in rows))
        return {"accounts": [_account(book, name) for name in names]}
    if entity == "user":
        names = list(dict.fromkeys(row["user"] for row in rows))
        return {"users": [_user(book, name) for name in names]}
    if entity == "tres":
        return {"tres": [{"type": row["type"], "name": row["name"], "id": row["id"], "count": 0} for row in rows]}
    return {entity + "s": [dict(row) for row in rows]}


def _short(row: Mapping[str, Any], cluster: str) -> Shape:
    key = {name: row[name] for name in ("account", "partition", "user", "id")}
    return {**key, "cluster": cluster}


def _account(book: Mapping[str, Any], name: str) -> Shape:
    account = next(each for each in book["accounts"] if each["name"] == name)
    below = [row for row in book["associations"] if row["account"] == name]
    return {
        "name": name,
        "description": account["description"],
        "organization": account["organization"],
        "coordinators": [{"name": user, "direct": True} for user in account["coordinators"]],
        "associations": [_short(row, book["cluster"]) for row in below],
        "flags": [],
    }


def _user(book: Mapping[str, Any], name: str) -> Shape:
    user = next(each for each in book["users"] if each["name"] == name)
    mine = [row for row in book["associations"] if row["user"] == name]
    return {
        "name": name,
        "administrator_level": [user["admin_level"]],
        "associations": [_short(row, book["cluster"]) for row in mine],
        "coordinators": [{"name": a["name"], "direct": True} for a in book["accounts"] if name in a["coordinators"]],
        "default": {"account": user["default_account"], "wckey": user["default_wckey"], "qos": 0},
        "flags": [],
        "wckeys": [],
    }


def _with_tres_lists(book: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    """The rows with each amount of TRES among their limits as the list that stands for it here."""
    amounts = [limit for row in rows for limit in row[key].values() if isinstance(limit, Mapping)]
    ids = tres_ids([*book["tres"], *(name for amount in amounts for name in amount)])

    def shown(limits: Mapping[str, Any]) -> Shape:
        return {name: tres_list(of, ids) if isinstance(of, Mapping) else of for name, of in limits.items()}

    return [{**row, key: shown(row[key])} for row in rows]


def _tres(limits: Mapping[str, Any], name: str) -> list[Shape]:
    return list(limits.get(name) or ())


def _minutes(seconds: int | None) -> Shape:
    return triple(None if seconds is None else seconds // 60, infinite=True)


def _count(limits: Mapping[str, Any], name: str) -> Shape:
    return triple(limits.get(name), infinite=True)


def association_shape(row: Mapping[str, Any]) -> Shape:
    limits = row["shown_limits"]
    return {
        "account": row["account"],
        "cluster": row["cluster"],
        "partition": row["partition"],
        "user": row["user"],
        "id": _short(row, row["cluster"]),
        "parent_account": row["parent_name"],
        "is_default": row["is_default"],
        "shares_raw": 2_147_483_647 if row["shares"] == "parent" else row["shares"],
        "priority": triple(row["shown_priority"]),
        "qos": list(row["shown_qos"]),
        "default": {"qos": row["shown_default_qos"]},
        "min": {"priority_threshold": triple(None)},
        "max": {
            "jobs": {
                "active": _count(limits, "max_jobs_per_user"),
                "accruing": _count(limits, "max_jobs_accrue_per_user"),
                "total": _count(limits, "max_submit_per_user"),
                "per": {
                    "count": _count(limits, "grp_jobs"),
                    "accruing": _count(limits, "grp_jobs_accrue"),
                    "submitted": _count(limits, "grp_submit"),
                    "wall_clock": _minutes(limits.get("max_wall_s")),
                },
            },
            "per": {"account": {"wall_clock": _minutes(limits.get("grp_wall_s"))}},
            "tres": {
                "total": _tres(limits, "grp_tres"),
                "group": {
                    "minutes": _tres(limits, "grp_tres_mins"),
                    "active": _tres(limits, "grp_tres_run_mins"),
                },
                "minutes": {"total": [], "per": {"job": _tres(limits, "max_tres_mins_per_job")}},
                "per": {"job": _tres(limits, "max_tres_per_job"), "node": _tres(limits, "max_tres_per_node")},
            },
        },
        "flags": [],
    }


def qos_shape(row: Mapping[str, Any]) -> Shape:
    limits = row["limits"]
    return {
        "id": row["id"],
        "name": row["name"],
        "description": row["description"],
        "flags": [flag.upper() for flag in row["flags"]],
        "priority": triple(row["priority"]),
        "usage_factor": triple(row["usage_factor"]),
        "usage_threshold": triple(row["usage_threshold"], infinite=True),
        "preempt": {
            "list": list(row["preempt"]),
            "mode": [row["preempt_mode"] or "DISABLED"],
            "exempt_time": triple(row["preempt_exempt_s"], infinite=True),
        },
        "limits": {
            "grace_time": row["grace_s"],
            "factor": triple(row["limit_factor"], infinite=True),
            "max": {
                "active_jobs": {
                    "accruing": _count(limits, "grp_jobs_accrue"),
                    "count": _count(limits, "grp_jobs"),
                },
                "tres": {
                    "total": _tres(limits, "grp_tres"),
                    "minutes": {
                        "total": _tres(limits, "grp_tres_mins"),
                        "per": {
                            "qos": _tres(limits, "grp_tres_run_mins"),
                            "job": _tres(limits, "max_tres_mins_per_job"),
                            "account": _tres(limits, "max_tres_run_mins_per_account"),
                            "user": _tres(limits, "max_tres_run_mins_per_user"),
                        },
                    },
                    "per": {
                        "account": _tres(limits, "max_tres_per_account"),
                        "job": _tres(limits, "max_tres_per_job"),
                        "node": _tres(limits, "max_tres_per_node"),
                        "user": _tres(limits, "max_tres_per_user"),
                    },
                },
                "wall_clock": {
                    "per": {"qos": _minutes(limits.get("grp_wall_s")), "job": _minutes(limits.get("max_wall_s"))}
                },
                "jobs": {
                    "active_jobs": {
                        "per": {
                            "account": _count(limits, "max_jobs_per_account"),
                            "user": _count(limits, "max_jobs_per_user"),
                        }
                    },
                    "per": {
                        "account": _count(limits, "max_submit_per_account"),
                        "user": _count(limits, "max_submit_per_user"),
                    },
                },
            },
            "min": {
                "priority_threshold": _count(limits, "min_priority"),
                "tres": {"per": {"job": _tres(limits, "min_tres_per_job")}},
            },
        },
    }

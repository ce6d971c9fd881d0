"""The account book and the shares of associations as records: what `sacctmgr show` and `sshare` print.

Flat JSON; a limit that is not set is not there. `limits` are an association's own, `effective` what holds for it with
what it inherits.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from bireme.core.accounting.book import AccountBook
from bireme.core.jobs.due import time_limit_s
from bireme.core.model.accounts import Association, Limits, Qos, tres_rank
from bireme.core.model.jobs import Running, Suspended
from bireme.core.priority.fair_share import standings, uses_fair_tree
from bireme.core.state.state import State

ALWAYS_TRACKED = ("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages")
_LIMIT_FIELDS = tuple(field.name for field in fields(Limits))
_PARENT = "parent"


def book_record(state: State) -> dict[str, Any]:
    """Everything that is in the book, associations in the order of the tree."""
    book = state.accounts
    return {
        "cluster": state.config.name,
        "accounts": [
            {
                "name": each.name,
                "description": each.description,
                "organization": each.organization,
                "coordinators": list(each.coordinators),
            }
            for each in sorted(book.accounts.values(), key=lambda account: account.name)
        ],
        "users": [
            {
                "name": each.name,
                "default_account": each.default_account,
                "default_wckey": each.default_wckey,
                "admin_level": each.admin_level.value,
            }
            for each in sorted(book.users.values(), key=lambda user: user.name)
        ],
        "qos": [_qos_record(each) for each in sorted(book.qos.values(), key=lambda qos: qos.id)],
        "associations": _association_records(book),
        "tres": tracked(state),
    }


def tracked(state: State) -> list[str]:
    """TRES names of this cluster: those every cluster has, and what its nodes have."""
    found = {f"gres/{pool.name}" for node in state.nodes.values() for pool in node.config.gres}
    typed = {f"gres/{p.name}:{p.type}" for node in state.nodes.values() for p in node.config.gres if p.type}
    return [*ALWAYS_TRACKED, *sorted(found | typed, key=tres_rank)]


def _qos_record(qos: Qos) -> dict[str, Any]:
    return {
        "id": qos.id,
        "name": qos.name,
        "description": qos.description,
        "priority": qos.priority,
        "flags": [flag.value for flag in qos.flags],
        "preempt": list(qos.preempt),
        "preempt_mode": qos.preempt_mode,
        "preempt_exempt_s": qos.preempt_exempt_s,
        "grace_s": qos.grace_s,
        "usage_factor": qos.usage_factor,
        "usage_threshold": qos.usage_threshold,
        "limit_factor": qos.limit_factor,
        "limits": limits_record(qos.limits),
    }


def limits_record(limits: Limits) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name in _LIMIT_FIELDS:
        value = getattr(limits, name)
        if value not in (None, ()):
            record[name] = dict(value) if isinstance(value, tuple) else value
    return record


def _association_records(book: AccountBook) -> list[dict[str, Any]]:
    """With `lft` and `rgt` as of a walk around the tree: everything between them is below."""
    records: list[dict[str, Any]] = []
    counter = 0

    def visit(association: Association, depth: int) -> None:
        nonlocal counter
        counter += 1
        record = _association_record(book, association, depth)
        record["lft"] = counter
        records.append(record)
        for child in book.children(association.id):
            visit(child, depth + 1)
        counter += 1
        record["rgt"] = counter

    visit(book.root, 0)
    return records


def _association_record(book: AccountBook, association: Association, depth: int) -> dict[str, Any]:
    above = book.parent(association)
    return {
        "id": association.id,
        "account": association.account,
        "user": association.user,
        "partition": association.partition,
        "depth": depth,
        "parent_id": above.id if above else 0,
        "parent_name": association.parent,
        "shares": _PARENT if association.shares is None else association.shares,
        "priority": _inherited_priority(book, association),
        "own_priority": association.priority,
        "qos": sorted(book.qos_of(association.id)),
        "own_qos": [*association.qos, *association.qos_changes],
        "default_qos": _nearest_default(book, association),
        "own_default_qos": association.default_qos,
        "is_default": bool(association.user) and book.default_account(association.user) == association.account,
        "limits": limits_record(association.limits),
        "effective": limits_record(book.limits_of(association.id)),
    }


def _inherited_priority(book: AccountBook, association: Association) -> int | None:
    return next((each.priority for each in book.chain(association.id) if each.priority is not None), None)


def _nearest_default(book: AccountBook, association: Association) -> str:
    return next((each.default_qos for each in book.chain(association.id) if each.default_qos), "")


def share_records(state: State, now: float) -> list[dict[str, Any]]:
    """Every association's standing, in the order of the tree: `sshare`'s lines."""
    book, usage, settings = state.accounts, state.usage, state.config.settings
    found = standings(book, usage, now, settings)
    names = tracked(state)
    running = _run_minutes(state, now)
    root = book.root.id
    records: list[dict[str, Any]] = []
    for depth, each in book.tree():
        standing = found[each.id]
        records.append(
            {
                "id": each.id,
                "account": each.account,
                "user": each.user,
                "partition": each.partition,
                "depth": depth,
                "parent": each.parent_account,
                "raw_shares": None if each.id == root else (_PARENT if each.shares is None else each.shares),
                "norm_shares": standing.norm_shares,
                "raw_usage": usage.raw(each.id, now),
                "norm_usage": None if each.id == root else standing.norm_usage,
                "effective_usage": standing.effective_usage,
                "fair_share": standing.factor,
                "level_fs": _level(standing.level_fs),
                "grp_tres_mins": dict(each.limits.grp_tres_mins),
                "grp_tres_raw": {name: int(usage.of_association(each.id, name, now) // 60) for name in names},
                "tres_run_mins": {name: running.get(each.id, {}).get(name, 0) for name in names},
            }
        )
    return records


def _level(level: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "inf" if level == float("inf") else level


def fair_tree_in_force(state: State) -> bool:
    return uses_fair_tree(state.config.settings)


def _run_minutes(state: State, now: float) -> dict[int, dict[str, int]]:
    """What running jobs may still use until their limits, by association: TRES times minutes left."""
    totals: dict[int, dict[str, float]] = {}
    for job_id, charge in state.usage.charges.items():
        job = state.jobs.get(job_id)
        limit = time_limit_s(state, job) if job else None
        if job is None or limit is None or not isinstance(job.phase, Running | Suspended):
            continue
        left_s = max(0.0, job.phase.started_at + limit + job.phase.suspended_s - now)
        for number in charge.associations:
            total = totals.setdefault(number, {})
            for name, rate in charge.rates:
                total[name] = total.get(name, 0.0) + rate * left_s
    return {number: {name: int(amount // 60) for name, amount in total.items()} for number, total in totals.items()}

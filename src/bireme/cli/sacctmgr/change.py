"""sacctmgr add, modify, delete: the order is tried, told as Slurm tells it, agreed to, and carried out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bireme.cli.sacctmgr.session import DISCARDED, Session
from bireme.commands import reports
from bireme.core.accounting import orders as o
from bireme.core.accounting.edits import CLEAR, AssociationEdit, LimitsEdit, QosEdit
from bireme.slurm.accounts import words
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import format_tres
from bireme.slurm.times import format_elapsed

_NO_ENTITY = {
    "add": 'No valid entity in add command\nInput line must include "Account", "Cluster", "Coordinator",'
    ' "Federation", "QOS", "Resource", or "User"',
    "modify": 'No valid entity in modify command\nInput line must include "Account", "Cluster", "Federation", "Job",'
    ' "QOS", "Resource" or "User"',
    "delete": 'No valid entity in delete command\nInput line must include "Account", "Cluster", "Coordinator",'
    ' "Federation", "QOS", "Resource", or "User"',
}
Outcome = dict[str, Any]


def add(session: Session, texts: Sequence[str]) -> int:
    entity, rest = _entity(texts, words.ADDABLE, "add")
    order = _understood(lambda: words.add_order(entity, rest)[0])
    return _carry_out(session, order)


def modify(session: Session, texts: Sequence[str]) -> int:
    entity, rest = _entity(texts, words.MODIFIABLE, "modify")
    order = _understood(lambda: words.modify_order(entity, rest))
    return _carry_out(session, order, of_cluster=entity == "cluster")


def delete(session: Session, texts: Sequence[str]) -> int:
    entity, rest = _entity(texts, words.DELETABLE, "delete")
    order = _understood(lambda: words.delete_order(entity, rest)[0])
    return _carry_out(session, order)


def _entity(texts: Sequence[str], allowed: frozenset[str], command: str) -> tuple[str, list[str]]:
    entity = words.entity_of(texts[0]) if texts else None
    if entity is None or (entity not in allowed and entity not in ("cluster", "federation", "resource", "job")):
        raise reports.CommandError(_NO_ENTITY[command])
    if entity not in allowed:
        raise reports.CommandError(f" sacctmgr {command} {entity} is not possible here: there is one cluster, this one")
    return entity, list(texts[1:])


def _understood(read: Any) -> o.Order:
    try:
        return read()  # type: ignore[no-any-return]
    except SlurmSyntaxError as error:
        raise reports.CommandError(str(error)) from error


def _carry_out(session: Session, order: o.Order, *, of_cluster: bool = False) -> int:
    """Without -i it is first only tried, so that people see what they agree to."""
    asks = not session.has("immediate")
    answer = session.change([order], dry_run=asks)
    lines = list(told(order, answer["outcomes"][0], answer["cluster"], of_cluster))
    reports.show(lines)
    if asks:
        if not session.agreed():
            print(DISCARDED)
            return 0
        session.change([order])
    return 0


# -- what Slurm prints -----------------------------------------------------------------------------------------------


def told(order: o.Order, outcome: Outcome, cluster: str, of_cluster: bool = False) -> Iterator[str]:
    if isinstance(order, o.AddAccounts):
        yield from _added_accounts(order, outcome, cluster)
    elif isinstance(order, o.AddUsers):
        yield from _added_users(order, outcome, cluster)
    elif isinstance(order, o.AddQos):
        yield from _names(" Adding QOS(s)", outcome["qos"])
        yield " Settings"
        yield f"  Description    = {order.edit.description or outcome['qos'][-1]}"
        yield from _qos_settings(order.edit)
    elif isinstance(order, o.AddCoordinators):
        yield from _names(" Adding Coordinator User(s)", outcome["users"])
        yield from _names(" To Account(s) and all sub-accounts", outcome["accounts"])
    elif isinstance(order, o.DeleteCoordinators):
        yield from _removed_coordinators(order, outcome)
    elif isinstance(order, o.ModifyQos):
        yield from _names(" Modified qos...", outcome["qos"])
    elif isinstance(order, o.DeleteQos):
        yield from _names(" Deleting QOS(s)...", outcome["qos"])
    elif isinstance(order, o.DeleteAccounts):
        yield from _names(" Deleting accounts...", outcome["accounts"])
    elif isinstance(order, o.DeleteUsers):
        yield from _deleted_users(outcome, cluster)
    else:
        yield from _modified(order, outcome, cluster, of_cluster)


def _names(title: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        yield title
        yield from (f"  {name}" for name in names)


def _added_accounts(order: o.AddAccounts, outcome: Outcome, cluster: str) -> Iterator[str]:
    yield from _names(" Adding Account(s)", outcome["accounts"])
    yield " Settings"
    yield f"  Description     = {order.description or 'Account Name'}"
    yield f"  Organization    = {order.organization or 'Parent/Account Name'}"
    yield " Associations"
    yield from (f"  A = {each['account']:<10.10} C = {cluster:<10.10}" for each in outcome["associations"])
    settings = list(_association_settings(order.edit))
    if settings or order.parent != "root":
        yield " Settings"
        yield from _with_parent(settings, order.parent)


def _with_parent(settings: list[str], parent: str) -> Iterator[str]:
    """The parent stands before the QOS, as Slurm lists them."""
    line = f"  Parent        = {parent}"
    at = next((index for index, each in enumerate(settings) if each.startswith(("  QOS ", "  DefQOS "))), len(settings))
    yield from (*settings[:at], line, *settings[at:])


def _added_users(order: o.AddUsers, outcome: Outcome, cluster: str) -> Iterator[str]:
    yield from _names(" Adding User(s)", outcome["users"])
    if order.default_account or order.admin_level:
        yield " Settings ="
        if order.default_account:
            yield f"  Default Account = {order.default_account}"
        if order.admin_level:
            yield f"  Admin Level     = {_level(order.admin_level)}"
    if outcome["associations"]:
        yield " Associations ="
        for each in outcome["associations"]:
            partition = f" P = {each['partition']:<10.10}" if each["partition"] else ""
            yield f"  U = {each['user']:<9.9} A = {each['account']:<10.10} C = {cluster:<10.10}{partition}"
        yield " Non Default Settings"
        yield from _association_settings(order.edit)


def _level(text: str) -> str:
    return next((name for name in ("None", "Operator", "Administrator") if name.lower().startswith(text.lower())), text)


def _modified(
    order: o.ModifyAccounts | o.ModifyUsers, outcome: Outcome, cluster: str, of_cluster: bool
) -> Iterator[str]:
    if of_cluster:
        yield " Setting"
        yield "  Default Limits:"
        yield from _association_settings(order.edit)
        title = " Modified cluster defaults for associations..."
    elif isinstance(order, o.ModifyAccounts):
        yield from _names(" Modified accounts...", outcome["accounts"])
        title = " Modified account associations..."
    else:
        yield from _names(" Modified users...", outcome["users"])
        title = " Modified user associations..."
    if outcome["associations"]:
        yield title
        yield from (f"  {_association(each, cluster, 20)}" for each in outcome["associations"])


def _association(each: dict[str, str], cluster: str, width: int) -> str:
    if not each["user"]:
        of = f" of {each['parent']}" if each["parent"] else ""
        return f"C = {cluster:<10} A = {each['account']}{of}"
    line = f"C = {cluster:<10} A = {each['account']:<{width}} U = {each['user']:<9}"
    return line + (f" P = {each['partition']}" if each["partition"] else "")


def _deleted_users(outcome: Outcome, cluster: str) -> Iterator[str]:
    if outcome["users"]:
        yield from _names(" Deleting users...", outcome["users"])
    else:
        yield " Deleting user associations..."
        yield from (f"  {_association(each, cluster, 10)}" for each in outcome["associations"])


def _removed_coordinators(order: o.DeleteCoordinators, outcome: Outcome) -> Iterator[str]:
    yield from _names(" Removing Coordinators with user name", order.users)
    yield from _names(" From Account(s)", order.accounts)
    yield " Removed Coordinators (sub accounts not listed)..."
    for account in outcome["accounts"]:
        yield from (f"  U = {user:<9} A = {account:<10}" for user in order.users)


_COUNTS = {
    "grp_jobs": "GrpJobs",
    "grp_jobs_accrue": "GrpJobsAccrue",
    "grp_submit": "GrpSubmitJobs",
    "grp_tres": "GrpTRES",
    "grp_tres_mins": "GrpTRESMins",
    "grp_tres_run_mins": "GrpTRESRunMins",
    "grp_wall_s": "GrpWall",
    "max_jobs_per_user": "MaxJobs",
    "max_jobs_accrue_per_user": "MaxJobsAccrue",
    "max_submit_per_user": "MaxSubmitJobs",
    "max_tres_per_job": "MaxTRES",
    "max_tres_per_node": "MaxTRESPerNode",
    "max_tres_mins_per_job": "MaxTRESMins",
    "max_tres_run_mins_per_user": "MaxTRESRunMins",
    "max_wall_s": "MaxWall",
}
_QOS_WORDS = {
    **_COUNTS,
    "max_jobs_per_user": "MaxJobsPerUser",
    "max_jobs_per_account": "MaxJobsPerAccount",
    "max_submit_per_user": "MaxSubmitJobsPerUser",
    "max_submit_per_account": "MaxSubmitJobsPerAccount",
    "max_tres_per_user": "MaxTRESPerUser",
    "max_tres_per_account": "MaxTRESPerAccount",
    "min_tres_per_job": "MinTRESPerJob",
    "min_priority": "MinPrioThreshold",
}


def _limit_lines(limits: LimitsEdit, names: dict[str, str], width: int) -> Iterator[str]:
    for field, word in names.items():
        if field in limits.counts:
            yield f"  {word:<{width}} = {_amount(field, limits.counts[field])}"
        elif field in limits.tres:
            amounts = limits.tres[field]
            cleared = [name for name, amount in amounts.items() if amount == CLEAR]
            kept = format_tres({name: amount for name, amount in amounts.items() if amount != CLEAR})
            yield f"  {word:<{width}} = {','.join(filter(None, [kept, *(f'{name}=-1' for name in cleared)]))}"


def _amount(field: str, amount: int) -> str:
    if amount == CLEAR:
        return "NONE"
    return format_elapsed(amount) if field.endswith("_wall_s") else str(amount)


def _association_settings(edit: AssociationEdit) -> Iterator[str]:
    if edit.shares is not None:
        yield f"  Fairshare     = {edit.shares}"
    yield from _limit_lines(edit.limits, _COUNTS, 13)
    if edit.priority is not None:
        yield f"  Priority      = {edit.priority}"
    if edit.qos is not None:
        yield f"  QOS           = {','.join(sorted(edit.qos))}"
    if edit.default_qos is not None:
        yield f"  DefQOS        = {edit.default_qos}"


def _qos_settings(edit: QosEdit) -> Iterator[str]:
    if edit.flags is not None:
        yield f"  {'Flags':<24} = {','.join(edit.flags)}"
    if edit.grace_s is not None:
        yield f"  {'GraceTime':<24} = {edit.grace_s}"
    yield from _limit_lines(edit.limits, _QOS_WORDS, 24)
    if edit.preempt is not None:
        yield f"  {'Preempt':<24} = {','.join(edit.preempt)}"
    if edit.preempt_mode is not None:
        yield f"  {'PreemptMode':<24} = {edit.preempt_mode or 'cluster'}"
    if edit.priority is not None:
        yield f"  {'Priority':<24} = {edit.priority}"
    if edit.usage_factor is not None:
        yield f"  {'UsageFactor':<24} = {edit.usage_factor:.4f}"
    if edit.usage_threshold is not None:
        yield f"  {'UsageThreshold':<24} = {edit.usage_threshold:.4f}"

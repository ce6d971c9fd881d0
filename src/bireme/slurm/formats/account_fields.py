"""sacctmgr's columns: accounts, users, associations, QOS, clusters and TRES, with Slurm's names and widths.

A row is a mapping: an association's record with its account's and its user's beside it under "account_record" and
"user_record", or a QOS record. Printing is `formats/accounting.py`. Invariant: a column whose fact is not set is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats.accounting import AccountingColumn, AccountingField, AccountingText
from bireme.slurm.formats.layout import parse_accounting
from bireme.slurm.formats.values import Context, Record, long_duration, tres_text

TREE_WIDTH = 20


def _fact(name: str, of: str = "") -> AccountingText:
    def text(row: Record, _: Context) -> str:
        record = row.get(of) or {} if of else row
        value = record.get(name)
        return "" if value is None else str(value)

    return text


def _list(name: str, of: str = "") -> AccountingText:
    def text(row: Record, _: Context) -> str:
        record = row.get(of) or {} if of else row
        return ",".join(record.get(name) or ())

    return text


def _limit(name: str) -> AccountingText:
    def text(row: Record, _: Context) -> str:
        value = row["shown_limits"].get(name)
        return "" if value is None else str(value)

    return text


def _wall(name: str) -> AccountingText:
    def text(row: Record, _: Context) -> str:
        value = row["shown_limits"].get(name)
        return "" if value is None else long_duration(value)

    return text


def _tres(name: str) -> AccountingText:
    return lambda row, context: tres_text(row["shown_limits"].get(name), context, alphabetical=True)


def _one_tres(name: str, tres: str) -> AccountingText:
    def text(row: Record, _: Context) -> str:
        value = (row["shown_limits"].get(name) or {}).get(tres)
        return "" if value is None else str(value)

    return text


def _f(name: str, width: int, text: AccountingText) -> AccountingField:
    return AccountingField(name, width, text)


def _number(name: str) -> AccountingText:
    def text(row: Record, _: Context) -> str:
        value = row.get(name)
        return "" if value is None else f"{value:.6f}"

    return text


_GROUP_LIMITS = [
    _f("GrpJobs", 7, _limit("grp_jobs")),
    _f("GrpJobsAccrue", 13, _limit("grp_jobs_accrue")),
    _f("GrpTRES", 13, _tres("grp_tres")),
    _f("GrpSubmit", 9, _limit("grp_submit")),
    _f("GrpWall", 11, _wall("grp_wall_s")),
    _f("GrpTRESMins", 13, _tres("grp_tres_mins")),
    _f("GrpTRESRunMins", 13, _tres("grp_tres_run_mins")),
    _f("GrpNodes", 8, _one_tres("grp_tres", "node")),
    _f("GrpCPUs", 8, _one_tres("grp_tres", "cpu")),
    _f("GrpMem", 7, _one_tres("grp_tres", "mem")),
    _f("GrpCPUMins", 11, _one_tres("grp_tres_mins", "cpu")),
    _f("GrpCPURunMins", 13, _one_tres("grp_tres_run_mins", "cpu")),
]
_JOB_LIMITS = [
    _f("MaxTRES", 13, _tres("max_tres_per_job")),
    _f("MaxTRESPerNode", 14, _tres("max_tres_per_node")),
    _f("MaxTRESMins", 13, _tres("max_tres_mins_per_job")),
    _f("MaxWall", 11, _wall("max_wall_s")),
    _f("MaxNodes", 8, _one_tres("max_tres_per_job", "node")),
    _f("MaxCPUs", 8, _one_tres("max_tres_per_job", "cpu")),
    _f("MaxCPUMins", 11, _one_tres("max_tres_mins_per_job", "cpu")),
]
ASSOCIATION_FIELDS = [
    _f("Cluster", 10, _fact("cluster")),
    _f("Account", 10, _fact("shown_account")),
    _f("User", 10, _fact("user")),
    _f("Partition", 10, _fact("partition")),
    _f("Share", 9, _fact("shares")),
    _f("Priority", 10, _fact("shown_priority")),
    *_GROUP_LIMITS,
    *_JOB_LIMITS,
    _f("MaxJobs", 7, _limit("max_jobs_per_user")),
    _f("MaxJobsAccrue", 13, _limit("max_jobs_accrue_per_user")),
    _f("MaxSubmit", 9, _limit("max_submit_per_user")),
    _f("MaxTRESRunMins", 15, _tres("max_tres_run_mins_per_user")),
    _f("QOS", 20, _list("shown_qos")),
    _f("Def QOS", 9, _fact("shown_default_qos")),
    _f("ID", 6, _fact("id")),
    _f("LFT", 6, _fact("lft")),
    _f("RGT", 6, _fact("rgt")),
    _f("ParentID", 8, _fact("parent_id")),
    _f("ParentName", 10, _fact("parent_name")),
]
_ACCOUNT_ONLY = [
    _f("Descr", 20, _fact("description", "account_record")),
    _f("Org", 20, _fact("organization", "account_record")),
    _f("Coord Accounts", 20, _list("all_coordinators", "account_record")),
]
_USER_ONLY = [
    _f("Def Acct", 10, _fact("default_account", "user_record")),
    _f("Def WCKey", 10, _fact("default_wckey", "user_record")),
    _f("Admin", 9, _fact("admin_level", "user_record")),
    _f("Coord Accounts", 20, _list("coordinates", "user_record")),
]
ACCOUNT_FIELDS = [*_ACCOUNT_ONLY, *ASSOCIATION_FIELDS]
USER_FIELDS = [*_USER_ONLY, *ASSOCIATION_FIELDS]


def _preempt_mode(row: Record, _: Context) -> str:
    return str(row["preempt_mode"]).lower() or "cluster"


def _exempt(row: Record, _: Context) -> str:
    seconds = row["preempt_exempt_s"]
    return "" if seconds is None else long_duration(seconds)


QOS_FIELDS = [
    _f("Name", 10, _fact("name")),
    _f("Descr", 20, _fact("description")),
    _f("ID", 6, _fact("id")),
    _f("Priority", 10, _fact("priority")),
    _f("GraceTime", 10, lambda row, _: long_duration(row["grace_s"])),
    _f("Preempt", 10, _list("preempt")),
    _f("PreemptExemptTime", 19, _exempt),
    _f("PreemptMode", 11, _preempt_mode),
    _f("Flags", 20, _list("flags")),
    _f("UsageThres", 10, _number("usage_threshold")),
    _f("UsageFactor", 11, _number("usage_factor")),
    _f("LimitFactor", 11, _number("limit_factor")),
    *_GROUP_LIMITS,
    *_JOB_LIMITS,
    _f("MaxTRESPU", 13, _tres("max_tres_per_user")),
    _f("MaxJobsPU", 9, _limit("max_jobs_per_user")),
    _f("MaxJobsAccruePU", 15, _limit("max_jobs_accrue_per_user")),
    _f("MaxSubmitPU", 11, _limit("max_submit_per_user")),
    _f("MaxTRESPA", 13, _tres("max_tres_per_account")),
    _f("MaxJobsPA", 9, _limit("max_jobs_per_account")),
    _f("MaxJobsAccruePA", 15, _limit("max_jobs_accrue_per_account")),
    _f("MaxSubmitPA", 11, _limit("max_submit_per_account")),
    _f("MaxTRESRunMinsPU", 15, _tres("max_tres_run_mins_per_user")),
    _f("MaxTRESRunMinsPA", 15, _tres("max_tres_run_mins_per_account")),
    _f("MinTRES", 13, _tres("min_tres_per_job")),
    _f("MinPrioThres", 12, _limit("min_priority")),
]
CLUSTER_FIELDS = [
    _f("ControlHost", 15, _fact("control_host")),
    _f("ControlPort", 12, _fact("control_port")),
    _f("RPC", 5, _fact("rpc")),
    _f("NodeCount", 9, _fact("node_count")),
    _f("TRES", 20, _fact("tres_text")),
    *ASSOCIATION_FIELDS,
]
TRES_FIELDS = [_f("Type", 8, _fact("type")), _f("Name", 15, _fact("name")), _f("ID", 6, _fact("id"))]
PROBLEM_FIELDS = [
    _f("Cluster", 10, _fact("cluster")),
    _f("Account", 10, _fact("account")),
    _f("User", 10, _fact("user")),
    _f("Problem", 40, _fact("problem")),
]

ALIASES = {
    "account": {"name": "account", "names": "account", "acct": "account", "coordinators": "coord accounts"},
    "user": {"name": "user", "names": "user", "defaultaccount": "def acct", "adminlevel": "admin",
             "coordinators": "coord accounts", "defaultwckey": "def wckey"},
    "qos": {"maxjobsperuser": "maxjobspu", "maxjobsperaccount": "maxjobspa", "maxsubmitjobsperuser": "maxsubmitpu",
            "maxsubmitjobspu": "maxsubmitpu", "maxsubmitjobspa": "maxsubmitpa", "maxtresperuser": "maxtrespu",
            "maxtresperaccount": "maxtrespa", "mintresperjob": "mintres", "usagethreshold": "usagethres",
            "maxjobs": "maxjobspu", "maxsubmitjobs": "maxsubmitpu", "maxtresrunminsperuser": "maxtresrunminspu",
            "maxtresrunminsperaccount": "maxtresrunminspa", "minpriothreshold": "minpriothres",
            "maxsubmitjobsperaccount": "maxsubmitpa", "maxjobsaccrueperuser": "maxjobsaccruepu",
            "maxjobsaccrueperaccount": "maxjobsaccruepa"},
    "cluster": {"name": "cluster", "names": "cluster"},
    "": {"fairshare": "share", "shares": "share", "defaultqos": "def qos", "defqos": "def qos", "qoslevel": "qos",
         "grpsubmitjobs": "grpsubmit", "maxsubmitjobs": "maxsubmit", "maxtresperjob": "maxtres",
         "maxtresminsperjob": "maxtresmins", "maxwalldurationperjob": "maxwall", "grpmemory": "grpmem",
         "description": "descr", "organization": "org", "parent": "parentname", "maxnodesperjob": "maxnodes",
         "maxcpusperjob": "maxcpus", "maxcpuminsperjob": "maxcpumins"},
}  # fmt: skip
"""Longer and older words for columns, by entity; "" are everybody's."""
_SHORTEST = 3


def choose(text: str, fields: Sequence[AccountingField], entity: str) -> list[AccountingColumn]:
    """The columns of `format=`; a name may be shortened, the first column so named is meant."""
    known = {field.name.lower(): field for field in fields}
    aliases = {**ALIASES[""], **ALIASES.get(entity, {})}
    columns: list[AccountingColumn] = []
    for spec in parse_accounting(text):
        small = spec.type.lower()
        name = aliases.get(small, small)
        field = known.get(name) or _shortened(name, known, aliases)
        if field is None:
            raise SlurmSyntaxError(f"Unknown field '{spec.type}'")
        columns.append(AccountingColumn(field, spec.width or field.width, spec.left if spec.width else field.left))
    return columns


def _shortened(name: str, known: Mapping[str, AccountingField], aliases: Mapping[str, str]) -> AccountingField | None:
    if len(name) < _SHORTEST:
        return None
    for key, field in known.items():
        if key.replace(" ", "").startswith(name):
            return field
    target = next((target for alias, target in aliases.items() if alias.startswith(name) and target in known), None)
    return known[target] if target else None


def account_coordinators(accounts: Iterable[Record], associations: Iterable[Record]) -> dict[str, list[str]]:
    """Account -> everybody who coordinates it: its own coordinators and those of the accounts above."""
    parents = {row["account"]: row["parent_name"] for row in associations if not row["user"]}
    own = {account["name"]: account["coordinators"] for account in accounts}
    found: dict[str, list[str]] = {}
    for name in own:
        names: dict[str, None] = {}
        above: Any = name
        while above:
            names.update(dict.fromkeys(own.get(above, ())))
            above = parents.get(above)
        found[name] = sorted(names)
    return found


DEFAULT_FORMATS = {
    "association": "Cluster,Account,User,Partition,Share,Priority,GrpJobs,GrpTRES,GrpSubmit,GrpWall,GrpTRESMins,"
    "MaxJobs,MaxTRES,MaxTRESPerNode,MaxSubmit,MaxWall,MaxTRESMins,QOS,DefaultQOS,GrpTRESRunMins",
    "association/wolimits": "Cluster,Account,User,Partition",
    "account": "Account,Descr,Org",
    "account/assoc": "Account,Descr,Org,Cluster,ParentName,User,Share,Priority,GrpJobs,GrpNodes,GrpCPUs,GrpMem,"
    "GrpSubmit,GrpWall,GrpCPUMins,MaxJobs,MaxNodes,MaxCPUs,MaxSubmit,MaxWall,MaxCPUMins,QOS,DefaultQOS",
    "user": "User,DefaultAccount,Admin",
    "user/assoc": "User,DefaultAccount,Admin,Cluster,Account,Partition,Share,Priority,MaxJobs,MaxNodes,MaxCPUs,"
    "MaxSubmit,MaxWall,MaxCPUMins,QOS,DefaultQOS",
    "qos": "Name,Priority,GraceTime,Preempt,PreemptExemptTime,PreemptMode,Flags%40,UsageThres,UsageFactor,GrpTRES,"
    "GrpTRESMins,GrpTRESRunMins,GrpJobs,GrpSubmit,GrpWall,MaxTRES,MaxTRESPerNode,MaxTRESMins,MaxWall,MaxTRESPU,"
    "MaxJobsPU,MaxSubmitPU,MaxTRESPA,MaxJobsPA,MaxSubmitPA,MinTRES",
    "cluster": "Cluster,ControlHost,ControlPort,RPC,Share,GrpJobs,GrpTRES,GrpSubmit,MaxJobs,MaxTRES,MaxSubmit,"
    "MaxWall,QOS,DefaultQOS",
    "tres": "Type,Name,ID",
    "problem": "Cluster,Account,User,Problem",
}
FIELDS = {
    "association": ASSOCIATION_FIELDS,
    "account": ACCOUNT_FIELDS,
    "user": USER_FIELDS,
    "qos": QOS_FIELDS,
    "cluster": CLUSTER_FIELDS,
    "tres": TRES_FIELDS,
    "problem": PROBLEM_FIELDS,
}

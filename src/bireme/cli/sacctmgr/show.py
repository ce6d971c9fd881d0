"""sacctmgr show: accounts, users, associations, QOS, the cluster, TRES and problems, filtered and in columns."""

from __future__ import annotations

import pwd
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bireme.cli.sacctmgr.session import Session
from bireme.commands import reports
from bireme.slurm.accounts.words import Selection, entity_of, select, split_word
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats.account_fields import DEFAULT_FORMATS, FIELDS, TREE_WIDTH, account_coordinators, choose
from bireme.slurm.formats.accounting import AccountingColumn, fixed_lines, parsable_lines

NO_ENTITY = """\
No valid entity in list command
Input line must include "Account", "Association", "Cluster", "Configuration",
"Event", "Federation", "Problem", "QOS", "Resource", "Reservation",
"RunAwayJobs", "Stats", "Transaction", "TRES", "User", or "WCKey\""""
_FLAGS = ("withassoc", "withcoord", "tree", "wolimits", "woplimits", "wopinfo", "onlydefaults", "withsubaccounts",
          "withdeleted", "withrawqos", "withcluster", "withfed")  # fmt: skip
_NOT_HERE = {
    "configuration": "there is no slurmdbd to be configured; scontrol show config tells of the daemon",
    "federation": "there is no federation; sacctmgr show cluster lists the clusters",
    "reservation": "scontrol show reservation lists them",
    "resource": "licences are the cluster's own; scontrol show licenses lists them",
    "stats": "there is no slurmdbd to be measured; bireme status and bireme doctor tell of the daemon",
}
"""What Slurm lists and Bireme has not, or elsewhere."""
Row = dict[str, Any]


@dataclass(slots=True)
class Wish:
    """What a show command asks for."""

    entity: str
    which: Selection = field(default_factory=Selection)
    flags: set[str] = field(default_factory=set)
    format: str = ""
    ids: tuple[str, ...] = ()


def show(session: Session, texts: Sequence[str]) -> int:
    entity = entity_of(texts[0]) if texts else None
    if entity in _NOT_HERE:
        raise reports.CommandError(f" sacctmgr show {entity}: {_NOT_HERE[entity]}")
    if entity is None or entity not in {*_ROWS, "event", "wckey", "runawayjobs", "transaction"}:
        raise reports.CommandError(NO_ENTITY)
    wish = _wish(session, entity, texts[1:])
    if entity not in _ROWS:
        return _nothing_kept(session, entity)
    book = session.book()
    rows = _ROWS[entity](book, wish)
    if session.wants_data:
        return _print_data(session, entity, book, rows)
    columns = _columns(wish)
    context = reports.make_context(cluster=book["cluster"])
    header = not session.has("noheader")
    if session.has("parsable") or session.has("parsable2"):
        reports.show(parsable_lines(columns, rows, context, header=header, ending=session.has("parsable")))
    else:
        reports.show(fixed_lines(columns, rows, context, header=header))
    return 0


def _nothing_kept(session: Session, entity: str) -> int:
    if entity == "runawayjobs":
        print(f"Runaway Jobs: No runaway jobs found on cluster {session.book()['cluster']}")
        return 0
    raise reports.CommandError(f" sacctmgr show {entity}: Bireme keeps its {entity}s in the journal, not in the book")


def _wish(session: Session, entity: str, texts: Sequence[str]) -> Wish:
    wish = Wish(entity)
    if session.has("associations"):
        wish.flags.add("withassoc")
    for text in texts:
        small = text.lower()
        if small in ("where", "assoc", "set"):
            continue
        flag = next((flag for flag in _FLAGS if len(small) >= 4 and flag.startswith(small)), None)
        word = split_word(text)
        if flag is not None and not word.key:
            wish.flags.add(flag)
        elif word.key and "format".startswith(word.key.lower()):
            wish.format = f"{wish.format},{word.value}".strip(",")
        elif word.key.lower() in ("id", "ids"):
            wish.ids = word.names
        elif not select(wish.which, word, entity):
            raise reports.CommandError(f" Unknown condition: {text}")
    return wish


def _columns(wish: Wish) -> list[AccountingColumn]:
    variant = wish.entity
    if wish.entity in ("account", "user") and "withassoc" in wish.flags:
        variant += "/assoc"
    elif wish.entity == "association" and "wolimits" in wish.flags:
        variant += "/wolimits"
    text = wish.format or DEFAULT_FORMATS[variant]
    if not wish.format and "withcoord" in wish.flags and wish.entity in ("account", "user"):
        text += ",Coordinators"
    try:
        columns = choose(text, FIELDS[wish.entity], wish.entity)
    except SlurmSyntaxError as error:
        raise reports.CommandError(str(error)) from error
    if "tree" in wish.flags:
        columns = [_as_tree(column) if column.field.name == "Account" else column for column in columns]
    return columns


def _as_tree(column: AccountingColumn) -> AccountingColumn:
    return AccountingColumn(column.field, max(column.width, TREE_WIDTH), True)


# -- rows ------------------------------------------------------------------------------------------------------------


def _decorated(book: Row, row: Row, wish: Wish) -> Row:
    """An association with what its columns show: its own limits, or what holds for it."""
    own = bool(wish.flags & {"woplimits", "wopinfo"})
    return {
        **row,
        "cluster": book["cluster"],
        "shown_account": " " * row["depth"] + row["account"] if "tree" in wish.flags else row["account"],
        "shown_limits": row["limits"] if own else row["effective"],
        "shown_priority": row["own_priority"] if own else row["priority"],
        "shown_qos": row["own_qos"] if own else row["qos"],
        "shown_default_qos": row["own_default_qos"] if own else row["default_qos"],
    }


def _associations(book: Row, wish: Wish) -> list[Row]:
    which = wish.which
    accounts = set(which.accounts + which.names)
    if "withsubaccounts" in wish.flags:
        accounts = _with_subaccounts(book, accounts)
    found = [
        row
        for row in book["associations"]
        if (not accounts or row["account"] in accounts)
        and (not which.users or row["user"] in which.users)
        and (not which.partitions or row["partition"] in which.partitions)
        and (not which.parents or row["parent_name"] in which.parents)
        and (not wish.ids or str(row["id"]) in wish.ids)
        and (not which.clusters or book["cluster"] in which.clusters)
        and ("onlydefaults" not in wish.flags or row["is_default"])
    ]
    return [_decorated(book, row, wish) for row in found]


def _with_subaccounts(book: Row, accounts: set[str]) -> set[str]:
    found = set(accounts)
    for row in book["associations"]:  # parents come before their children
        if not row["user"] and row["parent_name"] in found:
            found.add(row["account"])
    return found


def _accounts(book: Row, wish: Wish) -> list[Row]:
    coordinators = account_coordinators(book["accounts"], book["associations"])
    names = set(wish.which.names + wish.which.accounts)
    rows: list[Row] = []
    for account in book["accounts"]:
        if names and account["name"] not in names:
            continue
        record = {**account, "all_coordinators": coordinators[account["name"]]}
        below = [row for row in book["associations"] if row["account"] == account["name"]]
        if "withassoc" not in wish.flags:
            below = [row for row in below if not row["user"]]
        rows += [{**_decorated(book, row, wish), "account_record": record} for row in below]
    return rows


def _users(book: Row, wish: Wish) -> list[Row]:
    coordinators = account_coordinators(book["accounts"], book["associations"])
    names = set(wish.which.names + wish.which.users)
    rows: list[Row] = []
    for user in book["users"]:
        if names and user["name"] not in names:
            continue
        coordinated = sorted(account for account, users in coordinators.items() if user["name"] in users)
        record = {**user, "coordinates": coordinated}
        mine = sorted(
            (row for row in _associations_of_user(book, wish) if row["user"] == user["name"]), key=_newest_first(book)
        )
        if "withassoc" in wish.flags:
            rows += [{**_decorated(book, row, wish), "user_record": record} for row in mine]
        else:
            rows.append({"user": user["name"], "user_record": record, "shown_limits": {}})
    return rows


def _newest_first(book: Row) -> Callable[[Row], list[int]]:
    """The order in which Slurm keeps its tree: what was added last under an account stands first."""
    above = {row["id"]: row["parent_id"] for row in book["associations"]}

    def path(row: Row) -> list[int]:
        ids = [row["id"]]
        while ids[-1] in above:
            ids.append(above[ids[-1]])
        return [-each for each in reversed(ids)]

    return path


def _associations_of_user(book: Row, wish: Wish) -> Iterable[Row]:
    accounts, partitions = wish.which.accounts, wish.which.partitions
    return (
        row
        for row in book["associations"]
        if (not accounts or row["account"] in accounts) and (not partitions or row["partition"] in partitions)
    )


def _qos(book: Row, wish: Wish) -> list[Row]:
    names = set(wish.which.names)
    return [
        {**qos, "shown_limits": qos["limits"]}
        for qos in book["qos"]
        if (not names or qos["name"] in names) and (not wish.ids or str(qos["id"]) in wish.ids)
    ]


def _cluster(book: Row, wish: Wish) -> list[Row]:
    names = wish.which.names + wish.which.clusters
    if names and book["cluster"] not in names:
        return []
    row = _decorated(book, book["associations"][0], wish)
    return [{**row, "control_host": "127.0.0.1", "control_port": 0, "rpc": 9728, "tres_text": ",".join(book["tres"])}]


def _tres(book: Row, _: Wish) -> list[Row]:
    rows: list[Row] = []
    for number, name in enumerate(book["tres"], start=1):
        kind, _, rest = name.partition("/")
        rows.append({"type": kind, "name": rest, "id": number if number <= 8 else 992 + number})
    return rows


def _problems(book: Row, _: Wish) -> list[Row]:
    used = {row["account"] for row in book["associations"] if row["user"]}
    parents = {row["parent_name"] for row in book["associations"]}
    cluster = book["cluster"]
    rows: list[Row] = [
        {"cluster": cluster, "account": row["account"], "problem": "Account has no users"}
        for row in book["associations"]
        if not row["user"] and row["account"] not in used and row["account"] not in parents
    ]
    rows += [{"user": u["name"], "problem": "User does not have a uid"} for u in book["users"] if not _has_uid(u)]
    known = {row["user"] for row in book["associations"]}
    rows += [
        {"user": u["name"], "problem": "User has no associations"} for u in book["users"] if u["name"] not in known
    ]
    return rows


def _has_uid(user: Row) -> bool:
    try:
        pwd.getpwnam(user["name"])
    except KeyError:
        return False
    return True


_ROWS: dict[str, Callable[[Row, Wish], list[Row]]] = {
    "association": _associations,
    "account": _accounts,
    "user": _users,
    "qos": _qos,
    "cluster": _cluster,
    "tres": _tres,
    "problem": _problems,
}


def _print_data(session: Session, entity: str, book: Row, rows: list[Row]) -> int:
    from bireme.slurm.json_shapes.accounts import account_shapes  # late: only data needs it
    from bireme.slurm.json_shapes.envelope import dump, envelope

    body = account_shapes(entity, book, rows)
    sys.stdout.write(dump(envelope("sacctmgr", body), yaml=session.has("yaml")))
    return 0

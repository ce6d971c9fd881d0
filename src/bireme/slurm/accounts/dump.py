"""sacctmgr's dump files: the book as lines of text, and lines of text as orders.

    Cluster - 'oar':Fairshare=1:QOS='normal'
    Parent - 'root'
    Account - 'science':Description='all of it':Fairshare=40
    Parent - 'science'
    User - 'ann':DefaultAccount='science':MaxJobs=5

A parent must have been named by an Account line before it, so that no file can describe a loop; a file that tries is
refused with the line. Not here: reading or writing the file itself (`cli/sacctmgr`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bireme.core.accounting import orders as o
from bireme.slurm.accounts.words import add_order, modify_order
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import format_tres

PARENT_SHARES = 2_147_483_647
"""How Slurm's files write `Fairshare=parent`."""
HEADER = """\
# Lines of: Cluster, Parent, Account, User - 'name' and options after colons, in any order.
# A Parent line says under which account the lines after it stand; the account must have a line before that.
#   Parent - 'root'
#   Account - 'cs':Description='computer science':Fairshare=40:MaxJobs=4:GrpTRESMins=gres/gpu=43200
#   Parent - 'cs'
#   User - 'ann':DefaultAccount='cs':MaxTRESPerJob=node=2:MaxWallDurationPerJob=60
"""
_LINE = re.compile(r"\s*(?P<kind>[A-Za-z]+)\s*-\s*(?P<rest>.*)")
_OPTION = re.compile(r"(?P<key>[A-Za-z]+)(?P<operator>[+-]?=)(?P<value>'[^']*'|\"[^\"]*\"|[^:]*)(?::|$)")
_NAME = re.compile(r"(?P<name>'[^']*'|\"[^\"]*\"|[^:]*)(?::|$)")

_LIMITS = (
    ("GrpJobs", "grp_jobs"),
    ("GrpJobsAccrue", "grp_jobs_accrue"),
    ("GrpSubmitJobs", "grp_submit"),
    ("GrpTRES", "grp_tres"),
    ("GrpTRESMins", "grp_tres_mins"),
    ("GrpTRESRunMins", "grp_tres_run_mins"),
    ("GrpWall", "grp_wall_s"),
    ("MaxTRESPerJob", "max_tres_per_job"),
    ("MaxTRESPerNode", "max_tres_per_node"),
    ("MaxTRESMinsPerJob", "max_tres_mins_per_job"),
    ("MaxTRESRunMins", "max_tres_run_mins_per_user"),
    ("MaxJobs", "max_jobs_per_user"),
    ("MaxJobsAccrue", "max_jobs_accrue_per_user"),
    ("MaxSubmitJobs", "max_submit_per_user"),
    ("MaxWallDurationPerJob", "max_wall_s"),
)
"""In the order of Slurm's own files."""


# -- writing ---------------------------------------------------------------------------------------------------------


def dump_lines(book: Mapping[str, Any]) -> Iterator[str]:
    """The book's record (`slurm/records/accounts.py`) as the lines of a file, without the header."""
    accounts = {each["name"]: each for each in book["accounts"]}
    users = {each["name"]: each for each in book["users"]}
    rows: list[Mapping[str, Any]] = book["associations"]
    below: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows[1:]:
        below.setdefault(row["account"] if row["user"] else row["parent_name"], []).append(row)
    yield _line("Cluster", book["cluster"], _association_options(rows[0]))
    for row in rows:
        if row["user"] or row["account"] not in below:
            continue
        yield f"Parent - '{row['account']}'"
        for child in below[row["account"]]:
            if child["user"]:
                yield _line("User", child["user"], _user_options(child, users[child["user"]]))
            else:
                yield _line("Account", child["account"], _account_options(child, accounts[child["account"]]))


def _line(kind: str, name: str, options: Iterable[str]) -> str:
    return ":".join([f"{kind} - '{name}'", *options])


def _account_options(row: Mapping[str, Any], account: Mapping[str, Any]) -> Iterator[str]:
    yield f"Description='{account['description']}'"
    yield f"Organization='{account['organization']}'"
    yield from _association_options(row)


def _user_options(row: Mapping[str, Any], user: Mapping[str, Any]) -> Iterator[str]:
    if row["partition"]:
        yield f"Partition='{row['partition']}'"
    if user["default_account"]:
        yield f"DefaultAccount='{user['default_account']}'"
    if user["admin_level"] != "None":
        yield f"AdminLevel='{user['admin_level']}'"
    yield from _association_options(row)


def _association_options(row: Mapping[str, Any]) -> Iterator[str]:
    shares = PARENT_SHARES if row["shares"] == "parent" else row["shares"]
    if row["own_default_qos"]:
        yield f"DefaultQOS='{row['own_default_qos']}'"
    yield f"Fairshare={shares}"
    limits = row["limits"]
    yield from (f"{word}={_amount(name, limits[name])}" for word, name in _LIMITS if name in limits)
    if row["own_priority"] is not None:
        yield f"Priority={row['own_priority']}"
    if row["own_qos"]:
        yield f"QOS='{','.join(row['own_qos'])}'"


def _amount(name: str, amount: Any) -> str:
    if name.endswith("_wall_s"):
        return str(amount // 60)
    return format_tres(amount) if isinstance(amount, Mapping) else str(amount)


# -- reading ---------------------------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    cluster: str
    orders: list[o.Order]


def load_orders(lines: Sequence[str], book: Mapping[str, Any]) -> Loaded:
    """What must be done to the book so that it has everything in the file. Nothing is deleted."""
    reader = _Reader(book)
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                reader.read(text)
            except SlurmSyntaxError as error:
                raise SlurmSyntaxError(f"line {number}: {str(error).strip()}") from error
    if not reader.cluster:
        raise SlurmSyntaxError("the file has no Cluster line; begin it with Cluster - 'name'")
    return Loaded(reader.cluster, [*reader.orders, *reader.defaults])


class _Reader:
    def __init__(self, book: Mapping[str, Any]) -> None:
        self.accounts = {row["account"]: row["parent_name"] for row in book["associations"] if not row["user"]}
        self.users = {(row["account"], row["user"], row["partition"]) for row in book["associations"] if row["user"]}
        self.parent = "root"
        self.cluster = ""
        self.named: dict[str, str] = {"root": ""}
        """Accounts that the file has named, with their parents."""
        self.orders: list[o.Order] = []
        self.defaults: list[o.Order] = []
        """Default accounts, set last: the account may come after the user's first line."""

    def read(self, text: str) -> None:
        match = _LINE.fullmatch(text)
        kind = match["kind"].lower() if match else ""
        if match is None or kind not in ("cluster", "parent", "account", "project", "user"):
            raise SlurmSyntaxError(f"'{text}' is not Cluster, Parent, Account or User - 'name':options")
        name, options = _parts(match["rest"])
        if kind != "cluster" and not self.cluster:
            raise SlurmSyntaxError("the first line must be Cluster - 'name'")
        if kind == "cluster":
            self.cluster = name
            self._modify("cluster", [], options)
        elif kind == "parent":
            if name not in self.named and name not in self.accounts:
                raise SlurmSyntaxError(f"Parent '{name}' has no Account line before this one")
            self.parent = name
        elif kind == "user":
            self._user(name, options)
        else:
            self._account(name, options)

    def _account(self, name: str, options: list[str]) -> None:
        if self.named.get(name, self.parent) != self.parent or name == "root":
            raise SlurmSyntaxError(
                f"account '{name}' stands under '{self.named.get(name, '')}' already; one account has one parent"
            )
        if name in _above(self.parent, {**self.accounts, **self.named}):
            raise SlurmSyntaxError(
                f"account '{name}' cannot stand under '{self.parent}', which stands under it: a loop"
            )
        self.named[name] = self.parent
        if name not in self.accounts:
            self.orders.append(add_order("account", [name, f"parent={self.parent}", *options])[0])
        else:
            moved = [] if self.accounts[name] == self.parent else [f"parent={self.parent}"]
            self._modify("account", [name], options + moved)

    def _user(self, name: str, options: list[str]) -> None:
        partition = next((each.partition("=")[2] for each in options if each.lower().startswith("partition=")), "")
        default = [each for each in options if each.lower().startswith("defaultaccount=")]
        rest = [each for each in options if not each.lower().startswith(("partition=", "defaultaccount=", "coord"))]
        place = [f"account={self.parent}", *([f"partition={partition}"] if partition else [])]
        if (self.parent, name, partition) not in self.users:
            self.users.add((self.parent, name, partition))
            self.orders.append(add_order("user", [name, *place, *rest])[0])
        else:
            self._modify("user", [name, *place], rest)
        if default:
            self.defaults.append(modify_order("user", [name, "set", *default]))

    def _modify(self, entity: str, which: list[str], options: list[str]) -> None:
        if options:
            self.orders.append(modify_order(entity, [*which, "set", *options]))


def _above(account: str, parents: Mapping[str, str]) -> set[str]:
    found: set[str] = set()
    while account and account not in found:
        found.add(account)
        account = parents.get(account, "")
    return found


def _parts(text: str) -> tuple[str, list[str]]:
    """`'cs':MaxJobs=4:Description='a b'` to the name and the options as words of sacctmgr."""
    head = _NAME.match(text)
    name = (head["name"] if head else "").strip().strip("'\"").lower()
    if head is None or not name:
        raise SlurmSyntaxError("a name is missing after the dash")
    options, at = [], head.end()
    while at < len(text):
        match = _OPTION.match(text, at)
        if match is None:
            raise SlurmSyntaxError(f"'{text[at:]}' is not KEY=VALUE")
        value = match["value"].strip().strip("'\"")
        if match["key"].lower() == "fairshare" and value == str(PARENT_SHARES):
            value = "parent"
        options.append(f"{match['key']}{match['operator']}{value}")
        at = match.end()
    return name, options

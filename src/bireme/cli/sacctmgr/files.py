"""sacctmgr dump and load: the account book in a text file that people can read, edit and keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bireme.cli.sacctmgr.session import DISCARDED, Session
from bireme.commands import reports
from bireme.core.accounting import orders as o
from bireme.slurm.accounts.dump import HEADER, dump_lines, load_orders
from bireme.slurm.accounts.words import split_word
from bireme.slurm.errors import SlurmSyntaxError


def dump(session: Session, texts: Sequence[str]) -> int:
    """`dump [CLUSTER] [file=NAME]`: told line by line, as Slurm does, and written."""
    book = session.book()
    path = ""
    for text in texts:
        word = split_word(text)
        if word.key and "file".startswith(word.key.lower()):
            path = word.value
        elif word.value.lower() not in (book["cluster"].lower(), ""):
            raise reports.CommandError(f" Cluster '{word.value}' is not this one, which is '{book['cluster']}'")
    lines = list(dump_lines(book))
    try:
        with open(path or f"{book['cluster']}.cfg", "w", encoding="utf-8") as file:
            file.write(HEADER + "\n".join(lines) + "\n")
    except OSError as error:
        raise reports.CommandError(f" Can't write {error.filename}: {error.strerror}") from error
    if not session.has("quiet"):
        reports.show(f"sacctmgr: {line}" for line in lines)
    return 0


def load(session: Session, texts: Sequence[str]) -> int:
    """`load FILE [clean]`: everything in the file, in one change; with `clean` nothing else stays."""
    paths = [text for text in texts if "=" not in text and text.lower() != "clean"]
    paths += [split_word(text).value for text in texts if text.lower().startswith("file=")]
    if len(paths) != 1:
        raise reports.CommandError(" No filename given: sacctmgr load FILE")
    try:
        with open(paths[0], encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise reports.CommandError(f' Unable to read "{paths[0]}": {error.strerror}') from error
    book = session.book()
    clean = any(text.lower() == "clean" for text in texts)
    orders = _cleared(book) if clean else []
    try:
        loaded = load_orders(lines, _emptied(book) if clean else book)
    except SlurmSyntaxError as error:
        raise reports.CommandError(f" {paths[0]}: {error}") from error
    return _carry_out(session, loaded.cluster, [*orders, *loaded.orders])


def _carry_out(session: Session, cluster: str, orders: list[o.Order]) -> int:
    print(f"For cluster {cluster}")
    answer = session.change(orders, dry_run=not session.has("immediate"))
    _tell(answer["outcomes"])
    if not session.has("immediate"):
        if not session.agreed():
            print(DISCARDED)
            return 0
        session.change(orders)
    return 0


def _tell(outcomes: list[dict[str, Any]]) -> None:
    accounts = [name for outcome in outcomes for name in outcome["accounts"]]
    users = list(dict.fromkeys(each["user"] for one in outcomes for each in one["associations"] if each["user"]))
    if accounts:
        print(f" Accounts: {', '.join(accounts)}")
    if users:
        print(f" Users: {', '.join(users)}")


def _cleared(book: dict[str, Any]) -> list[o.Order]:
    """Everybody but root, then every account but root's."""
    users = tuple(each["name"] for each in book["users"] if each["name"] != "root")
    accounts = tuple(row["account"] for row in book["associations"] if row["parent_name"] == "root")
    orders: list[o.Order] = []
    if users:
        orders.append(o.DeleteUsers(where=o.Which(users=users)))
    if accounts:
        orders.append(o.DeleteAccounts(where=o.Which(accounts=accounts)))
    return orders


def _emptied(book: dict[str, Any]) -> dict[str, Any]:
    return {**book, "associations": [row for row in book["associations"] if row["account"] == "root"
                                     and row["user"] in ("", "root")]}  # fmt: skip

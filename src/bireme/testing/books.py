"""An account book in a line: `book_change(accounts={"lab": {"grp_jobs": 2}}, users={"alice": "lab"}, qos={...})`.

Limits are written as the fields of `Limits`, TRES maps as dictionaries. For scenarios and properties; what `sacctmgr`
may do is `core/accounting`. Invariant: records keep their ids when the same names are given again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from bireme.core.accounting.book import AccountBook
from bireme.core.model.accounts import Account, Association, Limits, Qos, QosFlag, User, tres_map
from bireme.core.model.events import AccountsChanged

_LIMITS = {each.name for each in fields(Limits)}

Words = Mapping[str, Any]


def book_change(
    book: AccountBook,
    accounts: Mapping[str, Words] | None = None,
    users: Mapping[str, Words] | None = None,
    qos: Mapping[str, Words] | None = None,
) -> AccountsChanged:
    """Accounts stand under `parent` (else root), users under their `account` (else the first of `accounts`)."""
    named = accounts or {}
    first = next(iter(named), "root")
    return AccountsChanged(
        accounts=tuple(Account(name=name) for name in named),
        users=tuple(
            User(name=name, default_account=str(words.get("account", first))) for name, words in (users or {}).items()
        ),
        qos=tuple(_qos(book, position, name, words) for position, (name, words) in enumerate((qos or {}).items())),
        associations=tuple(_associations(book, named, users or {}, first)),
    )


def _qos(book: AccountBook, position: int, name: str, words: Words) -> Qos:
    known = book.qos.get(name)
    number = known.id if known else book.next_qos_id + position
    flags = tuple(QosFlag(word) for word in str(words.get("flags", "")).split(",") if word)
    rest = {key: value for key, value in words.items() if key not in _LIMITS and key != "flags"}
    return Qos(id=number, name=name, flags=flags, limits=_limits(words), **rest)


def _associations(
    book: AccountBook, accounts: Mapping[str, Words], users: Mapping[str, Words], first: str
) -> list[Association]:
    found = []
    for name, words in accounts.items():
        found.append({"account": name, "parent": words.get("parent", "root" if name != "root" else "")} | dict(words))
    for name, words in users.items():
        found.append({"account": words.get("account", first), "user": name} | dict(words))
    made = []
    for position, words in enumerate(found):
        known = book.find(words["account"], words.get("user", ""), words.get("partition", ""))
        number = known.id if known else book.next_association_id + position
        rest = {key: value for key, value in words.items() if key not in _LIMITS}
        inherited: Words = {"qos": known.qos} if known else {}
        made.append(Association(id=number, limits=_limits(words), **{**inherited, **rest}))
    return made


def _limits(words: Words) -> Limits:
    given = {key: value for key, value in words.items() if key in _LIMITS}
    limits: Words = {key: tres_map(value) if isinstance(value, dict) else value for key, value in given.items()}
    return Limits(**limits)

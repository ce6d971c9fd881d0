"""`add user ann account=phys fairshare=5`, `modify qos high set priority=100`: sacctmgr's words as orders.

Pure text in, `core.accounting.orders` out. Words are case-insensitive and may be shortened; names are put into small
letters, as Slurm's database has them. What the orders do is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bireme.core.accounting import orders as o
from bireme.core.accounting.edits import CLEAR, PARENT, AssociationEdit, QosEdit
from bireme.core.model.accounts import QosFlag
from bireme.slurm.accounts.limits import (
    ASSOCIATION_LIMITS,
    QOS_LIMITS,
    LimitsBuilder,
    UnknownWordError,
    limit_setter,
    number,
    wall,
)
from bireme.slurm.errors import SlurmSyntaxError

NOTHING_TO_SET = " You didn't give me anything to set"
_ENTITIES = ("account", "association", "cluster", "configuration", "coordinator", "event", "federation", "job",
             "problem", "qos", "reservation", "resource", "runawayjobs", "stats", "transaction", "tres", "user",
             "wckey")  # fmt: skip


class Word(NamedTuple):
    """`key<operator>value`; a plain word has only a value."""

    key: str
    operator: str
    value: str
    text: str

    @property
    def names(self) -> tuple[str, ...]:
        """A comma list in small letters; with `+=` or `-=` each name has its sign."""
        sign = self.operator.rstrip("=")
        return tuple(sign + name.strip().lower() for name in self.value.split(",") if name.strip())


def entity_of(text: str) -> str | None:
    """The entity that a word means: `acc`, `users` and so on."""
    small = text.lower()
    for name in _ENTITIES:
        if len(small) >= 3 and (name.startswith(small) or small in (name + "s", name + "es")):
            return name
    return None


def split_word(text: str) -> Word:
    key, equals, value = text.partition("=")
    if not equals:
        return Word("", "", _unquoted(text), text)
    operator = "="
    if key[-1:] in ("+", "-"):
        key, operator = key[:-1], key[-1] + "="
    return Word(key.strip(), operator, _unquoted(value.strip()), text)


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


@dataclass(slots=True)
class Selection:
    """`where`, or the specifications of a listing or an addition."""

    names: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()


def _means(word: str, name: str, least: int) -> bool:
    return len(word) >= least and (name.startswith(word.lower()) or word.lower() == name + "s")


def select(selection: Selection, word: Word, entity: str) -> bool:
    """Whether the word says which records; if so it is noted."""
    if not word.key or _means(word.key, "name", 1):
        selection.names += word.names
    elif _means(word.key, "account", 2) or _means(word.key, "acct", 4):
        selection.accounts += word.names
    elif _means(word.key, "user", 1):
        selection.users += word.names
    elif _means(word.key, "partition", 4):
        selection.partitions += tuple(name for name in word.value.split(",") if name)
    elif _means(word.key, "parent", 4):
        selection.parents += word.names
    elif _means(word.key, "cluster", 1):
        selection.clusters += word.names
    else:
        return False
    return True


@dataclass(slots=True)
class _Settings:
    """What `set` has gathered, for any entity."""

    entity: str
    association: dict[str, object] = field(default_factory=dict)
    qos: dict[str, object] = field(default_factory=dict)
    own: dict[str, object] = field(default_factory=dict)
    """description, organization, parent, default_account, default_wckey, admin_level, reset_usage."""
    limits: LimitsBuilder = field(default_factory=LimitsBuilder)

    @property
    def empty(self) -> bool:
        return not (self.association or self.qos or self.own or self.limits.counts or self.limits.tres)

    def association_edit(self) -> AssociationEdit:
        return AssociationEdit(limits=self.limits.built(), **self.association)  # type: ignore[arg-type]

    def qos_edit(self) -> QosEdit:
        return QosEdit(limits=self.limits.built(), **self.qos)  # type: ignore[arg-type]


def assign(settings: _Settings, word: Word) -> bool:
    """Whether the word sets something of the entity; if so it is noted. Raises UnknownWordError for a bad value."""
    if not word.key:
        return False
    for name, least, setter in _SETTERS[settings.entity]:
        if _means(word.key, name, least):
            setter(settings, word)
            return True
    found = limit_setter(QOS_LIMITS if settings.entity == "qos" else ASSOCIATION_LIMITS, word.key)
    if found is None:
        return False
    name, set_limit = found
    set_limit(settings.limits, name, word.value)
    return True


def add_order(entity: str, texts: Sequence[str]) -> tuple[o.Order, Selection]:
    """`add ENTITY ...`: the order, and what was said about it."""
    selection, settings = Selection(), _Settings(entity)
    for text in texts:
        word = split_word(text)
        if not _added_word(selection, settings, word):
            raise UnknownWordError(f" Unknown option: {text}")
    return _ADDERS[entity](selection, settings), selection


def _added_word(selection: Selection, settings: _Settings, word: Word) -> bool:
    if settings.entity == "account" and _means(word.key or "?", "parent", 4):
        settings.own["parent"] = word.value.lower()
        return True
    try:
        return select(selection, word, settings.entity) or assign(settings, word)
    except UnknownWordError as error:
        raise UnknownWordError(f"{error}\n Unknown option: {word.text}") from error


def modify_order(entity: str, texts: Sequence[str]) -> o.Order:
    """`modify ENTITY [where] ... set ...`."""
    selection, settings = Selection(), _Settings(entity)
    setting = False
    for text in texts:
        if text.lower() in ("where", "set"):
            setting = text.lower() == "set"
            continue
        word = split_word(text)
        try:
            known = assign(settings, word) if setting else select(selection, word, entity)
        except UnknownWordError as error:
            raise UnknownWordError(f"{error}\n{_unknown(text, setting)}") from error
        if not known:
            raise UnknownWordError(_unknown(text, setting))
    if settings.empty:
        raise SlurmSyntaxError(NOTHING_TO_SET)
    return _MODIFIERS[entity](selection, settings)


def _unknown(text: str, setting: bool) -> str:
    if setting:
        return f" Unknown option: {text}\n Use keyword 'where' to modify condition"
    return f" Unknown condition: {text}\n Use keyword 'set' to modify value"


def delete_order(entity: str, texts: Sequence[str]) -> tuple[o.Order, Selection]:
    selection = Selection()
    if not [text for text in texts if text.lower() != "where"]:
        raise SlurmSyntaxError(" No conditions given to remove, not executing.")
    for text in texts:
        if text.lower() == "where":
            continue
        if not select(selection, split_word(text), entity):
            raise UnknownWordError(f" Unknown condition: {text}")
    return _DELETERS[entity](selection), selection


# -- what may be set -------------------------------------------------------------------------------------------------


def _shares(settings: _Settings, word: Word) -> None:
    if word.value.lower() == PARENT:
        settings.association["shares"] = PARENT
    elif word.value.startswith("-") and word.value[1:].isdigit():
        settings.association["shares"] = int(word.value)  # the book refuses what is below -1
    else:
        settings.association["shares"] = number("FairShare", word.value)


def _in_association(name: str, read: Callable[[Word], object]) -> Callable[[_Settings, Word], None]:
    return lambda settings, word: settings.association.__setitem__(name, read(word))


def _in_qos(name: str, read: Callable[[Word], object]) -> Callable[[_Settings, Word], None]:
    return lambda settings, word: settings.qos.__setitem__(name, read(word))


def _own(name: str, read: Callable[[Word], object]) -> Callable[[_Settings, Word], None]:
    return lambda settings, word: settings.own.__setitem__(name, read(word))


def _qos_name(word: Word) -> str:
    return "" if word.value == "-1" else word.value.lower()


def _zero_usage(word: Word) -> bool:
    if word.value != "0":
        raise UnknownWordError("sacctmgr: error: RawUsage can only be set to 0 (zero)")
    return True


def _flags(word: Word) -> tuple[str, ...]:
    if word.value in ("-1", ""):
        return ()
    sign, found = word.operator.rstrip("="), []
    for text in word.value.split(","):
        flag = next((each.value for each in QosFlag if text and each.value.lower().startswith(text.lower())), None)
        if flag is None:
            valid = ",".join(each.value for each in QosFlag)
            raise SlurmSyntaxError(f" Unknown QOS flag used in:\n  '{word.value}'\n Valid QOS flags are\n  '{valid}'")
        found.append(sign + flag)
    return tuple(found)


def _preempt_mode(word: Word) -> str:
    text = word.value.lower()
    modes = {"": "", "cluster": "", "off": "", "cancel": "CANCEL", "requeue": "REQUEUE", "suspend": "SUSPEND"}
    modes |= {"gang": "GANG", "within": "WITHIN"}
    parts = [modes.get(part) for part in text.split(",")]
    if None in parts:
        raise UnknownWordError(f" Bad Preempt Mode given: {word.value}")
    return ",".join(part for part in parts if part)


def _factor(word: Word) -> float:
    try:
        return float(CLEAR if word.value in ("-1", "") else word.value)
    except ValueError as error:
        raise UnknownWordError(f"sacctmgr: error: Invalid value for {word.key} ({word.value})") from error


def _seconds(word: Word) -> int:
    """Plain seconds; a time with a colon is one of hours, minutes and seconds."""
    return wall("GraceTime", word.value) if ":" in word.value else number("GraceTime", word.value)


_USAGE = ("rawusage", 7, _own("reset_usage", _zero_usage))
_OF_ASSOCIATIONS = [
    ("defaultqos", 8, _in_association("default_qos", _qos_name)),
    ("fairshare", 1, _shares),
    ("shares", 1, _shares),
    ("priority", 3, _in_association("priority", lambda word: number("Priority", word.value))),
    ("qoslevel", 1, _in_association("qos", lambda word: () if word.value == "-1" else word.names)),
    _USAGE,
]
_SETTERS: dict[str, list[tuple[str, int, Callable[[_Settings, Word], None]]]] = {
    "account": [
        ("description", 3, _own("description", lambda word: word.value.lower())),
        ("organization", 1, _own("organization", lambda word: word.value.lower())),
        ("parent", 4, _own("parent", lambda word: word.value.lower())),
        *_OF_ASSOCIATIONS,
    ],
    "user": [
        ("adminlevel", 2, _own("admin_level", lambda word: word.value)),
        ("defaultaccount", 8, _own("default_account", lambda word: word.value.lower())),
        ("defaultwckey", 8, _own("default_wckey", lambda word: word.value.lower())),
        *_OF_ASSOCIATIONS,
    ],
    "cluster": list(_OF_ASSOCIATIONS),
    "qos": [
        ("description", 1, _in_qos("description", lambda word: word.value)),
        ("flags", 2, _in_qos("flags", _flags)),
        ("gracetime", 3, _in_qos("grace_s", _seconds)),
        ("limitfactor", 1, _in_qos("limit_factor", _factor)),
        ("preemptexempttime", 8, _in_qos("preempt_exempt_s", lambda word: wall("PreemptExemptTime", word.value))),
        ("preemptmode", 8, _in_qos("preempt_mode", _preempt_mode)),
        ("preempt", 3, _in_qos("preempt", lambda word: word.names)),
        ("priority", 3, _in_qos("priority", lambda word: number("Priority", word.value))),
        ("usagefactor", 6, _in_qos("usage_factor", _factor)),
        ("usagethreshold", 6, _in_qos("usage_threshold", _factor)),
        _USAGE,
    ],
    "coordinator": [],
}


# -- the orders ------------------------------------------------------------------------------------------------------


def _named(selection: Selection, what: str) -> tuple[str, ...]:
    if not selection.names:
        raise SlurmSyntaxError(f" Need name of {what} to add.")
    return selection.names


def _add_account(chosen: Selection, given: _Settings) -> o.Order:
    own = {name: value for name, value in given.own.items() if name in ("parent", "description", "organization")}
    return o.AddAccounts(names=_named(chosen, "account"), edit=given.association_edit(), **own)  # type: ignore[arg-type]


def _add_user(chosen: Selection, given: _Settings) -> o.Order:
    own = {name: value for name, value in given.own.items() if name != "reset_usage"}
    return o.AddUsers(
        names=chosen.names + chosen.users or _named(chosen, "user"),
        accounts=chosen.accounts,
        partitions=chosen.partitions,
        edit=given.association_edit(),
        **own,  # type: ignore[arg-type]
    )


def _which(chosen: Selection, names_are: str) -> o.Which:
    accounts, users = chosen.accounts, chosen.users
    if names_are == "accounts":
        accounts += chosen.names
    else:
        users += chosen.names
    return o.Which(accounts=accounts, users=users, partitions=chosen.partitions, parents=chosen.parents)


def _modify_account(chosen: Selection, given: _Settings) -> o.Order:
    return o.ModifyAccounts(where=_which(chosen, "accounts"), edit=given.association_edit(), **given.own)  # type: ignore[arg-type]


def _modify_user(chosen: Selection, given: _Settings) -> o.Order:
    if given.own.get("reset_usage") and not chosen.accounts:
        raise SlurmSyntaxError("sacctmgr: error: An account must be specified")
    return o.ModifyUsers(where=_which(chosen, "users"), edit=given.association_edit(), **given.own)  # type: ignore[arg-type]


def _modify_cluster(_: Selection, given: _Settings) -> o.Order:
    return o.ModifyAccounts(where=o.Which(accounts=("root",)), edit=given.association_edit())


def _coordinators(kind: type[o.AddCoordinators] | type[o.DeleteCoordinators], chosen: Selection) -> o.Order:
    if not chosen.names and not chosen.users:
        raise SlurmSyntaxError(" You need to specify a user list or account list in your command.")
    return kind(users=chosen.names + chosen.users, accounts=chosen.accounts)


_ADDERS: dict[str, Callable[[Selection, _Settings], o.Order]] = {
    "account": _add_account,
    "user": _add_user,
    "qos": lambda chosen, given: o.AddQos(names=_named(chosen, "qos"), edit=given.qos_edit()),
    "coordinator": lambda chosen, _: _coordinators(o.AddCoordinators, chosen),
}
_MODIFIERS: dict[str, Callable[[Selection, _Settings], o.Order]] = {
    "account": _modify_account,
    "user": _modify_user,
    "cluster": _modify_cluster,
    "qos": lambda chosen, given: o.ModifyQos(
        names=chosen.names, edit=given.qos_edit(), reset_usage=bool(given.own.get("reset_usage"))
    ),
}
_DELETERS: dict[str, Callable[[Selection], o.Order]] = {
    "account": lambda chosen: o.DeleteAccounts(where=_which(chosen, "accounts")),
    "user": lambda chosen: o.DeleteUsers(where=_which(chosen, "users")),
    "qos": lambda chosen: o.DeleteQos(names=chosen.names),
    "coordinator": lambda chosen: _coordinators(o.DeleteCoordinators, chosen),
}
ADDABLE, MODIFIABLE, DELETABLE = frozenset(_ADDERS), frozenset(_MODIFIERS), frozenset(_DELETERS)

"""The account book: all accounts, users, associations and QOS as one value, and what follows from where they stand.

A value: `changed` gives a new book. `State` holds the present one; only `apply` replaces it. What may be done to it
(`sacctmgr add`, `modify`, `delete`) is `accounting/changes.py`. Asked by submission, limits, priority and `sacctmgr`;
answers are kept, so that a question asked for every job of a pass costs one lookup.
Invariant: account associations form one tree under `root`; a user's association stands under its account's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from bireme.core.model.accounts import (
    NORMAL,
    ROOT,
    Account,
    AdminLevel,
    Association,
    Limits,
    Qos,
    TresMap,
    User,
    changed_names,
    tres_map,
)
from bireme.core.model.events import AccountsChanged

ROOT_ID = 1
_INHERITED = tuple(each.name for each in fields(Limits) if each.name.startswith("max_"))
_TRES_LIMITS = frozenset(each.name for each in fields(Limits) if "TresMap" in str(each.type))


def _first_accounts() -> dict[str, Account]:
    return {ROOT: Account(name=ROOT, description="default root account", organization=ROOT)}


def _first_users() -> dict[str, User]:
    return {ROOT: User(name=ROOT, default_account=ROOT, admin_level=AdminLevel.ADMINISTRATOR)}


def _first_qos() -> dict[str, Qos]:
    return {NORMAL: Qos(id=1, name=NORMAL, description="Normal QOS default")}


def _first_associations() -> dict[int, Association]:
    top = Association(id=ROOT_ID, account=ROOT, qos=(NORMAL,))
    return {ROOT_ID: top, ROOT_ID + 1: Association(id=ROOT_ID + 1, account=ROOT, user=ROOT)}


@dataclass(frozen=True)
class AccountBook:
    """Accounts, users, QOS and the associations that tie them together. A new one has what a new Slurm database has:
    account and user root, QOS normal."""

    accounts: Mapping[str, Account] = field(default_factory=_first_accounts)
    users: Mapping[str, User] = field(default_factory=_first_users)
    qos: Mapping[str, Qos] = field(default_factory=_first_qos)
    associations: Mapping[int, Association] = field(default_factory=_first_associations)
    next_association_id: int = ROOT_ID + 2
    """Ids are never used twice: usage is kept by them."""
    next_qos_id: int = 2

    # -- finding -----------------------------------------------------------------------------------------------------

    @property
    def root(self) -> Association:
        return self.associations[ROOT_ID]

    def find(self, account: str, user: str = "", partition: str = "") -> Association | None:
        """Exactly this one."""
        return self._by_key.get((account, user, partition))

    def for_job(self, account: str, user: str, partition: str = "") -> Association | None:
        """What a job is charged to: the user's association for the partition, or the one for every partition."""
        return self._by_key.get((account, user, partition)) or self._by_key.get((account, user, ""))

    def chain(self, association_id: int) -> tuple[Association, ...]:
        """The association, then every account above it, root last."""
        chain = self._chains.get(association_id)
        if chain is None:
            association = self.associations[association_id]
            above = self.parent(association)
            chain = (association,) if above is None else (association, *self.chain(above.id))
            self._chains[association_id] = chain
        return chain

    def parent(self, association: Association) -> Association | None:
        return self._by_key.get((association.parent_account, "", "")) if association.id != ROOT_ID else None

    def children(self, association_id: int) -> tuple[Association, ...]:
        """Users first, then accounts, each by name, in the order in which Slurm lists them."""
        return self._children.get(association_id, ())

    def tree(self) -> list[tuple[int, Association]]:
        """Every association with its depth, each before its children."""
        found: list[tuple[int, Association]] = []
        waiting = [(0, self.root)]
        while waiting:
            depth, association = waiting.pop()
            found.append((depth, association))
            waiting.extend((depth + 1, child) for child in reversed(self.children(association.id)))
        return found

    def default_account(self, user: str) -> str:
        """The account of a job that names none; empty for a user who is not in the book."""
        known = self.users.get(user)
        return known.default_account if known else ""

    # -- what is inherited -------------------------------------------------------------------------------------------

    def limits_of(self, association_id: int) -> Limits:
        """An association's own group limits, and its own or inherited limits on each job and user."""
        effective = self._effective_limits.get(association_id)
        if effective is None:
            own = self.associations[association_id].limits
            above = self.parent(self.associations[association_id])
            effective = own if above is None else _inherit(own, self.limits_of(above.id))
            self._effective_limits[association_id] = effective
        return effective

    def qos_of(self, association_id: int) -> tuple[str, ...]:
        """Names of the QOS that its jobs may use."""
        names = self._effective_qos.get(association_id)
        if names is None:
            association = self.associations[association_id]
            above = self.parent(association)
            inherited = self.qos_of(above.id) if above is not None else ()
            names = association.qos or changed_names(inherited, association.qos_changes)
            self._effective_qos[association_id] = names
        return names

    def default_qos_of(self, association_id: int) -> str:
        """The QOS of a job that names none: the nearest default; the only one allowed; or normal."""
        for association in self.chain(association_id):
            if association.default_qos:
                return association.default_qos
        allowed = self.qos_of(association_id)
        return allowed[0] if len(allowed) == 1 else NORMAL

    def priority_of(self, association_id: int) -> int:
        """What PriorityWeightAssoc weighs: its own, or that of the nearest account above that has one."""
        return next((each.priority for each in self.chain(association_id) if each.priority is not None), 0)

    # -- the next book -----------------------------------------------------------------------------------------------

    def changed(self, change: AccountsChanged) -> AccountBook:
        """Records put replace those of the same name or id; the removed are gone."""
        accounts = {**self.accounts, **{each.name: each for each in change.accounts}}
        users = {**self.users, **{each.name: each for each in change.users}}
        qos = {**self.qos, **{each.name: each for each in change.qos}}
        associations = {**self.associations, **{each.id: each for each in change.associations}}
        for name in change.removed_accounts:
            accounts.pop(name, None)
        for name in change.removed_users:
            users.pop(name, None)
        for name in change.removed_qos:
            qos.pop(name, None)
        for number in change.removed_associations:
            associations.pop(number, None)
        newest = max((each.id for each in change.associations), default=0)
        newest_qos = max((each.id for each in change.qos), default=0)
        return AccountBook(
            accounts,
            users,
            qos,
            associations,
            max(self.next_association_id, newest + 1),
            max(self.next_qos_id, newest_qos + 1),
        )

    # -- answers kept: a book never changes --------------------------------------------------------------------------

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str], Association]:
        return {association.key: association for association in self.associations.values()}

    @cached_property
    def _children(self) -> dict[int, tuple[Association, ...]]:
        found: dict[int, list[Association]] = {}
        for association in self.associations.values():
            above = self.parent(association)
            if above is not None:
                found.setdefault(above.id, []).append(association)
        return {number: tuple(sorted(below, key=_listing_order)) for number, below in found.items()}

    @cached_property
    def _chains(self) -> dict[int, tuple[Association, ...]]:
        return {}

    @cached_property
    def _effective_limits(self) -> dict[int, Limits]:
        return {}

    @cached_property
    def _effective_qos(self) -> dict[int, tuple[str, ...]]:
        return {}


def _listing_order(association: Association) -> tuple[bool, str, str, bool, str]:
    everywhere = not association.partition
    return not association.user, association.account, association.user, everywhere, association.partition


def _inherit(own: Limits, above: Limits) -> Limits:
    taken: dict[str, object] = {}
    for name in _INHERITED:
        mine, theirs = getattr(own, name), getattr(above, name)
        if name in _TRES_LIMITS:
            if theirs:
                taken[name] = _joined(mine, theirs)
        elif mine is None:
            taken[name] = theirs
    return replace(own, **taken) if taken else own  # type: ignore[arg-type]  # values of the same fields


def _joined(own: TresMap, above: TresMap) -> TresMap:
    return tres_map({**dict(above), **dict(own)})

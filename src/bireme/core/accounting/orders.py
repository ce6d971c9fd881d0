"""What can be asked of the account book: add, modify, delete, as data. One line of `sacctmgr` is one order.

Made by the API from JSON, carried out by `accounting/changes.py`. Empty tuples in `Which` mean any.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bireme.core.accounting.edits import AssociationEdit, QosEdit
from bireme.core.model.accounts import Association
from bireme.core.model.events import AccountsChanged, UsageReset


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """`where ...`"""

    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()

    def admits(self, association: Association) -> bool:
        return (
            (not self.accounts or association.account in self.accounts)
            and (not self.users or association.user in self.users)
            and (not self.partitions or association.partition in self.partitions)
            and (not self.parents or association.parent_account in self.parents)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAccounts:
    names: tuple[str, ...]
    parent: str = "root"
    description: str = ""
    organization: str = ""
    edit: AssociationEdit = field(default_factory=AssociationEdit)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddUsers:
    names: tuple[str, ...]
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    default_account: str = ""
    default_wckey: str = ""
    admin_level: str | None = None
    edit: AssociationEdit = field(default_factory=AssociationEdit)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddQos:
    names: tuple[str, ...]
    edit: QosEdit = field(default_factory=QosEdit)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCoordinators:
    users: tuple[str, ...]
    accounts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifyAccounts:
    where: Which
    description: str | None = None
    organization: str | None = None
    parent: str | None = None
    reset_usage: bool = False
    edit: AssociationEdit = field(default_factory=AssociationEdit)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifyUsers:
    where: Which
    default_account: str | None = None
    default_wckey: str | None = None
    admin_level: str | None = None
    reset_usage: bool = False
    edit: AssociationEdit = field(default_factory=AssociationEdit)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifyQos:
    names: tuple[str, ...]
    reset_usage: bool = False
    edit: QosEdit = field(default_factory=QosEdit)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAccounts:
    where: Which


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteUsers:
    where: Which


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteQos:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCoordinators:
    users: tuple[str, ...]
    accounts: tuple[str, ...]


Order = (
    AddAccounts
    | AddUsers
    | AddQos
    | AddCoordinators
    | ModifyAccounts
    | ModifyUsers
    | ModifyQos
    | DeleteAccounts
    | DeleteUsers
    | DeleteQos
    | DeleteCoordinators
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Several orders as one: all of them are carried out, or none. `dry_run`: only say what it would come to."""

    orders: tuple[Order, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an order comes to: the event, and what it touched, for people to read."""

    change: AccountsChanged = field(default_factory=AccountsChanged)
    reset: UsageReset | None = None
    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    associations: tuple[Association, ...] = ()
    """New ones as they are, others as they were."""

"""Orders carried out on the account book: what `sacctmgr` may do, in its own words where it may not.

`carry_out(book, order, jobs_of)` gives the event that makes the next book, or raises BookError; nothing is changed
here. Who may give an order is decided above (`core/accounts/bookkeeping.py`), which also knows the jobs.
Invariant: every book that comes out of here is one tree of accounts, whose defaults are allowed where they apply and
whose QOS preempt one another without a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from bireme.core.accounting import orders as o
from bireme.core.accounting.book import AccountBook
from bireme.core.accounting.edits import AssociationEdit, BookError, QosEdit
from bireme.core.accounting.orders import Order, Outcome
from bireme.core.model.accounts import ROOT, Account, AdminLevel, Association, Qos, User
from bireme.core.model.events import AccountsChanged, UsageReset

JobsOf = Callable[[frozenset[int]], Sequence[str]]
"""Labels of the waiting and running jobs that are charged to any of these associations."""

NOTHING_NEW = " Nothing new added."
NOTHING_MODIFIED = " Nothing modified"
NOTHING_DELETED = " Nothing deleted"
_ASK_ADMIN = "        Contact your admin to add this account."


def carry_out(book: AccountBook, order: Order, jobs_of: JobsOf, cluster: str = "") -> Outcome:
    if isinstance(order, o.AddAccounts):
        return _add_accounts(book, order, cluster)
    if isinstance(order, o.AddUsers):
        return _add_users(book, order)
    if isinstance(order, o.AddQos):
        return _add_qos(book, order)
    if isinstance(order, o.AddCoordinators | o.DeleteCoordinators):
        return _coordinators(book, order)
    if isinstance(order, o.ModifyAccounts):
        return _modify_accounts(book, order, cluster)
    if isinstance(order, o.ModifyUsers):
        return _modify_users(book, order, cluster)
    if isinstance(order, o.ModifyQos):
        return _modify_qos(book, order)
    if isinstance(order, o.DeleteAccounts):
        return _delete_accounts(book, order, jobs_of, cluster)
    if isinstance(order, o.DeleteUsers):
        return _delete_users(book, order, jobs_of, cluster)
    return _delete_qos(book, order)


# -- add -------------------------------------------------------------------------------------------------------------


def _add_accounts(book: AccountBook, order: o.AddAccounts, cluster: str) -> Outcome:
    parent = order.parent or ROOT
    if book.find(parent) is None:
        raise BookError(
            f" Parent account '{parent}' doesn't exist on cluster {cluster}\n{_ASK_ADMIN}\n No associations created."
        )
    _known_qos(book, order.edit)
    new = [name for name in dict.fromkeys(order.names) if _named(name) not in book.accounts]
    if not new:
        raise BookError(NOTHING_NEW)
    accounts = tuple(
        Account(
            name=name,
            description=order.description or name,
            organization=order.organization or (name if parent == ROOT else parent),
        )
        for name in new
    )
    numbered = enumerate(new, start=book.next_association_id)
    associations = tuple(order.edit.on(Association(id=n, account=name, parent=parent)) for n, name in numbered)
    change = AccountsChanged(accounts=accounts, associations=associations)
    _check_defaults(book.changed(change), associations)
    return Outcome(change=change, accounts=tuple(new), associations=associations)


def _named(name: str) -> str:
    if not name or any(character.isspace() or character in ":'\"|=," for character in name):
        raise BookError(f" {name!r} cannot be a name here: no blanks, quotes or any of : | = ,")
    return name


def _add_users(book: AccountBook, order: o.AddUsers) -> Outcome:
    accounts = tuple(dict.fromkeys((*order.accounts, *((order.default_account,) if order.default_account else ()))))
    if not accounts:
        raise BookError(" Need name of account to add user to.")
    for account in accounts:
        if book.find(account) is None:
            raise BookError(
                f" This account '{account}' doesn't exist.\n{_ASK_ADMIN}\n No associations or wckeys created."
            )
    _known_qos(book, order.edit)
    names = tuple(dict.fromkeys(order.names))
    partitions = order.partitions or ("",)
    keys = [(account, _named(user), part) for user in names for account in accounts for part in partitions]
    new = [key for key in keys if book.find(*key) is None]
    users = tuple(
        User(
            name=name,
            default_account=order.default_account or min(accounts),
            default_wckey=order.default_wckey,
            admin_level=_admin_level(order.admin_level) or AdminLevel.NONE,
        )
        for name in names
        if name not in book.users
    )
    if not new and not users:
        raise BookError(NOTHING_NEW)
    associations = tuple(
        order.edit.on(Association(id=number, account=account, user=user, partition=partition))
        for number, (account, user, partition) in enumerate(new, start=book.next_association_id)
    )
    homeless = tuple(
        replace(book.users[name], default_account=order.default_account or min(accounts))
        for name in names
        if name in book.users and not book.users[name].default_account
    )
    change = AccountsChanged(users=users + homeless, associations=associations)
    _check_defaults(book.changed(change), associations)
    return Outcome(change=change, users=tuple(user.name for user in users), associations=associations)


def _admin_level(text: str | None) -> AdminLevel | None:
    if text is None:
        return None
    for level in AdminLevel:
        if text and level.value.lower().startswith(text.lower()):
            return level
    raise BookError(f" Bad admin level: {text}. It is None, Operator or Administrator")


def _add_qos(book: AccountBook, order: o.AddQos) -> Outcome:
    new = [name for name in dict.fromkeys(order.names) if _named(name) not in book.qos]
    if not new:
        raise BookError(NOTHING_NEW)
    _known_preempted(book, order.edit)
    qos = tuple(
        order.edit.on(Qos(id=number, name=name, description=name))
        for number, name in enumerate(new, start=book.next_qos_id)
    )
    change = AccountsChanged(qos=qos)
    refuse_preemption_loops(book.changed(change))
    return Outcome(change=change, qos=tuple(new))


def _coordinators(book: AccountBook, order: o.AddCoordinators | o.DeleteCoordinators) -> Outcome:
    for name in order.accounts:
        if name not in book.accounts:
            raise BookError(f" You specified a non-existent account '{name}'.")
    for name in order.users:
        if name not in book.users:
            raise BookError(f" You specified a non-existent user '{name}'.")
    changed: list[Account] = []
    for name in order.accounts:
        account = book.accounts[name]
        if isinstance(order, o.AddCoordinators):
            coordinators = tuple(dict.fromkeys((*account.coordinators, *order.users)))
        else:
            coordinators = tuple(user for user in account.coordinators if user not in order.users)
        if coordinators != account.coordinators:
            changed.append(replace(account, coordinators=coordinators))
    if not changed:
        raise BookError(NOTHING_NEW if isinstance(order, o.AddCoordinators) else NOTHING_DELETED)
    names = tuple(account.name for account in changed)
    return Outcome(change=AccountsChanged(accounts=tuple(changed)), accounts=names, users=order.users)


# -- modify ----------------------------------------------------------------------------------------------------------


def _modify_accounts(book: AccountBook, order: o.ModifyAccounts, cluster: str) -> Outcome:
    chosen = [each for each in book.associations.values() if not each.user and order.where.admits(each)]
    if not chosen:
        raise BookError(NOTHING_MODIFIED)
    _known_qos(book, order.edit)
    edited = {each.id: order.edit.on(each) for each in chosen}
    touched = _touched(book, AccountsChanged(associations=_really_changed(book, edited.values())), chosen)
    if order.parent is not None:
        edited = _moved(book, edited, order.parent, cluster)
    accounts = _described(book, chosen, order)
    change = AccountsChanged(accounts=accounts, associations=_really_changed(book, edited.values()))
    _check_defaults(book.changed(change), touched, cluster)
    about_tree = order.edit != AssociationEdit() or order.parent is not None or order.reset_usage
    return Outcome(
        change=change,
        reset=UsageReset(associations=tuple(each.id for each in chosen)) if order.reset_usage else None,
        accounts=tuple(account.name for account in accounts),
        associations=touched if about_tree else (),
    )


def _described(book: AccountBook, chosen: Sequence[Association], order: o.ModifyAccounts) -> tuple[Account, ...]:
    """The accounts whose description or organization becomes another."""
    accounts = [book.accounts[each.account] for each in chosen]
    described = [
        replace(
            account,
            description=account.description if order.description is None else order.description,
            organization=account.organization if order.organization is None else order.organization,
        )
        for account in accounts
    ]
    return tuple(new for new, old in zip(described, accounts) if new != old)


def _moved(book: AccountBook, edited: dict[int, Association], parent: str, cluster: str) -> dict[int, Association]:
    """Accounts under a new parent. If that parent is below one of them, it first takes the place of that account."""
    target = book.find(parent)
    if target is None:
        raise BookError(f" Parent account '{parent}' doesn't exist on cluster {cluster}\n{_ASK_ADMIN}")
    result = dict(edited)
    for number, account in edited.items():
        if account.account in (parent, ROOT):
            raise BookError(f" Account '{account.account}' cannot be put under '{parent}': that would be a loop")
        above = {each.id for each in book.chain(target.id)[1:]}
        if number in above:
            result[target.id] = replace(result.get(target.id, target), parent=account.parent)
        result[number] = replace(account, parent=parent)
    return result


def _modify_users(book: AccountBook, order: o.ModifyUsers, cluster: str) -> Outcome:
    chosen = [each for each in book.associations.values() if each.user and order.where.admits(each)]
    if not chosen:
        raise BookError(NOTHING_MODIFIED)
    _known_qos(book, order.edit)
    users = {each.user: book.users[each.user] for each in chosen}
    if order.default_account is not None:
        _members_of(book, users, order.default_account, cluster)
    level = _admin_level(order.admin_level)
    new_users = tuple(
        replace(
            user,
            default_account=user.default_account if order.default_account is None else order.default_account,
            default_wckey=user.default_wckey if order.default_wckey is None else order.default_wckey,
            admin_level=user.admin_level if level is None else level,
        )
        for user in users.values()
    )
    about_users = order.default_account is not None or order.default_wckey is not None or level is not None
    edited = [order.edit.on(each) for each in chosen]
    change = AccountsChanged(
        users=tuple(user for user in new_users if user != book.users[user.name]),
        associations=_really_changed(book, edited),
    )
    _check_defaults(book.changed(change), chosen, cluster)
    reset = UsageReset(associations=tuple(each.id for each in chosen)) if order.reset_usage else None
    about_tree = order.edit != AssociationEdit() or order.reset_usage
    return Outcome(
        change=change,
        reset=reset,
        users=tuple(users) if about_users else (),
        associations=tuple(chosen) if about_tree else (),
    )


def _members_of(book: AccountBook, users: Iterable[str], account: str, cluster: str) -> None:
    members = {each.user for each in book.associations.values() if each.account == account}
    strangers = [user for user in users if user not in members]
    if strangers:
        lines = [f" Can't modify because these users aren't associated with new default account '{account}'..."]
        raise BookError("\n".join([*lines, *(f"  U = {user} C = {cluster}" for user in strangers)]))


def _modify_qos(book: AccountBook, order: o.ModifyQos) -> Outcome:
    chosen = [qos for qos in book.qos.values() if not order.names or qos.name in order.names]
    if not chosen:
        raise BookError(NOTHING_MODIFIED)
    _known_preempted(book, order.edit)
    edited = tuple(order.edit.on(qos) for qos in chosen)
    change = AccountsChanged(qos=tuple(qos for qos in edited if qos != book.qos[qos.name]))
    refuse_preemption_loops(book.changed(change))
    names = tuple(qos.name for qos in chosen)
    return Outcome(change=change, reset=UsageReset(qos=names) if order.reset_usage else None, qos=names)


def _really_changed(book: AccountBook, edited: Iterable[Association]) -> tuple[Association, ...]:
    return tuple(each for each in edited if each != book.associations[each.id])


def _touched(book: AccountBook, change: AccountsChanged, chosen: Sequence[Association]) -> tuple[Association, ...]:
    """The chosen, and the users below whose limits or QOS change with theirs."""
    after = book.changed(change)
    found = {each.id: each for each in chosen}
    for each in chosen:
        for below in (one for one in _all_below(book, each) if one.user):
            same_limits = book.limits_of(below.id) == after.limits_of(below.id)
            if not same_limits or book.qos_of(below.id) != after.qos_of(below.id):
                found[below.id] = below
    return tuple(found.values())


# -- delete ----------------------------------------------------------------------------------------------------------


def _delete_accounts(book: AccountBook, order: o.DeleteAccounts, jobs_of: JobsOf, cluster: str) -> Outcome:
    if ROOT in order.where.accounts:
        raise BookError(" You are not allowed to remove the root account.\n Use remove cluster instead.")
    chosen = [
        each
        for each in book.associations.values()
        if not each.user and each.account != ROOT and order.where.admits(each)
    ]
    if not chosen:
        raise BookError(NOTHING_DELETED)
    gone = {each.id: each for top in chosen for each in (top, *_all_below(book, top))}
    names = tuple(each.account for each in gone.values() if not each.user)
    _refuse_jobs(jobs_of, gone)
    _refuse_defaults([each for each in gone.values() if _is_default(book, each)], cluster)
    change = AccountsChanged(removed_accounts=names, removed_associations=tuple(gone))
    return Outcome(change=change, accounts=names, associations=tuple(gone.values()))


def _delete_users(book: AccountBook, order: o.DeleteUsers, jobs_of: JobsOf, cluster: str) -> Outcome:
    where = order.where
    chosen = {each.id: each for each in book.associations.values() if each.user and where.admits(each)}
    whole = not (where.accounts or where.partitions or where.parents)
    users = tuple(name for name in book.users if whole and (not where.users or name in where.users) and name != ROOT)
    if whole:
        chosen = {number: each for number, each in chosen.items() if each.user != ROOT}
    if not chosen and not users:
        raise BookError(NOTHING_DELETED)
    _refuse_jobs(jobs_of, chosen)
    if whole:
        demoted = _without_coordinators(book, users)
        change = AccountsChanged(accounts=demoted, removed_users=users, removed_associations=tuple(chosen))
        return Outcome(change=change, users=users, associations=tuple(chosen.values()))
    losing = [each for each in chosen.values() if _is_default(book, each) and _keeps_another(book, each, chosen)]
    _refuse_defaults(losing, cluster)
    left = {each.user for number, each in book.associations.items() if each.user and number not in chosen}
    homeless = {each.user for each in chosen.values()} - left
    change = AccountsChanged(
        users=tuple(replace(book.users[name], default_account="") for name in sorted(homeless)),
        removed_associations=tuple(chosen),
    )
    return Outcome(change=change, associations=tuple(chosen.values()))


def _without_coordinators(book: AccountBook, users: Sequence[str]) -> tuple[Account, ...]:
    return tuple(
        replace(account, coordinators=tuple(name for name in account.coordinators if name not in users))
        for account in book.accounts.values()
        if set(account.coordinators) & set(users)
    )


def _delete_qos(book: AccountBook, order: o.DeleteQos) -> Outcome:
    gone = set(order.names) & book.qos.keys()
    if not gone:
        raise BookError(NOTHING_DELETED)
    associations = tuple(
        replace(
            each,
            qos=tuple(name for name in each.qos if name not in gone),
            qos_changes=tuple(change for change in each.qos_changes if change[1:] not in gone),
            default_qos="" if each.default_qos in gone else each.default_qos,
        )
        for each in book.associations.values()
    )
    preemptors = tuple(
        replace(qos, preempt=tuple(name for name in qos.preempt if name not in gone))
        for qos in book.qos.values()
        if qos.name not in gone and set(qos.preempt) & gone
    )
    names = tuple(name for name in book.qos if name in gone)
    change = AccountsChanged(qos=preemptors, associations=_really_changed(book, associations), removed_qos=names)
    return Outcome(change=change, qos=names)


def _all_below(book: AccountBook, association: Association) -> list[Association]:
    found: list[Association] = []
    for child in book.children(association.id):
        found.append(child)
        found.extend(_all_below(book, child))
    return found


def _refuse_jobs(jobs_of: JobsOf, gone: Iterable[int]) -> None:
    active = jobs_of(frozenset(gone))
    if active:
        lines = [" Error with request: Job(s) active, cancel job(s) before remove"]
        raise BookError("\n".join([*lines, *(f"  {label}" for label in active)]))


def _refuse_defaults(losing: Sequence[Association], cluster: str) -> None:
    """Nobody may be left with a default account that is gone."""
    if losing:
        lines = [" Error with request: You can not remove the default account of a user"]
        lines += [f"  C = {cluster:<15} A = {each.account:<10} U = {each.user:<9}" for each in losing]
        lines += [
            " Please either remove the accounts listed above from list and resubmit,",
            " or change these users' default accounts to remove the account(s).",
            " Changes Discarded",
        ]
        raise BookError("\n".join(lines))


def _is_default(book: AccountBook, association: Association) -> bool:
    return bool(association.user) and book.default_account(association.user) == association.account


def _keeps_another(book: AccountBook, losing: Association, gone: Mapping[int, Association]) -> bool:
    """Of this user something is left, but nothing in this account."""
    kept = [each for number, each in book.associations.items() if each.user == losing.user and number not in gone]
    return bool(kept) and all(each.account != losing.account for each in kept)


# -- what holds for every book ---------------------------------------------------------------------------------------


def _known_qos(book: AccountBook, edit: AssociationEdit) -> None:
    for name in sorted(edit.names_qos()):
        _known_qos_name(book, name)


def _known_preempted(book: AccountBook, edit: QosEdit) -> None:
    for name in edit.preempt or ():
        _known_qos_name(book, name.lstrip("+-"))


def _known_qos_name(book: AccountBook, name: str) -> None:
    if name not in book.qos:
        raise BookError(f"sacctmgr: error: You gave a bad qos '{name}'. Valid QOS's are {','.join(book.qos)}")


def _check_defaults(book: AccountBook, among: Iterable[Association], cluster: str = "") -> None:
    """A default QOS must be one that the association may use."""
    wrong = [
        now
        for now in (book.associations[each.id] for each in among)
        if now.default_qos and now.default_qos not in book.qos_of(now.id)
    ]
    if wrong:
        lines = [
            " These associations don't have access to their default qos.",
            " Please give them access before they the default can be set to this.",
        ]
        lines += [f"  DefQOS = {each.default_qos:<10} {association_line(each, cluster)}" for each in wrong]
        raise BookError("\n".join(lines))


def association_line(association: Association, cluster: str) -> str:
    """An association as `sacctmgr` names it: `C = oar     A = phys of science` or `... U = ann  P = gpu`."""
    line = f"C = {cluster:<10} A = {association.account:<20}"
    if not association.user:
        return f"C = {cluster:<10} A = {association.account}" + (
            f" of {association.parent}" if association.parent else ""
        )
    line += f" U = {association.user:<9}"
    return line + (f" P = {association.partition}" if association.partition else "")


def refuse_preemption_loops(book: AccountBook) -> None:
    """A QOS that could, through others, preempt itself would let two jobs evict each other for ever."""
    for name in book.qos:
        seen: set[str] = set()
        waiting = list(book.qos[name].preempt)
        while waiting:
            other = waiting.pop()
            if other == name:
                raise BookError(
                    "sacctmgr: error: QOS Preemption loop detected\n Error with request: QOS Preemption loop detected"
                )
            if other not in seen and other in book.qos:
                seen.add(other)
                waiting.extend(book.qos[other].preempt)

"""Orders to the account book from somebody: may they, do jobs stand in the way, and the events it comes to.

Called by the API with the newest state. The rules of the book itself are `core/accounting/changes.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from bireme.core.accounting import orders as o
from bireme.core.accounting.book import AccountBook
from bireme.core.accounting.changes import carry_out
from bireme.core.accounting.edits import BookError
from bireme.core.accounting.orders import Order, Outcome
from bireme.core.model import events as e
from bireme.core.model.accounts import AdminLevel
from bireme.core.model.jobs import Job
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.state.state import State

NOT_ALLOWED = "Your user doesn't have privilege to perform this action"


def change_accounts(state: State, caller: Caller, orders: Sequence[Order]) -> tuple[list[e.Event], list[Outcome]]:
    """All orders, each against the book that the ones before it leave, or a Refusal and nothing."""
    book = state.accounts
    events: list[e.Event] = []
    outcomes: list[Outcome] = []
    for order in orders:
        try:
            outcome = carry_out(book, order, lambda gone: _active_jobs(state, gone), state.config.name)
        except BookError as error:
            raise Refusal(Why.ERROR, str(error)) from error
        _authorize(book, caller, order, outcome)
        if outcome.change != e.AccountsChanged():
            events.append(outcome.change)
            book = book.changed(outcome.change)
        if outcome.reset is not None:
            events.append(outcome.reset)
        outcomes.append(outcome)
    return events, outcomes


def _active_jobs(state: State, gone: frozenset[int]) -> list[str]:
    return [
        f"JobID = {job.label:<10} C = {state.config.name:<10} A = {job.spec.account:<10} U = {job.spec.owner.user}"
        for jobs in (state.pending, state.holding)
        for job in jobs.values()
        if gone.intersection(_associations_of(state, job))
    ]


def _associations_of(state: State, job: Job) -> set[int]:
    found = (state.accounts.for_job(job.spec.account, job.spec.owner.user, name) for name in job.spec.partitions)
    return {each.id for each in found if each is not None}


def _authorize(book: AccountBook, caller: Caller, order: Order, outcome: Outcome) -> None:
    """Operators may do everything but make administrators and QOS; coordinators what is below their accounts."""
    user = book.users.get(caller.user)
    level = user.admin_level if user else AdminLevel.NONE
    if caller.admin or level is AdminLevel.ADMINISTRATOR:
        return
    about_qos = isinstance(order, o.AddQos | o.ModifyQos | o.DeleteQos)
    raises = isinstance(order, o.AddUsers | o.ModifyUsers) and order.admin_level is not None
    if level is AdminLevel.OPERATOR and not about_qos and not raises:
        return
    own = isinstance(order, o.ModifyUsers) and _only_own_defaults(caller, order)
    if own or (not about_qos and not raises and _all_coordinated(book, caller.user, outcome)):
        return
    raise Refusal(Why.ACCESS_DENIED, NOT_ALLOWED)


def _only_own_defaults(caller: Caller, order: o.ModifyUsers) -> bool:
    """Users may choose their own default account."""
    plain = o.ModifyUsers(where=order.where, default_account=order.default_account, default_wckey=order.default_wckey)
    return order.where.users == (caller.user,) and order == plain


def _all_coordinated(book: AccountBook, user: str, outcome: Outcome) -> bool:
    """Whether everything that changes is below an account of which the user is a coordinator."""
    mine = {account.name for account in book.accounts.values() if user in account.coordinators}
    if not mine or not outcome.associations:
        return False
    return all(_stands_below(book, each.parent_account, mine) for each in outcome.associations)


def _stands_below(book: AccountBook, account: str, mine: set[str]) -> bool:
    association = book.find(account)
    return association is not None and any(each.account in mine for each in book.chain(association.id))

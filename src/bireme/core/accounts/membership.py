"""Whose account and which QOS a job has: the book's defaults, and its word when AccountingStorageEnforce asks for it.

Called at submission and when a waiting job's account, QOS or partition is changed. Without enforcement anything is
recorded as asked for, as in Slurm. How much an account or QOS may take is `core/limits`.
"""

from __future__ import annotations

from collections.abc import Collection

from bireme.core.accounting.book import AccountBook
from bireme.core.model.accounts import NORMAL, Association
from bireme.core.model.jobs import JobSpec
from bireme.core.model.refusals import Refusal, Why
from bireme.core.state.state import State


def settled(state: State, spec: JobSpec) -> JobSpec:
    """The specification with the account and QOS that the job will have, or a Refusal."""
    book, enforce = state.accounts, state.config.settings.accounting_enforce
    user = spec.owner.user
    account = _spelled(spec.account, book.accounts) or book.default_account(user)
    associations = [book.for_job(account, user, partition) for partition in spec.partitions]
    if "associations" in enforce and None in associations:
        raise Refusal(Why.INVALID_ACCOUNT, _no_association(book, user, account))
    known = [each for each in associations if each is not None]
    qos = _spelled(spec.qos, book.qos) or (book.default_qos_of(known[0].id) if known else NORMAL)
    _check_services_qos(state, spec, qos)
    if "qos" in enforce:
        _check_qos(book, known, qos)
    return spec.revised(account=account, qos=qos)


def _check_services_qos(state: State, spec: JobSpec, qos: str) -> None:
    """Where nobody has configured preemption, only services preempt: nobody gets to by the name of their QOS alone."""
    settings = state.config.settings
    if qos == settings.service_qos and spec.replica is None and settings.policy.preemption.by == "services":
        raise Refusal(Why.INVALID_QOS, f"QOS {qos!r} is for services (bireme serve): batch makes way for it")


def _spelled(name: str, known: Collection[str]) -> str:
    """Names in the book are in small letters; `--account=Physics` means the same."""
    small = name.lower()
    return small if name not in known and small in known else name


def _no_association(book: AccountBook, user: str, account: str) -> str:
    mine = sorted({each.account for each in book.associations.values() if each.user == user})
    if not mine:
        return f"user {user} is in no account: an operator can run `sacctmgr add user {user} account=...`"
    if not account:
        return f"user {user} has no default account: say --account, one of {', '.join(mine)}"
    return f"user {user} may use the accounts {', '.join(mine)}, not {account!r}"


def _check_qos(book: AccountBook, associations: list[Association], qos: str) -> None:
    if qos not in book.qos:
        raise Refusal(Why.INVALID_QOS, f"there is no QOS {qos!r}; there are: {', '.join(book.qos)}")
    for each in associations:
        allowed = book.qos_of(each.id)
        if qos not in allowed:
            names = ", ".join(allowed) or "none"
            raise Refusal(Why.INVALID_QOS, f"account {each.account} lets user {each.user} use: {names}")

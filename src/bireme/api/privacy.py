"""Who may know what: Slurm's PrivateData, for every route. `routing.Context` asks here; handlers ask the context.

Words of PrivateData and whom they leave what:
  jobs          its owner, coordinators of its account
  usage, users  oneself, coordinators whom they coordinate
  accounts      coordinators theirs; users the accounts that they are in
  reservations  who may use them
  nodes, partitions, events   nobody
Operators and administrators (the daemon's owner and root, the `operators` setting, AdminLevel in the account book) know
everything. Not here: who may change what (the kinds of `core/`).

Invariant: nothing is private to those who may change it. `tests/unit/api/test_api_privacy.py` walks all routes with all
words and roles.
"""

from __future__ import annotations

from collections.abc import Iterable

from bireme.core.model import events as e
from bireme.core.model.accounts import AdminLevel
from bireme.core.model.finding.events import FINDING_EVENTS
from bireme.core.model.healing.events import HEALING_EVENTS
from bireme.core.model.healing.fences import FENCE_EVENTS
from bireme.core.model.jobs import Job, JobSpec, Owner
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.reservations import Reservation
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.reservations.reserving import may_use
from bireme.core.state.state import State

WORDS = ("accounts", "events", "jobs", "nodes", "partitions", "reservations", "usage", "users")


_OF_NODES = ("nodes",)
_OF_ACCOUNTS = ("accounts", "users", "usage")
WORDS_OF: dict[type[e.Event], tuple[str, ...]] = {
    e.ClusterConfigured: ("nodes", "partitions"),
    e.PartitionUpdated: ("partitions",),
    e.NodeRegistered: _OF_NODES,
    e.NodeLost: _OF_NODES,
    e.NodeClosed: _OF_NODES,
    e.NodeUpdated: _OF_NODES,
    e.OthersCounted: _OF_NODES,
    e.EventsLost: _OF_NODES,
    e.LossSettled: _OF_NODES,
    e.AccountsChanged: _OF_ACCOUNTS,
    e.UsageReset: _OF_ACCOUNTS,
    e.ReservationSet: ("reservations",),
    e.ReservationRemoved: ("reservations",),
    **dict.fromkeys(SERVICE_EVENTS, ("jobs",)),
    e.IdlePolicySet: ("jobs", "accounts", "users"),
    **dict.fromkeys(FINDING_EVENTS, ("nodes", "jobs")),
    **dict.fromkeys(HEALING_EVENTS, ("nodes", "jobs")),
    **dict.fromkeys(FENCE_EVENTS, ("nodes",)),
}
"""Which words of PrivateData an event falls under that is about no job. There is no default: what is new has a line
here before anybody sees it (a test asks)."""


class Viewer:
    """One caller, before one state of the cluster."""

    __slots__ = ("_caller", "_private", "_state")

    def __init__(self, state: State, caller: Caller) -> None:
        self._state = state
        self._caller = caller
        user = state.accounts.users.get(caller.user)
        trusted = caller.admin or (user is not None and user.admin_level is not AdminLevel.NONE)
        self._private = frozenset() if trusted else frozenset(state.config.words("PrivateData"))

    def hidden(self, *words: str) -> bool:
        """Whether one of these kinds of data is private to others than the caller."""
        return not self._private.isdisjoint(words)

    def sees_job(self, owner_uid: int, account: str) -> bool:
        return "jobs" not in self._private or owner_uid == self._caller.uid or self.coordinates(account)

    def must_see(self, jobs: Iterable[Job]) -> None:
        """Raises the refusal of a job that is not there, where one of these is hidden."""
        if self.hidden("jobs") and not all(self.sees_job(job.spec.owner.uid, job.spec.account) for job in jobs):
            raise Refusal(Why.INVALID_JOB_ID)

    def sees_user(self, user: str, account: str, *words: str) -> bool:
        """What is told of a user in an account. `user` is empty in what is told of an account as a whole."""
        return not self.hidden(*words) or user in ("", self._caller.user) or self.coordinates(account)

    def sees_account(self, account: str) -> bool:
        if "accounts" not in self._private or self.coordinates(account):
            return True
        return account in self._own_accounts()

    def sees_reservation(self, reservation: Reservation) -> bool:
        if "reservations" not in self._private:
            return True
        caller = self._caller
        owner = Owner(uid=caller.uid, gid=caller.gid, user=caller.user, groups=caller.groups)
        accounts = {each.account for each in self._state.accounts.associations.values() if each.user == caller.user}
        return any(
            may_use(self._state, reservation, JobSpec(owner=owner, account=account)) for account in accounts or {""}
        )

    def sees_reservation_named(self, name: str) -> bool:
        reservation = self._state.reservations.get(name)
        return reservation is None or self.sees_reservation(reservation)

    def sees_event(self, event: e.Event) -> bool:
        """Whether the viewer may see an event that is about no job."""
        return not self.hidden("events") and not self.hidden(*WORDS_OF[type(event)])

    def coordinates(self, account: str) -> bool:
        """Whether the caller is a coordinator of this account, or of one above it."""
        book, user = self._state.accounts, self._caller.user
        association = book.find(account) if account else None
        if association is None:
            return False
        above = (book.accounts.get(each.account) for each in book.chain(association.id))
        return any(each is not None and user in each.coordinators for each in above)

    def _own_accounts(self) -> set[str]:
        """Those that the caller is in, and those above them: the way from the root."""
        book = self._state.accounts
        own = [each for each in book.associations.values() if each.user == self._caller.user]
        return {above.account for each in own for above in book.chain(each.id)}

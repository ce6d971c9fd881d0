"""The limits in a pass: what everybody would hold with the starts that it has decided, and whom that keeps waiting.

Asked by `consider` before a job is placed (as asked for) and after (with the shares that were found); told of every
start, and of jobs for which others make way. Invariant: within a pass nothing is given back, so whoever a limit blocks
stays blocked, unless the pass itself takes a start back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bireme.core.limits.asks import ask_of, ask_placed, seconds_of
from bireme.core.limits.checks import blocks
from bireme.core.limits.following import holding_of
from bireme.core.limits.ledger import Ledger
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Job, ResourceRequest
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import Allocation
from bireme.core.placement.search import Fit
from bireme.core.plan.snapshot import Snapshot
from bireme.core.priority.fair_share import fair_share


@dataclass(slots=True)
class Limiting:
    """What everybody holds in the draft, and the limits that this meets."""

    snapshot: Snapshot
    ledger: Ledger
    _blocked: dict[tuple[int, ResourceRequest, float], tuple[Reason, ...]] = field(default_factory=dict)
    """Requests (by the identity of their rules) that a limit blocks."""
    _fair_shares: dict[int, float] | None = None

    def blocking(self, job: Job, partition: PartitionConfig, fit: Fit | None = None) -> tuple[Reason, ...]:
        """The limits that keep it from starting there: as asked for, or with the shares that were found."""
        rules = self.ledger.rules.for_job(job.spec, partition.name)
        if rules.share_min is not None and (poor := self._below_share(job, partition, rules.share_min)):
            return (poor,)
        if not rules.to_start:
            return ()
        settings = self.snapshot.state.config.settings
        if fit is not None:
            ask = ask_placed(job.spec, partition, self.snapshot.allocation(job, partition, fit), settings)
            return blocks(rules, ask, self.ledger, self.snapshot.state.usage, self.snapshot.now)
        key = (id(rules), self.snapshot.asked(job), seconds_of(job.spec, partition))
        known = self._blocked.get(key)
        if known is None:
            ask = ask_of(job.spec, partition, self.snapshot.demand(job, partition), settings)
            known = blocks(rules, ask, self.ledger, self.snapshot.state.usage, self.snapshot.now)
            if known:
                self._blocked[key] = known
        return known

    def count_as_held(self, job: Job, allocation: Allocation) -> None:
        """For the limits: of a job that starts, or for which others make way."""
        rules = self.ledger.rules
        if rules.for_job(job.spec, allocation.partition).holders:
            self.ledger.hold(holding_of(self.snapshot.state, rules, job, allocation, self.snapshot.now))

    def branch(self) -> Ledger:
        """From here on in a draft of its own; `take_back` goes back to the one that is returned."""
        before, self.ledger = self.ledger, self.ledger.draft()
        return before

    def take_back(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._blocked.clear()

    def _below_share(self, job: Job, partition: PartitionConfig, least: float) -> Reason | None:
        """UsageThreshold of a QOS: who has used too much waits until the fair share has grown again."""
        state = self.snapshot.state
        if self._fair_shares is None:
            self._fair_shares = fair_share(state.accounts, state.usage, self.snapshot.now, state.config.settings)
        association = state.accounts.for_job(job.spec.account, job.spec.owner.user, partition.name)
        share = self._fair_shares.get(association.id, 1.0) if association else 1.0
        return reason(ReasonKind.QOS_USAGE_THRESHOLD, limit=least, share=round(share, 6)) if share < least else None

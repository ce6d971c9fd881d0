"""When a limit lets a waiting job go: running jobs that count against it are ended one by one, each at its time limit.

Asked by `bireme why` about a job that only limits keep. It is the latest moment for what runs now, and says nothing of
jobs that start in between, nor of resources. A budget of past usage is not foretold: what running jobs add to it is not
known. Invariant: with the named jobs gone, and nobody new, `blocks` lets the job go at that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bireme.core.accounting.usage import Usages
from bireme.core.limits.asks import Ask
from bireme.core.limits.checks import blocks
from bireme.core.limits.ledger import Holding, Ledger
from bireme.core.limits.rules import JobRules, Measure

_GIVEN_BACK = frozenset(measure.name.lower() for measure in (Measure.JOBS, Measure.TRES, Measure.RUN_MINUTES))


@dataclass(frozen=True, slots=True)
class Relief:
    at: float
    by: tuple[int, ...]
    """The jobs whose end it takes, the last one last."""


def relief(rules: JobRules, ask: Ask, ledger: Ledger, usage: Usages, now: float) -> Relief | None:
    """When, and by whose ends, the limits in the way leave room; None: nothing that runs, with a time limit, makes room
    under every one of them."""
    before = blocks(rules, ask, ledger, usage, now)
    if not before or any(str(why.fact("measure")) not in _GIVEN_BACK for why in before):
        return None
    draft, helped = ledger.draft(), list[int]()
    for at, job_id, holding in sorted(_ends(rules, ledger), key=lambda each: each[:2]):
        draft.release(holding)
        after = blocks(rules, ask, draft, usage, max(now, at))
        if after != before:
            helped.append(job_id)
        if not after:
            return Relief(max(now, at), tuple(helped))
        before = after
    return None


def _ends(rules: JobRules, ledger: Ledger) -> Iterator[tuple[int, int, Holding]]:
    holders = {rule.holder for rule in rules.to_start}
    for job_id, holding in ledger.holdings.items():
        if holding.ends_at is not None and not holders.isdisjoint(holding.holders):
            yield holding.ends_at, job_id, holding

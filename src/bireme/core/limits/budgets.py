"""Budgets that run out while jobs run: GrpTRESMins and GrpWall without `safe` end them, as Slurm does.

With AccountingStorageEnforce=safe a job starts only if its budget pays for all of its time, and none is ended here.
Asked by `core/jobs/due.py`. Usage between two events has a closed form, so the moment is computed, not looked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from bireme.core.accounting.usage import WALL, Meter, Usages
from bireme.core.limits.ledger import MINUTE_S
from bireme.core.limits.rules import Measure, Rule, Rulebook
from bireme.core.model.jobs import Job, Running
from bireme.core.model.reasons import Reason, ReasonKind

_EASING = frozenset(measure.name.lower() for measure in (Measure.MINUTES, Measure.RUN_MINUTES, Measure.WALL))


def eases(why: Reason) -> bool:
    """Whether time alone may take this reason away."""
    return why.fact("measure") in _EASING or why.kind is ReasonKind.QOS_USAGE_THRESHOLD


def spends(rules: Rulebook) -> bool:
    """Whether running jobs can run out of a budget at all."""
    return rules.enforced and "safe" not in rules.settings.accounting_enforce


def runs_out_at(rules: Rulebook, usage: Usages, job: Job, phase: Running) -> tuple[float, Rule] | None:
    """When the first of the job's budgets is used up by all that now run on it, and which; None: never."""
    found = list(_ends(rules, usage, job, phase))
    return min(found, key=lambda end: end[0], default=None)


def _ends(rules: Rulebook, usage: Usages, job: Job, phase: Running) -> Iterator[tuple[float, Rule]]:
    charged = {name for name, rate in usage.charges[job.id].rates if rate} if job.id in usage.charges else set()
    for rule in rules.for_job(job.spec, phase.allocation.partition).to_start:
        if rule.measure is Measure.MINUTES and rule.tres in charged:  # others do not use this one up
            at = _reached_at(usage, rule, rule.tres, rule.limit * MINUTE_S)
        elif rule.measure is Measure.WALL:
            at = _reached_at(usage, rule, WALL, rule.limit)
        else:
            continue
        if at is not None:
            yield at, rule


def _reached_at(usage: Usages, rule: Rule, name: str, limit: float) -> float | None:
    """When the meter's usage (u at its time, rate r, half-life h) comes to the limit."""
    meter = _meter(usage, rule)
    if meter is None or not meter.rates.get(name):
        return None
    used, rate = meter.used.get(name, 0.0), meter.rates[name]
    if used >= limit:
        return meter.at
    half_life = usage.half_life_s if meter.decays else None
    if half_life is None:
        return meter.at + (limit - used) / rate
    highest = rate * half_life / math.log(2)  # where what is added and what decays are equal
    if highest <= limit:
        return None
    return meter.at - half_life * math.log2((highest - limit) / (highest - used))


def _meter(usage: Usages, rule: Rule) -> Meter | None:
    kind, name = rule.holder
    return usage.associations.get(int(name)) if kind == "association" else usage.qos.get(name)

"""Whether a job passes its rules, and if not, every rule in its way with the numbers.

Called by the planner between the gates and the fit, and once more with the shares that were found; by submission for
what is refused at once. Reads a ledger (or a draft of one) and the meters of past usage; changes nothing.
Invariant: a job that `blocks` lets go, with the shares it will hold, exceeds none of its limits by starting.
"""

from __future__ import annotations

from collections.abc import Callable

from bireme.core.accounting.usage import WALL, Usages
from bireme.core.limits.asks import Ask
from bireme.core.limits.ledger import MINUTE_S, Ledger, Tally
from bireme.core.limits.rules import OF_THE_JOB_ALONE, Holder, JobRules, Measure, Rule
from bireme.core.model.reasons import Reason, reason

_ALONE = frozenset(measure.name.lower() for measure in OF_THE_JOB_ALONE)
Excess = tuple[float, float] | None
"""(used already, asked for) where a rule blocks."""


def blocks(rules: JobRules, ask: Ask, ledger: Ledger, usage: Usages, now: float) -> tuple[Reason, ...]:
    """Every rule for which the job may not start now, in Slurm's order."""
    found = []
    for rule in rules.to_start:
        excess = _CHECKS[rule.measure](_Case(rule, rules, ask, ledger.tally(rule.holder), ledger, usage, now))
        if excess is not None:
            found.append(_blocked(rule, *excess))
    return tuple(found)


def never(rules: JobRules, ask: Ask) -> tuple[Reason, ...]:
    """Rules that the job breaks even if it were the only one: what DenyOnLimit refuses."""
    found = []
    for rule in rules.to_start:
        if rule.measure in OF_THE_JOB_ALONE:
            excess = _CHECKS[rule.measure](_Case(rule, rules, ask, Tally(), Ledger(), Usages(), 0.0))
        else:
            excess = _alone(rule, ask)
        if excess is not None:
            found.append(_blocked(rule, *excess))
    return tuple(found)


def full(rules: JobRules, count: int, ledger: Ledger) -> tuple[Reason, ...]:
    """Limits on how many may wait and run that so many more jobs would break."""
    return tuple(
        _blocked(rule, ledger.tally(rule.holder).submitted, count)
        for rule in rules.to_submit
        if ledger.tally(rule.holder).submitted + count > rule.limit
    )


def about_the_job_alone(why: Reason) -> bool:
    """A limit that the job breaks whatever others do: only a change of the job or of the limit helps."""
    return why.fact("measure") in _ALONE


class _Case:
    """A rule and what it is held against."""

    __slots__ = ("ask", "ledger", "now", "rule", "rules", "tally", "usage")

    def __init__(
        self, rule: Rule, rules: JobRules, ask: Ask, tally: Tally, ledger: Ledger, usage: Usages, now: float
    ) -> None:
        self.rule, self.rules, self.ask, self.tally = rule, rules, ask, tally
        self.ledger, self.usage, self.now = ledger, usage, now

    @property
    def asked(self) -> int:
        return self.ask.tres.get(self.rule.tres, 0)

    @property
    def minutes(self) -> float:
        """What the job uses if it runs to its limit."""
        return self.asked * self.ask.seconds / MINUTE_S if self.asked else 0.0


def _jobs(case: _Case) -> Excess:
    return (case.tally.jobs, 1) if case.tally.jobs >= case.rule.limit else None


def _tres(case: _Case) -> Excess:
    used = case.tally.tres.get(case.rule.tres, 0)
    return (used, case.asked) if case.asked and used + case.asked > case.rule.limit else None


def _run_minutes(case: _Case) -> Excess:
    if not case.asked or not case.rules.usage_factor:
        return None
    committed = case.tally.minutes_to_come(case.rule.tres, case.now)
    wanted = case.minutes * case.rules.usage_factor
    return (committed, wanted) if committed + wanted > case.rule.limit else None


def _minutes(case: _Case) -> Excess:
    """A budget: past usage alone, or (`safe`) with all that running jobs and this one may still use."""
    if not case.asked:
        return None
    used = _metered(case.usage, case.rule.holder, case.rule.tres, case.now) / MINUTE_S
    if used >= case.rule.limit:
        return used, case.minutes
    if "safe" not in case.ledger.rules.settings.accounting_enforce:
        return None
    used += case.tally.minutes_to_come(case.rule.tres, case.now)
    wanted = case.minutes * case.rules.safe_factor if case.rules.safe_factor else 0.0
    return (used, wanted) if used + wanted > case.rule.limit else None


def _wall(case: _Case) -> Excess:
    used = _metered(case.usage, case.rule.holder, WALL, case.now)
    return (used, case.ask.seconds) if used >= case.rule.limit else None


def _metered(usage: Usages, holder: Holder, tres: str, now: float) -> float:
    if holder[0] == "association":
        return usage.of_association(int(holder[1]), tres, now)
    return usage.of_qos(holder[1], tres, now)


def _alone(rule: Rule, ask: Ask) -> Excess:
    """A limit on everybody together that one job alone would break."""
    asked = ask.tres.get(rule.tres, 0)
    if rule.measure is Measure.TRES:
        return (0, asked) if asked > rule.limit else None
    if rule.measure in (Measure.MINUTES, Measure.RUN_MINUTES) and asked:
        minutes = asked * ask.seconds / MINUTE_S
        return (0, minutes) if minutes > rule.limit else None
    return (0, 1) if rule.measure is Measure.JOBS and rule.limit < 1 else None


_CHECKS: dict[Measure, Callable[[_Case], Excess]] = {
    Measure.JOBS: _jobs,
    Measure.TRES: _tres,
    Measure.RUN_MINUTES: _run_minutes,
    Measure.MINUTES: _minutes,
    Measure.WALL: _wall,
    Measure.JOB_TRES: lambda case: (0, case.asked) if case.asked > case.rule.limit else None,
    Measure.JOB_NODE_TRES: lambda case: _on_a_node(case),
    Measure.JOB_MINUTES: lambda case: (0, case.minutes) if case.minutes > case.rule.limit else None,
    Measure.JOB_WALL: lambda case: (0, case.ask.seconds) if case.ask.seconds > case.rule.limit else None,
    Measure.JOB_MIN_TRES: lambda case: (0, case.asked) if case.asked < case.rule.limit else None,
}


def _on_a_node(case: _Case) -> Excess:
    most = case.ask.most_on_a_node.get(case.rule.tres, 0)
    return (0, most) if most > case.rule.limit else None


def _blocked(rule: Rule, used: float, asked: float) -> Reason:
    facts: dict[str, str | int | float] = {
        "where": rule.where,
        "limit": rule.limit,
        "used": _whole(used),
        "asked": _whole(asked),
        "measure": rule.measure.name.lower(),
    }
    if rule.tres:
        facts["tres"] = rule.tres
    return reason(rule.kind, **facts)


def _whole(amount: float) -> int | float:
    """Numbers for people: minutes to one place, infinite as it is."""
    return amount if isinstance(amount, int) else round(amount, 1)

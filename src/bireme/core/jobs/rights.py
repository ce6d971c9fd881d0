"""Who may ask for what when a job is submitted: the rule of each field of a JobSpec (`model/field_rules`), applied.

As Slurm has it: a priority that an ordinary user gives is passed over (here that is said), a nice value that raises is
refused, and so is what operators write. Called by `submission`; what may be changed later, and by whom, is decided in
`requests`. Invariant: what only operators may give is refused to everybody else, whatever field it is.
"""

from __future__ import annotations

from dataclasses import fields

from bireme.core.model.field_rules import Giver
from bireme.core.model.jobs import RULES, JobSpec
from bireme.core.model.refusals import Caller, Refusal, Why

_GIVEN_BY_OPERATORS = tuple(name for name, rule in RULES.items() if rule.giver is Giver.OPERATOR)
_DEFAULTS = {each.name: each.default for each in fields(JobSpec)}


def within_rights(caller: Caller, spec: JobSpec) -> JobSpec:
    """What the caller may ask for of it. Raises Refusal."""
    if caller.admin:
        return spec
    if spec.nice < 0:
        hint = f"only an operator may raise a job's place in the queue: --nice={spec.nice} is below 0"
        raise Refusal(Why.INVALID_NICE, hint)
    for name in _GIVEN_BY_OPERATORS:
        if getattr(spec, name) != _DEFAULTS[name]:
            raise Refusal(Why.ACCESS_DENIED, f"only an operator may give {name}")
    if spec.priority is None:
        return spec
    return spec.revised(priority=None, ignored=(*spec.ignored, "priority"))


def passed_over(caller: Caller, spec: JobSpec) -> str:
    """What a submission is told about that it asked for and does not get; empty: nothing."""
    if caller.admin or spec.priority is None:
        return ""
    return "--priority is accepted but not applied: only an operator may set it; it is computed"

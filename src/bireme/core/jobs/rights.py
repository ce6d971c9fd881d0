"""Who may ask for what when a job is submitted: the rule of each field of a JobSpec (`model/field_rules`), applied.

As Slurm has it: a priority that an ordinary user gives is passed over (here that is said), a nice value that raises is
refused, and so is what operators write. Called by `submission`, and by `requests` for changes of jobs that exist.
Invariant: what only operators may give is refused to everybody else, whatever field it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from bireme.core.model.field_rules import Giver
from bireme.core.model.jobs import RULES, JobSpec
from bireme.core.model.refusals import Caller, Refusal, Why

_DEFAULTS = {each.name: each.default for each in fields(JobSpec)}


def _given_by(giver: Giver) -> tuple[str, ...]:
    return tuple(name for name, rule in RULES.items() if rule.giver is giver)


_OPERATORS, _LOWERING, _PASSED_OVER = map(_given_by, (Giver.OPERATOR, Giver.LOWERING, Giver.PASSED_OVER))


def within_rights(caller: Caller, spec: JobSpec) -> JobSpec:
    """What the caller may ask for of it. Raises Refusal."""
    if caller.admin:
        return spec
    for name in _LOWERING:
        if getattr(spec, name) < _DEFAULTS[name]:
            hint = f"only an operator may raise a job's place in the queue: --{name}={getattr(spec, name)} is below 0"
            raise Refusal(Why.INVALID_NICE, hint)
    for name in _OPERATORS:
        if getattr(spec, name) != _DEFAULTS[name]:
            raise Refusal(Why.ACCESS_DENIED, f"only an operator may give {name}")
    names = _not_applied(spec)
    return spec.revised(**{name: _DEFAULTS[name] for name in names}, ignored=(*spec.ignored, *names))


def passed_over(caller: Caller, spec: JobSpec) -> str:
    """What a submission is told about that it asked for and does not get; empty: nothing."""
    said = [
        f"--{name} is accepted but not applied: only an operator may set it; it is computed"
        for name in _not_applied(spec)
    ]
    return "" if caller.admin else "; ".join(said)


def check_changes(caller: Caller, spec: JobSpec, changes: Mapping[str, Any]) -> None:
    """A change of a job that exists, by the same rules. Raises Refusal."""
    if caller.admin:
        return
    raised = [name for name in _LOWERING if changes.get(name, getattr(spec, name)) < getattr(spec, name)]
    if raised or changes.keys() & _OPERATORS or any(changes.get(name) for name in _PASSED_OVER):
        raise Refusal(Why.ACCESS_DENIED, "only an operator may raise a priority")


def _not_applied(spec: JobSpec) -> tuple[str, ...]:
    """What an ordinary user may give, and does not get."""
    return tuple(name for name in _PASSED_OVER if getattr(spec, name) != _DEFAULTS[name])

"""What limits say to a job that comes in: refuse it at once, or give it the time limit that its QOS allows.

Called by `submission` and `requests.update`. Most limits let a job wait; refused are those that would have too many
jobs waiting (MaxSubmitJobs), those that break a limit all by themselves under a QOS with DenyOnLimit, licences that
are not there, and a QOS that wants a reservation. Which limits there are is `core/limits`.
"""

from __future__ import annotations

from dataclasses import replace

from bireme.core.explain.wording import sentence
from bireme.core.limits.asks import ask_of
from bireme.core.limits.checks import full, never
from bireme.core.limits.ledger import Ledger, Place
from bireme.core.limits.licences import parse_licences, problem_with
from bireme.core.limits.rules import Measure
from bireme.core.model.accounts import QosFlag
from bireme.core.model.jobs import JobSpec
from bireme.core.model.reasons import Reason
from bireme.core.model.refusals import Refusal, Why
from bireme.core.placement.demand import resolve
from bireme.core.state.state import State


def within_limits(state: State, spec: JobSpec) -> JobSpec:
    """The specification with the longest time that its limits allow, if it asked for none; or a Refusal."""
    check_licences(state, spec)
    qos = state.accounts.qos.get(spec.qos)
    if qos is not None and qos.has(QosFlag.REQUIRES_RESERVATION) and not spec.reservation:
        raise Refusal(Why.INVALID_QOS, f"QOS {qos.name} is for jobs with a --reservation")
    if state.ledger.rules.idle:
        return spec
    spec = _with_time_limit(state, spec)
    check_denials(state, spec)
    return spec


def check_denials(state: State, spec: JobSpec) -> None:
    """Refuses what breaks a limit all by itself under a QOS with DenyOnLimit, in every partition it may use."""
    denials = [_denied(state, spec, partition) for partition in spec.partitions]
    if denials and all(denials):
        raise _against_policy(denials[0])


def check_licences(state: State, spec: JobSpec) -> None:
    asked, settings = spec.resources.licenses, state.config.settings
    problem = problem_with(asked, settings.licenses) if asked else ""
    if problem and not (settings.policy.takes_any_licences and parse_licences(asked) is not None):
        raise Refusal(Why.INVALID_LICENSES, problem)


def take_place(ledger: Ledger, spec: JobSpec) -> None:
    """Counts one more submission in a draft, or refuses it: there are as many as may wait and run."""
    partition = next(iter(spec.partitions), "")
    rules = ledger.rules.for_job(spec, partition)
    count = len(spec.array.task_ids) if spec.array else 1
    too_many = full(rules, count, ledger)
    if too_many:
        raise _against_policy(too_many)
    ledger.queue(Place(rules.queues, count))


def _with_time_limit(state: State, spec: JobSpec) -> JobSpec:
    if spec.time_limit_given:
        return spec
    name = next(iter(spec.partitions), "")
    rules = state.ledger.rules.for_job(spec, name)
    walls = [rule.limit for rule in rules.to_start if rule.measure is Measure.JOB_WALL]
    partition = state.partitions[name]
    if not walls or partition.default_time_s is not None:
        return spec  # a DefaultTime counts as asked for, even where it is too long
    longest = min(walls) if partition.max_time_s is None else min(*walls, partition.max_time_s)
    return replace(spec, time_limit_s=longest, time_limit_given=True)


def _denied(state: State, spec: JobSpec, name: str) -> tuple[Reason, ...]:
    partition = state.partitions[name]
    rules = state.ledger.rules.for_job(spec, name)
    if not rules.deny:
        return ()
    settings = state.config.settings
    return never(rules, ask_of(spec, partition, resolve(spec, partition, settings), settings))


def _against_policy(reasons: tuple[Reason, ...]) -> Refusal:
    """Slurm's word for the first of the limits, its sentence, and the numbers of all of them."""
    return Refusal(Why.ACCOUNTING_POLICY, " ".join(map(sentence, reasons)), remark=reasons[0].kind)

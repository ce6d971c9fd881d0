"""SchedulerType, SchedulerParameters and PreemptParameters as a Policy. What else these say is told by `parameters`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bireme.core.model.policy import Policy, Preemption
from bireme.core.placement.scores import POLICIES
from bireme.slurm.conf.values import whole
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.times import Infinite, parse_time_limit

_MINUTE_S = 60.0


def _limit(text: str) -> int | None:
    """0 is Slurm's word for no limit."""
    return whole(text) or None


def _placement(text: str) -> str:
    name = text.strip().lower()
    if name not in POLICIES:
        raise SlurmSyntaxError(f"there are {', '.join(POLICIES)}")
    return name


def _starts(text: str) -> int:
    """0 is no limit: a pass then ends after Bireme's own."""
    return whole(text) or Policy().starts_max


_PARAMETERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "bf_max_job_test": ("bookings_max", whole),
    "bf_max_job_user": ("bookings_per_user", _limit),
    "bf_max_job_part": ("bookings_per_partition", _limit),
    "bf_max_job_assoc": ("bookings_per_association", _limit),
    "bf_max_job_user_part": ("bookings_per_user_in_partition", _limit),
    "bf_max_job_start": ("starts_max", _starts),
    "bf_min_age_reserve": ("reserves_after_s", lambda text: float(whole(text))),
    "bf_min_prio_reserve": ("reserves_from_priority", whole),
    "bf_job_part_count_reserve": ("reserves_in_partition", _limit),
    "bf_interval": ("interval_s", lambda text: float(whole(text))),
    "bf_resolution": ("resolution_s", lambda text: float(whole(text))),
    "bf_window": ("window_s", lambda text: whole(text) * _MINUTE_S),
    "max_array_tasks": ("array_tasks_max", _limit),
    "max_switch_wait": ("switches_wait_most_s", whole),
    "placement": ("placement", _placement),
    "sched_max_job_start": ("starts_max", _starts),
}
_FLAGS = {
    "allow_zero_lic": "takes_any_licences",
    "assoc_limit_stop": "stops_at_association_limits",
    "bf_one_resv_per_job": "one_slot_per_job",
}
SCHEDULER_WORDS = frozenset(_PARAMETERS) | frozenset(_FLAGS)
"""Of SchedulerParameters, what becomes a part of the policy."""
_OFF = "-1"


def scheduling_policy(raw: Mapping[str, str]) -> Policy:
    """Raises SlurmSyntaxError for a parameter that is not a number."""
    policy = Policy(backfill=_backfills(raw.get("SchedulerType", "sched/backfill")))
    for name, value in _words(raw, "SchedulerParameters"):
        if name == "bf_interval" and value == _OFF:
            policy = replace(policy, backfill=False)
        elif name in _FLAGS:
            flag: dict[str, Any] = {_FLAGS[name]: True}
            policy = replace(policy, **flag)
        elif name in _PARAMETERS:
            field, parse = _PARAMETERS[name]
            policy = replace(policy, **{field: _parsed(name, value, parse)})
    return replace(policy, preemption=_preemption(raw))


def _words(raw: Mapping[str, str], key: str) -> list[tuple[str, str]]:
    """(name, value) of what such a key says."""
    words = (word.strip().partition("=") for word in raw.get(key, "").split(","))
    return [(name.lower(), value) for name, _, value in words if name]


_PREEMPTS_BY = {"preempt/none": "none", "preempt/partition_prio": "partition", "preempt/qos": "qos"}


def _exempt_s(text: str) -> int:
    try:
        exempt = parse_time_limit(text)
    except SlurmSyntaxError as error:
        raise SlurmSyntaxError(f"PreemptExemptTime={text}: {error}") from error
    return 0 if isinstance(exempt, Infinite) or exempt < 0 else exempt


def _preemption(raw: Mapping[str, str]) -> Preemption:
    plugin = raw.get("PreemptType", "preempt/none")
    if plugin not in _PREEMPTS_BY:
        raise SlurmSyntaxError(f"PreemptType={plugin}: there are {', '.join(_PREEMPTS_BY)}")
    words = {word.strip().upper() for word in raw.get("PreemptMode", "OFF").split(",")}
    modes = words - {"WITHIN", "GANG"}
    if not modes <= {"OFF", "CANCEL", "REQUEUE", "SUSPEND"} or len(modes) > 1:
        raise SlurmSyntaxError(f"PreemptMode={raw['PreemptMode']}: use OFF, CANCEL, REQUEUE or SUSPEND,GANG")
    mode = modes.pop() if modes else "OFF"
    if mode == "SUSPEND" and "GANG" not in words:
        raise SlurmSyntaxError("PreemptMode=SUSPEND requires GANG too: PreemptMode=SUSPEND,GANG")
    if _PREEMPTS_BY[plugin] != "none" and mode == "OFF" and "PreemptMode" not in raw:
        raise SlurmSyntaxError(f"PreemptType={plugin} needs a PreemptMode: CANCEL, REQUEUE or SUSPEND,GANG")
    told = {name for name, _ in _words(raw, "SchedulerParameters")}
    told |= {f"preempt_{name}" for name, _ in _words(raw, "PreemptParameters")}  # where newer releases have them
    unsaid = "PreemptType" not in raw and "PreemptMode" not in raw
    return Preemption(
        "services" if unsaid else _PREEMPTS_BY[plugin],
        mode,
        "WITHIN" in words,
        _exempt_s(raw.get("PreemptExemptTime", "0")),
        "preempt_strict_order" in told,
        "preempt_youngest_first" in told,
    )


def _backfills(scheduler: str) -> bool:
    if scheduler not in ("sched/backfill", "sched/builtin"):
        raise SlurmSyntaxError(f"SchedulerType={scheduler}: there are sched/backfill and sched/builtin")
    return scheduler == "sched/backfill"


def _parsed(name: str, value: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(value)
    except SlurmSyntaxError as error:
        raise SlurmSyntaxError(f"SchedulerParameters={name}={value}: {error}") from None

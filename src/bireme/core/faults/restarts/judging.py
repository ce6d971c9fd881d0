"""Whether a job that failed is started again: from why it ended, what was tried before, the rule and the time. Pure.

`inquests` asks, and does what is answered. A cause is the machine's, the program's, a limit's, or nobody knows.
Invariant: a restart is only answered for a cause that another start may not meet, within the rule's budgets; every
answer says why in a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from bireme.core.model.healing.restarts import RSC1_PER_1000_NODE_DAYS, RestartRule, Try
from bireme.core.model.observations import InquestHeld

TOLD = {
    "gpu_out_of_memory": "It ran out of GPU memory, and would again",
    "host_out_of_memory": "It ran out of memory, and would again",
    "shared_memory_full": "Its /dev/shm was full, and would be again",
    "time_limit": "It reached its time limit, and would again",
    "storage_full": "Storage was full: that has to be mended first",
    "storage_quota": "A quota was reached: that has to be mended first",
}
"""Causes that a setting mends, and no restart."""
PASSING = frozenset(
    (
        "nccl_timeout", "nccl_network", "nccl_error", "dead_rank", "hang", "network_unreachable", "port_in_use",
        "rendezvous_failed", "unknown", "node_lost", "pod_lost", "preempted", "",
    )
)  # fmt: skip
"""Causes that need not be the program's, though nothing says that they are the machine's: worth a try."""
SAID_OF_BROKEN_GPUS = frozenset(("cuda_error", "cuda_library_error", "illegal_memory_access", "gpu_unavailable"))
"""Causes that programs name when their GPU breaks under them: theirs, unless it did."""
_TAKEN = frozenset(("pod_lost", "preempted"))
"""Causes of a start that a node has not any more, though nothing is wrong with the node, nor with the job."""
_UNKNOWN = "unknown"
_DAY_S = 86_400
_LONG_ENOUGH_S = 3_600.0
"""A start that ran for so long got somewhere, even if nobody saw it save its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of a start, with what is known of the job."""

    state: str
    """Slurm's word."""
    nodes: tuple[str, ...]
    gpus: frozenset[tuple[str, int | None]] = frozenset()
    """Those that it held, by node and number."""
    lost_node: str = ""
    """The node that was lost, where that ended it."""
    began_at: float = 0.0
    ended_at: float = 0.0
    saved_at: float | None = None
    """When its newest checkpoint was written, by whichever start."""
    lost_gpu_s: float = 0.0
    tries: Sequence[Try] = ()
    memory_mib: int = 0
    """Asked for each node; 0: not known."""
    time_limit_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    restart: bool
    text: str
    cause: str
    suspects: tuple[str, ...] = ()
    """Nodes that the next start had better not have."""
    advice: str = ""
    """What its owner is told would help."""
    not_before: float | None = None


def answer_for(
    end: End,
    seen: InquestHeld,
    rule: RestartRule,
    now: float,
    has_place_without: Callable[[tuple[str, ...]], bool] = bool,
) -> Answer:
    """`has_place_without`: whether there is another place for it than these nodes."""
    cause = cause_of(end, seen)
    found = cause == seen.cause and bool(seen.title)
    said = seen.title if found else _TITLES.get(cause, cause.replace("_", " "))
    if cause in TOLD:
        return Answer(restart=False, cause=cause, text=f"{TOLD[cause]}.", advice=advice_for(cause, end, seen))
    taken = cause in _TAKEN
    machine = seen.is_hardware or (end.state == "NODE_FAIL" and not taken)
    if not (machine or cause in PASSING):
        whose = "the program's own" if seen.who != "platform" else "one that a restart does not mend"
        return Answer(restart=False, cause=cause, text=f"The cause is {whose}: {said}.", advice=seen.advice)
    stop = _exhausted(end, cause, said, rule, now)
    if not (stop or taken):
        stop = _not_the_hardware(end, cause, said, machine, rule)
    if stop:
        return Answer(restart=False, cause=cause, text=stop, advice=seen.advice)
    suspects = _suspects(end, seen) if machine else ()
    if not has_place_without(suspects):  # the same one is better than none
        suspects = ()
    without = f", without {', '.join(suspects)}" if suspects else ""
    return Answer(
        restart=True,
        cause=cause,
        text=f"{said}: started again{without}.",
        suspects=suspects,
        not_before=_not_before(end, rule, now),
    )


def cause_of(end: End, seen: InquestHeld) -> str:
    """What the state says by itself counts where nobody could look, or nothing but a guess was found."""
    if seen.cause and seen.cause != _UNKNOWN and seen.confidence in _SURE:
        return seen.cause
    return _BY_STATE.get(end.state, _UNKNOWN)


_SURE = ("high", "medium")
_BY_STATE = {"NODE_FAIL": "node_lost", "TIMEOUT": "time_limit", "OUT_OF_MEMORY": "host_out_of_memory"}
_TITLES = {"node_lost": "A node was lost", _UNKNOWN: "Nothing explains its end"}


# -- what keeps it from being started again --------------------------------------------------------------------------


def most_for(rule: RestartRule, nodes: int) -> int:
    """How often the rule lets a job of so many nodes be started again: failures that are nobody's fault come with every
    node, and three standard deviations more than the expected number of them are still chance."""
    expected = RSC1_PER_1000_NODE_DAYS / 1_000 * nodes * rule.within_s / _DAY_S
    return rule.most and rule.most + int(expected + 3.0 * sqrt(expected))


def is_spent(rule: RestartRule, nodes: int, tries: Iterable[Try], now: float) -> bool:
    """Whether a job of so many nodes was started again as often as the rule lets it of late."""
    return sum(each.restarted for each in tries if now - each.at <= rule.within_s) >= most_for(rule, nodes)


def _exhausted(end: End, cause: str, said: str, rule: RestartRule, now: float) -> str:
    """The rule's budgets."""
    recent = [each for each in end.tries if now - each.at <= rule.within_s]
    if is_spent(rule, len(end.nodes), end.tries, now):
        restarted = sum(each.restarted for each in recent)
        return f"{said}; it was started again {restarted} times within {_span(rule.within_s)}: no more by itself."
    lost = (end.lost_gpu_s + sum(each.lost_gpu_s for each in recent)) / 3600
    if rule.lost_gpu_hours is not None and lost > rule.lost_gpu_hours:
        return f"{said}; {lost:.1f} GPU-hours of its work were lost within {_span(rule.within_s)}: no more by itself."
    if cause == _UNKNOWN and len(_fruitless(end, cause)) >= rule.unexplained:
        return "Nothing explains its end, and it ended so before, having got nowhere since."
    return ""


def _not_the_hardware(end: End, cause: str, said: str, machine: bool, rule: RestartRule) -> str:
    """The same cause on other hardware, and no progress in between."""
    for before in _fruitless(end, cause):
        elsewhere = not set(before.nodes) & set(end.nodes)
        if elsewhere or not machine:
            where = f"on {', '.join(before.nodes[:3])}, now on {', '.join(end.nodes[:3])}" if elsewhere else "again"
            return f"{said}: {where}, and nothing was saved in between. It is not the hardware."
    return ""


def _fruitless(end: End, cause: str) -> list[Try]:
    """Earlier starts that ended of the same cause, since when it has got nowhere."""
    if end.ended_at - end.began_at >= _LONG_ENOUGH_S:
        return []
    return [
        each for each in end.tries if each.cause == cause and not (end.saved_at is not None and end.saved_at > each.at)
    ]


def _not_before(end: End, rule: RestartRule, now: float) -> float | None:
    """At once the first time; later each time that it has got nowhere."""
    again = [each for each in end.tries if not (end.saved_at is not None and end.saved_at > each.at)]
    if not again or not rule.backoff_s:
        return None
    return now + min(rule.backoff_most_s, float(rule.backoff_s << min(len(again) - 1, 16)))


def _suspects(end: End, seen: InquestHeld) -> tuple[str, ...]:
    named = seen.node or end.lost_node
    if named in end.nodes:
        return (named,)
    return end.nodes if len(end.nodes) == 1 else ()


# -- what would help -------------------------------------------------------------------------------------------------


def advice_for(cause: str, end: End, seen: InquestHeld) -> str:
    """The setting that would fit, with a number where there is one to say."""
    if cause == "time_limit" and end.time_limit_s:
        minutes = max(1, -(-end.time_limit_s * 3 // 2 // 60))
        return (
            f"It had {_span(end.time_limit_s)}. Submit it with a longer limit (--time={minutes} is half as much "
            "again), or let it go on from its checkpoint: --signal=B:USR1@120 warns the script before the limit."
        )
    if cause == "host_out_of_memory" and end.memory_mib:
        more = -(-end.memory_mib * 3 // 2 // 1024)
        return f"It had {end.memory_mib} MiB on each node: --mem={more}G is half as much again."
    if cause == "gpu_out_of_memory":
        said = f"{seen.summary} " if seen.summary else ""
        return f"{said}{seen.advice or 'A smaller batch, or a GPU with more memory.'}"
    return seen.advice or "Ask for more of what it ran out of."


def _span(seconds: int) -> str:
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count, rest = divmod(seconds, length)
        if count and not rest:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{seconds} s"

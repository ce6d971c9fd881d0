"""One sentence for each kind of reason. `sentence` never fails: a kind without wording gives Slurm's word."""

from __future__ import annotations

from math import inf

from bireme.core.model.reasons import Reason, ReasonKind

UNTOLD = "Slurm has taken it and has not told more of it yet: ask again in a moment."
TEMPLATES: dict[ReasonKind, str] = {
    ReasonKind.NONE: "The planner has not looked at it yet.",
    ReasonKind.PRIORITY: "Jobs before it in the queue wait too.",
    ReasonKind.RESOURCES: "It needs {nodes_needed} node(s) of partition {partition}; {nodes_able} are free for it now.",
    ReasonKind.DEPENDENCY: "It waits for {on}.",
    ReasonKind.DEPENDENCY_NEVER_SATISFIED: "What it waits for can never happen: {on}.",
    ReasonKind.BEGIN_TIME: "Its begin time has not come.",
    ReasonKind.JOB_HELD_USER: "Its owner holds it: scontrol release.",
    ReasonKind.JOB_HELD_ADMIN: "An operator holds it.",
    ReasonKind.JOB_ARRAY_TASK_LIMIT: "{limit} tasks of its array may run at once, and {running} do.",
    ReasonKind.PARTITION_DOWN: "Partition {partition} is down.",
    ReasonKind.PARTITION_INACTIVE: "Partition {partition} is inactive.",
    ReasonKind.PARTITION_NODE_LIMIT: "Partition {partition} is for jobs of {bound} {limit} nodes.",
    ReasonKind.QOS_USAGE_THRESHOLD: "Its QOS asks for a fair share of {limit}, and its user's is {share}.",
    ReasonKind.MAX_MEM_PER_LIMIT: "Partition {partition} allows a job {limit} MiB on a node, and it asks for {asked}.",
    ReasonKind.PARTITION_TIME_LIMIT: "Partition {partition} allows at most {limit_s_clock}.",
    ReasonKind.REQUIRED_NODE_NOT_AVAILABLE: "Nodes it needs are down, drained or gone: {unavailable}.",
    ReasonKind.LAUNCH_FAILED: "It could not be started ({tries} tries): {why}",
    ReasonKind.LAUNCH_FAILED_HELD: "It could not be started and is held after {tries} tries: {why}",
    ReasonKind.REQUEUED_HELD: "It was requeued and is held: scontrol release.",
    ReasonKind.SPECIAL_EXIT: "Its exit code is one of RequeueExitHold: scontrol release, once it is looked after.",
    ReasonKind.NODE_DOWN: "Node {node} was lost.",
    ReasonKind.NON_ZERO_EXIT: "It exited with code {code}.",
    ReasonKind.RAISED_SIGNAL: "Signal {signal} ended it.",
    ReasonKind.TIME_LIMIT: "It ran into its time limit.",
    ReasonKind.OUT_OF_MEMORY: "It used more memory than it asked for.",
    ReasonKind.PREEMPTED: "It was ended so that job {by} can run.",
    ReasonKind.IDLE_GPUS: "{which} below {below}% for {idle_s_clock} (policy {policy} [{rule}]).",
    ReasonKind.GUARDED: "{jobs} job(s) that would make way for it are kept by {by}.",
    ReasonKind.DEADLINE: "Its deadline passed.",
    ReasonKind.RESERVATION: "Reservation {name} has not begun.",
    ReasonKind.BAD_CONSTRAINTS: "Reservation {reservation} has no {nodes_needed} such node(s) of {partition} for it.",
    ReasonKind.RESERVATION_DELETED: "Reservation {name} is gone: scontrol release, to run without it.",
}


_OVER = {
    "jobs": "{where} lets {limit} jobs run at once, and {used} do.",
    "submitted": "{where} lets {limit} jobs wait and run at once; {used} do, and {asked} more came.",
    "tres": "{where} allows {limit} {tres} at once; {used} are held, and it needs {asked}.",
    "run_minutes": "{where} allows {limit} minutes of {tres} to come; running jobs may use {used}, and it {asked}.",
    "minutes": "{where} has a budget of {limit} {tres} minutes; {used} are used or promised, and it may use {asked}.",
    "wall": "{where} has {limit_clock} of jobs, and {used_clock} are used.",
    "job_tres": "{where} allows a job {limit} {tres}, and it asks for {asked}.",
    "job_node_tres": "{where} allows a job {limit} {tres} on a node, and it needs {asked}.",
    "job_minutes": "{where} allows a job {limit} minutes of {tres}, and it may use {asked}.",
    "job_wall": "{where} allows a job {limit_clock}, and its time limit is {asked_clock}.",
    "job_min_tres": "{where} wants at least {limit} {tres} of a job, and it asks for {asked}.",
}
"""Of limits, whose kinds are many and whose facts are alike: by their fact `measure`."""


CLOCK = "_clock"
"""Behind the name of a fact in a template: the seconds as a time."""


class _Facts(dict[str, str | int | float]):
    def __missing__(self, key: str) -> str:
        seconds = self.get(key.removesuffix(CLOCK))
        return clock(seconds) if key.endswith(CLOCK) and isinstance(seconds, int | float) else "?"


def clock(seconds: float) -> str:
    """As `--time` takes it: 1-06:30:00."""
    if seconds == inf:
        return "UNLIMITED"
    days, rest = divmod(int(seconds), 86_400)
    text = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def counted(number: int, noun: str, nouns: str = "") -> str:
    """`1 GPU`, `2 GPUs`, `0 GPUs`. `nouns`: where there is more to the plural than an s."""
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"


_NEVER_BEGAN = (ReasonKind.NON_ZERO_EXIT, ReasonKind.RAISED_SIGNAL)
_TOLD_AS_IT_IS = (ReasonKind.SYSTEM_FAILURE, ReasonKind.OTHER)
RESERVED = "Nodes it needs are reserved for others while it would run."
UNASKED = (
    "A service's replica is not put on {unasked}: the agent there is of an earlier release and would not ask whether "
    "it is well. When the node is idle, restart its agent (bireme down, bireme up)."
)


def sentence(reason: Reason) -> str:
    if reason.kind is ReasonKind.NODE_DOWN and reason.fact("why"):
        return f"Node {reason.fact('node')} lost it: {reason.fact('why')}."
    if reason.kind in _NEVER_BEGAN and reason.fact("why"):
        return f"Its script never ran. {reason.fact('why')}."
    if reason.kind in _TOLD_AS_IT_IS and (why := str(reason.fact("why") or "")):
        return f"{why[:1].upper()}{why[1:].removesuffix('.')}."
    teller = reason.fact("told_by")
    if teller is not None:
        word, more = reason.fact("word") or reason.kind.value, reason.fact("said")
        return f"{teller} says {word}" + (f": {more}." if more else ".")
    if reason.fact("untold") is not None:
        return UNTOLD
    if reason.fact("reserved") is not None:
        return RESERVED
    if (fenced := reason.fact("fenced")) and reason.fact("unavailable") == "":
        return f"GPUs that it needs are out of service: {fenced}."
    template = TEMPLATES.get(reason.kind) or _OVER.get(str(reason.fact("measure")))
    if template is None:
        return f"{reason.kind}."
    unasked = reason.fact("unasked")
    if unasked is not None and reason.fact("unavailable") == "":
        return UNASKED.format(unasked=unasked)
    text = template.format_map(_Facts(reason.facts))
    return text[:1].upper() + text[1:] + (f" {UNASKED.format(unasked=unasked)}" if unasked is not None else "")

"""Whether a job has stopped getting on, by what it did before: told in less than a minute, and not of an evaluation.

`looked` takes one look at a job into its `Pulse`; `judge` says what that comes to. A look sees signs of life: its
output grew, its programs read or wrote, its GPUs calculated, its links carried something. Each sign counts above a
tenth of what is usual for this very job, so that a hanging job's heartbeat to a tracker is none. Quiet is a look
without any.

A job hangs when it has been quiet for `hang_s`, and for twice as long as it ever was before and went on after it (a
checkpoint, an evaluation on CPUs). While a rank outside of the collective keeps CPUs busy, nobody can tell a hang from
work on CPUs: then it takes eight times as long. Delay: `hang_s` and one look. Pure.

Invariant: a job that was never seen at work, one of which a figure is missing, and one whose GPUs are free hang not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bireme.core.diagnosis.model import Line
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place, Quote, Trouble

DETECTOR = "hang"
_LEARNED_LOOKS = 6
_LEARNED_S = 30.0
"""So long it must have been seen at work."""
_DOUBT = 8.0
_SHARE = 0.1
"""Of the usual: what is below is no sign of life."""
_IO_FLOOR_KIB, _LINKS_FLOOR_KIB, _WORK_FLOOR, _CPU_FLOOR = 64.0, 1024.0, 1.0, 0.05
_IDLE_CPUS = 0.1
_SPINS_PERCENT = 90.0
"""A kernel that waits for other ranks keeps its GPU "used" all the time."""
_HOLDS_SHARE = 0.5
_FORGETS = 0.2
_MOST_STACKS = 16
_LONGEST = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLook:
    """One task (a rank, or the batch script). None: not measured."""

    rank: int | None = None
    written_b: float | None = None
    """How far its outputs have come."""
    io_kib_s: float | None = None
    cpus: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLook:
    """One GPU that the job has alone. `work`: the busiest of its pipes and its memory, in percent."""

    name: str
    """For people: `n1 GPU 3`."""
    rank: int | None = None
    work: float | None = None
    links_kib_s: float | None = None
    util: float | None = None
    holds_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    at: float
    tasks: Mapping[str, TaskLook]
    gpus: Mapping[str, GpuLook]
    gpus_held: int
    """How many it has; of one that is missing in `gpus` nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What is known of a job's signs of life."""

    newest: Look | None = None
    usual: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By who and which sign: what it is when there is some."""
    seen_at: Mapping[str, float] = field(default_factory=dict)
    """By who: when a sign was last seen."""
    alive_at: float = 0.0
    """When any was, or nothing was known."""
    longest_quiet_s: float = 0.0
    """Of times that were followed by signs of life."""
    lively_looks: int = 0
    lively_s: float = 0.0
    is_quiet: bool = False
    holds_mib: float = 0.0
    """The most that its GPUs held together."""


def looked(pulse: Pulse, look: Look, gap_s: float) -> Pulse:
    """With one look more, which is newer. `gap_s`: after so long without one, what was in between is not known."""
    before = pulse.newest
    holds = sum(gpu.holds_mib or 0.0 for gpu in look.gpus.values())
    after = replace(pulse, newest=look, holds_mib=max(pulse.holds_mib, holds))
    if before is None or look.at - before.at > gap_s or not _is_known(look):
        return replace(after, alive_at=look.at, is_quiet=False)
    usual, alive = dict(pulse.usual), set[str]()
    for who, sign, level, floor in _signs(before, look):
        mean = usual.get((who, sign), 0.0)
        if level > max(floor, _SHARE * mean):
            alive.add(who)
            usual[who, sign] = level if not mean else mean + _FORGETS * (level - mean)
    if not alive:
        return replace(after, is_quiet=True)
    quiet_s = look.at - pulse.alive_at
    return replace(
        after,
        usual=usual,
        seen_at={**pulse.seen_at, **dict.fromkeys(alive, look.at)},
        alive_at=look.at,
        longest_quiet_s=max(pulse.longest_quiet_s, quiet_s) if pulse.is_quiet else pulse.longest_quiet_s,
        lively_looks=pulse.lively_looks + 1,
        lively_s=pulse.lively_s + min(quiet_s, look.at - before.at),
        is_quiet=False,
    )


def _is_known(look: Look) -> bool:
    """Whether a sign of life of each of its GPUs, and of any task, would have been seen."""
    if len(look.gpus) < look.gpus_held or any(gpu.work is None for gpu in look.gpus.values()):
        return False
    return any(task.written_b is not None or task.io_kib_s is not None for task in look.tasks.values())


def _signs(before: Look, look: Look) -> list[tuple[str, str, float, float]]:
    """(who, which, how much, the least that counts)."""
    found: list[tuple[str, str, float, float]] = []
    for who, task in look.tasks.items():
        earlier = before.tasks.get(who)
        if task.written_b is not None and earlier is not None and earlier.written_b is not None:
            found.append((who, "output", 1.0 if task.written_b != earlier.written_b else 0.0, 0.5))
        if earlier is None:
            found.append((who, "begun", 1.0, 0.5))
        if task.io_kib_s is not None:
            found.append((who, "io", task.io_kib_s, _IO_FLOOR_KIB))
        if not look.gpus_held and task.cpus is not None:
            found.append((who, "cpus", task.cpus, _CPU_FLOOR))
    for who, gpu in look.gpus.items():
        found.append((who, "work", gpu.work or 0.0, _WORK_FLOOR))
        found.append((who, "links", gpu.links_kib_s or 0.0, _LINKS_FLOOR_KIB))
    return found


def judge(place: Place, pulse: Pulse, thresholds: Thresholds) -> list[o.Observation]:
    """`place`: the start of the job."""
    look = pulse.newest
    if look is None or not thresholds.on(DETECTOR) or pulse.lively_looks < _LEARNED_LOOKS:
        return []
    if not pulse.is_quiet:
        return [o.TroubleGone(detector=DETECTOR, place=place, at=look.at, why="it gets on again")]
    quiet_s = look.at - pulse.alive_at
    if pulse.lively_s < _LEARNED_S or not _still_holds(look, pulse):
        return []
    if quiet_s < _patience_s(look, pulse, thresholds):
        return []
    return [o.TroubleSeen(_trouble(place, look, pulse, quiet_s), look.at)]


def _still_holds(look: Look, pulse: Pulse) -> bool:
    """Its programs are on the GPUs still: else it has come to the end of its work, and its script does something."""
    if not look.gpus_held or not pulse.holds_mib:
        return True
    return sum(gpu.holds_mib or 0.0 for gpu in look.gpus.values()) >= _HOLDS_SHARE * pulse.holds_mib


def _patience_s(look: Look, pulse: Pulse, thresholds: Thresholds) -> float:
    wanted = thresholds.hang_s if _is_plain(look) else _DOUBT * thresholds.hang_s
    return max(wanted, 2.0 * pulse.longest_quiet_s)


def _is_plain(look: Look) -> bool:
    """Whether whoever is not waiting in a collective does nothing on CPUs either."""
    outside = [gpu for gpu in look.gpus.values() if gpu.util is None or gpu.util < _SPINS_PERCENT]
    if look.gpus and not outside:
        return True
    ranks = {gpu.rank for gpu in outside}
    tasks = [task for task in look.tasks.values() if not ranks or None in ranks or task.rank in ranks]
    return bool(tasks) and all(task.cpus is not None and task.cpus <= _IDLE_CPUS for task in tasks)


def _trouble(place: Place, look: Look, pulse: Pulse, quiet_s: float) -> Trouble:
    first = _first(look, pulse)
    signs = ["no line of output", "no reading or writing"]
    signs += ["no calculation and no traffic on its GPUs"] if look.gpus else ["no CPU time"]
    told = f"for {quiet_s:.0f} s {', '.join(signs)}; before, it was never quiet for more than "
    return Trouble(
        detector=DETECTOR,
        place=place,
        gravity=Gravity.BROKEN,
        cause="hang",
        title=f"The job hangs since {quiet_s:.0f} s" + (f": {first}" if first else ""),
        since=pulse.alive_at,
        quotes=(Quote(text=f"{told}{pulse.longest_quiet_s:.0f} s", source="series", at=look.at), *_quotes(look)),
        remedy=f"bireme diagnose --stacks {place.job_id} says where its programs stand, on the node.",
        who="you",
        lasts=False,
    )


def _quotes(look: Look) -> Sequence[Quote]:
    each = [
        f"{gpu.name}: util {gpu.util:.0f}%, work {gpu.work or 0.0:.1f}%"
        for gpu in look.gpus.values()
        if gpu.util is not None
    ]
    return [Quote(text="; ".join(each[:8]), source="series", at=look.at)] if each else []


def _first(look: Look, pulse: Pulse) -> str:
    """Who is not where the others are: the rank that the others wait for."""
    outside = [gpu for gpu in look.gpus.values() if gpu.util is not None and gpu.util < _SPINS_PERCENT]
    if outside and len(outside) < len(look.gpus):
        names = ", ".join(f"rank {gpu.rank}" if gpu.rank is not None else gpu.name for gpu in outside[:4])
        return f"{names} {'is' if len(outside) == 1 else 'are'} not in the collective that the others wait in"
    if look.gpus and not outside and len(look.gpus) > 1:
        return "all its GPUs wait in a collective"
    ranks = {task.rank: pulse.seen_at.get(who, 0.0) for who, task in look.tasks.items() if task.rank is not None}
    if len(ranks) < 2:
        return ""
    earliest, *others = sorted(ranks, key=lambda rank: ranks[rank])
    return f"rank {earliest} was quiet first" if ranks[earliest] < ranks[others[0]] else ""


# -- where its programs stand ----------------------------------------------------------------------------------------


def with_stacks(trouble: Trouble, lines: Sequence[Line], problems: Sequence[str], at: float) -> Trouble:
    """With where its programs stand as evidence, and the rank named that stands elsewhere, if one does. `lines`: those
    that compare ranks are of no process. `problems`: why more is not known."""
    apart = [line for line in lines if not line.pid]
    first = [line for line in lines if line.pid and not line.order]  # one thread of each: all of them are not read
    told = [*apart, *first][:_MOST_STACKS]
    quotes = [Quote(text=f"{_who(line)}{line.text}"[:_LONGEST], source="trace", at=at, node=line.node) for line in told]
    quotes += [Quote(text=f"not known: {text}"[:_LONGEST], source="record", at=at) for text in problems[:2]]
    title = f"{trouble.title.partition(': ')[0]}: {apart[0].text}"[:_LONGEST] if apart else trouble.title
    return replace(trouble, title=title, quotes=(*trouble.quotes, *quotes))


def _who(line: Line) -> str:
    return f"rank {line.rank}: " if line.pid and line.rank is not None else ""

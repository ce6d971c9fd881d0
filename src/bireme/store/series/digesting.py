"""Reads the curves of one start of a job and reckons its digest (`core/telemetry/digest`).

Called through `ports.Series.digest`: once when the start is over, and whenever one that runs is asked for. Tasks are
read some at a time, and in longer steps the more there are: a step of ten thousand tasks takes seconds, not memory.
Invariant: nothing is in a digest from before the start had the GPU, or after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from bireme.core.telemetry import digest as d
from bireme.core.telemetry.curves import Asked, Curve, Own
from bireme.core.telemetry.digest import Digest, GpuDigest
from bireme.core.telemetry.metrics import About
from bireme.core.telemetry.subjects import Subject
from bireme.ports import Holding

_MOST_POINTS = 2_000
_LEAST_POINTS = 32
_FIGURES = 4_000_000
"""Of all curves of one sort, as far as steps may be made longer for it."""
_BESIDE_S = 120.0
"""So far before and after its job a task may have been looked at: two of the longest intervals."""
_AT_ONCE = 256
"""Subjects that are read together."""

Read = Callable[[Asked], list[Curve]]
ByMetric = dict[str, Curve]


def made(
    read: Read,
    own: Mapping[Subject, Own],
    measured: Callable[[About], Sequence[Subject]],
    holdings: Sequence[Holding],
    run: tuple[int, int, float, float],
) -> Digest:
    """`own`: its whole GPUs, and when they were its own; `measured` gives the subjects of a sort that are the start's;
    `run` is (job, generation, start, end)."""
    job_id, generation, start, end = run
    of_tasks, of_uses = measured("task"), measured("use")
    step_s = _step(len(of_tasks) + len(of_uses), end - start)

    def curves(subjects: Sequence[Subject], metrics: Sequence[str]) -> dict[Subject, ByMetric]:
        asked = Asked(subjects=(), metrics=metrics, start=start, end=end, step_s=step_s, own=own)
        return _by_subject(read, subjects, asked)

    gpus = {subject.id: found for subject, found in curves(tuple(own), d.GPU_METRICS).items()}
    tasks = {key: found for subject, found in curves(of_tasks, d.TASK_METRICS).items() if (key := _task(subject))}
    in_life = Asked(subjects=(), metrics=d.TASK_TOTALS, start=start - _BESIDE_S, end=end + _BESIDE_S, step_s=step_s)
    for subject, totals in _by_subject(read, of_tasks, in_life).items():
        if key := _task(subject):
            tasks.setdefault(key, {}).update(totals)
    uses: dict[tuple[int, str, int], dict[str, ByMetric]] = defaultdict(dict)
    for subject, found in curves(of_uses, d.USE_METRICS).items():
        if key := _task(subject):
            uses[key][subject.id.partition("@")[2]] = found
    everything = list(tasks.values())
    return Digest(
        job_id,
        generation,
        start,
        end,
        gpus=tuple(_gpu(each, gpus, uses, end) for each in sorted(holdings, key=lambda one: (one.node, one.uuid))),
        steps=d.step_digests(tasks, uses, gpus, start, end),
        cpus=d.level(_together(everything, ("cpu_user", "cpu_system")), start, end),
        memory_mib=d.level(_together(everything, ("memory",)), start, end),
        node_memory_peak_mib=_node_peak(tasks, start, end),
    )


def _step(subjects: int, length_s: float) -> float:
    points = max(_LEAST_POINTS, min(_MOST_POINTS, _FIGURES // max(1, subjects * len(d.TASK_METRICS))))
    return max(1.0, length_s / points)


def _by_subject(read: Read, subjects: Sequence[Subject], asked: Asked) -> dict[Subject, ByMetric]:
    found: dict[Subject, ByMetric] = {}
    for some in _parts(subjects):
        for curve in read(replace(asked, subjects=some)):
            found.setdefault(curve.subject, {})[curve.metric] = curve
    return found


def _parts(subjects: Sequence[Subject]) -> Iterator[Sequence[Subject]]:
    return (subjects[at : at + _AT_ONCE] for at in range(0, len(subjects), _AT_ONCE))


def _task(subject: Subject) -> tuple[int, str, int] | None:
    """(step, node, task) of `JOB.GENERATION.STEP.TASK`, or of its use of a GPU; None: it is of another form."""
    parts = subject.id.partition("@")[0].split(".")
    try:
        return int(parts[2]), subject.node, int(parts[3])
    except (IndexError, ValueError):
        return None


def _gpu(
    held: Holding, gpus: dict[str, ByMetric], uses: dict[tuple[int, str, int], dict[str, ByMetric]], run_end: float
) -> GpuDigest:
    end = run_end if held.end is None else min(held.end, run_end)
    start = min(held.start, end)
    if held.shared:
        own = [cards[held.uuid] for cards in uses.values() if held.uuid in cards]
        return d.shared_gpu(held.node, held.uuid, start, end, own)
    return d.whole_gpu(held.node, held.uuid, start, end, gpus.get(held.uuid, {}))


def _together(tasks: Sequence[ByMetric], metrics: Sequence[str]) -> Curve | None:
    return d.summed([found[name] for found in tasks for name in metrics if name in found])


def _node_peak(tasks: dict[tuple[int, str, int], ByMetric], start: float, end: float) -> float | None:
    by_node: dict[str, list[ByMetric]] = defaultdict(list)
    for (_, node, _), found in tasks.items():
        by_node[node].append(found)
    levels = [d.level(_together(found, ("memory",)), start, end) for found in by_node.values()]
    return max((level.peak for level in levels if level is not None), default=None)

"""What would have been enough: pure rules over what a start had and what it did, each with its numbers.

A rule says something only of what was measured for nearly all of the time, and names the numbers that it goes by. What
another time limit would have changed is planned by who asks (`api/routes/reports`); here it is only found worth asking.
Invariant: advice is never given on a figure that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

from bireme.core.explain.wording import clock
from bireme.core.telemetry.digest import Digest, GpuDigest
from bireme.core.telemetry.efficiency import Efficiency, Had

MEASURED_SHARE = 0.9
"""Of the time that a GPU was held, so much has to be measured before anything is said of it."""
SHORT_S = 60.0
"""Of a start that was over sooner nothing is said."""
LOW_USE = 15.0
IDLE_SHARE = 0.25
SPINNING_UTIL, SPINNING_SM = 80.0, 10.0
HALF = 0.5
ROOM = 1.2
"""What is suggested has a fifth more than what was used."""
_MIB_WORTH = 1024.0
_LIMIT_WORTH_S = 1800.0
_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Advice:
    """A sentence, with what it goes by."""

    kind: str
    text: str
    facts: dict[str, float] = field(default_factory=dict)


def advice(had: Had, digest: Digest | None, used: Efficiency, alike_s: Sequence[float] = ()) -> list[Advice]:
    """The heaviest first. `alike_s`: how long earlier runs of the same job took that completed."""
    if had.elapsed_s < SHORT_S:
        return []
    found = [rule(had, digest, used) for rule in _RULES] + [shorter_limit(had, alike_s)]
    return [each for each in found if each is not None]


def _well_measured(digest: Digest | None) -> list[GpuDigest]:
    """Whole GPUs that were measured nearly all the time."""
    gpus = digest.gpus if digest is not None else ()
    return [gpu for gpu in gpus if not gpu.shared and gpu.use and gpu.measured_s >= MEASURED_SHARE * gpu.held_s]


def unused_gpus(had: Had, digest: Digest | None, used: Efficiency) -> Advice | None:
    idle = sum(gpu.never_used for gpu in _well_measured(digest))
    if not idle:
        return None
    left = had.gpus - idle
    enough = f": {left} would have been enough" if left > 0 else ""
    which = f"{idle} of {had.gpus} GPUs {'was' if idle == 1 else 'were'}" if had.gpus > 1 else "its GPU was"
    return Advice("unused_gpus", f"{which} never used{enough}", {"unused": idle, "gpus": had.gpus})


def idle_gpus(had: Had, digest: Digest | None, used: Efficiency) -> Advice | None:
    """Advice about GPUs that stood idle, of those that were used at some time."""
    gpus = [gpu for gpu in _well_measured(digest) if not gpu.never_used and gpu.idle_s is not None]
    held = sum(gpu.measured_s for gpu in gpus)
    idle = sum(gpu.idle_s or 0.0 for gpu in gpus)
    if not gpus or idle < IDLE_SHARE * held or idle < SHORT_S:
        return None
    spans = f"for {clock(int(idle / len(gpus)))} of {clock(int(held / len(gpus)))}"
    text = f"the GPU stood idle {spans}" if len(gpus) == 1 else f"GPUs stood idle {spans} (mean of {len(gpus)})"
    return Advice("idle_gpus", text, {"idle_s": idle, "held_s": held, "gpus": len(gpus)})


def low_use(had: Had, digest: Digest | None, used: Efficiency) -> Advice | None:
    gpus = [gpu for gpu in _well_measured(digest) if not gpu.never_used]
    held = sum(gpu.measured_s for gpu in gpus)
    if not held:
        return None
    use = sum(gpu.use.mean * gpu.measured_s for gpu in gpus if gpu.use is not None) / held
    if use >= LOW_USE:
        return None
    memory = [gpu.memory_mib.peak for gpu in gpus if gpu.memory_mib is not None]
    parts = ""
    if len(memory) == len(gpus) and all(gpu.memory_total_mib for gpu in gpus):
        total = min(gpu.memory_total_mib or 0.0 for gpu in gpus)
        if max(memory) < HALF * total:
            parts = f", with at most {max(memory) / 1024:.1f} of {total / 1024:.0f} GiB of its memory in use: a part "
            parts += "of a GPU (a MIG instance, shards) may do"
    which = "the GPU was" if had.gpus == 1 else f"{len(gpus)} of {had.gpus} GPUs {'was' if len(gpus) == 1 else 'were'}"
    text = f"{which} used to {use:.1f}% on average{parts}"
    return Advice("low_use", text, {"use": use, "gpus": len(gpus)})


def spinning(had: Had, digest: Digest | None, used: Efficiency) -> Advice | None:
    """Kernels ran all the time and did nearly nothing: what a wait for another GPU looks like."""
    gpus = [
        gpu
        for gpu in _well_measured(digest)
        if gpu.by == "gpu_sm_active" and gpu.util and gpu.use
        and gpu.util.mean >= SPINNING_UTIL and gpu.use.mean < SPINNING_SM
    ]  # fmt: skip
    if not gpus:
        return None
    util = sum(gpu.util.mean for gpu in gpus if gpu.util) / len(gpus)
    use = sum(gpu.use.mean for gpu in gpus if gpu.use) / len(gpus)
    where = f"{len(gpus)} of {had.gpus} GPUs" if had.gpus > 1 else "the GPU"
    text = f"kernels ran {util:.0f}% of the time on {where} and kept {use:.1f}% of the "
    text += "multiprocessors busy: it waits inside kernels, as for other GPUs"
    return Advice("spinning", text, {"util": util, "use": use, "gpus": len(gpus)})


def less_memory(had: Had, digest: Digest | None, used: Efficiency) -> Advice | None:
    peak = digest.node_memory_peak_mib if digest is not None else None
    if peak is None or not had.memory_mib or not had.nodes:
        return None
    asked = had.memory_mib / had.nodes
    enough = max(256.0, ceil(peak * ROOM / 256.0) * 256.0)
    if enough > HALF * asked or asked - enough < _MIB_WORTH:
        return None
    text = f"{_shown(asked)} of memory on each node, at most {_shown(peak)} in use: --mem={int(enough)}M would do"
    return Advice("less_memory", text, {"asked_mib": asked, "peak_mib": peak, "enough_mib": enough})


def fewer_cpus(had: Had, digest: Digest | None, used: Efficiency) -> Advice | None:
    """Only where the most that were busy at one time is known: a mean says nothing of what it needs at times. Each
    task has one, and each node."""
    if digest is None or digest.cpus is None or digest.cpus.peak > HALF * had.cpus:
        return None
    mean, peak = digest.cpus.mean, digest.cpus.peak
    tasks = max((spread.tasks for step in digest.steps for spread in step.figures.values()), default=0)
    enough = max(ceil(peak * ROOM), tasks, had.nodes, 1)
    if enough >= had.cpus:
        return None
    text = f"{had.cpus} CPUs, {mean:.1f} busy on average and never more than {peak:.1f}: {enough} would do"
    return Advice("fewer_cpus", text, {"cpus": had.cpus, "mean": mean, "peak": peak, "enough": enough})


def shorter_limit(had: Had, alike_s: Sequence[float] = ()) -> Advice | None:
    """Of one that completed: where its runs take less than half of its limit."""
    if had.state != "COMPLETED" or had.limit_s is None:
        return None
    runs = [*alike_s, had.elapsed_s]
    enough = enough_s(max(runs))
    if max(runs) > HALF * had.limit_s or had.limit_s - enough < _LIMIT_WORTH_S:
        return None
    took = f"it took {clock(int(had.elapsed_s))}" if len(runs) == 1 else f"the longest of {len(runs)} runs took "
    took += "" if len(runs) == 1 else clock(int(max(runs)))
    text = f"limit {clock(int(had.limit_s))}, {took}: --time={clock(enough)} would do"
    facts = {"limit_s": had.limit_s, "longest_s": max(runs), "enough_s": enough, "runs": len(runs)}
    return Advice("shorter_limit", text, facts)


def enough_s(longest_s: float) -> int:
    """A limit with room: a fifth more and ten minutes at least, rounded up to a quarter of an hour, or to an hour."""
    wanted = max(longest_s * ROOM, longest_s + 600.0)
    step = _HOUR_S if wanted > 4 * _HOUR_S else _HOUR_S // 4
    return int(ceil(wanted / step) * step)


def _shown(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


_RULES: tuple[Callable[[Had, Digest | None, Efficiency], Advice | None], ...] = (
    unused_gpus,
    spinning,
    idle_gpus,
    low_use,
    less_memory,
    fewer_cpus,
)

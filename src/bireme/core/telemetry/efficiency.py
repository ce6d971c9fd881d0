"""How much of what a start of a job had was used: of one start, and added up over many.

Reckoned from what the history says of it (`Had`) and its digest. `seff` and `bireme report` word it; the API sends it.
Pure. GPU time is counted in seconds of whole GPUs; GPUs that a job had in part are in its own report alone.

Invariant: used, unused and unmeasured time add up to the time that was held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from bireme.core.telemetry.digest import Digest, GpuDigest


@dataclass(frozen=True, slots=True)
class Had:
    """What a start was given, and what accounting says of it."""

    job_id: int
    generation: int
    user: str
    account: str
    state: str
    start: float | None
    """None: it never started."""
    end: float | None
    """None: it runs."""
    elapsed_s: float
    limit_s: float | None
    waited_s: float | None
    nodes: int
    cpus: int
    memory_mib: int
    """On all nodes together; 0: no amount is set."""
    gpus: int
    cpu_s: float | None
    """CPU time by the accounting; None: it has none of this start."""
    rss_mib: float | None
    """The sum of its tasks' peaks by the accounting."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much one start of a job used of what it had."""

    gpu_held_s: float = 0.0
    gpu_measured_s: float = 0.0
    gpu_used_s: float = 0.0
    gpus_measured: int = 0
    gpus_never_used: int = 0
    tensor: float | None = None
    """Percent of the cycles, over all GPUs of which it was measured."""
    cpu_held_s: float = 0.0
    cpu_used_s: float | None = None
    memory_peak_mib: float | None = None
    memory_estimated: bool = False
    """The peak is a sum of tasks' own peaks, which need not have been at the same time."""
    energy_j: float | None = None

    @property
    def gpu_unused_s(self) -> float:
        """Measured, and without use: what is called wasted."""
        return self.gpu_measured_s - self.gpu_used_s

    @property
    def gpu_unmeasured_s(self) -> float:
        return self.gpu_held_s - self.gpu_measured_s

    @property
    def gpu_use(self) -> float | None:
        """Percent, of the measured time; None: nothing was measured."""
        return 100.0 * self.gpu_used_s / self.gpu_measured_s if self.gpu_measured_s > 0 else None

    @property
    def cpu_use(self) -> float | None:
        """Percent of the CPUs' time."""
        known = self.cpu_used_s is not None and self.cpu_held_s > 0
        return 100.0 * (self.cpu_used_s or 0.0) / self.cpu_held_s if known else None


def efficiency(had: Had, digest: Digest | None) -> Efficiency:
    whole = [gpu for gpu in digest.gpus if not gpu.shared] if digest is not None else []
    measured = [gpu for gpu in whole if gpu.use is not None]
    held_s = had.gpus * had.elapsed_s
    # Held by the wall, elapsed without suspensions: what was measured is never more than what was held.
    share = min(1.0, held_s / seconds) if (seconds := sum(gpu.measured_s for gpu in measured)) > 0 else 1.0
    memory, estimated = _memory(had, digest)
    return Efficiency(
        gpu_held_s=held_s,
        gpu_measured_s=share * seconds,
        gpu_used_s=share * sum(gpu.use.mean / 100.0 * gpu.measured_s for gpu in measured if gpu.use is not None),
        gpus_measured=len(measured),
        gpus_never_used=sum(gpu.never_used for gpu in measured),
        tensor=_tensor(whole),
        cpu_held_s=had.cpus * had.elapsed_s,
        cpu_used_s=_cpu_s(had, digest),
        memory_peak_mib=memory,
        memory_estimated=estimated,
        energy_j=_sum(gpu.energy_j for gpu in whole),
    )


def _tensor(gpus: Iterable[GpuDigest]) -> float | None:
    known = [(gpu.tensor.mean, gpu.measured_s) for gpu in gpus if gpu.tensor is not None]
    seconds = sum(length for _, length in known)
    return sum(mean * length for mean, length in known) / seconds if seconds > 0 else None


def _cpu_s(had: Had, digest: Digest | None) -> float | None:
    """By the accounting, which is exact, once there is any; of one that runs by what its tasks were seen using."""
    if had.end is not None and had.cpu_s is not None:
        return had.cpu_s
    spreads = [step.figures["cpu_s"] for step in digest.steps if "cpu_s" in step.figures] if digest is not None else []
    seen = sum(spread.total for spread in spreads) if spreads else None
    return (
        max(had.cpu_s, seen) if had.cpu_s is not None and seen is not None else seen if seen is not None else had.cpu_s
    )


def _memory(had: Had, digest: Digest | None) -> tuple[float | None, bool]:
    if digest is not None and digest.memory_mib is not None:
        return digest.memory_mib.peak, False
    return had.rss_mib, had.rss_mib is not None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# --- many ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sum:
    """What several starts used together. They are added one by one, in place: a report of a week has fifty thousand."""

    starts: int = 0
    measured: int = 0
    """Starts of whose GPUs, or tasks, anything was measured."""
    elapsed_s: float = 0.0
    gpu_held_s: float = 0.0
    gpu_measured_s: float = 0.0
    gpu_used_s: float = 0.0
    cpu_held_s: float = 0.0
    cpu_counted_s: float = 0.0
    """Of the CPU time that was held, that of starts whose use is known."""
    cpu_used_s: float = 0.0
    energy_j: float = 0.0
    energy_starts: int = 0
    """Starts whose energy is known."""
    waited_s: float = 0.0

    def add(self, had: Had, used: Efficiency, *, measured: bool) -> None:
        self.starts += 1
        self.measured += measured
        self.elapsed_s += had.elapsed_s
        self.gpu_held_s += used.gpu_held_s
        self.gpu_measured_s += used.gpu_measured_s
        self.gpu_used_s += used.gpu_used_s
        self.cpu_held_s += used.cpu_held_s
        if used.cpu_used_s is not None:
            self.cpu_counted_s += used.cpu_held_s
            self.cpu_used_s += used.cpu_used_s
        if used.energy_j is not None:
            self.energy_starts += 1
            self.energy_j += used.energy_j
        self.waited_s += had.waited_s or 0.0

    @property
    def gpu_unused_s(self) -> float:
        return self.gpu_measured_s - self.gpu_used_s

    @property
    def gpu_unmeasured_s(self) -> float:
        return self.gpu_held_s - self.gpu_measured_s

    @property
    def gpu_use(self) -> float | None:
        return 100.0 * self.gpu_used_s / self.gpu_measured_s if self.gpu_measured_s > 0 else None

    @property
    def cpu_use(self) -> float | None:
        return 100.0 * self.cpu_used_s / self.cpu_counted_s if self.cpu_counted_s > 0 else None

    @property
    def cpu_unused_s(self) -> float:
        return max(0.0, self.cpu_counted_s - self.cpu_used_s)


Row = tuple[Had, Efficiency, bool]
"""A start, how much of it was used, and whether anything was measured."""


class Tally:
    """Adds up starts one by one, by user, account and period of their end; of the worst it keeps `most`."""

    def __init__(self, start: float, period_s: float, most: int) -> None:
        self.start, self.period_s = start, period_s
        self.total = Sum()
        self._most = most
        self._users: defaultdict[str, Sum] = defaultdict(Sum)
        self._accounts: defaultdict[str, Sum] = defaultdict(Sum)
        self._periods: defaultdict[float, Sum] = defaultdict(Sum)
        self._worst: list[Row] = []

    def add(self, had: Had, used: Efficiency, *, measured: bool) -> None:
        """One that still runs counts in the latest period that there is."""
        ended = had.end if had.end is not None else (had.start or self.start) + had.elapsed_s
        period = self.start + max(0.0, (ended - self.start) // self.period_s) * self.period_s
        for total in (self.total, self._users[had.user], self._accounts[had.account], self._periods[period]):
            total.add(had, used, measured=measured)
        self._worst.append((had, used, measured))
        if len(self._worst) > 4 * self._most + 100:
            self._worst = worst(self._worst, self._most)

    def by_user(self) -> dict[str, Sum]:
        return worst_first(self._users)

    def by_account(self) -> dict[str, Sum]:
        return worst_first(self._accounts)

    def by_period(self) -> dict[float, Sum]:
        """In the order of time."""
        return dict(sorted(self._periods.items()))

    def worst(self) -> list[Row]:
        self._worst = worst(self._worst, self._most)
        return self._worst


def worst_first(sums: dict[str, Sum]) -> dict[str, Sum]:
    """By unused GPU time, then by unused CPU time."""
    return dict(sorted(sums.items(), key=lambda each: (-each[1].gpu_unused_s, -each[1].cpu_unused_s, each[0])))


def worst(rows: Iterable[Row], most: int) -> list[Row]:
    """Starts with the most unused GPU time, then with the most unused CPU time."""

    def place(row: Row) -> tuple[float, float, int, int]:
        had, used, _ = row
        unused = used.cpu_held_s - used.cpu_used_s if used.cpu_used_s is not None else 0.0
        return -used.gpu_unused_s, -unused, had.job_id, had.generation

    return sorted(rows, key=place)[:most]

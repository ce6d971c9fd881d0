"""A report as lines for a terminal. Values as the daemon told them, made visible by who calls.

Invariant: what was not measured is called so, and never shown as a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bireme.core.explain.wording import counted
from bireme.slurm.times import format_elapsed

Told = dict[str, Any]
Stamp = Callable[[float], str]
MISSING = "not measured"
_REAL_USE = {
    "gpu_sm_active": "SM activity", "gpu_engine_active": "engine activity", "gpu_util": "utilisation",
    "use_gpu_util": "its processes' share",
}  # fmt: skip


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}%"


def hours(seconds: float) -> str:
    return f"{seconds / 3600.0:.2f}" if seconds < 360_000 else f"{seconds / 3600.0:.0f}"


def energy(joules: float | None) -> str:
    if joules is None:
        return MISSING
    return f"{joules / 3.6e6:.2f} kWh" if joules >= 36_000 else f"{joules / 3.6e3:.2f} Wh"


def memory(mib: float | None) -> str:
    if mib is None:
        return MISSING
    return f"{mib / 1024:.2f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def clock(seconds: float | None) -> str:
    return "-" if seconds is None else format_elapsed(int(seconds))


# --- of jobs ---------------------------------------------------------------------------------------------------------


def of_jobs(told: Told, stamp: Stamp) -> Iterator[str]:
    for number, job in enumerate(told["jobs"]):
        if number:
            yield ""
        yield from _job(job, stamp)
    if told["left_out"]:
        yield f"\n{counted(told['left_out'], 'earlier task')} left out: name one (bireme report 42_7)."


def _job(job: Told, stamp: Stamp) -> Iterator[str]:
    had, used, digest = job["had"], job["efficiency"], job["digest"]
    yield f"Job {job['job']} ({job['name']}) of {had['user']}: {job['state']}"
    if had["start"] is None:
        yield f"  {not_started(job)}"
        yield from (f"    {line}" for line in starts_lines(job, stamp))
        return
    yield from rows_of(job, stamp)
    for gpu in digest["gpus"] if digest else ():
        yield f"    {gpu_line(gpu)}"
    if digest is None:
        yield f"  Not measured: {job['unmeasured']}."
    for each in job["advice"]:
        yield f"  * {each['text']}"
    if not job["advice"] and used["gpu_use"] is not None:
        yield "  Nothing to advise."
    if job.get("starts"):
        yield f"  {starts_title(job)}:"
        yield from (f"    {line}" for line in starts_lines(job, stamp))


def not_started(job: Told) -> str:
    if not job.get("starts"):
        return "It has not started: nothing was used yet."
    return f"It waits again; it was started {_times(job['sum']['starts'])}:"


def starts_title(job: Told) -> str:
    """What is above is of the latest: said before the others are told."""
    return f"Above is its latest start; it was started {_times(job['sum']['starts'])}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def starts_lines(job: Told, stamp: Stamp) -> Iterator[str]:
    """The earlier starts, and what all of them come to; of a job that has none, nothing."""
    if not job.get("starts"):
        return
    if job["starts_left_out"]:
        yield f"{counted(job['starts_left_out'], 'earlier start')} not listed, but in the sum"
    for each in job["starts"]:
        had, used = each["had"], each["efficiency"]
        use = MISSING if used["gpu_use"] is None else f"{percent(used['gpu_use'])} used"
        gpus = f", {counted(had['gpus'], 'GPU')}: {use}" if had["gpus"] else ""
        yield f"{stamp(had['start'])}  {clock(had['elapsed_s'])}  {each['state']}{gpus}"
    total = job["sum"]
    parts = [f"all starts: {clock(total['elapsed_s'])}"]
    if total["gpu_held_s"]:
        known = f", {hours(total['gpu_used_s'])} of them used" if total["gpu_measured_s"] else ""
        missing = total["gpu_unmeasured_s"] > 0.01 * total["gpu_held_s"]
        unknown = f", {hours(total['gpu_unmeasured_s'])} not measured" if missing else ""
        parts.append(f"{hours(total['gpu_held_s'])} GPU-hours{known}{unknown}")
    parts.append(f"{hours(total['cpu_held_s'])} CPU-hours, {percent(total['cpu_use'])} used")
    if total["energy_starts"]:
        parts.append(energy(total["energy_j"]))
    yield "; ".join(parts)


def _unmeasured(missing_s: float, held_s: float) -> str:
    """In hours, where these are figures at all."""
    if held_s < 3600.0:
        return f"{clock(missing_s)} of {clock(held_s)} of GPU time were not measured"
    return f"{hours(missing_s)} of {hours(held_s)} GPU-hours were not measured"


def rows_of(job: Told, stamp: Stamp) -> list[str]:
    """The table of one job, without its GPUs."""
    return [f"  {name:<12}{value}" for name, value in figures_of(job, stamp)]


def figures_of(job: Told, stamp: Stamp) -> Iterator[tuple[str, str]]:
    had, used = job["had"], job["efficiency"]
    yield "time", _time(had, stamp)
    yield "waiting", clock(had["waited_s"])
    if had["gpus"]:
        unused = _never_used(used, had)
        some = 0 < used["gpus_measured"] < had["gpus"]
        of = f"{used['gpus_measured']} (of {had['gpus']}; the others were not measured)" if some else had["gpus"]
        said = f"{percent(used['gpu_use'])} of {of}{unused}" if used["gpu_use"] is not None else f"{of}, {MISSING}"
        yield "GPU" if had["gpus"] == 1 else "GPUs", said
        if used["gpu_measured_s"] and used["gpu_unmeasured_s"] > max(1.0, 0.01 * used["gpu_held_s"]):
            yield "", _unmeasured(used["gpu_unmeasured_s"], used["gpu_held_s"])
        yield "tensor", percent(used["tensor"])
        yield "energy", f"{energy(used['energy_j'])}{_energy_of(used, had)}"
    yield "CPU", _cpu(job)
    asked = f" of {memory(had['memory_mib'])}" if had["memory_mib"] else ""
    share = _share(used["memory_peak_mib"], had["memory_mib"])
    yield "memory", f"{share}{memory(used['memory_peak_mib'])}{asked}"


def _never_used(used: Told, had: Told) -> str:
    if not used["gpus_never_used"]:
        return ""
    return ", never used" if had["gpus"] == 1 else f", {used['gpus_never_used']} never used"


def _energy_of(used: Told, had: Told) -> str:
    """Whose energy it is."""
    if used["energy_j"] is None:
        return ""
    some = 0 < used["gpus_measured"] < had["gpus"]
    return f" ({used['gpus_measured']} of {had['gpus']} GPUs)" if some else " (GPUs)" if had["gpus"] > 1 else " (GPU)"


def _time(had: Told, stamp: Stamp) -> str:
    limit = had["limit_s"]
    of = f" of {clock(limit)} ({100.0 * had['elapsed_s'] / limit:.1f}%)" if limit else ""
    until = stamp(had["end"]) if had["end"] is not None else "now"
    return f"{clock(had['elapsed_s'])}{of}, {stamp(had['start'])} to {until}"


def _cpu(job: Told) -> str:
    had, used = job["had"], job["efficiency"]
    cpus = (job["digest"] or {}).get("cpus")
    peak = f", at most {cpus['peak']:.1f} at a time" if cpus else ""
    return f"{percent(used['cpu_use'])} of {had['cpus']}{peak}"


def _share(peak: float | None, asked: float) -> str:
    return f"{100.0 * peak / asked:.1f}%: " if peak is not None and asked else ""


def gpu_line(gpu: Told) -> str:
    shared = ", shared" if gpu["shared"] else ""
    name = f"{gpu['node']} {gpu['uuid']}{shared}"
    if gpu["use"] is None:
        return f"{name}: {MISSING}"
    parts = [f"{gpu['use']['mean']:.1f}% (peak {gpu['use']['peak']:.1f}%, {_REAL_USE.get(gpu['by'], gpu['by'])})"]
    if gpu["tensor"]:
        parts.append(f"tensor {gpu['tensor']['mean']:.1f}%")
    parts.append(f"idle {clock(gpu['idle_s'])}")
    if gpu["memory_mib"]:
        total = f" of {memory(gpu['memory_total_mib'])}" if gpu["memory_total_mib"] else ""
        parts.append(f"memory {memory(gpu['memory_mib']['peak'])}{total}")
    return f"{name}: {', '.join(parts)}"


# --- of many ---------------------------------------------------------------------------------------------------------

COLUMNS = ("runs", "GPU-h held", "used", "unused", "unmeasured", "GPU use", "CPU-h held", "CPU use", "energy", "waited")


def cells(total: Told) -> tuple[str, ...]:
    """Of a sum, as `COLUMNS` says."""
    known = total["energy_starts"]
    return (
        str(total["starts"]),
        hours(total["gpu_held_s"]),
        hours(total["gpu_used_s"]) if total["gpu_measured_s"] else "-",
        hours(total["gpu_unused_s"]) if total["gpu_measured_s"] else "-",
        hours(total["gpu_unmeasured_s"]),
        percent(total["gpu_use"]) if total["gpu_use"] is not None else "-",
        hours(total["cpu_held_s"]),
        percent(total["cpu_use"]) if total["cpu_use"] is not None else "-",
        energy(total["energy_j"]) if known else "-",
        clock(total["waited_s"] / total["starts"]) if total["starts"] else "-",
    )


def of_many(told: Told, stamp: Stamp) -> Iterator[str]:
    total = told["total"]
    yield f"{title(told)}, {stamp(told['start'])} to {stamp(told['end'])}"
    if not total["starts"]:
        yield "No run ended or goes on in this time that you may see."
        return
    yield shares_line(total)
    yield ""
    for name, key in (("account", "accounts"), ("user", "users")):
        yield from _table(name, [(str(row[name] or "-"), cells(row)) for row in told[key]])
        yield ""
    name = "day" if told["period_s"] <= 86_400 else "week from"
    yield from _table(name, [(stamp(row["start"])[:10], cells(row)) for row in told["periods"]])
    yield from _worst(told)
    if told["damaged"]:
        records = "1 record is" if told["damaged"] == 1 else f"{told['damaged']} records are"
        yield f"\n{records} not what was written and not counted: `bireme store verify`"


def title(told: Told) -> str:
    chosen = told.get("chosen") or {}
    all_seen = "everybody" if told.get("whole", True) else "those whose use you may see"
    return "Use of " + (", ".join(f"{name} {value}" for name, value in chosen.items()) or all_seen)


def shares_line(total: Told) -> str:
    """How much is known: said before anything else."""
    runs = f"{counted(total['starts'], 'run')}, {total['measured']} of them measured"
    if total["starts"] == 1:
        runs = f"1 run, {'measured' if total['measured'] else 'not measured'}"
    if not total["gpu_held_s"]:
        return f"{runs}; no GPUs."
    share = 100.0 * total["gpu_unmeasured_s"] / total["gpu_held_s"]
    return f"{runs}; {share:.1f}% of {hours(total['gpu_held_s'])} GPU-hours were not measured."


def _table(name: str, rows: list[tuple[str, tuple[str, ...]]]) -> Iterator[str]:
    lines = [(name, COLUMNS), *rows]
    first = max(len(label) for label, _ in lines)
    widths = [max(len(row[place]) for _, row in lines) for place in range(len(COLUMNS))]
    for label, row in lines:
        yield f"{label:<{first}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))


def _worst(told: Told) -> Iterator[str]:
    listed = [job for job in told["jobs"] if job["efficiency"]["gpu_unused_s"] > 0]
    if not listed:
        return
    yield "\nWorst runs by unused GPU-hours (bireme report JOB says more):"
    for job in listed:
        used, had = job["efficiency"], job["had"]
        held = f"{counted(had['gpus'], 'GPU')} for {clock(had['elapsed_s'])}"
        use = f"{percent(used['gpu_use'])} used{_never_used(used, had)}"
        unused = f"{hours(used['gpu_unused_s']):>8} unused"
        yield f"  {unused}  {job['job']} ({job['name']}) of {had['user']}: {held}, {use}"

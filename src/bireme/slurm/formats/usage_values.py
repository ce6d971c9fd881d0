"""What processes used, as sacct and sstat print it. One place, so that both say the same of the same step.

A usage has what accounting counted (`core.model.resources.Usage`) and, under `measured`, what was seen of the step over
time: of each figure the least, the most, the mean and the total over its tasks, with whose they were. What is exact
comes from accounting; what accounting has not, from there.
Invariant: `gres/gpuutil` and `gres/gpumem` are printed only where they were measured. Slurm's older TRES are always
there, as in Slurm, with 0 where nothing was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from bireme.slurm.formats.values import Context, long_duration, size

Usage = Mapping[str, Any]
UsageText = Callable[[Usage, Context], str]
Of = Literal["mean", "most", "least", "total"]
Whose = Literal["most_node", "most_task", "least_node", "least_task"]


def _tasks(usage: Usage) -> int:
    return max(1, int(usage.get("tasks") or 1))


def cpu_s(usage: Usage) -> float:
    return float(usage.get("user_cpu_s") or 0) + float(usage.get("system_cpu_s") or 0)


def figure(usage: Usage, name: str) -> Mapping[str, Any] | None:
    """One that was measured over the step's tasks; None: it was not."""
    return (usage.get("measured") or {}).get(name)


def _measured(usage: Usage, name: str, of: Of) -> float:
    found = figure(usage, name)
    return float(found[of]) if found is not None else 0.0


def read_bytes(usage: Usage, of: Of) -> int:
    return _disk(usage, "read_kib", "max_disk_read_bytes", of)


def written_bytes(usage: Usage, of: Of) -> int:
    return _disk(usage, "written_kib", "max_disk_write_bytes", of)


def _disk(usage: Usage, name: str, counted: str, of: Of) -> int:
    seen = figure(usage, name)
    most = int(usage.get(counted) or 0)
    if seen is None:
        return most // _tasks(usage) if of == "mean" else most
    return max(most, int(seen[of] * 1024)) if of in ("most", "total") else int(seen[of] * 1024)


def cpu_of(usage: Usage, of: Of) -> float:
    """Accounting has the sum and the least; which task had the most is seen where there are several."""
    seen = figure(usage, "cpu_s")
    several = seen is not None and seen["tasks"] > 1
    if of == "mean":
        return cpu_s(usage) / _tasks(usage)
    if of == "least":
        return float(usage.get("min_cpu_s") or 0)
    return float(seen["most"]) if of == "most" and seen is not None and several else cpu_s(usage)


def memory_kib(usage: Usage, of: Of) -> float:
    most, total = float(usage.get("max_rss_kib") or 0), float(usage.get("total_rss_kib") or 0)
    if of == "most":
        return most
    if of == "total":
        return total
    if of == "mean":
        return total / _tasks(usage) if total else most
    least = figure(usage, "memory_mib")
    return float(least["least"]) * 1024 if least is not None and least["tasks"] > 1 else most


def energy_j(usage: Usage, of: Of = "total") -> int:
    return int(_measured(usage, "energy_j", of))


def pages(usage: Usage, of: Of) -> int:
    return int(_measured(usage, "pages", of))


def _peak(key: str, unit: str) -> UsageText:
    return lambda usage, context: size(usage.get(key), unit, context)


def _mean(key: str, unit: str) -> UsageText:
    def text(usage: Usage, context: Context) -> str:
        return size(int((usage.get(key) or 0) / _tasks(usage)), unit, context)

    return text


def _word(key: str) -> UsageText:
    return lambda usage, _: str(usage.get(key) if usage.get(key) is not None else "")


def _whose(name: str, whose: Whose) -> UsageText:
    """The node or task of a figure's peak; where it was not measured, that of the most memory."""
    otherwise = {"most_node": "max_rss_node", "most_task": "max_rss_task"}

    def text(usage: Usage, context: Context) -> str:
        found = figure(usage, name)
        return _word(otherwise[whose])(usage, context) if found is None else str(found[whose])

    return text


def _bytes(amount: Callable[[Usage, Of], int], of: Of) -> UsageText:
    return lambda usage, context: size(amount(usage, of), "", context)


def _tres(of: Of) -> UsageText:
    """`cpu=00:00:01,energy=0,fs/disk=0,gres/gpumem=8G,gres/gpuutil=97,mem=1892K,pages=0,vmem=2G`."""

    def text(usage: Usage, context: Context) -> str:
        gpus = ""
        if figure(usage, "gpu_memory_mib") is not None:
            gpus += f"gres/gpumem={size(int(_measured(usage, 'gpu_memory_mib', of)), 'M', context)},"
        if figure(usage, "gpu_util") is not None:
            gpus += f"gres/gpuutil={int(_measured(usage, 'gpu_util', of))},"
        return (
            f"cpu={long_duration(cpu_of(usage, of))},energy={energy_j(usage, of)},"
            f"fs/disk={read_bytes(usage, of)},{gpus}mem={size(int(memory_kib(usage, of)), 'K', context)},"
            f"pages={pages(usage, of)},vmem={size(usage.get('max_vmsize_kib'), 'K', context)}"
        )

    return text


def _written(of: Of) -> UsageText:
    return lambda usage, _: f"energy=0,fs/disk={written_bytes(usage, of)}"


_FIGURES = {
    "cpu": "cpu_s", "energy": "energy_j", "fs/disk": "read_kib", "gres/gpumem": "gpu_memory_mib",
    "gres/gpuutil": "gpu_util", "mem": "memory_mib", "pages": "pages", "vmem": "",
}  # fmt: skip
"""Of TRES: the figure that says whose the least and the most were."""
_OF_GPUS = ("gres/gpumem", "gres/gpuutil")


def _where(key: str, whose: Whose, figures: Mapping[str, str] = _FIGURES) -> UsageText:
    """The node or task of each peak: `cpu=n1,fs/disk=n1,...`; that of `key` where a figure was not measured.

    CPU time and memory are by accounting, and so is whose they were, where it knows.
    """
    counted = {"max_rss_node": ("mem",), "max_rss_task": ("mem",), "min_cpu_node": ("cpu",), "min_cpu_task": ("cpu",)}

    def text(usage: Usage, _: Context) -> str:
        parts = []
        for tres, name in figures.items():
            found = figure(usage, name) if name and tres not in counted[key] else None
            if found is not None:
                parts.append(f"{tres}={found[whose]}")
            elif tres not in _OF_GPUS:
                parts.append(f"{tres}={usage.get(key, '')}")
        return ",".join(parts)

    return text


_WRITTEN = {"fs/disk": "written_kib"}


def _not_measured(usage: Usage, _: Context) -> str:
    return "0"


USAGE_TEXTS: dict[str, tuple[int, UsageText]] = {
    "AveCPU": (10, lambda usage, _: long_duration(cpu_of(usage, "mean"))),
    "AveCPUFreq": (10, _not_measured),
    "AveDiskRead": (14, _bytes(read_bytes, "mean")),
    "AveDiskWrite": (14, _bytes(written_bytes, "mean")),
    "AvePages": (10, lambda usage, _: str(pages(usage, "mean"))),
    "AveRSS": (10, _mean("total_rss_kib", "K")),
    "AveVMSize": (10, _peak("max_vmsize_kib", "K")),
    "ConsumedEnergy": (14, lambda usage, context: size(energy_j(usage), "", context)),
    "ConsumedEnergyRaw": (17, lambda usage, _: str(energy_j(usage))),
    "MaxDiskRead": (12, _bytes(read_bytes, "most")),
    "MaxDiskReadNode": (15, _whose("read_kib", "most_node")),
    "MaxDiskReadTask": (15, _whose("read_kib", "most_task")),
    "MaxDiskWrite": (12, _bytes(written_bytes, "most")),
    "MaxDiskWriteNode": (16, _whose("written_kib", "most_node")),
    "MaxDiskWriteTask": (16, _whose("written_kib", "most_task")),
    "MaxPages": (8, lambda usage, _: str(pages(usage, "most"))),
    "MaxPagesNode": (12, _whose("pages", "most_node")),
    "MaxPagesTask": (14, _whose("pages", "most_task")),
    "MaxRSS": (10, _peak("max_rss_kib", "K")),
    "MaxRSSNode": (10, _word("max_rss_node")),
    "MaxRSSTask": (10, _word("max_rss_task")),
    "MaxVMSize": (10, _peak("max_vmsize_kib", "K")),
    "MaxVMSizeNode": (14, _word("max_rss_node")),
    "MaxVMSizeTask": (14, _word("max_rss_task")),
    "MinCPU": (10, lambda usage, _: long_duration(usage.get("min_cpu_s") or 0)),
    "MinCPUNode": (10, _word("min_cpu_node")),
    "MinCPUTask": (10, _word("min_cpu_task")),
    "TRESUsageInAve": (14, _tres("mean")),
    "TRESUsageInMax": (14, _tres("most")),
    "TRESUsageInMaxNode": (18, _where("max_rss_node", "most_node")),
    "TRESUsageInMaxTask": (18, _where("max_rss_task", "most_task")),
    "TRESUsageInMin": (14, _tres("least")),
    "TRESUsageInMinNode": (18, _where("min_cpu_node", "least_node")),
    "TRESUsageInMinTask": (18, _where("min_cpu_task", "least_task")),
    "TRESUsageInTot": (14, _tres("total")),
    "TRESUsageOutAve": (15, _written("mean")),
    "TRESUsageOutMax": (15, _written("most")),
    "TRESUsageOutMaxNode": (19, _where("max_rss_node", "most_node", _WRITTEN)),
    "TRESUsageOutMaxTask": (19, _where("max_rss_task", "most_task", _WRITTEN)),
    "TRESUsageOutMin": (15, _written("least")),
    "TRESUsageOutMinNode": (19, _where("min_cpu_node", "least_node", _WRITTEN)),
    "TRESUsageOutMinTask": (19, _where("min_cpu_task", "least_task", _WRITTEN)),
    "TRESUsageOutTot": (15, _written("total")),
}  # fmt: skip
"""Field name to width (sacct's) and text."""
FROM_MEASURED = frozenset(
    name
    for name in USAGE_TEXTS
    if name.startswith(("TRESUsage", "ConsumedEnergy", "AveDisk", "MaxDisk", "AvePages", "MaxPages"))
)
"""Those that show more where a step was measured."""

"""What processes used, as sacct and sstat print it. One place, so that both say the same of the same step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bireme.slurm.formats.values import Context, long_duration, size

Usage = Mapping[str, Any]
UsageText = Callable[[Usage, Context], str]


def _tasks(usage: Usage) -> int:
    return max(1, int(usage.get("tasks") or 1))


def cpu_s(usage: Usage) -> float:
    return float(usage.get("user_cpu_s") or 0) + float(usage.get("system_cpu_s") or 0)


def _peak(key: str, unit: str) -> UsageText:
    return lambda usage, context: size(usage.get(key), unit, context)


def _mean(key: str, unit: str) -> UsageText:
    def text(usage: Usage, context: Context) -> str:
        return size(int((usage.get(key) or 0) / _tasks(usage)), unit, context)

    return text


def _word(key: str) -> UsageText:
    return lambda usage, _: str(usage.get(key) if usage.get(key) is not None else "")


def _tres(cpu: Callable[[Usage], float], memory_kib: str = "max_rss_kib") -> UsageText:
    """`cpu=00:00:01,energy=0,fs/disk=0,mem=1892K,pages=0,vmem=2G`."""

    def text(usage: Usage, context: Context) -> str:
        return (
            f"cpu={long_duration(cpu(usage))},energy=0,fs/disk={int(usage.get('max_disk_read_bytes') or 0)},"
            f"mem={size(usage.get(memory_kib), 'K', context)},pages=0,"
            f"vmem={size(usage.get('max_vmsize_kib'), 'K', context)}"
        )

    return text


def _written(usage: Usage, _: Context) -> str:
    return f"energy=0,fs/disk={int(usage.get('max_disk_write_bytes') or 0)}"


def _where(key: str, *names: str) -> UsageText:
    """The node or task of each peak: `cpu=n1,fs/disk=n1,...`; one is known for all of them."""
    shown = names or ("cpu", "energy", "fs/disk", "mem", "pages", "vmem")
    return lambda usage, _: ",".join(f"{name}={usage.get(key, '')}" for name in shown)


def _not_measured(usage: Usage, _: Context) -> str:
    return "0"


USAGE_TEXTS: dict[str, tuple[int, UsageText]] = {
    "AveCPU": (10, lambda usage, _: long_duration(cpu_s(usage) / _tasks(usage))),
    "AveCPUFreq": (10, _not_measured),
    "AveDiskRead": (14, _mean("max_disk_read_bytes", "")),
    "AveDiskWrite": (14, _mean("max_disk_write_bytes", "")),
    "AvePages": (10, _not_measured),
    "AveRSS": (10, _mean("total_rss_kib", "K")),
    "AveVMSize": (10, _peak("max_vmsize_kib", "K")),
    "ConsumedEnergy": (14, _not_measured),
    "ConsumedEnergyRaw": (17, _not_measured),
    "MaxDiskRead": (12, _peak("max_disk_read_bytes", "")),
    "MaxDiskReadNode": (15, _word("max_rss_node")),
    "MaxDiskReadTask": (15, _word("max_rss_task")),
    "MaxDiskWrite": (12, _peak("max_disk_write_bytes", "")),
    "MaxDiskWriteNode": (16, _word("max_rss_node")),
    "MaxDiskWriteTask": (16, _word("max_rss_task")),
    "MaxPages": (8, _not_measured),
    "MaxPagesNode": (12, _word("max_rss_node")),
    "MaxPagesTask": (14, _word("max_rss_task")),
    "MaxRSS": (10, _peak("max_rss_kib", "K")),
    "MaxRSSNode": (10, _word("max_rss_node")),
    "MaxRSSTask": (10, _word("max_rss_task")),
    "MaxVMSize": (10, _peak("max_vmsize_kib", "K")),
    "MaxVMSizeNode": (14, _word("max_rss_node")),
    "MaxVMSizeTask": (14, _word("max_rss_task")),
    "MinCPU": (10, lambda usage, _: long_duration(usage.get("min_cpu_s") or 0)),
    "MinCPUNode": (10, _word("min_cpu_node")),
    "MinCPUTask": (10, _word("min_cpu_task")),
    "TRESUsageInAve": (14, _tres(lambda usage: cpu_s(usage) / _tasks(usage))),
    "TRESUsageInMax": (14, _tres(cpu_s)),
    "TRESUsageInMaxNode": (18, _where("max_rss_node")),
    "TRESUsageInMaxTask": (18, _where("max_rss_task")),
    "TRESUsageInMin": (14, _tres(lambda usage: usage.get("min_cpu_s") or 0)),
    "TRESUsageInMinNode": (18, _where("min_cpu_node")),
    "TRESUsageInMinTask": (18, _where("min_cpu_task")),
    "TRESUsageInTot": (14, _tres(cpu_s, "total_rss_kib")),
    "TRESUsageOutAve": (15, _written),
    "TRESUsageOutMax": (15, _written),
    "TRESUsageOutMaxNode": (19, _where("max_rss_node", "fs/disk")),
    "TRESUsageOutMaxTask": (19, _where("max_rss_task", "fs/disk")),
    "TRESUsageOutMin": (15, _written),
    "TRESUsageOutMinNode": (19, _where("min_cpu_node", "fs/disk")),
    "TRESUsageOutMinTask": (19, _where("min_cpu_task", "fs/disk")),
    "TRESUsageOutTot": (15, _written),
}  # fmt: skip
"""Field name to width (sacct's) and text."""

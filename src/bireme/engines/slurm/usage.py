"""What running steps use (`sstat`), in the words of `core.model.resources.Usage`. Pure: no IO."""

from __future__ import annotations

from typing import Any

from bireme.core.model.resources import Usage
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.sizes import parse_memory
from bireme.slurm.times import Infinite, parse_time_limit

_FIELDS = ("JobID", "NTasks", "AveCPU", "MaxRSS", "MaxRSSNode", "MaxRSSTask", "MaxVMSize")
USAGE_WORDS = ("sstat", "--allsteps", "--parsable2", "--noheader", "--noconvert", f"--format={','.join(_FIELDS)}")


def read_usage(out: str) -> dict[str, Any]:
    """Step label -> Usage as a mapping."""
    found = {}
    for line in out.splitlines():
        values = dict(zip(_FIELDS, line.split("|")))
        label = values.get("JobID", "").rpartition(".")[2]
        if label:
            usage = _usage(values)
            found[label] = {name: getattr(usage, name) for name in Usage.__dataclass_fields__}
    return found


def _usage(values: dict[str, str]) -> Usage:
    tasks = int(values["NTasks"]) if values.get("NTasks", "").isdigit() else 1
    return Usage(
        user_cpu_s=_seconds(values.get("AveCPU", "")) * tasks,
        max_rss_kib=_kib(values.get("MaxRSS", "")),
        max_rss_node=values.get("MaxRSSNode", ""),
        max_rss_task=int(values["MaxRSSTask"]) if values.get("MaxRSSTask", "").isdigit() else 0,
        max_vmsize_kib=_kib(values.get("MaxVMSize", "")),
        tasks=tasks,
    )


def _seconds(written: str) -> float:
    try:
        found = parse_time_limit(written.partition(".")[0])
    except SlurmSyntaxError:
        return 0.0
    return 0.0 if isinstance(found, Infinite) else float(found)


def _kib(written: str) -> int:
    """Bytes, or with a unit."""
    if written.isdigit():
        return int(written) // 1024
    try:
        return parse_memory(written) * 1024 if written else 0
    except SlurmSyntaxError:
        return 0

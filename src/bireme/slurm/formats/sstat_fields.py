"""sstat's fields, over steps that run now: a StepRecord whose `usage` was just measured. Steps only, no job line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.slurm.formats.accounting import AccountingField, field_map
from bireme.slurm.formats.usage_values import USAGE_TEXTS, UsageText
from bireme.slurm.formats.values import Context

LiveStep = Mapping[str, Any]
"""label (`42.0`), node_list, num_tasks, pids, usage."""
_NARROWER = {"AveDiskRead": 12, "AveDiskWrite": 12}  # than sacct's


def _usage(text: UsageText) -> Any:
    def of_step(step: LiveStep, context: Context) -> str:
        return text(step.get("usage") or {}, context)

    return of_step


def _word(key: str, missing: str = "") -> Any:
    return lambda step, _: str(step.get(key) if step.get(key) is not None else missing)


def _pids(step: LiveStep, _: Context) -> str:
    return ",".join(map(str, step.get("pids") or ()))


_OWN_FIELDS = (
    AccountingField("JobID", 12, _word("label"), left=True),
    AccountingField("Nodelist", 20, _word("node_list")),
    AccountingField("NTasks", 8, _word("num_tasks", "1")),
    AccountingField("Pids", 20, _pids),
    AccountingField("ReqCPUFreq", 10, lambda _step, _context: "0"),
    AccountingField("ReqCPUFreqMin", 13, lambda _step, _context: "0"),
    AccountingField("ReqCPUFreqMax", 13, lambda _step, _context: "0"),
    AccountingField("ReqCPUFreqGov", 13, lambda _step, _context: "0"),
)
_USAGE_FIELDS = tuple(
    AccountingField(name, _NARROWER.get(name, width), _usage(text)) for name, (width, text) in USAGE_TEXTS.items()
)

_FREQUENCIES = ("ReqCPUFreqMin", "ReqCPUFreqMax", "ReqCPUFreqGov")
"""The only fields that sstat does not list in the order of the alphabet."""


def _place(field: AccountingField) -> tuple[str, int]:
    if field.name in _FREQUENCIES:
        return _FREQUENCIES[0].lower(), _FREQUENCIES.index(field.name)
    return field.name.lower(), 0


SSTAT_FIELDS = field_map(sorted((*_OWN_FIELDS, *_USAGE_FIELDS), key=_place))
SSTAT_ALIASES = {"job": "jobid", "nodes": "nodelist"}
DEFAULT_FORMAT = (
    "JobID,MaxVMSize,MaxVMSizeNode,MaxVMSizeTask,AveVMSize,MaxRSS,MaxRSSNode,MaxRSSTask,AveRSS,MaxPages,MaxPagesNode,"
    "MaxPagesTask,AvePages,MinCPU,MinCPUNode,MinCPUTask,AveCPU,NTasks,AveCPUFreq,ReqCPUFreqMin,ReqCPUFreqMax,"
    "ReqCPUFreqGov,ConsumedEnergy,MaxDiskRead,MaxDiskReadNode,MaxDiskReadTask,AveDiskRead,MaxDiskWrite,"
    "MaxDiskWriteNode,MaxDiskWriteTask,AveDiskWrite,TRESUsageInAve,TRESUsageInMax,TRESUsageInMaxNode,"
    "TRESUsageInMaxTask,TRESUsageInMin,TRESUsageInMinNode,TRESUsageInMinTask,TRESUsageInTot,TRESUsageOutAve,"
    "TRESUsageOutMax,TRESUsageOutMaxNode,TRESUsageOutMaxTask,TRESUsageOutMin,TRESUsageOutMinNode,"
    "TRESUsageOutMinTask,TRESUsageOutTot"
)
PID_FORMAT = "JobID,Nodelist,Pids"

"""The list of alert rules. `python -m deploy.grafana` makes alerts.yml of it, which Prometheus reads (`rule_files`).

Rules ask for what is there: a figure that is absent (a GPU that does not count NVLink errors) never alerts.
Invariant: every rule says what is wrong and what to do, in the words of the thing that it is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]
_GPU = "{{ $labels.Hostname }} GPU {{ $labels.gpu }} ({{ $labels.UUID }})"


@dataclass(frozen=True, slots=True)
class Rule:
    """`for_`: how long it is to be so before anybody hears of it."""

    name: str
    expr: str
    for_: str
    severity: Severity
    summary: str
    todo: str


RULES = (
    Rule("BiremeAbsent", "absent(bireme_info)", "2m", "critical", "Nobody exports Bireme's metrics",
         "See whether the daemon runs: bireme status; its port: bireme up --metrics-port."),
    Rule("BiremeProblem", "bireme_problem == 1", "5m", "critical", "The {{ $labels.part }} does not work",
         "bireme status says why; bireme doctor what to do."),
    Rule("BiremeNodeDown", "bireme_node_up == 0", "5m", "critical", "{{ $labels.node }} does not answer",
         "bireme doctor; scontrol show node {{ $labels.node }}."),
    Rule("BiremeNodeUnmeasured", "time() - bireme_latest_round_timestamp_seconds > 120", "5m", "warning",
         "{{ $labels.node }} has told nothing for {{ $value | humanizeDuration }}",
         "Its gatherer hangs or is gone: bireme doctor; on another machine the log of bireme node."),
    Rule("BiremePlanningSlow", "rate(bireme_scheduler_pass_seconds_total[10m]) > 0.5", "10m", "warning",
         "More than half of the time goes into planning", "How long is the queue? bireme sim says what would help."),
    Rule("BiremeJournalSlow",
         "increase(bireme_journal_commit_seconds_total[10m]) / increase(bireme_journal_commits_total[10m]) > 0.5",
         "10m", "warning", "Events take {{ $value | humanizeDuration }} until they are on disk",
         "The disk of BIREME_HOME is slow or busy: put it on another."),
    Rule("BiremeClockOff", "abs(bireme_node_clock_offset_ms) > 2000", "10m", "warning",
         "The clock of {{ $labels.node }} is off by {{ $value }} ms", "Let it follow a time server."),
    Rule("BiremeNodeMemoryFull", "bireme_node_memory_used_mib / bireme_node_memory_total_mib > 0.97", "10m", "warning",
         "{{ $labels.node }} is nearly out of memory", "bireme top shows whose jobs need it."),
    Rule("BiremeNodeDiskWait", "bireme_node_uninterruptible_processes > 20", "10m", "warning",
         "{{ $value }} processes of {{ $labels.node }} wait for a disk", "A file system hangs? ls its mounts, dmesg."),
    Rule("GpuDoesNotAnswer", "bireme_gpu_answers == 0", "2m", "critical", f"{_GPU} does not answer",
         "nvidia-smi and dmesg on the node; drain it: scontrol update nodename=... state=drain."),
    Rule("GpuXid", 'increase(bireme_happenings_total{kind="xid"}[10m]) > 0', "0m", "warning",
         "Xid errors on {{ $labels.node }}", "DCGM_FI_DEV_XID_ERRORS has the number; dmesg on the node the process."),
    Rule("GpuMemoryErrors", "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[1h]) > 0", "0m", "critical",
         f"{_GPU} has uncorrected memory errors", "Drain the node and reset the GPU; if they come again, replace it."),
    Rule("GpuRowRemapFailed", "DCGM_FI_DEV_ROW_REMAP_FAILURE > 0", "0m", "critical",
         f"{_GPU} could not remap a row of memory", "Drain the node: the GPU is to be replaced."),
    Rule("GpuHot", "DCGM_FI_DEV_GPU_TEMP > 88", "10m", "warning", f"{_GPU} has {{{{ $value }}}} C",
         "Look at fans, dust and the room."),
    Rule("GpuHeldBack", "(DCGM_FI_DEV_CLOCKS_EVENT_REASONS % 256) >= 64", "10m", "warning",
         f"The hardware holds down the clocks of {_GPU}", "Too hot, or a power brake: nvidia-smi -q -d PERFORMANCE."),
    Rule("GpuNvlinkErrors", "increase(DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL[15m]) > 0", "0m", "warning",
         f"NVLinks of {_GPU} had to be trained again", "nvidia-smi nvlink -e on the node."),
    Rule("GpuHeldIdle",
         "avg_over_time(DCGM_FI_DEV_GPU_UTIL[30m]) < 1 and on (Hostname, UUID, GPU_I_ID) bireme_gpu_job", "30m", "info",
         f"A job has {_GPU} and does nothing with it", "bireme top; ask its owner, whom bireme_gpu_job names."),
    Rule("GpuStrayMemory", "bireme_gpu_unowned_memory_mib > 256", "10m", "warning",
         f"A process of no job has {{{{ $value }}}} MiB of {_GPU}", "nvidia-smi on the node names it."),
    Rule("ServiceDown", "bireme_service_replicas_wanted > 0 and bireme_service_replicas_ready == 0", "2m", "critical",
         "No replica of {{ $labels.service }} is ready", "bireme service show {{ $labels.service }} says why."),
    Rule("ServiceShort", "bireme_service_replicas_ready < bireme_service_replicas_wanted", "15m", "warning",
         "{{ $labels.service }} has fewer ready replicas than it wants", "bireme why service/{{ $labels.service }}."),
    Rule("ServiceErrors",
         'sum by (service) (rate(bireme_replica_requests_total{status="5xx"}[5m])) '
         "/ sum by (service) (rate(bireme_replica_requests_total[5m])) > 0.05",
         "5m", "warning", "{{ $value | humanizePercentage }} of the answers of {{ $labels.service }} are errors",
         "bireme service logs {{ $labels.service }}."),
    Rule("ServiceRefuses", "rate(bireme_service_refused_total[5m]) > 0", "10m", "warning",
         "Requests to {{ $labels.service }} are refused", "It has too few replicas, or its limits are too low."),
)  # fmt: skip

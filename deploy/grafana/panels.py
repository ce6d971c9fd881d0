"""The list of dashboards: every panel with its queries. `python -m deploy.grafana` makes the files of it.

`$J` in a query stands for the Prometheus job that the viewer chose (`job=~"$job"`); `$job_id`, `$user`, `$service` are
variables of their dashboards; `$__rate_interval` is Grafana's. GPUs are joined with their jobs by `bireme_gpu_job`.
Invariant: every query returns data from a working cluster with GPUs, a job and a service (tests/integration).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = Literal["stat", "timeseries", "table"]
OF_GPU = "on (Hostname, UUID, GPU_I_ID)"


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`unit`: Grafana's name of it; `most`: the axis ends here."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    what: str = ""
    shape: Shape = "timeseries"
    most: float | None = None
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """What a viewer chooses: the values of a label."""

    name: str
    metric: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str
    title: str
    what: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = ()


def _stat(title: str, expr: str, unit: str = "short", what: str = "") -> Panel:
    return Panel(title, (Query(expr),), unit, what, "stat")


def _curve(title: str, expr: str, legend: str, unit: str = "short", what: str = "", most: float | None = None) -> Panel:
    return Panel(title, (Query(expr, legend),), unit, what, most=most)


def _of_job(metric: str, chosen: str = 'job_id=~"$job_id"') -> str:
    """A figure of the GPUs that a job has."""
    return f"bireme_gpu_job{{$J,{chosen}}} * {OF_GPU} group_left {metric}{{$J}}"


_GPU = "{{Hostname}} GPU {{gpu}}"

CLUSTER = Dashboard(
    "cluster",
    "Bireme: the cluster",
    "How full it is, how well it is used, who waits and why.",
    (
        _stat("GPUs in use", "100 * sum(bireme_gpus_allocated{$J}) / sum(bireme_gpus{$J})", "percent"),
        _stat("Jobs running", 'sum(bireme_jobs{$J,state="RUNNING"}) or vector(0)'),
        _stat("Jobs waiting", 'sum(bireme_jobs{$J,state="PENDING"}) or vector(0)'),
        _stat("Longest wait", "max(bireme_queue_longest_wait_seconds{$J}) or vector(0)", "s"),
        _stat("Nodes that do not answer", "count(bireme_node_up{$J} == 0) or vector(0)"),
        _stat("Power of GPUs", "sum(DCGM_FI_DEV_POWER_USAGE{$J})", "watt"),
        Panel(
            "GPUs",
            (
                Query("sum(bireme_gpus{$J})", "there are"),
                Query("sum(bireme_gpus_allocated{$J})", "jobs have"),
                Query("count(DCGM_FI_DEV_GPU_UTIL{$J} > 5) or vector(0)", "run a kernel"),
            ),
            what="Jobs hold the second; kernels run on the third.",
        ),
        Panel(
            "Real use of the GPUs that jobs have",
            (
                Query(
                    f"avg(bireme_gpu_job{{$J}} * {OF_GPU} group_left DCGM_FI_DEV_GPU_UTIL{{$J}}) / 100", "some kernel"
                ),
                Query(
                    f"avg(bireme_gpu_job{{$J}} * {OF_GPU} group_left DCGM_FI_PROF_SM_ACTIVE{{$J}})", "multiprocessors"
                ),
                Query(
                    f"avg(bireme_gpu_job{{$J}} * {OF_GPU} group_left DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{$J}})",
                    "tensor cores",
                ),
                Query(f"avg(bireme_gpu_job{{$J}} * {OF_GPU} group_left DCGM_FI_PROF_DRAM_ACTIVE{{$J}})", "memory"),
            ),
            "percentunit",
            "A kernel that waits for another GPU counts as 100% of the first and as nothing of the others.",
            most=1.0,
        ),
        _curve(
            "GPUs that jobs have and no kernel uses",
            f"count((bireme_gpu_job{{$J}} * {OF_GPU} group_left DCGM_FI_DEV_GPU_UTIL{{$J}}) < 1) or vector(0)",
            "idle",
        ),
        Panel(
            "Jobs by state",
            (Query("sum by (state) (bireme_jobs{$J})", "{{state}}"),),
            stacked=True,
        ),
        Panel("Why jobs wait", (Query("sum by (reason) (bireme_jobs_waiting{$J})", "{{reason}}"),), stacked=True),
        _curve("Jobs by partition", "sum by (partition, state) (bireme_jobs{$J})", "{{partition}} {{state}}"),
        _curve("Ends in an hour", "sum by (state) (increase(bireme_jobs_ended_total{$J}[1h]))", "{{state}}"),
        _curve("Starts in a second", "sum(rate(bireme_jobs_started_total{$J}[$__rate_interval]))", "starts", "ops"),
        Panel(
            "CPUs",
            (
                Query("sum(bireme_cpus{$J})", "there are"),
                Query("sum(bireme_cpus_allocated{$J})", "jobs have"),
                Query("sum(rate(bireme_node_cpu_seconds_total{$J}[$__rate_interval]))", "busy"),
            ),
        ),
        Panel(
            "Memory of nodes",
            (
                Query("sum(bireme_node_memory_total_mib{$J})", "there is"),
                Query("sum(bireme_node_memory_used_mib{$J})", "in use"),
            ),
            "mbytes",
        ),
        Panel(
            "Network of nodes",
            (
                Query("sum(rate(bireme_node_network_received_bytes_total{$J}[$__rate_interval]))", "received"),
                Query("sum(rate(bireme_node_network_sent_bytes_total{$J}[$__rate_interval]))", "sent"),
            ),
            "Bps",
        ),
        Panel(
            "Disks of nodes",
            (
                Query("sum(rate(bireme_node_disk_read_bytes_total{$J}[$__rate_interval]))", "read"),
                Query("sum(rate(bireme_node_disk_written_bytes_total{$J}[$__rate_interval]))", "written"),
            ),
            "Bps",
        ),
    ),
)

JOB = Dashboard(
    "job",
    "Bireme: a job",
    "What a job that runs does with what it has. Of jobs that are over: `bireme top`, /v1/telemetry/series.",
    (
        Panel(
            "Which",
            (Query('bireme_job_info{$J,job_id=~"$job_id"}'),),
            shape="table",
        ),
        _stat("GPUs", 'sum(bireme_job_gpus{$J,job_id=~"$job_id"})'),
        _stat("CPUs", 'sum(bireme_job_cpus{$J,job_id=~"$job_id"})'),
        _stat("Runs since", 'max(time() - bireme_job_start_time_seconds{$J,job_id=~"$job_id"})', "s"),
        _curve("Some kernel runs", _of_job("DCGM_FI_DEV_GPU_UTIL"), _GPU, "percent", most=100.0),
        _curve("Multiprocessors at work", _of_job("DCGM_FI_PROF_SM_ACTIVE"), _GPU, "percentunit", most=1.0),
        _curve("Tensor cores at work", _of_job("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), _GPU, "percentunit", most=1.0),
        _curve("Memory bandwidth in use", _of_job("DCGM_FI_PROF_DRAM_ACTIVE"), _GPU, "percentunit", most=1.0),
        _curve("GPU memory", _of_job("DCGM_FI_DEV_FB_USED"), _GPU, "mbytes"),
        _curve("Power", _of_job("DCGM_FI_DEV_POWER_USAGE"), _GPU, "watt"),
        _curve("Temperature", _of_job("DCGM_FI_DEV_GPU_TEMP"), _GPU, "celsius"),
        _curve("Clock", _of_job("DCGM_FI_DEV_SM_CLOCK"), _GPU, "rotmhz"),
        _curve("NVLink, sent", _of_job("DCGM_FI_PROF_NVLINK_TX_BYTES"), _GPU, "Bps"),
        _curve("PCIe, sent", _of_job("DCGM_FI_PROF_PCIE_TX_BYTES"), _GPU, "Bps"),
        Panel(
            "CPUs",
            (
                Query('bireme_job_cpus{$J,job_id=~"$job_id"}', "{{job_id}} has"),
                Query('bireme_job_cpus_busy{$J,job_id=~"$job_id"}', "{{job_id}} keeps busy"),
            ),
        ),
        _curve("Memory", 'bireme_job_memory_bytes{$J,job_id=~"$job_id"}', "{{job_id}}", "bytes"),
    ),
    (Variable("job_id", "bireme_job_info"),),
)

_USER = 'user=~"$user"'
USER = Dashboard(
    "user",
    "Bireme: users and accounts",
    "Who has how much, and what they do with it.",
    (
        _curve("GPUs", f"bireme_user_gpus{{$J,{_USER}}}", "{{user}} {{account}}"),
        _curve("CPUs", f"bireme_user_cpus{{$J,{_USER}}}", "{{user}} {{account}}"),
        _curve("Jobs that run", f'bireme_user_jobs{{$J,{_USER},state="RUNNING"}}', "{{user}} {{account}}"),
        _curve("Jobs that wait", f'bireme_user_jobs{{$J,{_USER},state="PENDING"}}', "{{user}} {{account}}"),
        _curve(
            "Time in which some kernel ran, mean of their GPUs",
            f"avg by (user) ({_of_job('DCGM_FI_DEV_GPU_UTIL', _USER)})",
            "{{user}}",
            "percent",
            most=100.0,
        ),
        _curve(
            "Tensor cores at work, mean of their GPUs",
            f"avg by (user) ({_of_job('DCGM_FI_PROF_PIPE_TENSOR_ACTIVE', _USER)})",
            "{{user}}",
            "percentunit",
            most=1.0,
        ),
        _curve(
            "GPUs that no kernel uses",
            f"count by (user) (({_of_job('DCGM_FI_DEV_GPU_UTIL', _USER)}) < 1) or vector(0)",
            "{{user}}",
        ),
        _curve("Power", f"sum by (user) ({_of_job('DCGM_FI_DEV_POWER_USAGE', _USER)})", "{{user}}", "watt"),
        _curve("GPU memory", f"sum by (user) ({_of_job('DCGM_FI_DEV_FB_USED', _USER)})", "{{user}}", "mbytes"),
        _curve("GPUs by account", "sum by (account) (bireme_user_gpus{$J})", "{{account}}"),
    ),
    (Variable("user", "bireme_user_jobs"),),
)

_SERVICE = 'service=~"$service"'


def _quantile(share: float, histogram: str) -> str:
    rates = f"sum by (service, le) (rate({histogram}_bucket{{$J,{_SERVICE}}}[$__rate_interval]))"
    return f"histogram_quantile({share}, {rates})"


SERVICES = Dashboard(
    "services",
    "Bireme: services",
    "Requests, replicas and how long answers take.",
    (
        _stat("Ready", f"sum(bireme_service_replicas_ready{{$J,{_SERVICE}}})"),
        _stat("Wanted", f"sum(bireme_service_replicas_wanted{{$J,{_SERVICE}}})"),
        _stat("Waiting requests", f"sum(bireme_service_queued{{$J,{_SERVICE}}})"),
        _stat("Crashes of late", f"sum(bireme_service_crashes{{$J,{_SERVICE}}})"),
        _curve(
            "Requests in a second",
            f"sum by (service) (rate(bireme_service_arrived_total{{$J,{_SERVICE}}}[$__rate_interval]))",
            "{{service}}",
            "reqps",
        ),
        _curve(
            "Answers in a second, by status",
            f"sum by (service, status) (rate(bireme_replica_requests_total{{$J,{_SERVICE}}}[$__rate_interval]))",
            "{{service}} {{status}}",
            "reqps",
        ),
        _curve(
            "Refused in a second",
            f"sum by (service) (rate(bireme_service_refused_total{{$J,{_SERVICE}}}[$__rate_interval]))",
            "{{service}}",
            "reqps",
        ),
        Panel(
            "Latency",
            (
                Query(_quantile(0.5, "bireme_service_latency_seconds"), "{{service}} half"),
                Query(_quantile(0.95, "bireme_service_latency_seconds"), "{{service}} 95%"),
                Query(_quantile(0.99, "bireme_service_latency_seconds"), "{{service}} 99%"),
            ),
            "s",
        ),
        _curve("Time to the first byte, 95%", _quantile(0.95, "bireme_replica_ttfb_seconds"), "{{service}}", "s"),
        _curve("In flight", f"sum by (service) (bireme_replica_in_flight{{$J,{_SERVICE}}})", "{{service}}"),
        Panel(
            "Replicas",
            (
                Query(f"bireme_service_replicas_ready{{$J,{_SERVICE}}}", "{{service}} ready"),
                Query(f"bireme_service_replicas_wanted{{$J,{_SERVICE}}}", "{{service}} wanted"),
            ),
        ),
        _curve("Replicas by state", f"bireme_service_replicas{{$J,{_SERVICE}}}", "{{service}} {{state}}"),
        Panel(
            "Bytes in a second",
            (
                Query(
                    f"sum by (service) (rate(bireme_replica_received_bytes_total{{$J,{_SERVICE}}}[$__rate_interval]))",
                    "{{service}} received",
                ),
                Query(
                    f"sum by (service) (rate(bireme_replica_sent_bytes_total{{$J,{_SERVICE}}}[$__rate_interval]))",
                    "{{service}} sent",
                ),
            ),
            "Bps",
        ),
        _curve("Connections of clients", "bireme_router_connections{$J}", "connections"),
    ),
    (Variable("service", "bireme_service_info"),),
)

HEALTH = Dashboard(
    "health",
    "Bireme: health",
    "What is broken, or about to be.",
    (
        Panel("Parts that do not work", (Query("bireme_problem{$J}", "{{part}}"),), most=1.0),
        Panel(
            "Nodes by state",
            (Query("sum by (state) (bireme_nodes{$J})", "{{state}}"),),
            stacked=True,
        ),
        _stat("GPUs that do not answer", "count(bireme_gpu_answers{$J} == 0) or vector(0)"),
        _stat("Nodes drained", "sum(bireme_node_drained{$J})"),
        _curve("Latest Xid of a GPU", "DCGM_FI_DEV_XID_ERRORS{$J}", _GPU),
        _curve(
            "Xid errors, GPUs lost, strays in an hour",
            "sum by (node, kind) (increase(bireme_happenings_total{$J}[1h]))",
            "{{node}} {{kind}}",
        ),
        _curve("Uncorrected memory errors in a day", "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{$J}[1d])", _GPU),
        Panel(
            "Rows of memory remapped",
            (
                Query("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{$J}", _GPU + " uncorrected"),
                Query("DCGM_FI_DEV_ROW_REMAP_FAILURE{$J}", _GPU + " failed"),
            ),
        ),
        _curve("PCIe packets sent again in an hour", "increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{$J}[1h])", _GPU),
        _curve(
            "NVLink checksum errors in an hour",
            "increase(DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL{$J}[1h])",
            _GPU,
        ),
        _curve("Temperature of GPUs", "DCGM_FI_DEV_GPU_TEMP{$J}", _GPU, "celsius"),
        _curve(
            "Clocks held down by heat or a power brake",
            "(DCGM_FI_DEV_CLOCKS_EVENT_REASONS{$J} % 256) >= bool 32",
            _GPU,
            what="NVML's bits 0x20 (software, too hot), 0x40 (hardware, too hot), 0x80 (power brake).",
            most=1.0,
        ),
        Panel(
            "Power and its limit",
            (
                Query("sum(DCGM_FI_DEV_POWER_USAGE{$J})", "drawn"),
                Query("sum(DCGM_FI_DEV_ENFORCED_POWER_LIMIT{$J})", "allowed"),
            ),
            "watt",
        ),
        _curve("GPU memory that belongs to no job", "bireme_gpu_unowned_memory_mib{$J}", _GPU, "mbytes"),
        _curve("Age of the newest round", "time() - bireme_latest_round_timestamp_seconds{$J}", "{{node}}", "s"),
        _curve("Load of nodes", "bireme_node_load1{$J}", "{{node}}"),
        _curve("Processes that wait for a disk", "bireme_node_uninterruptible_processes{$J}", "{{node}}"),
        _curve(
            "Share of time spent planning",
            "rate(bireme_scheduler_pass_seconds_total{$J}[$__rate_interval])",
            "planning",
            "percentunit",
        ),
        _curve("Latest pass over the queue", "bireme_scheduler_latest_pass_seconds{$J}", "pass", "s"),
        _curve(
            "Until events are on disk",
            "sum(increase(bireme_journal_commit_seconds_total{$J}[10m])) "
            "/ sum(increase(bireme_journal_commits_total{$J}[10m]))",
            "mean",
            "s",
        ),
        _curve("Events in a second", "rate(bireme_events_total{$J}[$__rate_interval])", "events", "ops"),
        Panel(
            "What Prometheus reads",
            (Query("scrape_samples_scraped{$J}", "samples"),),
        ),
        _curve("Time to read it", "scrape_duration_seconds{$J}", "{{instance}}", "s"),
    ),
)

DASHBOARDS = (CLUSTER, JOB, USER, SERVICES, HEALTH)

"""/metrics of a working cluster with scripted GPUs: on ports that outlive restarts, and without a daemon."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import prometheus
import pytest
from deploy.grafana.__main__ import HERE as GRAFANA
from deploy.grafana.__main__ import in_prometheus
from deploy.grafana.alerts import RULES
from deploy.grafana.panels import DASHBOARDS
from prometheus import Prometheus
from tests.support.cluster import Cluster
from tests.support.measured import until
from tests.support.ports import free_port
from tests.support.serving import Load, ready, serve, shown

from bireme.client.transport import Transport

CONF = """
ClusterName=exported
SlurmctldHost=localhost
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=2
NodeName=n1 NodeHostname=localhost CPUs=8 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES
"""
VALUES = {
    "gpu_util": 97, "gpu_copy_util": 20, "gpu_memory_used": 1000, "gpu_memory_free": 80_000, "gpu_power": 312.5,
    "gpu_power_limit": 700, "gpu_energy": 5_000_000, "gpu_temperature": 55, "gpu_sm_active": 40,
    "gpu_tensor_active": 30, "gpu_dram_active": 20, "gpu_sm_clock": 1980, "gpu_throttle": 4, "gpu_ecc_uncorrected": 0,
    "gpu_pcie_replays": 0, "gpu_pcie_sent": 100, "gpu_pcie_received": 100, "gpu_nvlink_sent": 100,
    "gpu_nvlink_received": 100, "gpu_nvlink_crc_errors": 0, "gpu_rows_remapped_uncorrected": 0,
    "gpu_row_remap_failure": 0,
}  # fmt: skip
CARDS = [{"uuid": f"GPU-{name}", "minor": minor, "values": VALUES, "xids": [43]} for minor, name in enumerate("ab")]


class Exported:
    """A cluster and the ports where it is read."""

    def __init__(self) -> None:
        self.cluster = Cluster(CONF)
        self.port, self.node_port = free_port(), free_port()
        cards = self.cluster.folder / "cards.json"
        cards.write_text(json.dumps({"cards": CARDS}))
        self.cluster.conf(CONF, gres="NodeName=n1 Name=gpu File=/dev/nvidia[0-1]\n")
        self.cluster.variables |= {
            "BIREME_TELEMETRY_GATHER": "on",
            "BIREME_TELEMETRY_INTERVAL_S": "1",
            "BIREME_NVML_MODULE": "bireme.testing.scripted_nvml",
            "BIREME_NVML_SCRIPT": str(cards),
            "BIREME_METRICS_ADDRESS": str(self.port),
            "BIREME_METRICS_NODE_ADDRESS": str(self.node_port),
        }

    def page(self, port: int) -> list[str]:
        """Empty while nobody serves it."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                return list(answer.read().decode().splitlines())
        except (urllib.error.URLError, ConnectionError):
            return []

    def line(self, port: int, *parts: str) -> str | None:
        """The first sample with all of these in it."""
        samples = (line for line in self.page(port) if not line.startswith("#"))
        return next((line for line in samples if all(part in line for part in parts)), None)


@pytest.fixture(scope="module")
def exported() -> Iterator[Exported]:
    made = Exported()
    with made.cluster.running():
        yield made


def test_a_gpu_is_joined_with_its_job_by_one_series(exported: Exported) -> None:
    job_id = int(exported.cluster.run("sbatch", "--parsable", "--gpus=1", "--wrap", "sleep 600").stdout)
    line = until(lambda: exported.line(exported.port, "bireme_gpu_job{", f'job_id="{job_id}"'), "no GPU is the job's")
    uuid = line.partition('uuid="')[2].partition('"')[0]
    figure = exported.line(exported.port, "DCGM_FI_DEV_GPU_UTIL{", f'UUID="{uuid}"')
    assert figure is not None
    assert figure.endswith(" 97")
    assert f'job_id="{job_id}"' not in figure
    exported.cluster.run("scancel", str(job_id))
    until(lambda: None if exported.line(exported.port, f'job_id="{job_id}"') else True, "the job is still there")


def test_it_is_the_same_page_over_the_socket(exported: Exported) -> None:
    with Transport(str(exported.cluster.home)) as transport:
        names = {
            line.split(" ")[2]
            for line in transport.get_bytes("/metrics").decode().splitlines()
            if line.startswith("# TYPE")
        }
    assert {"bireme_jobs_submitted_total", "bireme_node_up", "bireme_scheduler_passes_total"} <= names


def test_a_machines_own_page_is_there_while_the_daemon_is_dead(exported: Exported) -> None:
    until(lambda: exported.line(exported.node_port, "DCGM_FI_DEV_POWER_USAGE{", "GPU-a"), "no GPU on the node's page")
    exported.cluster.kill_daemon()
    assert exported.page(exported.port) == []
    rounds = exported.line(exported.node_port, "bireme_gatherer_rounds_total")
    assert rounds is not None

    def goes_on() -> bool | None:
        return True if exported.line(exported.node_port, "bireme_gatherer_rounds_total") not in (None, rounds) else None

    until(goes_on, "no round is made without a daemon")
    assert exported.line(exported.node_port, "DCGM_FI_DEV_GPU_UTIL{", "GPU-b")
    exported.cluster.up_again()
    until(
        lambda: exported.line(exported.port, "DCGM_FI_DEV_GPU_UTIL{", "GPU-b"), "the daemon's page does not come back"
    )


def test_a_port_that_the_flag_named_is_there_after_the_next_start_and_one_that_is_taken_is_told(
    exported: Exported,
) -> None:
    cluster, other = exported.cluster, free_port()
    cluster.run("bireme", "down")
    cluster.run("bireme", "up", "-q", "--metrics-port", str(other))
    assert exported.page(other)
    assert not exported.page(exported.port), "the flag wins over the setting"
    cluster.run("bireme", "down")
    with socket.create_server(("127.0.0.1", other)):
        told = cluster.run("bireme", "up").stdout
    assert f"Not applied: metrics cannot be served at 127.0.0.1:{other}" in told
    assert "Address already in use" in told
    until(lambda: exported.page(other) or None, "a port that is free again is not taken")
    cluster.run("bireme", "down")
    cluster.run("bireme", "up", "-q", "--metrics-port", "none")
    assert exported.page(exported.port)


def test_a_port_that_is_none_is_refused(exported: Exported) -> None:
    done = exported.cluster.run("bireme", "up", "--metrics-port", "prometheus", check=False)
    assert done.returncode == 1
    assert (
        "--metrics-port: 'prometheus' is no address for Prometheus: it is PORT (on loopback) or HOST:PORT"
        in done.stderr
    )


# --- a real Prometheus ------------------------------------------------------------------------------------------------

needs_prometheus = pytest.mark.skipif(
    not (prometheus.program("prometheus") and prometheus.program("promtool")),
    reason="needs Prometheus: python -m tests.prepare",
)
QUERIES = [
    (f"{board.name}: {panel.title} {place}", in_prometheus(query.expr))
    for board in DASHBOARDS
    for panel in board.panels
    for place, query in enumerate(panel.queries)
]
_FOREIGN = re.compile(r"DCGM_.*|.* not 'camelCase'$")
"""What promtool would like otherwise of dcgm-exporter's names and labels."""


@pytest.fixture(scope="module")
def scraped(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A working cluster as Prometheus sees it: a job has a GPU, another waits, one failed, a service is asked."""
    cluster = exported.cluster
    serve(cluster, "--replicas=1")
    ready(cluster, 1)
    cluster.run("sbatch", "--wait", "--wrap", "exit 3", check=False)
    cluster.run("sbatch", "--gpus=2", "--wrap", "sleep 600")
    cluster.run("sbatch", "--gpus=2", "--wrap", "sleep 600")
    until(lambda: exported.line(exported.port, "bireme_gpu_job{"), "no GPU is a job's")
    until(lambda: exported.line(exported.port, "bireme_job_memory_bytes{"), "nothing is measured of a job")
    load = Load(shown(cluster)["url"])
    targets = {"bireme": [f"127.0.0.1:{exported.port}"], "bireme-node": [f"127.0.0.1:{exported.node_port}"]}
    folder = tmp_path_factory.mktemp("prometheus")
    try:
        with prometheus.running(folder, targets, GRAFANA / "alerts.yml") as server:
            yield server
    finally:
        load.stop()
        cluster.bireme("service", "stop", "chat")
        cluster.run("scancel", "--me")


def chosen(expr: str) -> str:
    """As Grafana asks it, with everything chosen."""
    expr = expr.replace("$__rate_interval", "10s").replace('"$job"', '"bireme"')
    return re.sub(r'"\$\w+"', '".*"', expr)


@needs_prometheus
def test_promtool_reads_both_pages_and_likes_our_own_names(exported: Exported) -> None:
    until(lambda: exported.line(exported.port, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"), "no energy is counted")
    for port in (exported.port, exported.node_port):
        page = "\n".join(exported.page(port)) + "\n"
        done = subprocess.run([str(prometheus.program("promtool")), "check", "metrics"], input=page.encode(),
                              capture_output=True, check=False)  # fmt: skip
        assert done.returncode in (0, 3), done.stderr.decode()
        assert [line for line in done.stderr.decode().splitlines() if not _FOREIGN.match(line)] == []


@needs_prometheus
def test_both_pages_are_scraped_without_a_fault(scraped: Prometheus) -> None:
    up = until(lambda: rows if len(rows := scraped.query("up == 1")) == 2 else None, "a page is not read")
    assert {row["metric"]["job"] for row in up} == {"bireme", "bireme-node"}
    assert all(target["lastError"] == "" for target in scraped.ask("/api/v1/targets")["activeTargets"])


@needs_prometheus
@pytest.mark.parametrize(("name", "expr"), QUERIES, ids=[name for name, _ in QUERIES])
def test_every_query_of_every_panel_returns_data(scraped: Prometheus, name: str, expr: str) -> None:
    until(lambda: scraped.query(chosen(expr)) or None, f"{name}: nothing for {chosen(expr)}")


@needs_prometheus
def test_every_alert_is_a_rule_that_prometheus_evaluates(scraped: Prometheus) -> None:
    def rules() -> list[dict[str, Any]] | None:
        found = scraped.ask("/api/v1/rules")["groups"][0]["rules"]
        return found if all(rule["health"] != "unknown" for rule in found) else None

    found = until(rules, "the rules are not evaluated")
    assert {rule["name"]: rule.get("lastError", "") for rule in found} == {rule.name: "" for rule in RULES}
    assert {rule["name"] for rule in found if rule["state"] == "firing"} <= {"GpuXid"}

"""/metrics of a working cluster with scripted GPUs: on ports that outlive restarts, and without a daemon."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from cluster import Cluster

from bireme.client.transport import Transport

Found = TypeVar("Found")
_PATIENCE_S = 120.0
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
CARDS = [{"uuid": f"GPU-{name}", "minor": minor, "values": VALUES} for minor, name in enumerate("ab")]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


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


def until(look: Callable[[], Found | None], what: str) -> Found:
    """Waits for what is sure to come."""
    deadline = time.monotonic() + _PATIENCE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


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

"""A job of more nodes than its Secret could once hold: fake nodes and agents, a real API server and daemon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kubernetes_cluster.cluster import missing, running
from tests.support.fake_crew import FakeCrew
from tests.support.kubernetes import KubernetesCluster

pytestmark = pytest.mark.skipif(bool(missing(fake=True)), reason=missing(fake=True) or "-")
LONG_S = 300.0
NODES = 150
"""Above 134 it did not start."""


@contextmanager
def manned(cluster: KubernetesCluster, folder: Path) -> Iterator[FakeCrew]:
    """The agents of the one start that there is."""
    cluster.until(lambda: cluster.secrets(), LONG_S)
    (name,) = cluster.secrets()
    crew = FakeCrew(cluster.kubernetes.api.get(f"/api/v1/namespaces/default/secrets/{name}"), folder)
    loop = asyncio.new_event_loop()
    work = loop.create_task(crew.run())
    thread = threading.Thread(target=loop.run_until_complete, args=(asyncio.wait([work]),))
    thread.start()
    try:
        yield crew
    finally:
        loop.call_soon_threadsafe(work.cancel)
        thread.join()
        loop.close()


def test_a_job_of_many_nodes_starts_and_ends(tmp_path: Path) -> None:
    start_and_end(NODES, tmp_path)


def start_and_end(nodes: int, folder: Path) -> None:
    with running(fake=nodes) as kubernetes:
        cluster = KubernetesCluster(kubernetes, gateway="127.0.0.1", start_timeout_s=int(LONG_S))
        with cluster.running():
            job = cluster.sbatch(f"-N{nodes}", "--gpus-per-node=8", "--wrap", "srun true")
            with manned(cluster, folder) as crew:
                assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
                cluster.until(lambda: not cluster.pods() and not cluster.secrets(), LONG_S)
            assert set(crew.hosts.values()) == {nodes}, "the first node was told of all"

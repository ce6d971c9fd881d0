"""Replicas of services on the embedded engine: what they are told, where they answer, and what is reported of them."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import closing
from pathlib import Path

from tests.integration.test_embedded_engine import NODES, running
from tests.support.ports import free_port

from bireme.core.model import observations as o
from bireme.core.model.serving.probes import Health, Probe, Probes, ReplicaOf

QUICK = Probes(
    startup=Probe(period_s=0.1, failure_threshold=100_000, timeout_s=10.0),
    readiness=Probe(period_s=0.1, timeout_s=10.0),
)
SERVER = f"""#!/bin/bash
echo "$PORT $BIREME_SERVICE $BIREME_REVISION $BIREME_REPLICA"
exec {sys.executable} -m http.server --bind "$SLURMD_NODENAME" "$PORT"
"""


def replica(port: int) -> ReplicaOf:
    return ReplicaOf("chat", 3, 7, port, QUICK)


def test_a_replica_knows_its_port_and_is_ready_at_its_nodes_address(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            port = free_port()
            launch = cluster.job(1, SERVER, ("n2",), replica=replica(port))
            cluster.engine.send([launch])
            seen = await cluster.until(o.ReplicaProbed, job_id=1, health=Health.READY)
            assert seen.generation == 1
            if cluster.engine.isolation["n2"]["kind"] != "none":
                assert seen.address == cluster.engine._starter.entries["n2"]["address"]
            with socket.create_connection((seen.address, port)):
                pass
            assert (tmp_path / "slurm-1.out").read_text().split()[:4] == [str(port), "chat", "3", "7"]

    asyncio.run(scenario())


def test_a_gang_is_ready_when_its_first_nodes_port_answers_and_its_steps_know_the_port(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            port = free_port()
            launch = cluster.job(1, SERVER.replace("$SLURMD_NODENAME", "0.0.0.0"), NODES, replica=replica(port))
            cluster.engine.send([launch])
            await cluster.until(o.ReplicaProbed, job_id=1, health=Health.READY)
            step = cluster.step(launch, argv=("sh", "-c", "echo $PORT $BIREME_SERVICE $BIREME_REPLICA"))
            cluster.engine.send([step])
            output = await cluster.output(step)
            assert set(output.stdout.values()) == {f"{port} chat 7\n".encode()}
            assert len(output.stdout) == 4

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_a_refusal_that_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            with closing(socket.create_server(("127.0.0.1", 0))) as other:
                cluster.engine.send([cluster.job(1, SERVER, replica=replica(other.getsockname()[1]))])
                refused = await cluster.until(o.JobRefused, job_id=1)
                assert "port taken" in refused.reason
                assert not refused.short_on
                assert not refused.fatal

    asyncio.run(scenario())


def test_a_daemon_that_comes_back_hears_what_changed_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            gate = tmp_path / "gate"
            script = SERVER.replace("exec", f"while ! test -e {gate}; do sleep 0.1; done; exec")
            cluster.engine.send([cluster.job(1, script, replica=replica(free_port()))])
            await cluster.until(o.JobLaunched, job_id=1)
            await cluster.engine.stop()
            gate.touch()
            after = cluster.new_engine()
            await after.start(cluster.report)
            cluster.engine = after
            await cluster.until(o.ReplicaProbed, job_id=1, health=Health.READY)

    asyncio.run(scenario())


def test_an_agent_of_an_earlier_release_is_named_as_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.engine._links["n1"].asks_replicas = False  # as its welcome would have said
            cluster.engine.send([cluster.job(1, SERVER, replica=replica(free_port()))])
            seen = await cluster.until(o.ReplicaProbed, job_id=1, health=Health.LOADING)
            assert "the agent of node n1 is of an earlier release" in seen.why

    asyncio.run(scenario())

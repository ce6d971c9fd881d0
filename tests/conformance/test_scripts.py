"""Clusters on the engines that we ship, used as people use them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster, virtual_nodes

from bireme.client.sdk import Client
from bireme.testing.conformance.checks import Check, NotApplicable
from bireme.testing.conformance.programs import Program
from bireme.testing.conformance.scripts import SCRIPT_CHECKS, Deployment, ScriptBody, Session, run_script_check


class EmbeddedDeployment(Deployment):
    """`bireme up` on this machine, with two virtual nodes."""

    def __init__(self) -> None:
        self.cluster = Cluster(virtual_nodes(2, 2, cpus=16)).up()

    @property
    def folder(self) -> Path:
        return self.cluster.work

    def run(self, *argv: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(*argv, cwd=cwd, check=check)

    def kill_daemon(self) -> None:
        self.cluster.kill_daemon()

    def stop_daemon(self) -> None:
        self.cluster.down()

    def start_daemon(self) -> None:
        self.cluster.up_again()

    def restart_node(self, node: str) -> None:
        self.cluster.kill_agent(node)

    def is_clear(self, job: str) -> bool:
        return not self.cluster.pids_with(f"BIREME_JOB={job}.")

    def limited(self, session: Session, program: Program) -> str:
        """Held, given a limit in seconds through the API (sbatch counts in minutes), and released."""
        job = session.submit(program, "--hold")
        with Client(str(self.cluster.home)) as client:
            client.update(job, time_limit_s=1)
            client.release(job)
        return job


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedDeployment]:
    made = EmbeddedDeployment()
    try:
        yield made
    finally:
        left = made.cluster.stop()
    assert not left, f"left running: {left}"


@pytest.mark.parametrize("check", list(SCRIPT_CHECKS), ids=str)
def test_embedded(embedded: EmbeddedDeployment, check: Check[ScriptBody]) -> None:
    try:
        run_script_check(check, embedded)
    except NotApplicable as reason:
        pytest.skip(str(reason))

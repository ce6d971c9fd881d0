"""What every deployment of the script half shares whose daemon runs on this machine: the cluster of `tests/support`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.cluster import Cluster

from bireme.client.sdk import Client
from bireme.testing.conformance.checks import Check, NotApplicable
from bireme.testing.conformance.programs import Program
from bireme.testing.conformance.scripts import Deployment, ScriptBody, Session, run_script_check
from bireme.testing.conformance.services import ServiceBody, run_service_check


class ClusterDeployment(Deployment):
    """Left to each: how a node is restarted, and when nothing of a job is left."""

    cluster: Cluster

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

    def limited(self, session: Session, program: Program) -> str:
        """Held, given a limit in seconds through the API (sbatch counts in minutes), and released."""
        job = session.submit(program, "--hold")
        with Client(str(self.cluster.home)) as client:
            client.update(job, time_limit_s=1)
            client.release(job)
        return job


def check_on(deployment: Deployment, check: Check[ScriptBody]) -> None:
    """Runs one of the sentences; what a deployment says that it cannot do is skipped with its reason."""
    try:
        run_script_check(check, deployment)
    except NotApplicable as reason:
        pytest.skip(str(reason))


def service_check_on(deployment: Deployment, check: Check[ServiceBody]) -> None:
    """The same, of one of the sentences about services."""
    try:
        run_service_check(check, deployment)
    except NotApplicable as reason:
        pytest.skip(str(reason))

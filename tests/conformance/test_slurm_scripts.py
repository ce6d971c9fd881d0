"""A cluster on the Slurm engine, used as people use it: the same sentences as on the engines that Bireme places for."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.deployed import ClusterDeployment, check_on
from tests.slurm_cluster import Layout
from tests.support.slurm_attached import Attached, attached

from bireme.testing.conformance.checks import Check
from bireme.testing.conformance.programs import Program
from bireme.testing.conformance.scripts import SCRIPT_CHECKS, ScriptBody, Session

NODES = """\
NodeName=n[1-3] CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=8000
PartitionName=main Nodes=n[1-3] Default=YES MaxTime=1-00:00:00 DefaultTime=00:10:00
"""


class SlurmDeployment(ClusterDeployment):
    places_by_itself = True
    patience_s = 300.0
    """Slurm lets a requeued job wait for two minutes, and looks again only now and then."""

    cluster: Attached

    def __init__(self, bireme: Attached) -> None:
        self.cluster = bireme

    def restart_node(self, node: str) -> None:
        """slurmd is killed with its jobs; the next one says that it has none of them."""
        slurm = self.cluster.slurm
        slurm.call("scontrol", "update", f"nodename={node}", "state=down", "reason=restarted")
        slurm.stop_daemon(f"slurmd.{node}", signal.SIGKILL)
        slurm.start_daemon(f"slurmd.{node}")
        slurm.until(lambda: slurm.call("sinfo", "-h", "-n", node, "-o", "%T") in ("idle", "mixed"), f"{node} is back")

    def is_clear(self, job: str) -> bool:
        return not _pids_of(job)

    def limited(self, session: Session, program: Program) -> str:
        """OverTimeLimit=0 and a minute: the least that sbatch takes, and Slurm looks every half minute."""
        return session.submit(program, "--time=1")


def _pids_of(job: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"SLURM_JOB_ID={job}".encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue  # it ended while we looked
    return found


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmDeployment]:
    with attached(Layout(nodes=NODES)) as bireme:
        yield SlurmDeployment(bireme)


@pytest.mark.parametrize("check", list(SCRIPT_CHECKS), ids=str)
def test_slurm(slurm: SlurmDeployment, check: Check[ScriptBody]) -> None:
    check_on(slurm, check)

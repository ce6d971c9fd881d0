"""A cluster on the Slurm engine, used as people use it: the same sentences as on the engines that Bireme places for.

Batch makes way for services there by Slurm's own rules: its operator has given it a QOS that services have.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.conformance.deployed import ClusterDeployment, check_on, service_check_on
from tests.slurm_cluster import Layout
from tests.support.slurm_attached import Attached, attached

from bireme.testing.conformance.checks import Check
from bireme.testing.conformance.programs import Program
from bireme.testing.conformance.scripts import SCRIPT_CHECKS, ScriptBody, Session
from bireme.testing.conformance.services import SERVICE_CHECKS, ServiceBody

NODES = """\
NodeName=n[1-3] CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=8000
PartitionName=main Nodes=n[1-3] Default=YES MaxTime=1-00:00:00 DefaultTime=00:10:00
"""


class SlurmDeployment(ClusterDeployment):
    places_by_itself = True
    nodes = ("n1", "n2", "n3")
    patience_s = 300.0
    """Slurm lets a requeued job wait for two minutes, and looks again only now and then."""

    cluster: Attached

    def __init__(self, bireme: Attached) -> None:
        self.cluster = bireme

    def restart_node(self, node: str) -> None:
        """slurmd is killed, and with it all that ran there; the next one says that it has none of it."""
        slurm = self.cluster.slurm
        slurm.call("scontrol", "update", f"nodename={node}", "state=down", "reason=restarted")
        slurm.stop_daemon(f"slurmd.{node}", signal.SIGKILL)
        for pid in _pids_with(f"SLURMD_NODENAME={node}", f"SLURM_CONF={slurm.folder}/slurm.conf"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        spool = slurm.folder / "spool" / node
        slurm.until(lambda: not [*spool.glob(f"{node}_*.*")], f"the slurmstepd of {node} have ended, and their sockets")
        slurm.start_daemon(f"slurmd.{node}")
        slurm.until(lambda: slurm.call("sinfo", "-h", "-n", node, "-o", "%T") in ("idle", "mixed"), f"{node} is back")

    def is_clear(self, job: str) -> bool:
        return not _pids_with(f"SLURM_JOB_ID={job}")

    def limited(self, session: Session, program: Program) -> str:
        """OverTimeLimit=0 and a minute: the least that sbatch takes, and Slurm looks every half minute."""
        return session.submit(program, "--time=1")


def _pids_with(*variables: str) -> list[int]:
    wanted, found = {variable.encode() for variable in variables}, []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted.issubset(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
        except OSError:
            continue  # it ended while we looked
    return found


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmDeployment]:
    with attached(Layout(nodes=NODES).having(PreemptType="preempt/qos", PreemptMode="REQUEUE")) as bireme:
        bireme.slurm.call("sacctmgr", "-i", "add", "qos", "service", "preempt=normal")
        yield SlurmDeployment(bireme)


@pytest.mark.timeout(600)  # some wait for Slurm's own patience, several times
@pytest.mark.parametrize("check", list(SCRIPT_CHECKS), ids=str)
def test_slurm(slurm: SlurmDeployment, check: Check[ScriptBody]) -> None:
    check_on(slurm, check)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", list(SERVICE_CHECKS), ids=str)
def test_slurm_services(slurm: SlurmDeployment, check: Check[ServiceBody]) -> None:
    service_check_on(slurm, check)

"""`bireme node` on the nodes of a real Slurm: whose processes they are, by cgroup or slurmd, and a daemon that dies.

Every "node" is a slurmd of this machine, and has a `bireme node` of its own that calls the daemon over TLS.
"""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.slurm_cluster import Layout, SlurmCluster, running
from tests.support.cluster import Cluster
from tests.support.cluster_nodes import VARIABLES, Nodes
from tests.support.measured import ask, curves, until, values_of
from tests.support.slurm_attached import Attached, skip_in_chroot, skip_without_slurm

from bireme.gather.clusters.gres import gpu_files
from bireme.gather.messages import Round
from bireme.gather.spool import Spool

NODES = """\
NodeName=n[1-2] CPUs=4 Boards=1 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=3000 Gres=gpu:a100:2
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=1-00:00:00
"""
BURNS = "trap exit TERM; while :; do :; done"


@contextmanager
def watched(proctrack: str) -> Iterator[Nodes]:
    skip_without_slurm()
    skip_in_chroot("its scontrol is in there")
    with running(Layout(nodes=NODES).having(ProctrackType=proctrack)) as slurm:
        made = Attached(slurm)
        made.variables |= VARIABLES
        with made.running() as both:
            nodes = Nodes(both, both.slurm.env, "--shares-machine")
            with nodes.ended_at_last():
                yield nodes


@pytest.fixture(scope="module", params=["proctrack/cgroup", "proctrack/linuxproc"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Slurm with cgroups of its own, and without: slurmd is asked then."""
    with watched(request.param) as found:
        found.start("n1")
        found.start("n2")
        yield found


def slurm_of(nodes: Nodes) -> SlurmCluster:
    assert isinstance(nodes.both, Attached)
    return nodes.both.slurm


def burning(nodes: Nodes) -> int:
    """A job of three tasks on two nodes that use CPUs, submitted to Slurm, once all of them are seen."""
    script = f"srun --mem=0 bash -c '{BURNS}'"
    job = slurm_of(nodes).call("sbatch", "--parsable", "-N2", "-n2", "-o", "/dev/null", "--wrap", script)

    def seen() -> bool | None:
        busy = {curve["node"] for curve in curves(nodes.both, int(job), "cpu_user") if max_of(curve) > 0}
        return True if busy == {"n1", "n2"} else None

    until(lambda: seen() if is_known(nodes.both, job) else None, f"nothing is measured of job {job}")
    return int(job)


def is_known(both: Cluster, job: str) -> bool:
    return bool(both.run("squeue", "-h", "-j", job, check=False).stdout.strip())


def max_of(curve: dict[str, Any]) -> float:
    return max((value or 0.0 for value in curve["high"]), default=0.0)


def ended(nodes: Nodes, job: int) -> None:
    slurm_of(nodes).call("scancel", str(job))
    until(lambda: True if values_of(nodes.both, job) is None else None, f"job {job} is still measured")


def test_every_step_of_a_job_of_slurms_is_measured_on_its_node(nodes: Nodes) -> None:
    job = burning(nodes)
    found = {(curve["node"], curve["id"]) for curve in curves(nodes.both, job, "memory")}
    assert found == {("n1", f"{job}.1.-5.0"), ("n1", f"{job}.1.0.0"), ("n2", f"{job}.1.0.0")}
    now = ask(nodes.both, "/v1/telemetry/now")
    assert {node["node"] for node in now["nodes"]} == {"n1", "n2"}
    assert now["jobs"][str(job)]["values"]["memory"] > 0
    ended(nodes, job)


def test_nothing_is_missing_after_the_death_of_the_daemon(nodes: Nodes) -> None:
    job = burning(nodes)
    nodes.both.kill_daemon()
    short = slurm_of(nodes).call("sbatch", "--parsable", "-w", "n2", "-n1", "-o", "/dev/null", "--wrap", BURNS)
    until(lambda: True if len(rounds_of(nodes, "n2", short)) >= 3 else None, "no round tells of it without a daemon")
    slurm_of(nodes).call("scancel", short)
    slurm_of(nodes).until(lambda: not slurm_of(nodes).call("squeue", "-h", "-j", short), "it ends")
    nodes.both.up_again()

    def came() -> list[dict[str, Any]] | None:
        known = "CANCELLED" in nodes.both.run("sacct", "-nXP", "-j", short, "-o", "State", check=False).stdout
        return (curves(nodes.both, int(short), "cpu_user") or None) if known else None

    (curve,) = until(came, "what a job did that began and ended without a daemon is lost")
    assert (curve["node"], curve["id"]) == ("n2", f"{short}.1.-5.0")
    assert max_of(curve) > 0
    until(lambda: True if values_of(nodes.both, job) else None, "the job that runs on is not measured any more")
    ended(nodes, job)


def rounds_of(nodes: Nodes, node: str, job: str) -> list[Round]:
    """Those that tell of a job's script and that its node keeps because no daemon took them."""
    with TemporaryDirectory() as folder:
        shutil.copytree(nodes.folder(node), folder, dirs_exist_ok=True)
        spool = Spool(Path(folder))
        try:
            kept = list(spool.after(0))
        finally:
            spool.close()
    return [told for told in kept if any(f"{job}.0.-5.0" in frame.ids for frame in told.frames)]


def test_slurmd_says_which_device_file_each_of_its_gpus_is(nodes: Nodes) -> None:
    slurm = slurm_of(nodes)
    said = slurm.run("slurmd", "-G", "-N", "n1")
    assert gpu_files(said.stdout + said.stderr) == [f"{slurm.folder}/dev/nvidia{number}" for number in (0, 1)]


def test_a_node_speaks_for_itself_alone(nodes: Nodes) -> None:
    nodes.end("n2")
    (nodes.both.folder / "n2.json").rename(nodes.both.folder / "kept.json")
    try:
        nodes.start("n2", speaks_for="n1")
        until(lambda: _says(nodes, "n2", "its token is not for node 'n2'"), "it is not refused")
        nodes.end("n2")
    finally:
        (nodes.both.folder / "kept.json").replace(nodes.both.folder / "n2.json")
    nodes.start("n2")
    until(lambda: _says(nodes, "n2", "the daemon has rounds up to"), "it is not let in again")


def _says(nodes: Nodes, name: str, words: str) -> bool | None:
    return True if words in nodes.log(name).read_text() else None


def test_neither_log_nor_process_list_has_the_token(nodes: Nodes) -> None:
    file = nodes.both.folder / "n1.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = json.loads(file.read_text())["token"].rpartition(":")[2]
    logs = nodes.log("n1").read_text() + (nodes.both.home / "log" / "daemon.log").read_text()
    words = Path(f"/proc/{nodes.running['n1'].pid}/cmdline").read_text()
    variables = Path(f"/proc/{nodes.running['n1'].pid}/environ").read_text()
    assert token not in logs + words + variables

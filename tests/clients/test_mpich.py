"""An MPI program built with Debian's MPICH: its ranks find each other over srun's PMI-2."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.cluster import Cluster

SOURCE = Path(__file__).parent / "programs" / "allreduce.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("mpicc.mpich") or shutil.which("mpicc")
    if not compiler:
        pytest.skip("mpicc is not installed (Debian: mpich libmpich-dev)")
    built = tmp_path_factory.mktemp("mpi") / "allreduce"
    subprocess.run([compiler, "-o", built, SOURCE], check=True)
    if b"libmpich" not in subprocess.run(["ldd", built], check=True, capture_output=True).stdout:
        pytest.skip("mpicc is not MPICH's")
    return built


def test_eight_ranks_on_two_nodes(cluster: Cluster, program: Path) -> None:
    said = sorted(cluster.run("srun", "--mpi=pmi2", "-N2", "-n8", program).stdout.splitlines())
    ranks = [line.split(" on ")[0] for line in said]
    hosts = [line.split(" on ")[1] for line in said]
    assert ranks == [f"{rank} of 8" for rank in range(8)]
    # As Slurm fills nodes: the first as far as it goes, with at least one rank on the other.
    assert hosts == sorted(hosts)
    assert set(hosts) == {"n1: 28", "n2: 28"}


def test_inside_a_batch_job_with_ranks_dealt_in_turn(cluster: Cluster, program: Path) -> None:
    job_id = cluster.sbatch("-N2", "--ntasks-per-node=4", "--wrap", f"srun --mpi=pmi2 -m cyclic {program}")
    assert cluster.wait(job_id)["state"] == "COMPLETED", cluster.output(job_id)
    # srun warns, as Slurm's does: the job's --ntasks-per-node is not that of one proxy a node.
    said = [line for line in cluster.output(job_id).splitlines() if not line.startswith("srun: Warning:")]
    assert sorted(said) == [f"{rank} of 8 on n{1 + rank % 2}: 28" for rank in range(8)]


@pytest.mark.skipif(not shutil.which("mpiexec.hydra"), reason="mpiexec.hydra is not installed (Debian: mpich)")
def test_mpiexec_finds_the_allocation_and_starts_its_proxies_with_srun(cluster: Cluster, program: Path) -> None:
    job_id = cluster.sbatch("-N2", "--ntasks-per-node=4", "--wrap", f"mpiexec.hydra {program}")
    assert cluster.wait(job_id)["state"] == "COMPLETED", cluster.output(job_id)
    said = cluster.output(job_id).splitlines()
    assert sorted(said) == [f"{rank} of 8 on n{1 if rank < 4 else 2}: 28" for rank in range(8)]
    steps = cluster.run("sacct", "-n", "-P", "-j", f"{job_id}.0", "-o", "JobName,NTasks,NodeList").stdout
    assert steps == "hydra_pmi_proxy|2|n[1-2]\n"


def test_ranks_of_both_components_of_a_heterogeneous_job_are_one_world(cluster: Cluster, program: Path) -> None:
    step = f"srun --mpi=pmi2 --het-group=0,1 {program}"
    job_id = cluster.sbatch("-N1", "-n3", "-w", "n1", ":", "-N1", "-n5", "-w", "n2", "--wrap", step)
    assert cluster.wait(job_id)["state"] == "COMPLETED", cluster.output(job_id)
    said = cluster.output(job_id).splitlines()
    assert sorted(said) == [f"{rank} of 8 on n{1 if rank < 3 else 2}: 28" for rank in range(8)]

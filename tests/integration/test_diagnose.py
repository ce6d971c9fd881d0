"""`bireme diagnose` on a real cluster: a job that fails is explained by its own output, of every rank, also when it is
history; and it is nobody else's business."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.cluster import Cluster, virtual_nodes

from bireme.client.sdk import Client

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.conf(virtual_nodes(2, 2, cpus=8))
    with made.running():
        yield made


def diagnosed(cluster: Cluster, job: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(cluster.bireme("diagnose", "--json", job).stdout)
    return told


def test_a_job_that_fails_is_explained_by_its_output(cluster: Cluster) -> None:
    job = cluster.sbatch("-J", "train", "--wrap", f"echo begins; echo '{OOM} token=abcdef123456' >&2; exit 1")
    cluster.wait(job)
    told = diagnosed(cluster, job)
    assert told["cause"] == "gpu_out_of_memory"
    line = next(each for each in told["evidence"] if each["source"] == "output")
    assert (line["file"].rpartition("/")[2], line["line"]) == (f"slurm-{job}.out", 2)
    assert "abcdef123456" not in json.dumps(told)
    said = cluster.bireme("diagnose", job).stdout
    assert f'Job {job} "train"' in said.splitlines()[0]
    assert f"slurm-{job}.out:2" in said


def test_the_rank_that_failed_is_named(cluster: Cluster) -> None:
    script = f'if [ "$SLURM_PROCID" = 3 ]; then echo "{OOM}" >&2; exit 1; fi'
    job = cluster.sbatch(
        "-N2", "-n4", "--wrap", f"srun --output=rank-%t.out bash -c '{script}'"
    )  # fmt: skip
    cluster.wait(job)
    told = diagnosed(cluster, job)
    assert told["cause"] == "gpu_out_of_memory"
    line = next(each for each in told["evidence"] if each["source"] == "output")
    assert line["rank"] == 3
    assert line["file"].endswith("rank-3.out")


def test_a_task_of_an_array_and_one_that_waits(cluster: Cluster) -> None:
    array = cluster.sbatch("--array=0-1", "--wrap", f"[ $SLURM_ARRAY_TASK_ID = 0 ] || {{ echo '{OOM}'; exit 2; }}")
    cluster.wait(array)
    assert diagnosed(cluster, f"{array}_1")["cause"] == "gpu_out_of_memory"
    assert diagnosed(cluster, array)["cause"] == "gpu_out_of_memory"
    held = cluster.sbatch("-H", "--wrap", "true")
    done = cluster.bireme("diagnose", held, check=False)
    assert done.returncode == 1
    assert f"bireme why {held}" in done.stderr
    assert cluster.bireme("diagnose", "99999", check=False).returncode == 1


def test_why_and_the_api_say_the_same(cluster: Cluster) -> None:
    """Over HTTP a process of the owner's reads the output."""
    script = f'if [ "$SLURM_PROCID" = 1 ]; then echo "{OOM} password=hunter22" >&2; exit 1; fi'
    job = cluster.sbatch("-n2", "--wrap", f"srun --output=api-%t.out bash -c '{script}'")
    cluster.wait(job)
    with Client(str(cluster.home)) as client:
        told = client.diagnose(job)
    mine = diagnosed(cluster, job)
    assert {name: told[name] for name in mine if name in told} == {name: mine[name] for name in mine if name in told}
    assert told["cause"] == "gpu_out_of_memory"
    assert "hunter22" not in json.dumps(told)
    why = json.loads(cluster.bireme("why", "--json", job).stdout)["jobs"][0]
    assert why["diagnosis"]["cause"] == "gpu_out_of_memory"
    said = " ".join(cluster.bireme("why", job).stdout.split())
    assert "Cause Out of GPU memory (confidence: high)" in said
    assert "api-1.out:1" in said
    assert "Cause" not in cluster.bireme("why", "--quick", job).stdout

"""snakemake-executor-plugin-slurm: every rule is a batch job that runs snakemake again under srun."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.cluster import Cluster

pytestmark = pytest.mark.skipif(
    not find_spec("snakemake_executor_plugin_slurm"), reason="snakemake-executor-plugin-slurm is not installed"
)


class Workflow(NamedTuple):
    folder: Path
    done: subprocess.CompletedProcess[str]


SNAKEFILE = Path(__file__).parent / "programs" / "Snakefile"


FIRST_LOOK_S = "10"  # each later look waits ten seconds more: better one look when the jobs are about to end


@pytest.fixture(scope="module")
def workflow(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """One run of everything; `--keep-going` lets the failing rule not disturb the others."""
    folder = tmp_path_factory.mktemp("workflow")
    polling = ["--slurm-init-seconds-before-status-checks", FIRST_LOOK_S, "--seconds-between-status-checks", "1"]
    where = ["--snakefile", SNAKEFILE, "--directory", folder, "--slurm-logdir", folder / "logs"]
    words = ["--executor", "slurm", "--jobs", "4", "--latency-wait", "5", "--keep-going", *polling, *where]
    # Its caches and the like go under HOME: not this user's own.
    targets = ["all.txt", "never.txt"]
    home = {"HOME": str(folder)}
    done = cluster.run(sys.executable, "-m", "snakemake", *words, *targets, cwd=folder, env=home, check=False)
    return Workflow(folder, done)


def test_fan_out_and_gather(cluster: Cluster, workflow: Workflow) -> None:
    lines = [line.split() for line in (workflow.folder / "all.txt").read_text().splitlines()]
    assert [line[0] for line in lines] == ["bow", "beam", "stern"]
    for line in lines:
        assert line[1:3] == ["main", "cpus=2"]
        assert line[3].removeprefix("gpus=").isdigit()
        assert line[4].removeprefix("host=") in ("n1", "n2", "n3", "n4")
    assert sorted(ended(cluster, "COMPLETED")) == ["debug|100M|00:05:00|0:0"] + ["main|200M|00:05:00|0:0"] * 3


def test_a_failing_rule_is_reported_as_failed(cluster: Cluster, workflow: Workflow) -> None:
    assert workflow.done.returncode == 1
    assert "Error in rule broken" in workflow.done.stderr
    assert "SLURM status is: 'FAILED'" in workflow.done.stderr
    assert ended(cluster, "FAILED") == ["main|100M|00:05:00|1:0"]


def ended(cluster: Cluster, state: str) -> list[str]:
    """Partition, memory, time limit and exit code of the jobs that ended so."""
    listed = cluster.run("sacct", "-X", "-n", "-P", "-o", "State,Partition,ReqMem,Timelimit,ExitCode").stdout
    return [line.partition("|")[2] for line in listed.splitlines() if line.startswith(f"{state}|")]

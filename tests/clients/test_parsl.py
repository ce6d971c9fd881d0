"""parsl's SlurmProvider: two blocks of one whole node each, started with sbatch and srun, run Python functions."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.cluster import Cluster

pytestmark = pytest.mark.skipif(not find_spec("parsl"), reason="parsl is not installed")

PROGRAM = Path(__file__).parent / "programs" / "parsl_blocks.py"


def test_apps_run_on_two_blocks(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run(sys.executable, PROGRAM, tmp_path / "runinfo", cwd=tmp_path)
    answers = json.loads(done.stdout.splitlines()[-1])
    assert [square for square, _, _ in answers] == [number * number for number in range(20)]
    blocks = {(job, host) for _, job, host in answers}
    assert {host for _, host in blocks} <= {"n1", "n2", "n3", "n4"}
    listed = cluster.run("sacct", "-X", "-n", "-P", "-o", "JobID,NodeList").stdout.splitlines()
    assert len(listed) == 2
    assert {"|".join(block) for block in blocks} <= set(listed)
    for job in listed:
        ended = cluster.wait(job.partition("|")[0])
        assert ended["state"] == "CANCELLED", "parsl cancels its blocks when it leaves"

"""JAX on CPUs: `jax.distributed.initialize()` with no arguments reads Slurm's variables and meets over TCP."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.cluster import Cluster

pytestmark = pytest.mark.skipif(not find_spec("jax"), reason="jax is not installed")

PROGRAM = Path(__file__).parent / "programs" / "jax_sum.py"


def test_four_nodes_meet_and_add_up(cluster: Cluster) -> None:
    script = cluster.script(
        f"""\
#SBATCH --nodes=4 --ntasks-per-node=1 --cpus-per-task=1
#SBATCH --output=jax.out
srun {sys.executable} {PROGRAM}
"""
    )
    job_id = cluster.sbatch(str(script), env={"JAX_PLATFORMS": "cpu"})
    ended = cluster.wait(job_id)
    lines = [line for line in cluster.output(job_id).splitlines() if " of 4 on " in line]
    assert ended["state"] == "COMPLETED", cluster.output(job_id)
    assert sorted(lines) == [f"{rank} of 4 on n{rank + 1}: 10" for rank in range(4)]

"""Rows `heal`: from a fault to the task that runs again from its checkpoint, and Slurm's requeue of the same job.

A job on one of four virtual nodes writes checkpoints and meets a fault: its rank is killed, its node dies, its program
dies of an uncorrectable memory error of a GPU. The time runs from the kill (or the program's last word) to the first
line of the next start, which goes on from the newest checkpoint. Slurm has no word for the first and the third: what it
does when somebody says `scontrol requeue` is measured, from that word on; nothing tells its job of a checkpoint.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import bireme_cluster, slurm_cluster
from bench.folders import new_folder
from bench.results import Row, Target
from bench.sizes import Sizes

_PATIENCE_S = 240.0
SCRIPT = """#!/bin/bash
#SBATCH --job-name=heal --nodes=1 --time=10 --output={folder}/out
#BIREME --heal=restart --checkpoint={folder}/saved
if [ -n "$SLURM_RESTART_COUNT" ]; then
  echo "${{BIREME_CHECKPOINT:-nothing}}" > {folder}/from
  date +%s.%N > {folder}/again.new; mv {folder}/again.new {folder}/again
  exit 0
fi
mkdir -p {folder}/saved
python3 -c 'import zipfile; zipfile.ZipFile("{folder}/saved/step-7.pt", "w").writestr("data.pkl", b"x" * 4096)'
echo $SLURMD_NODENAME > {folder}/node
sh -c 'echo $$ > {folder}/rank.new; mv {folder}/rank.new {folder}/rank; exec sleep 1000'
{says}
exit 1
"""
ECC = "echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2"

Strike = Callable[[bireme_cluster.BiremeCluster, Path], None]


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    strike: Strike
    says: str = ""
    """What the script does when its rank is gone."""


def measure(sizes: Sizes, with_slurm: bool = True) -> Iterator[Row]:
    nodes = bireme_cluster.virtual_nodes(4, 8)
    variables = {"BIREME_CHECKPOINTS_INTERVAL_S": "1", "BIREME_HEALING_MODE": "act"}
    with bireme_cluster.running(nodes, variables=variables) as cluster:
        for fault in FAULTS:
            spent = [_healed(cluster, number, fault) for number in range(sizes.heal_rounds)]
            row, target = f"{fault.name}, to its next start from its checkpoint", Target("<", 15)
            yield Row("heal", row, statistics.median(spent), "s", target=target, details={"each": spent})
    if with_slurm and not slurm_cluster.missing():
        yield Row(
            "heal", "Slurm, from scontrol requeue to the next start", _by_slurm(), "s", note="without a checkpoint"
        )


def _healed(cluster: bireme_cluster.BiremeCluster, number: int, fault: Fault) -> float:
    folder = cluster.folder / f"{fault.strike.__name__}-{bool(fault.says)}-{number}"
    folder.mkdir()
    (folder / "job.sh").write_text(SCRIPT.format(folder=folder, says=fault.says))
    words = cluster.command("sbatch", str(folder / "job.sh"))
    subprocess.run(words, env=cluster.env, check=True, capture_output=True)
    _until(folder / "rank")
    struck = time.time()
    fault.strike(cluster, folder)
    _until(folder / "again")
    found = (folder / "from").read_text().strip()
    assert found == f"{folder}/saved/step-7.pt", f"it goes on from its checkpoint, not from {found}"
    return float((folder / "again").read_text()) - struck


def _kill_rank(cluster: bireme_cluster.BiremeCluster, folder: Path) -> None:
    os.kill(int((folder / "rank").read_text()), signal.SIGKILL)


def _kill_node(cluster: bireme_cluster.BiremeCluster, folder: Path) -> None:
    node = (folder / "node").read_text().strip()
    os.kill(int((Path(cluster.home) / "agents" / node / "agent.pid").read_text()), signal.SIGKILL)


FAULTS = (
    Fault("a rank is killed", _kill_rank),
    Fault("its node dies", _kill_node),
    Fault("an ECC error of its GPU", _kill_rank, ECC),
)


def _by_slurm() -> float:
    with slurm_cluster.running(8) as slurm:
        folder = new_folder("heal")
        folder.chmod(0o777)
        (folder / "job.sh").write_text(SCRIPT.format(folder=folder, says=""))
        sbatch = [slurm.slurm.program("sbatch"), "--parsable", "--requeue", str(folder / "job.sh")]
        job = subprocess.run(sbatch, env=slurm.env, check=True, capture_output=True, text=True).stdout.strip()
        _until(folder / "rank")
        struck = time.time()
        subprocess.run([slurm.slurm.program("scontrol"), "requeue", job], env=slurm.env, check=True)
        _until(folder / "again")
        return float((folder / "again").read_text()) - struck


def _until(path: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path.name} did not come within {_PATIENCE_S:g} s")
        time.sleep(0.01)

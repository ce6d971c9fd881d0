"""Rows `heal`: from a fault to the task that runs again from its checkpoint, and Slurm's requeue of the same job.

A job on one of four virtual nodes writes checkpoints and meets a fault: its rank is killed, its node dies, its program
dies of an uncorrectable memory error of a GPU, its GPU falls off the bus (an Xid in the kernel's log, and the program
dies), or it hangs. The GPUs and the kernel are a rehearsal's (`gather/rehearsal`): detectors, fences and restarts are
the real ones. The time runs from the fault (or the program's last word) to the first line of the next start, which
goes on from the newest checkpoint; of a hang the detector's own wait (`detectors.hang_s`) is told apart. Detection
runs from the kernel's line to the finding in the journal, and the fence from there.

Slurm has no word for most of them: what it does when somebody says `scontrol requeue` is measured, from that word on;
nothing tells its job of a checkpoint.
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
from bireme.agent.system.processes import parent_of
from bireme.client.transport import Transport
from bireme.daemon.paths import Paths
from bireme.gather.rehearsal.scene import Scene

_PATIENCE_S = 240.0
SCRIPT = """#!/bin/bash
#SBATCH --job-name=heal --nodes=1 --time=10 --output={folder}/out {gpus}
#BIREME --heal=restart --checkpoint={folder}/saved
if [ -n "$SLURM_RESTART_COUNT" ]; then
  echo "${{BIREME_CHECKPOINT:-nothing}}" > {folder}/from
  date +%s.%N > {folder}/again.new; mv {folder}/again.new {folder}/again
  exit 0
fi
mkdir -p {folder}/saved
python3 -c 'import zipfile; zipfile.ZipFile("{folder}/saved/step-7.pt", "w").writestr("data.pkl", b"x" * 4096)'
echo $SLURMD_NODENAME > {folder}/node
bash -c 'echo $$ > {folder}/rank.new; mv {folder}/rank.new {folder}/rank; while sleep 0.5; do echo step; done'
{says}
exit 1
"""
ECC = "echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2"

OFF_THE_BUS = "echo 'RuntimeError: CUDA error: unspecified launch failure' >&2"
HANG_S = 40
_SEEN_AT_WORK_S = 40.0
"""A job is told to hang by what it did for half a minute before."""

Strike = Callable[[bireme_cluster.BiremeCluster, Path], None]


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    strike: Strike
    says: str = ""
    """What the script does when its rank is gone."""
    gpus: bool = False
    """Whether the job has one."""


def measure(sizes: Sizes, with_slurm: bool = True) -> Iterator[Row]:
    variables = {
        "BIREME_CHECKPOINTS_INTERVAL_S": "1",
        "BIREME_HEALING_MODE": "act",
        "BIREME_CLUSTER_REHEARSAL": "on",
        "BIREME_TELEMETRY_INTERVAL_S": "2",
        "BIREME_DETECTORS_HANG_S": str(HANG_S),
    }
    lines, names = bireme_cluster.virtual_nodes(4, 8)
    nodes = f"GresTypes=gpu\n{lines} Gres=gpu:h100:4", names
    with bireme_cluster.running(nodes, variables=variables) as cluster:
        for fault in FAULTS:
            spent = [_healed(cluster, number, fault) for number in range(sizes.heal_rounds)]
            row, target = f"{fault.name}, to its next start from its checkpoint", Target("<", 15)
            yield Row("heal", row, statistics.median(spent), "s", target=target, details={"each": spent})
        yield from _told(cluster)
        if sizes.heal_hangs:
            yield from _hang(cluster)
    if with_slurm and not slurm_cluster.missing():
        yield Row(
            "heal", "Slurm, from scontrol requeue to the next start", _by_slurm(), "s", note="without a checkpoint"
        )


def _told(cluster: bireme_cluster.BiremeCluster) -> Iterator[Row]:
    """Of the Xids that were told: how long until each was a finding, and until its GPU was fenced."""
    with Transport(cluster.home) as transport:
        found = {each["place"]: each["opened_at"] for each in transport.get("/v1/findings")["findings"]}
        fences = {each["place"]: each["since"] for each in transport.get("/v1/healings")["fences"]}
    struck = {place: at for place, at in _XIDS.items() if place in found and place in fences}
    assert struck, "every Xid is a finding, and its GPU is fenced"
    seen = [found[place] - at for place, at in struck.items()]
    fenced = [fences[place] - found[place] for place in struck]
    yield Row("heal", "an Xid in the kernel's log, to its finding", statistics.median(seen), "s",
              target=Target("<", 1), details={"each": seen})  # fmt: skip
    yield Row("heal", "from that finding to the fence of its GPU", statistics.median(fenced), "s",
              target=Target("<", 0.1), details={"each": fenced})  # fmt: skip


def _hang(cluster: bireme_cluster.BiremeCluster) -> Iterator[Row]:
    """One round: it takes as long as the detector waits."""
    fault = Fault("it hangs", _freeze, gpus=True)
    spent = _healed(cluster, 0, fault)
    note = f"{HANG_S} s of it are detectors.hang_s, and at most one round of the gatherer"
    yield Row("heal", "it hangs (a rank is stopped), to its next start", spent, "s", note=note)
    yield Row(
        "heal", "the same, without the detector's own wait", max(0.0, spent - HANG_S), "s", target=Target("<", 15)
    )


def _healed(cluster: bireme_cluster.BiremeCluster, number: int, fault: Fault) -> float:
    folder = cluster.folder / f"{fault.strike.__name__}-{bool(fault.says)}-{number}"
    folder.mkdir()
    gpus = "--gpus=1" if fault.gpus else ""
    (folder / "job.sh").write_text(SCRIPT.format(folder=folder, says=fault.says, gpus=gpus))
    words = cluster.command("sbatch", "--parsable", str(folder / "job.sh"))
    job = subprocess.run(words, env=cluster.env, check=True, capture_output=True, text=True).stdout.strip()
    (folder / "job").write_text(job)
    _until(folder / "rank")
    struck = time.time()
    fault.strike(cluster, folder)
    struck = float((folder / "struck").read_text()) if (folder / "struck").exists() else struck
    _until(folder / "again")
    found = (folder / "from").read_text().strip()
    assert found == f"{folder}/saved/step-7.pt", f"it goes on from its checkpoint, not from {found}"
    return float((folder / "again").read_text()) - struck


def _kill_rank(cluster: bireme_cluster.BiremeCluster, folder: Path) -> None:
    os.kill(int((folder / "rank").read_text()), signal.SIGKILL)


def _kill_node(cluster: bireme_cluster.BiremeCluster, folder: Path) -> None:
    node = (folder / "node").read_text().strip()
    os.kill(int((Path(cluster.home) / "agents" / node / "agent.pid").read_text()), signal.SIGKILL)


def _off_the_bus(cluster: bireme_cluster.BiremeCluster, folder: Path) -> None:
    """The driver says so in the kernel's log, and the program's next call fails."""
    node = (folder / "node").read_text().strip()
    with Transport(cluster.home) as transport:
        (job,) = transport.get(f"/v1/jobs/{(folder / 'job').read_text()}", {"fields": "shares"})["jobs"]
    (gpu,) = next(each["indices"] for each in job["shares"][0]["gres"] if each["name"] == "gpu")
    scene = Scene(Paths(cluster.home).rehearsal)
    card = next(each for each in scene.cards() if (each.node, each.number) == (node, gpu))
    _XIDS[f"{node}:gpu{gpu}"] = time.time()
    bus = card.bus.partition(".")[0]
    scene.tell(node, f"NVRM: Xid (PCI:{bus}): 79, pid=<unknown>, name=<unknown>, GPU has fallen off the bus.")
    _kill_rank(cluster, folder)


def _freeze(cluster: bireme_cluster.BiremeCluster, folder: Path) -> None:
    time.sleep(_SEEN_AT_WORK_S)
    (folder / "struck").write_text(str(time.time()))
    rank = int((folder / "rank").read_text())
    os.kill(parent_of(rank), signal.SIGSTOP)  # the script: the first process of a task says whether it stands
    os.kill(rank, signal.SIGSTOP)


_XIDS: dict[str, float] = {}
"""By GPU: when its Xid was told."""
FAULTS = (
    Fault("a rank is killed", _kill_rank),
    Fault("its node dies", _kill_node),
    Fault("an ECC error of its GPU", _kill_rank, ECC),
    Fault("an Xid of its GPU in the kernel's log", _off_the_bus, OFF_THE_BUS, gpus=True),
)


def _by_slurm() -> float:
    with slurm_cluster.running(8) as slurm:
        folder = new_folder("heal")
        folder.chmod(0o777)
        (folder / "job.sh").write_text(SCRIPT.format(folder=folder, says="", gpus=""))
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

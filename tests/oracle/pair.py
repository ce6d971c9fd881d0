"""Two clusters of one layout, a real Slurm and a Bireme, and how a case's commands run on either.

Both get the same texts of slurm.conf, gres.conf and topology.conf. Used by `run.py` only.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.slurm_cluster import Layout, SlurmCluster, make_devices, running
from tests.slurm_cluster.layout import host_name
from tests.support.cluster import Cluster

PRELUDE = Path(__file__).with_name("prelude.sh")
PATIENCE_S = 150.0


@dataclass(frozen=True, slots=True)
class Said:
    """What a snippet said and left behind."""

    code: int
    out: str
    err: str
    folder: Path


@dataclass(frozen=True, slots=True)
class System:
    """One side of the comparison."""

    name: str
    cluster: SlurmCluster | Cluster

    @property
    def folder(self) -> Path:
        return self.cluster.folder

    def run(self, snippet: str, name: str, patience_s: float = PATIENCE_S) -> Said:
        """Runs a bash snippet in a folder of its own, as a user at the shell would."""
        folder = self.cluster.work / name
        folder.mkdir(parents=True, exist_ok=True)
        argv = ["/bin/bash", "-c", f"source {self.cluster.work}/prelude.sh\n{snippet}"]
        try:
            done = self.cluster.run(*argv, check=False, cwd=folder, timeout=patience_s)
        except subprocess.TimeoutExpired:
            return Said(-1, "", f"not done within {patience_s:g} s", folder)
        return Said(done.returncode, done.stdout, done.stderr, folder)


@dataclass(frozen=True, slots=True)
class Pair:
    slurm: System
    bireme: System

    @property
    def systems(self) -> tuple[System, System]:
        return self.slurm, self.bireme


@contextmanager
def started(layout: Layout) -> Iterator[Pair]:
    """Both clusters, ready; both taken down at the end."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        ours = pool.submit(_bireme, layout, stack)
        theirs = stack.enter_context(running(layout))
        pair = Pair(System("slurm", theirs), System("bireme", ours.result()))
        for system in pair.systems:
            (system.cluster.work / "prelude.sh").write_text(f"SYSTEM={system.name}\n{PRELUDE.read_text()}")
        yield pair


def _bireme(layout: Layout, stack: ExitStack) -> Cluster:
    cluster = Cluster()
    stack.callback(cluster.stop)
    gres = layout.gres_conf(cluster.folder)
    (cluster.folder / "dev").mkdir()
    make_devices(gres)
    beside = {"gres": gres, "topology": layout.topology}
    cluster.conf(
        layout.portable_conf(cluster.folder, host_name()), **{name: text for name, text in beside.items() if text}
    )
    for name, text in layout.scripts:
        (cluster.folder / name).write_text(text)
        (cluster.folder / name).chmod(0o755)
    return cluster.up()

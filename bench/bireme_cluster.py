"""A Bireme of our own for a measurement: a temporary home, a slurm.conf, started and ended as a user would.

Everything lives in a temporary folder; the daemon, its agents and its jobs are ended when the `with` block ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from bench.folders import new_folder
from bireme.cli.launchers import write_launchers
from bireme.client.transport import Transport
from bireme.daemon import process
from bireme.daemon.paths import Paths

CONF = """\
ClusterName=bench
SlurmctldHost={host}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MaxJobCount=200000
MaxArraySize=100001
MinJobAge=300
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True)
class BiremeCluster:
    folder: Path
    conf: str

    @property
    def home(self) -> str:
        return str(self.folder / "home")

    @property
    def env(self) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "BIREME"))
        }
        return inherited | {"BIREME_HOME": self.home, "PATH": f"{self.home}/bin:{os.environ['PATH']}"}

    def command(self, name: str, *arguments: str) -> list[str]:
        return [f"{self.home}/bin/{name}", *arguments]

    def start(self) -> int:
        """The daemon's pid, once it answers."""
        return process.start(self.home, str(self.folder / "slurm.conf"))

    def stop(self) -> None:
        """The daemon; jobs and agents live on."""
        with Transport(self.home) as transport:
            process.stop(self.home, ask=lambda: transport.post("/v1/shutdown", {"end_jobs": False}))


def this_host(cpus: int) -> tuple[str, str]:
    """(node lines, their names): one node that is this machine, said to have `cpus` CPUs."""
    name = host_name()
    return f"NodeName={name} CPUs={cpus} RealMemory=16000", name


def virtual_nodes(count: int, cpus: int) -> tuple[str, str]:
    """(node lines, their names): `count` virtual nodes with `cpus` CPUs in all."""
    names = f"oar[1-{count}]"
    return f"NodeName={names} NodeHostname={host_name()} CPUs={cpus // count} RealMemory=16000", names


def host_name() -> str:
    return socket.gethostname().partition(".")[0]


@contextmanager
def running(
    nodes: tuple[str, str],
    other: tuple[str, str] = ("", ""),
    *,
    gres: str = "",
    variables: Mapping[str, str] | None = None,
) -> Iterator[BiremeCluster]:
    """`other`: a line of the configuration, and what stands in its place; `gres`: gres.conf; `variables`: of the daemon
    and of what it starts."""
    folder = new_folder("bireme")
    lines, names = nodes
    conf = CONF.format(host=host_name(), nodes=lines, names=names).replace(*other)
    (folder / "slurm.conf").write_text(conf)
    if gres:
        (folder / "gres.conf").write_text(gres)
    cluster = BiremeCluster(folder, conf)
    try:
        with patch.dict(os.environ, variables or {}):
            cluster.start()
        write_launchers(Paths(cluster.home))
        yield cluster
    finally:
        # As a user would: it also ends agents that the daemon has lost, by an attack or because it was killed.
        down = [sys.executable, "-m", "bireme", "down", "--quiet", "--end-jobs"]
        subprocess.run(down, env=cluster.env, check=False, stdout=subprocess.DEVNULL)

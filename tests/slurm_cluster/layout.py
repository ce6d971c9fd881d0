"""What a test's cluster looks like, as the texts of its configuration files, and what a real Slurm needs beside them.

A `Layout` says what both Slurm and Bireme can read: settings, nodes, partitions, gres.conf, topology.conf. `slurm_conf`
adds what only Slurm's daemons on one machine need (ports, folders, one line per node). Pure texts: writes no file.
Invariant: a setting of the layout wins over a default of ours.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from bireme.slurm.hostlist import expand

_SETTING = re.compile(r"^(\w+)=", re.MULTILINE)
_NODES = re.compile(r"^NodeName=(\S+)(.*)$", re.MULTILINE | re.IGNORECASE)

SETTINGS = """\
ClusterName=rehearsal
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU=512
KillWait=2
MinJobAge=3600
MaxArraySize=10001
ReturnToService=2
AccountingStorageTRES=gres/gpu,gres/gpu:a100
"""

EIGHT_NODES = """\
NodeName=n[1-6] CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=32000 \
Gres=gpu:a100:4 Feature=gpu,a100
NodeName=c[1-2] CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000 Feature=cpu
PartitionName=gpu Nodes=n[1-6] Default=YES MaxTime=7-00:00:00 DefaultTime=01:00:00
PartitionName=cpu Nodes=c[1-2] MaxTime=INFINITE
PartitionName=all Nodes=n[1-6],c[1-2] MaxTime=1-00:00:00
"""

_OF_THE_DAEMONS = {
    "SlurmctldHost": "{host}(127.0.0.1)",
    "SlurmUser": "root",
    "SlurmdUser": "root",
    "AuthType": "auth/munge",
    "AuthInfo": "socket={folder}/munge.socket,cred_expire=15",  # how long a requeued job waits, too
    "CredType": "cred/munge",
    "SlurmctldPort": "{port}",
    "SlurmdPort": "{port_of_nodes}",
    "StateSaveLocation": "{folder}/state",
    "SlurmdSpoolDir": "{folder}/spool/%n",
    "SlurmctldPidFile": "{folder}/slurmctld.pid",
    "SlurmdPidFile": "{folder}/slurmd.%n.pid",
    "SlurmctldLogFile": "{folder}/log/slurmctld.log",
    "SlurmdLogFile": "{folder}/log/slurmd.%n.log",
    "SlurmctldDebug": "info",
    "SlurmdDebug": "info",
    "SlurmdParameters": "config_overrides",
    "ProctrackType": "proctrack/linuxproc",
    "MailProg": "/bin/true",
}
_OF_ACCOUNTING = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": "127.0.0.1",
    "AccountingStoragePort": "{port_of_slurmdbd}",
    "AccountingStoragePass": "{folder}/munge.socket",
}
_OF_TOKENS = {"AuthAltTypes": "auth/jwt", "AuthAltParameters": "jwt_key={folder}/jwt.key"}

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port_of_slurmdbd}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
DebugLevel=info
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The texts; `{folder}` in them is where the cluster's files are (for prolog scripts and device files)."""

    nodes: str = EIGHT_NODES
    """NodeName= and PartitionName= lines (a node named like this host stands for itself)."""
    settings: str = SETTINGS
    gres: str = ""
    """gres.conf; empty: made from the nodes' Gres=, with device files under the cluster's folder."""
    topology: str = ""
    accounting: bool = True
    """With slurmdbd and its database, or without any."""
    scripts: tuple[tuple[str, str], ...] = ()
    """(name, text) of executables under the cluster's folder: prologs, epilogs and the like."""

    def having(self, **settings: object) -> Layout:
        """The same with these settings of slurm.conf: `layout.having(PreemptType="preempt/qos")`."""
        kept = [line for line in self.settings.splitlines() if line.partition("=")[0] not in settings]
        added = [f"{name}={value}" for name, value in settings.items()]
        return replace(self, settings="\n".join([*kept, *added]) + "\n")

    def with_topology(self, plugin: str, text: str) -> Layout:
        """`plugin`: tree or block; `text`: topology.conf."""
        return replace(self.having(TopologyPlugin=f"topology/{plugin}"), topology=text)

    @property
    def node_names(self) -> list[str]:
        return [name for found in _NODES.finditer(self.nodes) for name in expand(found[1]) if name != "DEFAULT"]

    def gres_conf(self, folder: Path) -> str:
        return self.gres.replace("{folder}", str(folder)) if self.gres else "".join(self._device_lines(folder))

    def _device_lines(self, folder: Path) -> list[str]:
        """One line per GPU type and node line; the files are numbered through the types of a node."""
        lines = []
        for nodes, rest in _NODES.findall(self.nodes):
            first = 0
            for kind, count in re.findall(r"gpu:(?:(\w+):)?(\d+)", rest):
                last = first + int(count) - 1
                kinds = f" Type={kind}" if kind and not kind.isdigit() else ""
                lines.append(f"NodeName={nodes} Name=gpu{kinds} File={folder}/dev/nvidia[{first}-{last}]\n")
                first = last + 1
        return lines

    def portable_conf(self, folder: Path, host: str = "localhost") -> str:
        """slurm.conf as Bireme reads it: every node is a virtual node of this machine."""
        nodes = _NODES.sub(rf"NodeName=\1 NodeHostname={host} NodeAddr=127.0.0.1\2", self.nodes)
        return f"SlurmctldHost={host}\n{self.settings}{nodes}".replace("{folder}", str(folder))

    def slurm_conf(self, folder: Path, ports: Ports, *, tokens: bool) -> str:
        wanted = _OF_THE_DAEMONS | (_OF_ACCOUNTING if self.accounting else {}) | (_OF_TOKENS if tokens else {})
        given = set(_SETTING.findall(self.settings))
        values = {"folder": folder, "host": host_name(), **ports.by_name()}
        ours = [f"{name}={text.format(**values)}" for name, text in wanted.items() if name not in given]
        return "\n".join([*ours, self.settings.replace("{folder}", str(folder)), self._one_line_per_node(ports)])

    def _one_line_per_node(self, ports: Ports) -> str:
        """Each slurmd listens on a port of its own, and all are this host."""
        numbers = iter(range(ports.nodes, ports.nodes + len(self.node_names)))

        def spell_out(found: re.Match[str]) -> str:
            if found[1] == "DEFAULT":
                return found[0]
            where = f"NodeHostname={host_name()} NodeAddr=127.0.0.1"
            return "\n".join(f"NodeName={name} {where} Port={next(numbers)}{found[2]}" for name in expand(found[1]))

        return _NODES.sub(spell_out, self.nodes)


@dataclass(frozen=True, slots=True)
class Ports:
    """A block of TCP ports that one cluster has for itself (`processes.free_ports`)."""

    first: int

    @property
    def nodes(self) -> int:
        return self.first + 3

    @property
    def rest(self) -> int:
        return self.first + 2

    def by_name(self) -> dict[str, int]:
        return {"port": self.first, "port_of_slurmdbd": self.first + 1, "port_of_nodes": self.nodes}


def cgroup_conf(version: tuple[int, int]) -> str:
    """Slurm must not touch the machine's control groups."""
    return "CgroupPlugin=disabled\n" if version >= (23, 11) else "CgroupAutomount=no\nIgnoreSystemd=yes\n"


def host_name() -> str:
    return socket.gethostname().partition(".")[0]

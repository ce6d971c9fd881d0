"""A real Slurm on loopback: munge, MariaDB, slurmdbd, slurmctld and one slurmd per node, in one temporary folder.

`with running(Layout(...)) as slurm:` gives a cluster that is ready; leaving the block (or the death of this process)
takes it down. Its GPUs are device files that lead nowhere. Needs root; `missing()` says what is not there.
Invariant: nothing outside the folder is written, no port outside the cluster's own block is listened on.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.slurm_cluster.installation import Installation, installed
from tests.slurm_cluster.layout import SLURMDBD_CONF, Layout, Ports, cgroup_conf, host_name
from tests.slurm_cluster.processes import Guard, free_ports
from tests.support.looks import looks

from bireme.slurm.hostlist import expand

READY_S = 60.0
TIMEOUT_S = 120.0
_OUTSIDE = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "BIREME_", "PMI_")
_MUNGE_FILES = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


class SlurmCluster:
    """A cluster that runs. `work` is a folder that jobs may write to; `folder` has the configuration and the logs."""

    def __init__(self, layout: Layout, folder: Path, ports: Ports, slurm: Installation, guard: Guard) -> None:
        self.layout, self.folder, self.ports, self.slurm, self.guard = layout, folder, ports, slurm, guard
        self.work = folder / "work"
        self.daemons: dict[str, int] = {}

    @property
    def conf(self) -> str:
        """slurm.conf, as Slurm reads it."""
        return (self.folder / "slurm.conf").read_text()

    @property
    def env(self) -> dict[str, str]:
        """A user's variables: Slurm's commands and configuration, and nothing of another cluster around the test."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OUTSIDE)}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": self.slurm.path}

    # -- use -------------------------------------------------------------------------------------------------------

    def run(
        self,
        *argv: str,
        check: bool = True,
        input: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_S,
        user: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of Slurm's commands (or any program) as a user of the cluster would; `env` is added."""
        folder = os.fspath(cwd or self.work)
        done = subprocess.run(
            self.slurm.outside(argv, self.guard.pid, folder, user),
            check=False,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**self.env, **(env or {})},
            timeout=timeout,
            **self._identity(user),
        )
        if check and done.returncode:
            raise AssertionError(f"{argv} exited with {done.returncode}\n{done.stdout}{done.stderr}{self.log_tail()}")
        return done

    def call(self, *argv: str) -> str:
        """Output of one of Slurm's commands; raises when it fails."""
        return self.run(*argv).stdout.strip()

    def _identity(self, user: str) -> dict[str, Any]:
        if not user or self.slurm.chroot:
            return {}
        entry = pwd.getpwnam(user)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def until(self, is_so: Callable[[], object], what: str, timeout: float = READY_S) -> None:
        for _ in looks(timeout):
            if is_so():
                return
        raise RuntimeError(f"{what}: not within {timeout:g} s{self.log_tail()}")

    def log_tail(self, lines: int = 12) -> str:
        """The last words of the daemons that decide, for the message of a failed test."""
        tails = [""]
        for name in ("slurmctld", "slurmdbd", "slurmrestd", "slurmd." + self.layout.node_names[0]):
            path = self.folder / "log" / f"{name}.out"
            if path.exists():
                tails.extend([f"--- {name}", *path.read_text(errors="replace").splitlines()[-lines:]])
        return "\n".join(tails)

    # -- life ------------------------------------------------------------------------------------------------------

    def start_daemon(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> None:
        """`name`: slurmctld, slurmdbd, slurmd.n1 ...; `argv` without: as it was first started."""
        words = list(argv) or self._command(name)
        log = self.folder / "log" / f"{name}.out"
        own = {"MYSQL_UNIX_PORT": _database_socket(self)} if name == "slurmdbd" else {}
        self.daemons[name] = self.guard.start(self.slurm.inside(words), {**self.env, **own, **(env or {})}, log)

    def stop_daemon(self, name: str, number: int = signal.SIGTERM) -> None:
        """Ends one daemon: for tests of what happens then. `start_daemon(name)` starts it again."""
        self.guard.end(self.daemons.pop(name), number)

    def _command(self, name: str) -> list[str]:
        conf = ["-f", str(self.folder / "slurm.conf")]
        if name.startswith("slurmd."):
            return ["slurmd", "-D", "-N", name.partition(".")[2], *conf]
        return {"slurmctld": ["slurmctld", "-D", *conf], "slurmdbd": ["slurmdbd", "-D"]}[name]

    def answers(self, *argv: str) -> bool:
        return self.run(*argv, check=False).returncode == 0

    def is_ready(self) -> bool:
        """Every node is idle: all slurmd have registered."""
        done = self.run("sinfo", "-h", "-N", "-o", "%N %t", check=False)
        return done.returncode == 0 and set(done.stdout.splitlines()) == {
            f"{name} idle" for name in self.layout.node_names
        }

    def start_rest(self) -> str:
        """Starts slurmrestd, for who has a token (`scontrol token`): its address, host:port.

        As `daemon`: newer ones refuse to be root, and to be nobody.
        """
        address = f"127.0.0.1:{self.ports.rest}"
        words = ("slurmrestd", "-u", "daemon", "-g", "daemon", "-a", "rest_auth/jwt", address)
        self.start_daemon("slurmrestd", *words, env={"SLURM_JWT": "daemon"})
        self.until(lambda: _listens(self.ports.rest), "slurmrestd")
        return address


@contextmanager
def running(layout: Layout | None = None, *, folder: Path | None = None) -> Iterator[SlurmCluster]:
    """A cluster of its own, ready for jobs. `folder`: an empty one that the caller removes, not a temporary one."""
    layout, slurm = layout or Layout(), installed()
    place = folder or Path(tempfile.mkdtemp(prefix="bireme-slurm-"))
    place.chmod(0o755)
    with free_ports(3 + len(layout.node_names)) as ports:
        guard = Guard(place, slurm.chroot, keep=folder is not None)
        try:
            cluster = SlurmCluster(layout, place, ports, slurm, guard)
            _write_files(cluster)
            _start(cluster)
            yield cluster
        finally:
            guard.close()


def missing(*, accounting: bool = True) -> str:
    """Why a real Slurm cannot be started here, in one line; empty when it can."""
    return installed().missing(accounting=accounting)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _write_files(cluster: SlurmCluster) -> None:
    folder, layout = cluster.folder, cluster.layout
    for name in ("state", "spool", "log", "dev", "work", "database"):
        (folder / name).mkdir()
    (folder / "database").chmod(0o700)
    cluster.work.chmod(0o777)
    tokens = cluster.slurm.has("slurmrestd")
    texts = {
        "slurm.conf": layout.slurm_conf(folder, cluster.ports, tokens=tokens),
        "gres.conf": layout.gres_conf(folder),
        "topology.conf": layout.topology,
        "cgroup.conf": cgroup_conf(cluster.slurm.version),
        "slurmdbd.conf": SLURMDBD_CONF.format(folder=folder, host=host_name(), **cluster.ports.by_name()),
    }
    for name, text in texts.items():
        if text:
            (folder / name).write_text(text)
    (folder / "slurmdbd.conf").chmod(0o600)
    for name, text in layout.scripts:
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for name in ("munge.key", "jwt.key"):
        _write_secret(folder / name)
    make_devices(texts["gres.conf"])


def make_devices(gres_conf: str) -> None:
    """The files that gres.conf names: /dev/null under another name, since Slurm asks for a device."""
    for pattern in re.findall(r"File=(\S+)", gres_conf):
        for path in expand(pattern):
            if not os.path.exists(path):
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))


def _write_secret(path: Path) -> None:
    path.touch(mode=0o400)
    path.write_bytes(secrets.token_bytes(1024))


def _start(cluster: SlurmCluster) -> None:
    """Everything that needs nothing of the others is started at once."""
    folder = cluster.folder
    munge = [f"--{name}={folder}/munge.{end}" for name, end in _MUNGE_FILES.items()]
    cluster.start_daemon("munged", "munged", "--foreground", "--force", *munge)
    if cluster.layout.accounting:
        _start_database(cluster)
    cluster.until((folder / "munge.socket").exists, "munged")
    if cluster.layout.accounting:
        _start_slurmdbd(cluster)
    cluster.start_daemon("slurmctld", "slurmctld", "-D", "-c", "-f", str(folder / "slurm.conf"))
    cluster.until(lambda: _listens(cluster.ports.first), "slurmctld")
    for name in cluster.layout.node_names:
        cluster.start_daemon(f"slurmd.{name}")
    cluster.until(cluster.is_ready, "slurmctld and slurmd")


def _start_database(cluster: SlurmCluster) -> None:
    """No TCP port, no grant tables (the folder is root's alone), and nothing flushed: it lives as long as the test.

    MariaDB's own tables are made all the same: Slurm keeps procedures in them.
    """
    folder = cluster.folder / "database"
    words = (
        *("mariadbd", "--no-defaults", "--user=root", f"--datadir={folder}", "--innodb-flush-log-at-trx-commit=0"),
        *("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--innodb-doublewrite=0"),
        *(f"--tmpdir={folder}", "--loose-innodb-snapshot-isolation=OFF"),
    )
    tables = f"create database mysql;\nuse mysql;\n{cluster.slurm.system_tables()}"
    cluster.run(*words, "--bootstrap", input=tables, cwd=folder)
    alone = (f"--socket={_database_socket(cluster)}", f"--pid-file={folder}/pid", "--skip-networking")
    cluster.start_daemon("mariadbd", *words, *alone, "--skip-grant-tables")


def _start_slurmdbd(cluster: SlurmCluster) -> None:
    cluster.until(Path(_database_socket(cluster)).exists, "mariadbd")
    cluster.start_daemon("slurmdbd")
    name = re.search(r"^ClusterName=(\S+)", cluster.conf, re.MULTILINE)
    assert name, "a layout names its cluster"
    cluster.until(lambda: cluster.answers("sacctmgr", "-i", "add", "cluster", name[1]), "slurmdbd")


def _database_socket(cluster: SlurmCluster) -> str:
    return f"{cluster.folder}/database/socket"

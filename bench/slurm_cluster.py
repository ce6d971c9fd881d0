"""A real Slurm on loopback, for one measurement: its own munge key and socket, its own ports, tuned for throughput.

Everything lives in a temporary folder; the daemons are ended by process id when the `with` block ends, however it
ends. Needs root and Debian's `slurm-wlm` and `munge` (or the like); `missing()` says what is not there. Not a Slurm to
compare behaviour with: accounting, logging and confinement are off, because they cost time.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.array import array_options
from bench.folders import new_folder

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo")
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
_READY_S = 30.0
_STOP_S = 20.0
_LOOK_AGAIN_S = 0.25

# Slurm's High Throughput Computing guide: few and cheap scheduling passes, short memory of ended jobs, no plugin that
# does work per job, logs off. `sched_min_interval=0` was tried too and is slower here: every end would start a pass.
CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={port}
SlurmdPort={slurmd_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldDebug=quiet
SlurmdDebug=quiet
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
TopologyPlugin=topology/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters={scheduler}
PriorityType=priority/basic
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
AcctGatherNodeFreq=0
PropagatePrioProcess=0
MinJobAge=2
MaxJobCount=100000
MaxArraySize=100001
MessageTimeout=100
InactiveLimit=0
KillWait=5
TCPTimeout=2
ReturnToService=2
TreeWidth=64
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=16000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
SCHEDULER = (
    "defer,batch_sched_delay=0,sched_interval=1,sched_min_interval=100000,default_queue_depth=10000,"
    "max_rpc_cnt=0,partition_job_depth=0,max_array_tasks=100000"
)


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    folder: Path
    conf: str

    @property
    def env(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        return inherited | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _SYSTEM_PATH}

    def call(self, *command: str) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(
            [_program(command[0]), *command[1:]], env=self.env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def run_array(self, tasks: int) -> float:
        """Seconds of one array, from before sbatch until no task of it is left in the queue."""
        output = self.folder / "out"
        output.mkdir()
        begun = time.perf_counter()
        job = self.call("sbatch", *array_options(tasks, output))
        while self.call("squeue", "-h", "-t", "PD,CF,R,CG", "-o", "%i", "-j", job):
            time.sleep(_LOOK_AGAIN_S)
        spent = time.perf_counter() - begun
        written = sum(1 for _ in output.iterdir())
        if written != tasks:
            raise RuntimeError(f"Slurm wrote {written} outputs of {tasks} tasks")
        return spent


def missing() -> str:
    """Why Slurm cannot be measured here; empty when it can."""
    if os.geteuid() != 0:
        return "not root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=_SYSTEM_PATH) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def version() -> str:
    done = subprocess.run([_program("slurmctld"), "-V"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def running(cpus: int, scheduler: str = SCHEDULER) -> Iterator[SlurmCluster]:
    """One node of `cpus` CPUs: this host."""
    folder = new_folder("slurm")
    host = socket.gethostname().partition(".")[0]
    ports = _free_ports(2)
    conf = CONF.format(host=host, folder=folder, port=ports[0], slurmd_port=ports[1], cpus=cpus, scheduler=scheduler)
    (folder / "slurm.conf").write_text(conf)
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\nIgnoreSystemd=yes\n")
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    daemons: list[subprocess.Popen[bytes]] = []
    cluster = SlurmCluster(folder, conf)
    try:
        _start(cluster, daemons)
        yield cluster
    finally:
        for daemon in reversed(daemons):
            _end(daemon)


def _start(cluster: SlurmCluster, daemons: list[subprocess.Popen[bytes]]) -> None:
    """In the foreground each, so that the process we started is the daemon itself."""
    folder = cluster.folder
    key = folder / "munge.key"
    key.touch(mode=0o400)
    key.write_bytes(secrets.token_bytes(1024))
    munge = [f"--{name}={folder}/munge.{end}" for name, end in _MUNGE_FILES]
    conf = ["-f", str(folder / "slurm.conf")]
    for command in (
        ["munged", "--foreground", "--force", *munge],
        ["slurmctld", "-D", "-c", *conf],
        ["slurmd", "-D", *conf],
    ):
        program = [_program(command[0]), *command[1:]]
        with open(folder / f"{command[0]}.out", "wb") as log:
            daemons.append(subprocess.Popen(program, env=cluster.env, stdout=log, stderr=log, start_new_session=True))
        if command[0] == "munged":
            _wait_for(lambda: (folder / "munge.socket").exists(), "munged")
    _wait_for(lambda: _node_is_idle(cluster), "slurmctld and slurmd")


_MUNGE_FILES = (
    ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")
)  # fmt: skip


def _node_is_idle(cluster: SlurmCluster) -> bool:
    try:
        return cluster.call("sinfo", "-h", "-o", "%T") == "idle"
    except subprocess.CalledProcessError:
        return False


def _wait_for(good, what: str) -> None:
    deadline = time.monotonic() + _READY_S
    while not good():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not start within {_READY_S:g} s")
        time.sleep(0.05)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


def _program(name: str) -> str:
    """Slurm's own, whatever Bireme put on the PATH."""
    found = shutil.which(name, path=_SYSTEM_PATH)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()

"""The real Slurm that Bireme is measured next to: the tests' own (`tests.slurm_cluster`), tuned for throughput.

Not a Slurm to compare behaviour with: accounting, logging and confinement are off, because they cost time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.slurm_cluster import Layout, SlurmCluster, installed
from tests.slurm_cluster import running as started
from tests.slurm_cluster.layout import host_name

from bench.folders import new_folder

# Slurm's High Throughput Computing guide: few and cheap scheduling passes, short memory of ended jobs, no plugin that
# does work per job, logs off. `sched_min_interval=0` was tried too and is slower here: every end would start a pass.
SCHEDULER = (
    "defer,batch_sched_delay=0,sched_interval=1,sched_min_interval=100000,default_queue_depth=10000,"
    "max_rpc_cnt=0,partition_job_depth=0,max_array_tasks=100000"
)
SETTINGS = f"""\
ClusterName=bench
SlurmctldDebug=quiet
SlurmdDebug=quiet
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters={SCHEDULER}
PriorityType=priority/basic
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
"""


def missing() -> str:
    """Why Slurm cannot be measured here; empty when it can."""
    return installed().missing(accounting=False)


@contextmanager
def running(cpus: int) -> Iterator[SlurmCluster]:
    """One node of `cpus` CPUs: this host."""
    host = host_name()
    nodes = (
        f"NodeName={host} CPUs={cpus} RealMemory=16000\nPartitionName=main Nodes={host} Default=YES MaxTime=INFINITE\n"
    )
    with started(Layout(nodes=nodes, settings=SETTINGS, accounting=False), folder=new_folder("slurm")) as cluster:
        yield cluster

"""This machine as a cluster of one node: what there is when nobody wrote a slurm.conf.

Reads /proc and /sys, and asks `agent/devices/gpus.py` for GPUs. Not here: reading slurm.conf (`slurm/conf`).
Invariant: the node's CPUs are those this process may use; sockets × cores × threads is never less than them.
"""

from __future__ import annotations

import os
import socket
from collections import Counter

from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, Settings
from bireme.core.model.resources import Device, GresPool

DEFAULT_PARTITION = "main"


def discover(cluster_name: str, gpus: tuple[Device, ...] = ()) -> ClusterConfig:
    name = socket.gethostname().split(".")[0]
    cpus = sorted(os.sched_getaffinity(0))
    sockets, cores, threads = _topology(cpus)
    node = NodeConfig(
        name=name,
        hostname=name,
        cpus=len(cpus),
        sockets=sockets,
        cores_per_socket=cores,
        threads_per_core=threads,
        memory_mib=_memory_mib(),
        tmp_disk_mib=_tmp_disk_mib(),
        gres=_pools(gpus),
    )
    partition = PartitionConfig(name=DEFAULT_PARTITION, nodes=(name,), default=True)
    # On one machine people expect as many one-CPU jobs as it shows CPUs. Memory that a job asks for is counted; one
    # that did not ask must not hold all of it.
    settings = Settings(
        gres_types=("gpu",) if gpus else (), select_by_core=False, unasked_memory_is_whole=False, return_to_service=2
    )
    raw = {"SelectTypeParameters": "CR_CPU_MEMORY"}
    return ClusterConfig(name=cluster_name, nodes=(node,), partitions=(partition,), settings=settings, raw=raw)


def _pools(gpus: tuple[Device, ...]) -> tuple[GresPool, ...]:
    """One pool per model, in the order of the devices."""
    models = dict.fromkeys(gpu.type for gpu in gpus)
    pools = []
    for model in models:
        devices = tuple(gpu for gpu in gpus if gpu.type == model)
        pools.append(GresPool("gpu", model, len(devices), devices))
    return tuple(pools)


def _topology(cpus: list[int]) -> tuple[int, int, int]:
    """(sockets, cores per socket, threads per core) when the CPUs form a regular grid, else one flat socket."""
    places = [(_read(cpu, "physical_package_id"), _read(cpu, "core_id")) for cpu in cpus]
    if any(place is None for pair in places for place in pair):
        return 1, len(cpus), 1
    threads = Counter(places)
    cores = Counter(package for package, _ in threads)
    if len(set(threads.values())) != 1 or len(set(cores.values())) != 1:
        return 1, len(cpus), 1
    return len(cores), next(iter(cores.values())), next(iter(threads.values()))


def _read(cpu: int, fact: str) -> int | None:
    try:
        with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/{fact}") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _memory_mib() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) // 1024
    return 1


def _tmp_disk_mib() -> int:
    disk = os.statvfs("/tmp")
    return disk.f_blocks * disk.f_frsize // (1024 * 1024)

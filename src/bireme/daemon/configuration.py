"""The cluster this daemon serves: from slurm.conf and its neighbours, or this machine as it is.

Read at start and again on `scontrol reconfigure` or SIGHUP. Invariant: a configuration with mistakes is never used in
part; the daemon keeps the one it has.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, replace

from bireme.agent.devices.gpus import GpuInfo
from bireme.agent.devices.gpus import discover as discover_gpus
from bireme.core.model.cluster import ClusterConfig, NodeConfig
from bireme.core.model.resources import Device, GresPool
from bireme.daemon.discovery import discover
from bireme.daemon.settings import Settings, SettingsError
from bireme.engines.embedded.agents import kills_over_memory
from bireme.slurm.conf.loading import Configuration, load_configuration, load_rules

_CONFINEMENT = {"memory": "ConstrainRAMSpace", "cpus": "ConstrainCores", "devices": "ConstrainDevices"}

MOST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Loaded:
    cluster: ClusterConfig | None
    """None: the engine reports it, since it is the cluster's own affair (`observations.ClusterSeen`)."""
    confine: dict[str, bool]
    """What jobs are held to, where the kernel lets us: memory, cpus, devices."""
    warnings: tuple[str, ...] = field(default=())
    rules: ClusterConfig = field(default_factory=ClusterConfig)
    """For an engine that knows its own nodes: slurm.conf's settings and partitions, if there is a slurm.conf."""


def load_cluster(settings: Settings) -> Loaded:
    """Raises ConfigurationError with every mistake of the files."""
    loaded = _load_cluster(settings)
    cluster = _with_services(loaded.cluster, settings) if loaded.cluster is not None else None
    return replace(loaded, cluster=cluster, rules=_with_services(loaded.rules, settings))


def _with_services(cluster: ClusterConfig, settings: Settings) -> ClusterConfig:
    """What bireme.toml says of services: Slurm has no words for it."""
    of_services = replace(cluster.settings, service_qos=settings.service_qos, service_ports=_ports(settings))
    return replace(cluster, settings=of_services)


def _ports(settings: Settings) -> tuple[int, int]:
    first, _, last = settings.service_ports.partition("-")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last) <= MOST_PORT):
        raise SettingsError(f"services.ports: {settings.service_ports!r} is not possible here: say FIRST-LAST")
    return int(first), int(last)


def _load_cluster(settings: Settings) -> Loaded:
    if settings.host_engine == "kubernetes" and settings.conf:
        read = load_rules(settings.conf, _read)
        return Loaded(None, {}, tuple(map(str, read.warnings)), read.cluster)
    if settings.host_engine != "embedded":
        return Loaded(None, {}, rules=ClusterConfig(name=settings.cluster_name))
    wanted = settings.cgroups == "auto"
    if not settings.conf:
        gpus = discover_gpus().gpus if settings.gpus == "auto" else ()
        cluster = discover(settings.cluster_name, tuple(device_of(gpu) for gpu in gpus))
        return Loaded(cluster, dict.fromkeys(_CONFINEMENT, wanted))
    read = load_configuration(settings.conf, _read)
    said = {key.lower(): value.lower() for key, value in read.cgroup.items()}
    confine = {kind: wanted and said.get(key.lower()) == "yes" for kind, key in _CONFINEMENT.items()}
    cluster = _with_detected_gpus(read) if settings.gpus == "auto" else read.cluster
    unconfined = _unconfined(settings, confine, cluster.settings.memory_is_consumable, kills_over_memory(cluster))
    warnings = (*map(str, read.warnings), *unconfined)
    return Loaded(cluster, confine, warnings)


def _unconfined(
    settings: Settings, confine: dict[str, bool], memory_is_counted: bool, over_memory_kill: bool
) -> tuple[str, ...]:
    """What jobs ask for and are not held to. Slurm confines nothing either unless cgroup.conf says so."""
    if not memory_is_counted or confine["memory"] or over_memory_kill:
        return ()
    folder = os.path.dirname(settings.conf)
    what = "a job may use more memory than its --mem"
    if settings.cgroups != "auto":
        return (f"{what}: isolation.cgroups is {settings.cgroups}",)
    return (f"{what}: {folder}/cgroup.conf does not say ConstrainRAMSpace=yes",)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def device_of(gpu: GpuInfo) -> Device:
    return Device(
        index=gpu.index,
        type=gpu.slurm_type,
        file=gpu.device_file,
        uuid=gpu.uuid,
        cores=gpu.cpu_affinity,
        links=gpu.links,
        numa_node=gpu.numa_node,
        memory_mib=gpu.memory_mib,
    )


def _with_detected_gpus(read: Configuration) -> ClusterConfig:
    """AutoDetect in gres.conf: the GPUs of the node that is this machine get their files, UUIDs and neighbours."""
    host = socket.gethostname().partition(".")[0]
    here = [node for node in read.cluster.nodes if node.name == host and read.gres.autodetect_on(node.name)]
    if not here or read.gres.autodetect_on(host) == "off" or not here[0].gres_count("gpu"):
        return read.cluster
    found = [device_of(gpu) for gpu in discover_gpus().gpus]
    nodes = tuple(_described(node, found) if node.name == host else node for node in read.cluster.nodes)
    return replace(read.cluster, nodes=nodes)


def _described(node: NodeConfig, found: list[Device]) -> NodeConfig:
    """A pool takes found devices whose type contains its own (`h200` is an `nvidia_h200`), as Slurm matches them."""
    left = list(found)
    pools: list[GresPool] = []
    number: dict[int, int] = {}  # of a GPU as configured -> as found: parts of GPUs (shard, mps) go by it
    for pool in node.gres:
        fitting = [device for device in left if (pool.type or "") in (device.type or "")][: pool.count]
        known = pool.name != "gpu" or any(device.file for device in pool.devices)
        if known or len(fitting) < pool.count:
            pools.append(pool)
            continue
        left = [device for device in left if device not in fitting]
        number.update(zip((device.index for device in pool.devices), (device.index for device in fitting)))
        pools.append(replace(pool, devices=tuple(replace(device, type=pool.type) for device in fitting)))
    pools = [
        replace(pool, parts=tuple(sorted((number.get(gpu, gpu), count) for gpu, count in pool.parts))) for pool in pools
    ]
    return replace(node, gres=tuple(pools))

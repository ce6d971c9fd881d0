"""`scontrol show node|partition|topology`: the cluster's records as blocks of `Key=Value` lines.

As `show_job`: a block is a list of lines without indentation, in Slurm's order and spacing (odd blanks included,
since people compare with `grep -A`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from bireme.slurm.formats.node_states import complete_state
from bireme.slurm.formats.values import NULL, Context, Record, long_duration, or_null, tres_text
from bireme.slurm.hostlist import compress_sorted

_MEBIBYTES_IN_GIBIBYTE = 1024
USUAL_PORT = 6818
"""Of slurmd; `conf/nodes` has it too, which a command does not load to print."""


def _words(value: Any, separator: str = ",") -> str:
    return str(value or "") if isinstance(value, str) or value is None else separator.join(map(str, value))


def _time(at: float | None, context: Context, missing: str = "None") -> str:
    return missing if at is None else context.stamp(at)


def node_block(node: Record, context: Context, *, details: bool = False) -> list[str]:
    arch = f" Arch={node['arch']}" if node.get("arch") else ""
    features = or_null(_words(node.get("features")))
    free = node.get("memory_free_mib")
    load = node.get("cpu_load")
    drained = NULL if not node.get("gres") else node.get("gres_drained") or "N/A"
    usage = [f"GresDrain={drained}", f"GresUsed={or_null(node.get('gres_used'))}"]
    block = [
        f"NodeName={node['name']}{arch} CoresPerSocket={node.get('cores_per_socket') or 1} ",
        f"CPUAlloc={node.get('cpus_allocated') or 0} CPUEfctv={node.get('cpus')} CPUTot={node.get('cpus')} "
        f"CPULoad={'N/A' if load is None else f'{load:.2f}'}",
        f"AvailableFeatures={features}",
        f"ActiveFeatures={features}",
        f"Gres={or_null(node.get('gres'))}",
        *(usage if details else ()),
        f"NodeAddr={node.get('address') or node['name']} NodeHostName={node.get('hostname') or node['name']} "
        f"{_port(node)}Version={or_null(node.get('version'))}",
        *([f"OS={node['os']} "] if node.get("os") else []),
        f"RealMemory={node.get('memory_mib') or 1} AllocMem={node.get('memory_allocated_mib') or 0} "
        f"FreeMem={'N/A' if free is None else int(free)} Sockets={node.get('sockets') or 1} "
        f"Boards={node.get('boards') or 1}",
        f"State={complete_state(node)} ThreadsPerCore={node.get('threads_per_core') or 1} "
        f"TmpDisk={node.get('tmp_disk_mib') or 0} Weight={node.get('weight') or 1} Owner=N/A MCS_label=N/A",
        *([f"Partitions={_words(node['partitions'])} "] if node.get("partitions") else []),
        f"BootTime={_time(node.get('boot_time'), context)} SlurmdStartTime={_time(node.get('up_since'), context)}",
        f"LastBusyTime={_time(node.get('last_busy'), context, 'Unknown')}",
        f"CfgTRES={tres_text(node.get('tres'), context)}",
        f"AllocTRES={tres_text(node.get('tres_allocated'), context)}",
        "CapWatts=n/a",
        "CurrentWatts=0 AveWatts=0",
        "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s",
    ]
    if node.get("reason"):
        by = node.get("reason_user") or node.get("reason_uid") or "root"
        block.append(f"Reason={node['reason']} [{by}@{_time(node.get('reason_time'), context, 'Unknown')}]")
    return block


def _port(node: Record) -> str:
    """Slurm names a port only where it is not everybody's."""
    port = node.get("port") or USUAL_PORT
    return "" if port == USUAL_PORT else f"Port={port} "


def _yes(value: Any) -> str:
    return "YES" if value else "NO"


def _all_or(value: Sequence[str] | None) -> str:
    return "ALL" if value is None else ",".join(value)


def _access(partition: Record) -> str:
    groups = f"AllowGroups={_all_or(partition.get('allow_groups'))}"
    accounts = (
        f"DenyAccounts={','.join(partition['deny_accounts'])}"
        if partition.get("deny_accounts")
        else f"AllowAccounts={_all_or(partition.get('allow_accounts'))}"
    )
    qos = (
        f"DenyQos={','.join(partition['deny_qos'])}"
        if partition.get("deny_qos")
        else f"AllowQos={_all_or(partition.get('allow_qos'))}"
    )
    return f"{groups} {accounts} {qos}"


def _memory_default(partition: Record) -> str:
    cpu, node = partition.get("default_memory_per_cpu_mib"), partition.get("default_memory_per_node_mib")
    most_cpu, most_node = partition.get("max_memory_per_cpu_mib"), partition.get("max_memory_per_node_mib")
    default = f"DefMemPerCPU={cpu}" if cpu else f"DefMemPerNode={node or 'UNLIMITED'}"
    most = f"MaxMemPerCPU={most_cpu}" if most_cpu else f"MaxMemPerNode={most_node or 'UNLIMITED'}"
    return f"{default} {most}"


def job_defaults(partition: Record) -> str:
    """`DefCpuPerGPU=4,DefMemPerGPU=8192`; empty where there are none."""
    named = (
        ("DefCpuPerGPU", partition.get("default_cpus_per_gpu")),
        ("DefMemPerGPU", partition.get("default_memory_per_gpu_mib")),
    )
    return ",".join(f"{name}={value}" for name, value in named if value)


def billing_weights(partition: Record) -> str:
    """`CPU=1.0,Mem=0.25G,GRES/gpu=2.0`: as the documentation writes them, memory by the GiB; empty without any."""
    return ",".join(_weight(name, float(value)) for name, value in partition.get("tres_billing_weights") or ())


def _weight(name: str, value: float) -> str:
    kind, slash, rest = name.partition("/")
    shown = kind.upper() if kind in ("cpu", "gres", "bb", "fs") else kind.capitalize()
    number, unit = (value * _MEBIBYTES_IN_GIBIBYTE, "G") if kind in ("mem", "bb") else (value, "")
    return f"{shown}{slash}{rest}={Decimal(repr(number)):f}{unit}"


def _unlimited(value: int | None) -> str:
    return "UNLIMITED" if value is None else str(value)


def partition_block(partition: Record, context: Context) -> list[str]:
    default_time = partition.get("default_time_s")
    over = partition.get("over_time_limit_s")
    weights = billing_weights(partition)
    return [
        f"PartitionName={partition['name']}",
        _access(partition),
        f"AllocNodes={_all_or(partition.get('alloc_nodes'))} Default={_yes(partition.get('default'))} "
        f"QoS={partition.get('qos') or 'N/A'}",
        f"DefaultTime={'NONE' if default_time is None else long_duration(default_time)} "
        f"DisableRootJobs={_yes(partition.get('disable_root_jobs'))} "
        f"ExclusiveUser={_yes(partition.get('exclusive_user'))} GraceTime={partition.get('grace_time_s') or 0} "
        f"Hidden={_yes(partition.get('hidden'))}",
        f"MaxNodes={_unlimited(partition.get('max_nodes'))} MaxTime={long_duration(partition.get('max_time_s'))} "
        f"MinNodes={partition.get('min_nodes') or 0} LLN={_yes(partition.get('lln'))} "
        f"MaxCPUsPerNode={_unlimited(partition.get('max_cpus_per_node'))}"
        + (f" MaxCPUsPerUser={partition['max_cpus_per_user']}" if partition.get("max_cpus_per_user") else ""),
        f"Nodes={partition.get('node_list') or compress_sorted(partition.get('nodes') or ()) or NULL}",
        f"PriorityJobFactor={partition.get('priority_job_factor', 1)} PriorityTier={partition.get('priority_tier', 1)} "
        f"RootOnly={_yes(partition.get('root_only'))} ReqResv={_yes(partition.get('req_resv'))} "
        f"OverSubscribe={partition.get('over_subscribe') or 'NO'}",
        f"OverTimeLimit={'NONE' if over is None else over // 60} PreemptMode={partition.get('preempt_mode') or 'OFF'}",
        f"State={partition.get('state') or 'UP'} TotalCPUs={partition.get('total_cpus') or 0} "
        f"TotalNodes={partition.get('total_nodes') or 0} SelectTypeParameters=NONE",
        f"JobDefaults={or_null(job_defaults(partition))}",
        _memory_default(partition),
        f"TRES={or_null(tres_text(partition.get('tres'), context))}",
        *([f"TRESBillingWeights={weights}"] if weights else []),
    ]


def topology_lines(topology: Mapping[str, Any], wanted: str = "") -> list[str]:
    """One line for each switch (or block); with a name, that switch, or the switches above that node."""
    switches = {switch["name"]: switch for switch in topology.get("switches") or []}
    lines: list[str] = []
    for name, switch in switches.items():
        nodes = _nodes_below(switches, name)
        if wanted and wanted != name and wanted not in nodes:
            continue
        below = switch.get("switches") or []
        tail = f" Switches={compress_sorted(below)}" if below else ""
        lines.append(
            f"SwitchName={name} Level={_level(switches, name)} LinkSpeed={switch.get('link_speed') or 1} "
            f"Nodes={compress_sorted(nodes)}{tail}"
        )
    for index, block in enumerate(topology.get("blocks") or []):
        if not wanted or wanted == block["name"] or wanted in block["nodes"]:
            lines.append(
                f"BlockName={block['name']} BlockIndex={index} Nodes={compress_sorted(block['nodes'])} "
                f"BlockSize={len(block['nodes'])}"
            )
    return lines


def _nodes_below(switches: Mapping[str, Record], name: str) -> list[str]:
    switch = switches.get(name) or {}
    nodes = list(switch.get("nodes") or ())
    for below in switch.get("switches") or ():
        nodes.extend(_nodes_below(switches, below))
    return nodes


def _level(switches: Mapping[str, Record], name: str) -> int:
    below = (switches.get(name) or {}).get("switches") or ()
    return 1 + max((_level(switches, each) for each in below), default=-1)

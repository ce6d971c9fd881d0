"""What a machine as a whole does: CPUs, memory, network, disks, processes that cannot be interrupted.

Called once for every round. On a machine with several virtual nodes the figures are the machine's, under its own name.
Invariant: a file that is not there, or is not understood, leaves its figures out.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from bireme.gather.messages import Frame, Value

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES = 512
_NOT_DISKS = ("loop", "ram", "dm-", "md", "zram", "sr", "nbd")
"""Devices that are no hardware, or are made of others: their bytes would count twice."""


def machine_frame(node: str, proc: Path = Path("/proc"), blocks: Path = Path("/sys/block")) -> Frame:
    """All figures that this kernel gives, of the machine that is this node."""
    values: dict[str, Value] = {}
    for read in (_cpu, _load, _memory, _network, lambda proc: _disks(proc, blocks)):
        with suppress(OSError, ValueError, IndexError, KeyError):
            values |= read(proc)
    return Frame(about="node", node=node, ids=[node], columns={name: [value] for name, value in values.items()})


def _cpu(proc: Path) -> dict[str, Value]:
    lines = (proc / "stat").read_text().splitlines()
    ticks = [int(word) for word in lines[0].split()[1:]]
    user, nice, system, _idle, _waiting, irq, softirq = ticks[:7]
    blocked = next(int(line.split()[1]) for line in lines if line.startswith("procs_blocked"))
    busy_s = (user + nice + system + irq + softirq) / _TICKS_PER_S
    return {"node_cpu": busy_s, "node_uninterruptible": blocked}


def _load(proc: Path) -> dict[str, Value]:
    return {"node_load": float((proc / "loadavg").read_text().split()[0])}


def _memory(proc: Path) -> dict[str, Value]:
    rows = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    total, available = (int(rows[name].split()[0]) // 1024 for name in ("MemTotal", "MemAvailable"))
    return {"node_memory_total": total, "node_memory_used": total - available}


def _network(proc: Path) -> dict[str, Value]:
    received = sent = 0
    for line in _interfaces(proc).splitlines()[2:]:
        name, _, figures = line.partition(":")
        if name.strip() != "lo":
            words = figures.split()
            received += int(words[0])
            sent += int(words[8])
    return {"node_network_received": received, "node_network_sent": sent}


def _interfaces(proc: Path) -> str:
    """Of the machine's first process: a gatherer in a container has a network of its own."""
    try:
        return (proc / "1/net/dev").read_text()
    except OSError:
        return (proc / "net/dev").read_text()


def _disks(proc: Path, blocks: Path) -> dict[str, Value]:
    """Whole disks only: what a partition or a volume on them does is theirs."""
    whole = {name for name in os.listdir(blocks) if not name.startswith(_NOT_DISKS)}
    rows = [line.split() for line in (proc / "diskstats").read_text().splitlines()]
    read = sum(int(row[5]) for row in rows if row[2] in whole)
    written = sum(int(row[9]) for row in rows if row[2] in whole)
    return {"node_disk_read": read * _SECTOR_BYTES, "node_disk_written": written * _SECTOR_BYTES}

"""Which CPUs each task of a step may run on: `--cpu-bind`. Pure: numbers in, sets of numbers out.

Called by `steps` on a node that is this very machine; the CPUs of a virtual node are not this machine's.
`map_cpu` and `mask_cpu` name CPUs outright; `rank` takes one each in order; `threads`, `cores`, `sockets`, `ldoms`
and nothing share the step's CPUs out evenly. Not a NUMA policy (`--mem-bind` is accepted and not applied).

Invariant: a task gets at least one CPU, or None: not bound.
"""

from __future__ import annotations

from collections.abc import Sequence


def wants_verbose(cpu_bind: str) -> bool:
    return any(word in ("v", "verbose") for word in cpu_bind.lower().split(","))


def bound_cpus(cpu_bind: str, cpu_ids: Sequence[int], local_index: int, local_count: int) -> frozenset[int] | None:
    """The CPUs of the task that is `local_index` among the step's tasks on this node."""
    for kind in ("map_cpu:", "mask_cpu:"):
        if kind in cpu_bind:
            entries = _expand(cpu_bind.split(kind, 1)[1])
            entry = entries[local_index % len(entries)]
            return frozenset([int(entry, 0)]) if kind == "map_cpu:" else _cpus_of_mask(int(entry, 16))
    words = {word for word in cpu_bind.lower().split(",") if word not in ("v", "verbose", "q", "quiet")}
    if "none" in words or "no" in words or not cpu_ids:
        return None
    if "rank" in words:
        return frozenset([cpu_ids[local_index % len(cpu_ids)]])
    if not words - {""}:
        return frozenset(cpu_ids)
    share = max(1, len(cpu_ids) // local_count)
    first = (local_index * share) % len(cpu_ids)
    return frozenset(cpu_ids[first : first + share])


def mask_text(cpus: frozenset[int]) -> str:
    return f"0x{sum(1 << cpu for cpu in cpus):X}"


def _expand(text: str) -> list[str]:
    """`0x1*4,0x2` is four times the first."""
    entries: list[str] = []
    for item in text.split(","):
        value, _, times = item.partition("*")
        entries += [value] * (int(times) if times else 1)
    return entries


def _cpus_of_mask(mask: int) -> frozenset[int] | None:
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1) or None

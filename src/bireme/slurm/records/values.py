"""Parts that several records share: GRES and usage as JSON, exit statuses as Slurm shows them, node lists.

Not texts for people: those are `slurm/formats`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from functools import lru_cache
from typing import Any

from bireme.core.accounting.billing import billing
from bireme.core.model.resources import NO_USAGE, ExitStatus, GresShare, Usage
from bireme.slurm.hostlist import compress

OUT_OF_MEMORY_SIGNAL = 125
"""What Slurm shows after the colon for a job or step that ran out of memory: `0:125`."""
USAGE_FIELDS = tuple(field.name for field in fields(Usage))


@lru_cache(maxsize=4096)
def node_list(names: tuple[str, ...]) -> str:
    """Compressed. Jobs on the same nodes are common: squeue asks for thousands at once."""
    return names[0] if len(names) == 1 else compress(names)


def shown_status(status: ExitStatus) -> tuple[int, int]:
    """(code, signal) as Slurm's `N:S`."""
    return (0, OUT_OF_MEMORY_SIGNAL) if status.out_of_memory else (status.code, status.signal)


def usage_record(usage: Usage) -> dict[str, Any]:
    return _NOTHING_USED.copy() if usage is NO_USAGE else _written(usage)


def _written(usage: Usage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in USAGE_FIELDS}


_NOTHING_USED = _written(NO_USAGE)


def gres_records(shares: Iterable[GresShare]) -> list[dict[str, Any]]:
    return [
        {"name": gres.name, "type": gres.type, "count": gres.count, "indices": list(gres.indices)} for gres in shares
    ]


def with_billing(
    tres: dict[str, int], weights: tuple[tuple[str, float], ...] = (), take_largest: bool = False
) -> dict[str, int]:
    """With what it costs: whole billing units, the number of CPUs without TRESBillingWeights."""
    tres["billing"] = int(billing(tres, weights, take_largest))
    return tres


def elapsed_s(started: float | None, until: float, suspended_s: float) -> int:
    """Whole seconds, from the whole seconds people see as start and end."""
    return 0 if started is None else max(0, int(until) - int(started) - int(suspended_s))

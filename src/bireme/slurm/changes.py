"""What `scontrol update` may change of a job, and within which ranges: one table for the command and for the API.

Pure facts and their check, in the names of JobSpec and ResourceRequest. The command reads Slurm's words into these
fields (`commands/scontrol/update.py`), the API takes them as they are (`api/routes/orders.py`); both ask here. What a
change means for a job, and who may make it, is decided by `core/jobs/requests.py`.
Invariant: a field that is not named here is never changed after the submission (a job's script, kind or array).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.core.model.queue_numbers import LARGEST_NICE, LARGEST_PRIORITY
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.options.words import MAIL_GROUPS, MAIL_TYPES

_COUNT = 2**31 - 2

RANGES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("array_throttle", "core_spec", "min_cpus_per_node", "switches"), (0, _COUNT)),
    **dict.fromkeys(("cpus_min", "cpus_per_task", "nodes_min", "nodes_max", "ntasks"), (1, _COUNT)),
    **dict.fromkeys(("cores_per_socket", "sockets_per_node", "threads_per_core"), (1, _COUNT)),
    **dict.fromkeys(("memory_per_cpu_mib", "memory_per_node_mib", "tmp_disk_mib"), (0, _COUNT)),
    **dict.fromkeys(("switches_wait_s", "time_limit_s", "time_min_s"), (0, 2**31 * 60)),
    **dict.fromkeys(("nice", "site_factor"), (-LARGEST_NICE, LARGEST_NICE)),
    "priority": (0, LARGEST_PRIORITY),
}
"""Of each number the least and the most; None is no number, and lets go of what was asked."""

_OTHERS = """
account admin_comment begin_at comment constraint contiguous deadline_at dependencies exclude gres_per_node licenses
mail_type mail_user name nodelist nodes_given oversubscribe partitions prefer qos requeue reservation std_err std_in
std_out wckey work_dir
"""
CHANGEABLE = frozenset(RANGES) | frozenset(_OTHERS.split())


def check_changes(changes: Mapping[str, Any]) -> None:
    """Raises SlurmSyntaxError for the first value, typed already, that no job can have."""
    for name, value in changes.items():
        if name in RANGES and value is not None:
            least, most = RANGES[name]
            if not least <= value <= most:
                raise SlurmSyntaxError(f"{name} is {_short(value)}: it must be from {least} to {most}")
    if "mail_type" in changes:
        check_mail_types(changes["mail_type"])
    few, many = changes.get("nodes_min"), changes.get("nodes_max")
    if few is not None and many is not None and many < few:
        raise SlurmSyntaxError(f"nodes_max is {many}, below nodes_min, which is {few}")


def check_mail_types(words: tuple[str, ...] | list[str]) -> None:

    for word in words:
        if word not in MAIL_TYPES and word not in MAIL_GROUPS and word != "NONE":
            raise SlurmSyntaxError(f"mail_type: {word[:40]!r} is none of {', '.join(MAIL_TYPES)}")


def _short(value: Any) -> str:
    return "very large" if abs(value) > 10**40 else str(value)

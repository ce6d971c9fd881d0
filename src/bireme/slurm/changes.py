"""What `scontrol update` may change of a job, and within which ranges: the same for the command and for the API.

The fields of `slurm/job_fields` that have a key, in the names of JobSpec and ResourceRequest, and their check. The
command reads Slurm's words into these fields (`commands/scontrol/job_keys.py`), the API takes them as they are
(`api/routes/orders.py`); both ask here. What a change means, and who may make it, decides `core/jobs/requests.py`.
Invariant: a field without a key is never changed after the submission (a job's script, kind or array).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.job_fields.table import FIELDS
from bireme.slurm.options.catalogue.words import MAIL_GROUPS, MAIL_TYPES

RANGES: Mapping[str, tuple[int, int]] = {
    field.change: (field.least, field.most) for field in FIELDS if field.least is not None and field.most is not None
}
"""Of each number the least and the most; None is no number, and lets go of what was asked."""
CHANGEABLE = frozenset(field.change for field in FIELDS if field.update)


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

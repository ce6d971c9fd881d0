"""Compressed count lists, as in `SLURM_TASKS_PER_NODE=2(x3),1`: one number per node, repeats written once.

Called by the job variables and by whoever reads them. Invariant: `expand_counts(compress_counts(xs)) == xs`.
"""

import itertools
import re
from collections.abc import Iterable

from bireme.slurm.errors import SlurmSyntaxError

MAX_ENTRIES = 65536
"""As many nodes as one hostlist may name."""

_ENTRY = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?")


def compress_counts(counts: Iterable[int]) -> str:
    """`[2, 2, 2, 1]` to `2(x3),1`."""
    parts: list[str] = []
    for count, run in itertools.groupby(counts):
        length = sum(1 for _ in run)
        parts.append(str(count) if length == 1 else f"{count}(x{length})")
    return ",".join(parts)


def expand_counts(text: str) -> list[int]:
    """`2(x3),1` to `[2, 2, 2, 1]`."""
    counts: list[int] = []
    for part in text.split(",") if text else []:
        match = _ENTRY.fullmatch(part)
        if match is None:
            raise SlurmSyntaxError(f"Invalid count list: '{part}' is not N or N(xREPEATS), as in 2(x3),1")
        repeats = int(match[2]) if match[2] else 1
        if len(counts) + repeats > MAX_ENTRIES:
            raise SlurmSyntaxError(f"Invalid count list: more than {MAX_ENTRIES} entries")
        counts.extend([int(match[1])] * repeats)
    return counts

"""Memory and disk sizes: `4000`, `4G`, `1500K` to whole MiB, and numbers with units as Slurm prints them.

Slurm takes whole numbers only (`1.5G` is refused) with K, M, G or T, in either case, and an optional B. Called by
the options, the configuration reader and the reports. Invariant: a size is never rounded down when read.
"""

import re

from bireme.slurm.errors import SlurmSyntaxError

UNITS = ("", "K", "M", "G", "T", "P")
_KIB_IN = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}
_SIZE = re.compile(r"([0-9]{1,15})(?:([KMGT])B?)?", re.IGNORECASE | re.ASCII)


def parse_memory(text: str, default_unit: str = "M") -> int:
    """MiB, rounded up. `default_unit` (K, M, G or T) is meant where the text names none."""
    match = _SIZE.fullmatch(text.lstrip())
    if match is None:
        raise SlurmSyntaxError(
            f"Invalid memory specification: '{text}' (a whole number, then K, M, G or T; "
            f"{default_unit} where none is given)"
        )
    kib = int(match[1]) * _KIB_IN[(match[2] or default_unit).upper()]
    return -(-kib // 1024)


def format_memory(mib: int) -> str:
    """As squeue's %m, scontrol and sacct's ReqMem print it: `4000M`, `4G`, `1.50G`, `0`."""
    return format_size(mib, "M")


def format_size(value: float, unit: str = "", *, exact: bool = True, to: str | None = None) -> str:
    """A number in `unit` (one of UNITS), in the unit Slurm would choose, or in the unit `to`.

    Exact (Slurm's default): the unit grows only while at most one binary digit is lost to the fraction, so 4000M
    stays and 1536M is 1.50G. Not exact: it grows as far as it can (3.91G).
    """
    if value == 0:
        return "0"
    position = UNITS.index(unit)
    if to is not None:
        target = UNITS.index(to)
        return _number(value * 1024.0 ** (position - target)) + UNITS[target]
    while value >= 1024 and position + 1 < len(UNITS) and not (exact and int(value) % 512):
        value /= 1024
        position += 1
    return _number(value) + UNITS[position]


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.2f}"

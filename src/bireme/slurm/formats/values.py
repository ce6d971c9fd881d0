"""How Slurm writes single values: durations, timestamps, memory, TRES, exit codes. Numbers in, text out.

Every command shares these, so a wrong zero is wrong everywhere at once and one test finds it.
Not parsing: `slurm/times.py` and `slurm/sizes.py` read what people write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from bireme.slurm.sizes import format_size
from bireme.slurm.times import HOUR_S, INFINITE, format_elapsed, format_time_limit

Record = Mapping[str, Any]
NULL = "(null)"


class Context(NamedTuple):
    """What a value's text depends on besides the record. `stamp` turns epoch seconds into local time text."""

    now: float
    stamp: Callable[[float], str]
    convert: bool = True
    """False: --noconvert, sizes stay in their own unit."""
    unit: str = ""
    """--units: one of K M G T P."""
    bitstr_len: int = 64
    """SLURM_BITSTR_LEN: how much of an array's task list is shown; 0 is all of it."""
    cluster: str = ""


@lru_cache(maxsize=4096)  # a queue's worth of jobs wait for no time at all
def short_duration(seconds: float | None) -> str:
    """`0:03`, `1:00:00`, `1-02:04:00`, UNLIMITED for None: squeue's and sinfo's form."""
    return format_time_limit(INFINITE if seconds is None else int(seconds))


def long_duration(seconds: float | None) -> str:
    """`00:00:03`, `1-02:04:00`, UNLIMITED for None: scontrol's and sacct's form."""
    return format_elapsed(INFINITE if seconds is None else int(seconds))


def cpu_duration(seconds: float) -> str:
    """sacct's CPU times: milliseconds while it is less than an hour."""
    if seconds >= HOUR_S:
        return format_elapsed(int(seconds))
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02}:{rest:02}.{int(seconds * 1000) % 1000:03}"


def size(amount: float | None, unit: str, context: Context) -> str:
    """`amount` of `unit` ("" for bytes, K, M) in the unit Slurm would choose, or the one --units asks for."""
    if not amount:
        return "0"
    if context.unit or not context.convert:
        return format_size(amount, unit, to=context.unit or unit)
    return format_size(amount, unit)


_TRES_ORDER = ("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages")


def tres_text(tres: Mapping[str, int | float] | None, context: Context, *, alphabetical: bool = False) -> str:
    """`cpu=4,mem=8G,node=2,billing=4,gres/gpu=2`; sacct has the same in alphabetical order."""
    if not tres:
        return ""
    if alphabetical:
        names = sorted(tres, key=lambda name: f"{name}=")  # as sorted text: gres/gpu:h100=2 before gres/gpu=2
    else:
        names = [name for name in _TRES_ORDER if name in tres]
        names += sorted(name for name in tres if name not in _TRES_ORDER)
    return ",".join(f"{name}={_tres_amount(name, tres[name], context)}" for name in names)


def _tres_amount(name: str, amount: int | float, context: Context) -> str:
    if name == "mem":
        return size(amount, "M", context)
    return f"{amount:g}" if isinstance(amount, float) else str(amount)


def tres_per(text: str | None) -> str:
    """A `--gpus...` request as Slurm 22.05 shows it, each part with `gres:` in front; empty stays empty."""
    parts = [part for part in (text or "").split(",") if part]
    return ",".join(f"gres:{part.removeprefix('gres:').removeprefix('gres/')}" for part in parts)


def exit_text(code: int | None, signal: int | None) -> str:
    return f"{code or 0}:{signal or 0}"


def or_null(text: Any) -> str:
    return str(text) if text not in (None, "") else NULL


def gres_text(gres: Record) -> str:
    """A share of a GRES: `gpu:a100:2`."""
    return ":".join(str(part) for part in (gres["name"], gres.get("type"), gres["count"]) if part is not None)

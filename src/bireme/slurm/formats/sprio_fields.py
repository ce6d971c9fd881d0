"""sprio's fields: every letter of its -o, over the records of /v1/priorities, and its default formats.

Invariant: a factor's normalised value is its weighed one over its weight, as Slurm computes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bireme.slurm.formats.fields import Field, FieldTable
from bireme.slurm.formats.values import Context, Record

WEIGHED = {
    "A": ("age", "AGE"),
    "B": ("assoc", "ASSOC"),
    "F": ("fair_share", "FAIRSHARE"),
    "J": ("job_size", "JOBSIZE"),
    "P": ("partition_factor", "PARTITION"),
    "Q": ("qos", "QOS"),
}
"""Letter of the weighed factor, its key and its header; the small letter is the normalised one."""
_LARGEST = 4_294_967_295
LONG_FORMAT = "%.15i %9r %.8u %.10Y %.10S %.10A %.10B %.10F %.10J %.10P %.10Q %.11N %.20T"
Weights = Mapping[str, Any]


def default_format(
    weights: Weights, *, normal: bool = False, long: bool = False, user: bool = False, cluster: bool = False
) -> str:
    """Columns of the factors that have a weight; -l has them all."""
    if long and not normal:
        return LONG_FORMAT.replace("%9r", "%9r %.8c") if cluster else LONG_FORMAT
    form = "%.15i %9r" + (" %.8c" if cluster else "") + (" %.8u" if user or long else "")
    form += " %10y" if normal else " %.10Y %.10S"
    for letter, (key, _) in WEIGHED.items():
        if weights.get(key):
            form += f" %10{letter.lower()}" if normal else f" %.10{letter}"
    if weights.get("tres"):
        form += " %20t" if normal else " %.20T"
    return form


def job_fields(weights: Weights) -> FieldTable:
    """Fields over the records of jobs."""
    fields = [
        Field("c", (), "CLUSTER", (), lambda _, __: "(null)"),
        Field("i", (), "JOBID", (), lambda row, _: str(row["job_id"]), lambda row, _: row["job_id"]),
        Field("N", (), "NICE", (), lambda row, _: str(row["nice"]), lambda row, _: row["nice"]),
        Field("r", (), "PARTITION", (), lambda row, _: str(row["partition"])),
        Field("S", (), "SITE", (), lambda row, _: str(row["site"]), lambda row, _: row["site"]),
        Field("t", (), "TRES", (), lambda row, _: _normal_tres(row, weights)),
        Field("T", (), "TRES", (), lambda row, _: ",".join(f"{name}={_round(v)}" for name, v in row["tres"].items())),
        Field("u", (), "USER", (), lambda row, _: str(row["user_name"])),
        Field("y", (), "PRIORITY", (), _normal_priority, lambda row, _: row["priority"]),
        Field("Y", (), "PRIORITY", (), lambda row, _: str(row["priority"]), lambda row, _: row["priority"]),
    ]
    for letter, (key, header) in WEIGHED.items():
        weight = weights.get(key) or 0
        fields.append(Field(letter, (), header, (), _weighed(key), _number(key)))
        fields.append(Field(letter.lower(), (), header, (), _normal(key, weight), _number(key)))
    return FieldTable("job", fields)


def weight_fields() -> FieldTable:
    """Columns of `sprio -w`: the letters of jobs over the one record of weights."""
    fields = [
        Field("c", (), "CLUSTER", (), _nothing),
        Field("i", (), "JOBID", (), lambda _, __: "Weights"),
        Field("N", (), "NICE", (), _nothing),
        Field("r", (), "PARTITION", (), _nothing),
        Field("S", (), "SITE", (), lambda row, _: str(row["site"])),
        Field("t", (), "TRES", (), _nothing),
        Field("T", (), "TRES", (), lambda row, _: str(row["tres_text"])),
        Field("u", (), "USER", (), _nothing),
        Field("y", (), "PRIORITY", (), _nothing),
        Field("Y", (), "PRIORITY", (), _nothing),
    ]
    for letter, (key, header) in WEIGHED.items():
        fields += [Field(each, (), header, (), _whole(key)) for each in (letter, letter.lower())]
    return FieldTable("weights", fields)


def _nothing(_: Record, __: Context) -> str:
    return ""


def _round(value: float) -> str:
    return f"{value:.0f}"


def _whole(key: str) -> Callable[[Record, Context], str]:
    return lambda row, _: str(row[key])


def _weighed(key: str) -> Callable[[Record, Context], str]:
    return lambda row, _: _round(row[key])


def _number(key: str) -> Callable[[Record, Context], float]:
    return lambda row, _: float(row[key])


def _normal(key: str, weight: float) -> Callable[[Record, Context], str]:
    return lambda row, _: f"{row[key] / weight if weight else 0.0:.7f}"


def _normal_priority(row: Record, _: Context) -> str:
    """The sum before it is cut, of all there can be; what an operator has set is shown as it is."""
    if row["set_by_operator"]:
        return f"{row['priority']:.14f}"
    total = row["site"] + sum(row[key] for key, _ in WEIGHED.values()) + sum(row["tres"].values()) - row["nice"]
    return f"{total / _LARGEST:.14f}"


def _normal_tres(row: Record, weights: Weights) -> str:
    by_name = weights.get("tres") or {}
    return ",".join(f"{name}={value / by_name[name]:.2f}" for name, value in row["tres"].items() if by_name.get(name))

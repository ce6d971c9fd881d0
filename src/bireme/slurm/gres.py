"""Generic and trackable resources: `gpu:h100:8`, `--gpus=h100:4`, `cpu=4,mem=8G,gres/gpu=2`.

Text to the core's `GresRequest` and back. Whether a cluster has such a resource is not asked here. Called by the
options, the configuration reader and the reports. Invariant: `parse_gres(format_gres(xs)) == xs`.
"""

import re
from collections.abc import Iterable, Mapping

from bireme.core.model.resources import GresRequest
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.sizes import format_memory, parse_memory

_NAME = r"[A-Za-z_][A-Za-z0-9_.+-]*"
_COUNT = re.compile(r"([0-9]{1,15})([KMGTP]?)", re.IGNORECASE | re.ASCII)
_GRES = re.compile(rf"({_NAME})(?::([^:,=\s]+))?(?::([^:,=\s]+))?")
_TYPE = re.compile(r"[A-Za-z0-9_.+-]*[A-Za-z_][A-Za-z0-9_.+-]*")
_MULTIPLIERS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}

_TRES_NAME = re.compile(
    rf"(?:cpu|mem|node|billing|energy|vmem|pages|(?:fs|bb|license|ic)/[^=,\s]+|gres/{_NAME}(?::[^=,:\s]+)?)"
)
_TRES_ORDER = {
    name: place for place, name in enumerate(("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages"))
}
_IN_MIB = frozenset({"mem", "vmem"})


def parse_gres(text: str) -> tuple[GresRequest, ...]:
    """The value of `--gres`: `gpu`, `gpu:8`, `gpu:a100`, `gpu:a100:8`, each with an optional `gres:`; or `none`."""
    if text.lower() in ("", "none"):
        return ()
    requests = tuple(_parse_one_gres(part, text) for part in text.split(","))
    _refuse_mixed_types(requests)
    return requests


def parse_gpus(text: str) -> tuple[GresRequest, ...]:
    """The value of `--gpus` and `--gpus-per-*`: `4`, `h100:4`, `v100:2,h100:1`."""
    requests = tuple(_parse_one_gpu(part, text) for part in text.split(","))
    _refuse_mixed_types(requests)
    return requests


def format_gres(requests: Iterable[GresRequest], prefix: str = "") -> str:
    """`gpu:a100:8,nic:1`. squeue's %b and scontrol's TresPerNode put the prefix `gres:` before each."""
    return ",".join(
        f"{prefix}{request.name}{f':{request.type}' if request.type else ''}:{request.count}" for request in requests
    )


def parse_tres(text: str) -> dict[str, int]:
    """`cpu=4,mem=8G,node=2,billing=4,gres/gpu:h100=2` to counts by name; memory in MiB."""
    counts: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        name = name.strip()
        if not _TRES_NAME.fullmatch(name):
            raise _invalid_tres(text, f"'{part}' is not NAME=COUNT with a name such as cpu, mem, node or gres/gpu")
        try:
            counts[name] = parse_memory(value) if name in _IN_MIB else _parse_count(value)
        except ValueError as error:
            raise _invalid_tres(text, f"'{value}' is not a count for {name}") from error
    return counts


def format_tres(counts: Mapping[str, int]) -> str:
    """As scontrol prints TRES: Slurm's own resources in its order, then the others as given; zeros left out."""
    names = sorted(counts, key=lambda name: _TRES_ORDER.get(name, len(_TRES_ORDER)))
    return ",".join(
        f"{name}={format_memory(counts[name]) if name in _IN_MIB else counts[name]}" for name in names if counts[name]
    )


def _parse_one_gres(part: str, whole: str) -> GresRequest:
    match = _GRES.fullmatch(part.strip().removeprefix("gres:"))
    if match is None:
        raise _invalid_gres(whole, f"'{part}' is not NAME[:TYPE][:COUNT]")
    name, second, third = match.groups()
    if second is None:
        return GresRequest(name, None, 1)
    if third is None:
        return _typed_or_counted(name, second, whole)
    return GresRequest(name, _parse_type(second, whole), _count_or_refuse(third, whole))


def _parse_one_gpu(part: str, whole: str) -> GresRequest:
    type_text, colon, count_text = part.strip().partition(":")
    if not colon:
        return _typed_or_counted("gpu", type_text, whole)
    return GresRequest("gpu", _parse_type(type_text, whole), _count_or_refuse(count_text, whole))


def _typed_or_counted(name: str, text: str, whole: str) -> GresRequest:
    """`gpu:8` is a count, `gpu:a100` one of a type."""
    if _COUNT.fullmatch(text):
        return GresRequest(name, None, _parse_count(text))
    return GresRequest(name, _parse_type(text, whole), 1)


def _parse_type(text: str, whole: str) -> str:
    if not _TYPE.fullmatch(text):
        raise _invalid_gres(whole, f"'{text}' is neither a count nor a type")
    return text


def _count_or_refuse(text: str, whole: str) -> int:
    try:
        return _parse_count(text)
    except ValueError as error:
        raise _invalid_gres(whole, f"'{text}' is not a count") from error


def _parse_count(text: str) -> int:
    match = _COUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a count")
    return int(match[1]) * _MULTIPLIERS[match[2].upper()]


def _refuse_mixed_types(requests: Iterable[GresRequest]) -> None:
    typed: dict[str, bool] = {}
    for request in requests:
        if typed.setdefault(request.name, request.type is not None) != (request.type is not None):
            raise SlurmSyntaxError("Invalid GRES specification (with and without type identification)")


def _invalid_gres(text: str, why: str) -> SlurmSyntaxError:
    return SlurmSyntaxError(f"Invalid generic resource (gres) specification: {text} ({why})")


def _invalid_tres(text: str, why: str) -> SlurmSyntaxError:
    return SlurmSyntaxError(f"Invalid Trackable RESource (TRES) specification: {text} ({why})")

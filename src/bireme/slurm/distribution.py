"""`--distribution` as text. What it means for tasks and nodes is `core/placement/task_layout.py`."""

import re

from bireme.core.model.distribution import BindMethod, Distribution, NodeMethod
from bireme.slurm.errors import SlurmSyntaxError

_PLANE = re.compile(r"plane=([0-9]{1,6})", re.IGNORECASE | re.ASCII)
_PACK_WORDS = {"pack": True, "nopack": False}


def parse_distribution(text: str, plane_size: int | None = None) -> Distribution:
    """The value of `--distribution`. `plane_size` is SLURM_DIST_PLANESIZE, meant where `plane` names no size."""
    if text.lower().startswith("plane"):
        return _parse_plane(text, plane_size)
    if text.lower() in _PACK_WORDS:
        return Distribution(pack=_PACK_WORDS[text.lower()])
    levels_text, comma, pack_text = text.partition(",")
    levels = levels_text.lower().split(":")
    if not levels[0] or len(levels) > 3:
        raise _invalid(text)
    if comma and pack_text and pack_text.lower() not in _PACK_WORDS:
        raise _invalid(text)
    try:
        nodes = None if levels[0] == "*" else NodeMethod(levels[0])
        sockets, cores = (*(_bind_method(level) for level in levels[1:]), None, None)[:2]
    except ValueError as error:
        raise _invalid(text) from error
    return Distribution(nodes, sockets, cores, pack=_PACK_WORDS.get(pack_text.lower()))


def format_distribution(distribution: Distribution) -> str:
    """Back to the option's value: `block:cyclic,Pack`."""
    if distribution.nodes is NodeMethod.PLANE:
        return f"plane={distribution.plane_size}"
    levels = [distribution.nodes, distribution.sockets, distribution.cores]
    while len(levels) > 1 and levels[-1] is None:
        levels.pop()
    pack = "" if distribution.pack is None else ",Pack" if distribution.pack else ",NoPack"
    return ":".join("*" if level is None else level.value for level in levels) + pack


def _parse_plane(text: str, plane_size: int | None) -> Distribution:
    match = _PLANE.fullmatch(text)
    size = int(match[1]) if match else plane_size if text.lower() == "plane" else None
    if not size:
        raise _invalid(text, "Invalid plane size or size not specified; ")
    return Distribution(NodeMethod.PLANE, plane_size=size)


def _bind_method(level: str) -> BindMethod | None:
    return None if level in ("", "*") else BindMethod(level)


def _invalid(text: str, why: str = "") -> SlurmSyntaxError:
    return SlurmSyntaxError(
        f"Invalid --distribution specification: {text} ({why}expected block, cyclic, arbitrary, plane=SIZE or *, "
        "then :block, :cyclic, :fcyclic or :* for sockets and again for cores, then ,Pack or ,NoPack)"
    )
